"""Tokenization: text and chat messages to token ids and back. The room's door; MindSpore is not imported.

What enters: the `tokenizer` section of the configuration. What leaves: a `Tokenizer`. Called by data
(prompts), rollout and rewards (decoding), checkpoint (export).
"""

from mindgspo.tokenization.load import load_backend, load_tokenizer
from mindgspo.tokenization.tokenizer import Backend, ChatMessage, Tokenizer

__all__ = ["Backend", "ChatMessage", "Tokenizer", "load_backend", "load_tokenizer"]
