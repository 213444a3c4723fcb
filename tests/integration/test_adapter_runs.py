"""A run with adapters on a model folder: what its checkpoints hold, how it goes on, and on which base alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from running import mindgspo, read_lines, reproducible, sets, succeeded, write_experiment, write_model

from mindgspo.checkpoint.convert import Conversion, convert_model
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.writer import read_safetensors

LORA = "model.lora={rank: 4, targets: [q_proj, v_proj, down_proj], train_norms: true}"
SETTINGS = (
    LORA, "algorithm.kl={placement: loss, coef: 0.05}", "warmup=null", "trainer.save_every=1",
    "trainer.keep_checkpoints=9", "trainer.max_steps=2", "optimizer.lr=1e-2", "eval.every=null", "eval.before=false",
)  # fmt: skip


def test_checkpoints_hold_adapters_and_go_on_on_their_own_base(tmp_path: Path) -> None:
    config = write_experiment(tmp_path)
    model = write_model(tmp_path / "model", config, lambda weights: None)
    settings = (f"model.path={model}", *SETTINGS)
    done = succeeded("run", config, *sets(*settings), cwd=tmp_path)
    assert "with the policy's own base weights, no second model" in done.stdout
    root = tmp_path / "runs" / "tiny"
    step = root / "checkpoints" / "step_00000001"
    held = read_safetensors(step / "parameters.safetensors")
    assert all("lora_" in name or name.endswith("norm.weight") for name in held) and len(held) == 2 * 2 * 3 + 5
    assert len(read_safetensors(step / "optimizer.safetensors")) == 2 * len(held) + 1
    (reference,) = (root / "reference").rglob("parameters.safetensors")
    assert all(name.endswith("norm.weight") for name in read_safetensors(reference))

    # The same end after step 1, also from outside of the run; and the export of the last checkpoint is the run's.
    again = tmp_path / "again"
    succeeded("run", config, *sets(*settings, f"resume={step}", f"run_dir={again}"), cwd=tmp_path)
    for name in ("export/model.safetensors", "adapter/adapter_model.safetensors"):
        assert (again / name).read_bytes() == (root / name).read_bytes(), name
    assert reproducible(read_lines(again / "metrics.jsonl")) == reproducible(read_lines(root / "metrics.jsonl"))
    convert_model(Conversion(source=root / "checkpoints" / "step_00000002", out=tmp_path / "merged", merges=True))
    expected = read_safetensors(root / "export" / "model.safetensors")
    for name, array in read_safetensors(tmp_path / "merged" / "model.safetensors").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)

    # Another base: one line, and nothing is begun.
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    other = tmp_path / "other"
    words = sets(*settings, f"resume={step}", f"run_dir={other}", "restore=weights")
    refused = mindgspo("run", config, *words, cwd=tmp_path)
    assert refused.returncode == 1, refused.stdout
    said = f"{step}: its adapters belong to another base than {model}: model.safetensors: another content; set"
    assert said in refused.stderr and len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    assert not (other / "checkpoints").exists()
    words = sets(*settings, f"model.lora.path={root / 'adapter'}", f"run_dir={other}")
    refused = mindgspo("check", config, *words, cwd=tmp_path)
    assert refused.returncode == 1 and len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    with open_tensors(root / "adapter" / "adapter_model.safetensors") as stored:
        assert f"another base than {model} (digest {stored.metadata['mindgspo_base']}, here " in refused.stderr
