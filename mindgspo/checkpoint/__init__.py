"""Crash-safe checkpoints, the Hugging Face export, conversions of weights, and the run folder that holds them."""
