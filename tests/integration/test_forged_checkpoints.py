"""A checkpoint that was changed together with its digests, and a disk that the kernel stops writing to during a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loop_disk import loop_disk
from running import command, environment, mindgspo, sets, succeeded, write_experiment

from mindgspo.checkpoint.manifest import write_manifest
from mindgspo.tensor_files.writer import read_safetensors, write_tensor_file

pytestmark = pytest.mark.slow


def state(*path: str, value: object) -> Callable[[Path], None]:
    """Another value, by the names that lead to it."""

    def change(folder: Path) -> None:
        found = json.loads((folder / "state.json").read_text())
        place = found
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        (folder / "state.json").write_text(json.dumps(found))

    return change


def tensors(file: str, change: Callable[[str, np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        path = folder / f"{file}.safetensors"
        write_tensor_file(path, {name: change(name, one) for name, one in read_safetensors(path).items()})

    return forge


FORGERIES = {
    "progress": (state("progress", value=[]), "its state does not fit this run (TypeError"),
    "step": (state("progress", "step", value=7), "its state does not fit this run (ValueError: step 7, 1 in its"),
    "kept": (state("kept", value=[1]), "`kept` holds no states by name"),
    "position": (state("kept", "stream", "position", value=10**9), "the saved position in the data is none"),
    "groups": (state("kept", "surplus", "groups", value=[{"prompt": 0, "lengths": [5]}]), "(KeyError: 'reasons')"),
    "outcomes": (state("kept", "baseline", "problems", value=10**12), "1000000000000 problems"),
    "inputs": (state("inputs", value={"a": 1}), "(KeyError: 'tokenizer')"),
    "updates": (
        tensors("optimizer", lambda name, one: one if one.ndim else np.array(-1)), "adamw.updates is -1, and it counts"
    ),
    "shapes": (tensors("optimizer", lambda name, one: one[:1] if one.ndim else one), "does not fit this model"),
}  # fmt: skip


def test_a_checkpoint_that_was_changed_with_its_digests_is_refused_in_one_line(tmp_path: Path) -> None:
    config = write_experiment(tmp_path)
    succeeded("run", config, *sets("trainer.max_steps=1", "trainer.save_every=1"), cwd=tmp_path)
    step = tmp_path / "runs/tiny/checkpoints/step_00000001"
    shutil.copytree(step, tmp_path / "as saved")
    for name, (forge, said) in FORGERIES.items():
        shutil.rmtree(step)
        shutil.copytree(tmp_path / "as saved", step)
        forge(step)
        (step / "manifest.json").unlink()
        write_manifest(step, step=1)
        done = mindgspo(
            "run", config, *sets("trainer.max_steps=2", "trainer.save_every=1", "resume=auto"), cwd=tmp_path
        )
        assert done.returncode == 1 and "Traceback" not in done.stderr, (name, done.stderr)
        assert said in done.stderr.splitlines()[-1], (name, done.stderr)


def test_a_disk_that_becomes_read_only_during_a_run(tmp_path: Path) -> None:
    """As the kernel makes one whose errors it has seen; what was saved stays, and a run on another disk goes on from
    there."""
    with loop_disk(tmp_path / "image", tmp_path / "disk", size_mb=120) as disk:
        config = write_experiment(disk)
        log = tmp_path / "log"
        with log.open("wb") as output:
            words = command("run", config, *sets("trainer.max_steps=40", "trainer.save_every=1"))
            run = subprocess.Popen(words, cwd=disk,
                                   env=environment(), stdout=output, stderr=output)  # fmt: skip
        saved = disk / "runs/tiny/checkpoints/step_00000001"
        while not saved.exists():
            assert run.poll() is None, log.read_text()
            time.sleep(0.05)
        if subprocess.run(["mount", "-o", "remount,abort", disk], check=False).returncode:
            run.kill()
            pytest.skip("the kernel does not let a mounted disk fail")
        assert run.wait(300) == 1
        said = log.read_text()
        assert "Traceback" not in said and "is read-only; choose another place" in said.splitlines()[-1], said
        assert (saved / "manifest.json").is_file()
