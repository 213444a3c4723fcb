"""GGUF files as Hugging Face folders: file (header and tensors) -> tokenizer, model (names, config) -> command."""
