"""Weights handed over through a folder: their types, and the proof that they arrived."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_plans import small_model

from mindgspo.config.lora import LoraSection
from mindgspo.errors import WeightsError
from mindgspo.models.names import trained_weight_shapes, weight_shapes
from mindgspo.rollout.weights_folder import claim_weights_folder, open_weights, weights_folders, write_weights


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


# ---- where


MODEL = small_model(dtype="bfloat16")


def test_shared_memory_is_taken_where_the_weights_fill_at_most_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted = MODEL.model_copy(update={"lora": LoraSection(rank=2, targets=("mlp",))})
    zeros = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(MODEL).items()}
    whole = write_weights(tmp_path / "whole", zeros, MODEL, 1)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in trained_weight_shapes(adapted).items()}
    adapters = write_weights(tmp_path / "adapters", zeros, adapted, 1, base="digest")
    assert 0 < adapters < whole
    memory, disk = tmp_path / "memory", tmp_path / "run" / "rollout_weights"
    for model, only_trained, needed in ((MODEL, False, whole), (adapted, False, whole), (adapted, True, adapters)):
        for free, expected in ((2 * needed - 1, disk), (2 * needed, memory)):
            monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
            assert claim_weights_folder((memory, disk), model, only_trained=only_trained) == expected
    assert memory.stat().st_mode & 0o777 == 0o700
    assert claim_weights_folder((memory, disk), adapted, only_trained=True) == memory, "which a killed run has left"


def test_a_folder_that_others_may_write_is_not_taken(tmp_path: Path) -> None:
    disk = tmp_path / "run" / "rollout_weights"
    opened, linked, file = tmp_path / "opened", tmp_path / "linked", tmp_path / "file"
    opened.mkdir()
    opened.chmod(0o777)
    linked.symlink_to(opened)
    file.touch()
    for found in (opened, linked, file, tmp_path / "absent" / "folder"):
        assert claim_weights_folder((found, disk), MODEL, only_trained=False) == disk


@pytest.mark.parametrize(("urls", "in_memory"), [
    ((), True), (("http://127.0.0.1:8000", "http://localhost:8001"), True), (("http://[::1]:8000",), True),
    (("http://127.0.0.1:8000", "http://10.0.0.2:8000"), False),
])  # fmt: skip
def test_servers_of_other_machines_do_not_see_this_ones_memory(
    urls: tuple[str, ...], in_memory: bool, tmp_path: Path
) -> None:
    servers = SimpleNamespace(urls=urls, weights_dir=None)
    config = SimpleNamespace(run_dir=tmp_path / "run", rollout=SimpleNamespace(servers=servers))
    *before, last = weights_folders(config, shared_memory=tmp_path)  # type: ignore[arg-type]
    assert last == tmp_path / "run" / "rollout_weights"
    assert [folder.parent for folder in before] == [tmp_path] * in_memory
    servers.weights_dir = tmp_path / "shared"
    (only,) = weights_folders(config)  # type: ignore[arg-type]
    assert only.parent == tmp_path / "shared" and only.name.startswith("mindgspo-run-")
