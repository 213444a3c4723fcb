"""Tokenization: text and chat messages to token ids and back. The room's door; MindSpore is not imported.

What enters: the `tokenizer` section of the configuration. What leaves: a `Tokenizer`. Called by data
(prompts), rollout and rewards (decoding), checkpoint (export).
"""

from mindgspo.tokenization.load import load_tokenizer
from mindgspo.tokenization.tokenizer import ChatMessage, Tokenizer

__all__ = ["ChatMessage", "Tokenizer", "load_tokenizer"]
