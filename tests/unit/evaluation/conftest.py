"""A tiny model with random weights, in a folder as Hugging Face has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from running import write_experiment, write_model

from mindgspo.config import TokenizerSection
from mindgspo.tokenization import load_tokenizer


@pytest.fixture(scope="session")
def tiny_model(once: Callable[..., Path]) -> Path:
    """64 positions, the arithmetic task's tokenizer. Tests must not change anything in it."""

    def make(folder: Path) -> None:
        model = write_model(folder / "model", write_experiment(folder), lambda weights: None)
        load_tokenizer(TokenizerSection()).save(model)

    return once("tiny_model", make) / "model"
