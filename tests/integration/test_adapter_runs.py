"""A run with adapters on a model folder: what its checkpoints hold, how it goes on, and on which base alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from running import mindgspo, read_lines, reproducible, sets, succeeded, write_experiment

from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.writer import read_safetensors

SETTINGS = (
    "model={path: model, lora: {rank: 4, targets: [q_proj, v_proj, down_proj], train_norms: true}}",
    "algorithm.kl={placement: loss, coef: 0.05}", "warmup=null", "trainer.save_every=1", "trainer.keep_checkpoints=9",
    "trainer.max_steps=3", "optimizer.lr=1e-2", "eval.every=null",
)  # fmt: skip


def test_checkpoints_hold_adapters_and_go_on_on_their_own_base(finished_run, tmp_path: Path) -> None:
    config = write_experiment(tmp_path)
    shutil.copytree(finished_run.root / "export", tmp_path / "model")
    done = succeeded("run", config, *sets(*SETTINGS), cwd=tmp_path)
    assert "no second model" in done.stdout
    root = tmp_path / "runs" / "tiny"
    step = root / "checkpoints" / "step_00000002"
    held = read_safetensors(step / "parameters.safetensors")
    moments = read_safetensors(step / "optimizer.safetensors")
    assert all("lora_" in name or name.endswith("norm.weight") for name in held) and len(held) == 2 * 2 * 3 + 5
    assert len(moments) == 2 * len(held) + 1
    whole = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert 3 * (step / "parameters.safetensors").stat().st_size < whole
    assert sum(file.stat().st_size for file in (root / "reference").rglob("*.safetensors")) * 3 < whole

    # The same end after step 2, also from outside of the run.
    again = tmp_path / "again"
    succeeded("run", config, *sets(*SETTINGS, f"resume={step}", f"run_dir={again}"), cwd=tmp_path)
    for name in ("export/model.safetensors", "adapter/adapter_model.safetensors"):
        assert (again / name).read_bytes() == (root / name).read_bytes(), name
    assert reproducible(read_lines(again / "metrics.jsonl")) == reproducible(read_lines(root / "metrics.jsonl"))
    merged = tmp_path / "merged"
    succeeded("checkpoint", "export", root / "checkpoints" / "step_00000003", merged, "--merge", cwd=tmp_path)
    expected = read_safetensors(root / "export" / "model.safetensors")
    for name, array in read_safetensors(merged / "model.safetensors").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)

    # Another base: one line, and nothing is begun.
    path = tmp_path / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    for restore in ("all", "weights"):
        other = tmp_path / restore
        words = sets(*SETTINGS, f"resume={step}", f"run_dir={other}", f"restore={restore}")
        refused = mindgspo("run", config, *words, cwd=tmp_path)
        assert refused.returncode == 1, refused.stdout
        assert refused.stderr.strip() == (
            f"{step}: its adapters belong to another base than {tmp_path / 'model'}: model.safetensors: another "
            f"content; set model.path to the folder of that run as it was ({tmp_path / 'model'})"
        )
        assert not (other / "checkpoints").exists()
    lora = f"model.lora.path={root / 'adapter'}"
    for command in ("check", "run"):
        refused = mindgspo(command, config, *sets(*SETTINGS, lora, f"run_dir={tmp_path / command}"), cwd=tmp_path)
        assert refused.returncode == 1 and "was trained on another base than" in refused.stderr, refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
    with open_tensors(root / "adapter" / "adapter_model.safetensors") as stored:
        digest = stored.metadata["mindgspo_base"]
    assert f"(digest {digest}, here " in refused.stderr
    assert json.loads((step / "state.json").read_text())["inputs"]["base"]["path"] == str(tmp_path / "model")
