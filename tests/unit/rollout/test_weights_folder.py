"""Weights handed over through a folder: their types, and the proof that they arrived."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config import ModelSection
from mindgspo.errors import WeightsError
from mindgspo.rollout.weights_folder import open_weights, write_weights

MODEL = ModelSection(
    vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=96, dtype="bfloat16",
)  # fmt: skip


@pytest.fixture
def handed_over(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    tensors = {name: rng.normal(size=(6, 5)).astype(np.float32) for name in ("a.weight", "x.mlp.gate.weight")}
    write_weights(tmp_path / "version_7", tensors, MODEL, 7)
    return tmp_path / "version_7"


def test_a_folder_has_the_types_of_a_model_that_generates(handed_over: Path) -> None:
    with open_weights(handed_over) as weights:
        assert weights.version == 7
        types = {name: info.dtype for name, info in weights.tensors.tensors.items()}
        assert types == {"a.weight": "BF16", "x.mlp.gate.weight": "F32"}
        for name in types:
            weights.verify(name)
    assert json.loads((handed_over / "config.json").read_text())["hidden_size"] == 32
    assert sorted(path.name for path in handed_over.parent.iterdir()) == ["version_7"], "nothing else is left"


def test_a_changed_byte_is_found(handed_over: Path) -> None:
    path = handed_over / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with open_weights(handed_over) as weights:
        weights.verify("x.mlp.gate.weight")
        with pytest.raises(WeightsError, match=r"a\.weight has SHA-256 [0-9a-f]{12}\.\.\., [0-9a-f]{12}"):
            weights.verify("a.weight")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": "x", "sha256": {}}', '{"version": 1, "sha256": []}'])
def test_a_broken_manifest_is_one_line(handed_over: Path, content: str) -> None:
    (handed_over / "weights.json").write_text(content)
    with pytest.raises(WeightsError, match=r"weights\.json: cannot be read"), open_weights(handed_over):
        pass


def test_other_tensors_than_listed_are_refused(handed_over: Path) -> None:
    (handed_over / "weights.json").write_text('{"version": 1, "sha256": {"a.weight": "00"}}')
    with pytest.raises(WeightsError, match=r"x\.mlp\.gate\.weight is in weights\.json or"), open_weights(handed_over):
        pass
