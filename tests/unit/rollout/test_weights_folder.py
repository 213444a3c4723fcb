"""Weights handed over through a folder: their types, and the proof that they arrived."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_plans import small_model

from mindgspo.errors import WeightsError
from mindgspo.rollout.weights_folder import open_weights, write_weights


@pytest.fixture
def handed_over(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    tensors = {name: rng.normal(size=(6, 5)).astype(np.float32) for name in ("a.weight", "x.mlp.gate.weight")}
    write_weights(tmp_path / "version_7", tensors, small_model(dtype="bfloat16"), 7)
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


UNREADABLE = ("{", "[]", "{}", '{"version": "x", "sha256": {}}', '{"version": 1, "sha256": []}')


@pytest.mark.parametrize(("content", "said"), [
    *((text, r"weights\.json: cannot be read") for text in UNREADABLE),
    ('{"version": 1, "sha256": {"a.weight": "00"}}', r"x\.mlp\.gate\.weight is in weights\.json or"),
])  # fmt: skip
def test_a_broken_manifest_and_other_tensors_than_listed(handed_over: Path, content: str, said: str) -> None:
    (handed_over / "weights.json").write_text(content)
    with pytest.raises(WeightsError, match=said), open_weights(handed_over):
        pass
