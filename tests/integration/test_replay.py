"""A dumped step of a whole run, run again on CPU: bit-equal; what was changed in the dump is found by its name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import mindgspo, succeeded, write_experiment

from mindgspo.errors import ConfigError
from mindgspo.replay.operators import operators_written
from mindgspo.tensor_files.writer import read_safetensors, write_tensor_file

SETTINGS = ("--set", "trainer.max_steps=2", "--set", "trainer.dump_step=2")


@pytest.fixture(scope="module")
def dumped(once: Callable[..., Path]) -> Path:
    def run(folder: Path) -> None:
        succeeded("run", write_experiment(folder), *SETTINGS, cwd=folder)

    return once("dumped", run) / "runs/tiny/dumps/step_00000002"


def replayed(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    done = mindgspo("replay", folder, *arguments, cwd=folder.parent)
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
def test_a_step_is_bit_equal_on_the_same_machine(dumped: Path) -> None:
    facts = json.loads((dumped / "step.json").read_text())
    assert facts["updates"][0]["grad_norm"] > 0, "nothing was learnt in this step"
    gradients = read_safetensors(dumped / "gradients.safetensors")
    norm = np.sqrt(sum(float((one.astype(np.float64) ** 2).sum()) for one in gradients.values()))
    assert norm == pytest.approx(min(facts["updates"][0]["grad_norm"], 1.0), rel=1e-3)
    code, lines = replayed(dumped)
    assert code == 0 and lines[-1].startswith("bit-equal: "), lines
    assert lines[0].startswith("step 2 of tiny, CPU, 1 rank; ") and lines[1] == "run again on CPU"
    assert [line.split("  ")[0] for line in lines if line.startswith(("forward", "update", "weights"))][:3] == [
        "forward", "update 1, forward", "update 1, backward",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "module"), [
    ("model.layers.1.self_attn.k_proj.weight", "layers.1.self_attn.k_proj (MatMul)"),
    ("model.norm.weight", "norm (RmsNorm)"),
])  # fmt: skip
def test_a_module_that_computes_something_else_is_named(dumped: Path, tmp_path: Path, name: str, module: str) -> None:
    folder = tmp_path / "step"
    shutil.copytree(dumped, folder)
    weights = read_safetensors(folder / "weights.safetensors")
    write_tensor_file(folder / "weights.safetensors", weights | {name: weights[name] * np.float32(1.01)})
    code, lines = replayed(folder)
    first = next(line for line in lines if line.startswith("first difference: "))
    assert code == 1 and first.startswith(f"first difference: forward: {module} is off by "), lines


@pytest.mark.slow
@pytest.mark.parametrize(("file", "change", "said"), [
    ("trace", lambda tensors: dict(list(tensors.items())[:9]),
     "trace.safetensors: nothing [0] is recorded where layers.0"),
    ("trace", lambda tensors: dict(list(tensors.items())[1:]), "is recorded where embed_tokens"),
    ("update_1_found", lambda tensors: {"logp/0": tensors["logp/0"][:1]}, "has no logp/0 of shape"),
])  # fmt: skip
def test_a_changed_recording_is_named(dumped: Path, tmp_path: Path, file: str, change: Callable, said: str) -> None:
    folder = tmp_path / "step"
    shutil.copytree(dumped, folder)
    path = folder / f"{file}.safetensors"
    write_tensor_file(path, change(read_safetensors(path)))
    done = mindgspo("replay", folder, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_msprobe_writes_inputs_and_outputs_of_operators(dumped: Path, tmp_path: Path) -> None:
    pytest.importorskip("msprobe", reason="msprobe is not installed: pip install 'mindgspo[msprobe]'")
    done = mindgspo("replay", dumped, "--operators", tmp_path / "operators", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("bit-equal: "), done.stdout + done.stderr
    written = {path.name: np.load(path) for path in (tmp_path / "operators").rglob("*.npy")}
    products = [name for name in written if "MatMul" in name]
    assert any(".input." in name for name in products) and any(".output." in name for name in products), list(written)[
        :9
    ]


def test_without_msprobe_operators_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msprobe.mindspore", None)
    said = r"--operators: needs msprobe \(.*pip install 'mindgspo\[msprobe\]'"
    with pytest.raises(ConfigError, match=said), operators_written(tmp_path / "operators"):
        raise AssertionError("it cannot write")
    assert not (tmp_path / "operators").exists()
