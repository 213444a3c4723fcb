"""Text and chat messages to token ids and back. MindSpore is not imported."""

from mindgspo.tokenization.tokenizer import RENDERING, Backend, ChatMessage, Tokenizer, load_backend, load_tokenizer
from mindgspo.tokenization.vocabulary import check_same_vocabulary

__all__ = [
    "RENDERING",
    "Backend",
    "ChatMessage",
    "Tokenizer",
    "check_same_vocabulary",
    "load_backend",
    "load_tokenizer",
]
