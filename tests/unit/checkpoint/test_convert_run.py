"""A run's checkpoint as a Hugging Face folder: what the run itself exports, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mindgspo.checkpoint import Conversion, Keep, convert_weights, export_huggingface, save_checkpoint
from mindgspo.config import ExperimentConfig, dump_config, load_config
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.models.huggingface_config import generation_config, huggingface_config
from mindgspo.models.names import weight_shapes
from mindgspo.tokenization import load_tokenizer

PROJECT = Path(__file__).resolve().parents[3]


def run_with_checkpoint(run: Path) -> tuple[ExperimentConfig, dict[str, np.ndarray], Path]:
    """A run folder with config.yaml and one checkpoint."""
    config = load_config(PROJECT / "examples" / "arithmetic" / "gspo.yaml")
    random = np.random.default_rng(0)
    shapes = weight_shapes(config.model)
    weights = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    moments = {"step": np.array(3, np.int64)}
    step = save_checkpoint(
        run / "checkpoints", step=3, parameters=weights, optimizer=moments, state={}, keep=Keep(last=1)
    )
    return config, weights, step


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_checkpoint_becomes_what_the_run_exports(tmp_path: Path) -> None:
    config, weights, step = run_with_checkpoint(tmp_path / "run")
    tokenizer = load_tokenizer(config.tokenizer)
    ids = {"eos_ids": tokenizer.eos_ids, "pad_id": tokenizer.pad_id}
    export_huggingface(
        tmp_path / "run" / "export",
        tensors=weights,
        model_config=huggingface_config(config.model, **ids),
        generation_config=generation_config(**ids, max_new_tokens=config.rollout.max_new_tokens),
        tokenizer=tokenizer,
    )
    convert_weights(Conversion(source=step, out=tmp_path / "out"))
    assert files(tmp_path / "out") == files(tmp_path / "run" / "export")


def test_a_changed_checkpoint_is_refused(tmp_path: Path) -> None:
    _, _, step = run_with_checkpoint(tmp_path / "run")
    content = bytearray((step / "parameters.safetensors").read_bytes())
    content[-1] ^= 1
    (step / "parameters.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"parameters\.safetensors: its content changed"):
        convert_weights(Conversion(source=step, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_far_from_its_run_needs_a_description(tmp_path: Path) -> None:
    _, _, step = run_with_checkpoint(tmp_path / "run")
    alone = step.rename(tmp_path / "alone")
    with pytest.raises(CheckpointError, match="alone: not inside a run folder.*--model-folder"):
        convert_weights(Conversion(source=alone, out=tmp_path / "out"))


def test_a_run_folder_is_no_source(tmp_path: Path) -> None:
    run_with_checkpoint(tmp_path / "run")
    with pytest.raises(WeightsError, match="run: a run; give its export, or one of its checkpoints/step_"):
        convert_weights(Conversion(source=tmp_path / "run", out=tmp_path / "out"))
