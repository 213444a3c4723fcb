"""`model.path` alone describes the model; what is set beside it must agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiment import WITHOUT_MODEL

from mindgspo.config import ExperimentConfig, dump_config, load_config, load_model_and_plans
from mindgspo.errors import ConfigError

FOLDER = {
    "model_type": "qwen3", "vocab_size": 512, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 500000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without weights and tokenizer."""
    path = tmp_path / "hf"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(FOLDER))
    return path


@pytest.fixture
def load(tmp_path: Path, folder: Path) -> Callable[..., ExperimentConfig]:
    """load(*overrides): an experiment that sets nothing but the folder, counted from the file."""
    (tmp_path / "small.yaml").write_text(f"{WITHOUT_MODEL}model: {{path: hf}}\n")
    return lambda *overrides, **options: load_config(tmp_path / "small.yaml", overrides, **options)


def test_the_folder_says_all_that_the_file_does_not(load, folder: Path) -> None:
    model = load("model.dtype=bfloat16").model
    assert (model.architecture, model.hidden_size, model.head_dim, model.tie_word_embeddings) == ("qwen3", 96, 32, True)
    assert (model.rms_norm_eps, model.rope_theta, model.max_position_embeddings) == (1e-5, 500_000.0, 128)
    assert (model.path, model.dtype) == (folder, "bfloat16")


def test_the_resolved_file_holds_every_size_and_needs_no_folder(load, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "resolved.yaml").write_text(dump_config(load()))
    (folder / "config.json").unlink()
    assert load_config(tmp_path / "resolved.yaml", check_files=False).model.hidden_size == 96
    with pytest.raises(ConfigError, match="hf has no config.json; give a Hugging Face folder"):
        load_config(tmp_path / "resolved.yaml")


def test_a_value_that_disagrees_is_named_with_both(load, folder: Path) -> None:
    assert load("model.hidden_size=96", "model.rms_norm_eps=1e-5").model.hidden_size == 96
    with pytest.raises(ConfigError) as caught:
        load("model.hidden_size=64", "model.architecture=llama", "model.vocab_size=512", check_files=False)
    _, *lines = str(caught.value).split("\n  ")
    file = folder / "config.json"
    assert lines == [
        f"model.architecture: 'llama', but {file} says 'qwen3'; leave it out, or give another model.path",
        f"model.hidden_size: 64, but {file} says 96; leave it out, or give another model.path",
    ]
    with pytest.raises(ConfigError, match="model.hidden_size: expected an integer, got 'wide'"):
        load("model.hidden_size=wide")
    with pytest.raises(ConfigError, match="model.hiden_size: unknown key; did you mean model.hidden_size"):
        load("model.hiden_size=96")


def test_what_the_folder_has_and_we_have_not_is_refused_by_name(load, folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps({**FOLDER, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}})
    )
    with pytest.raises(
        ConfigError, match=r"small.yaml: 1 problem\n  model.path: .*config.json: rope_scaling .*'longrope'"
    ):
        load(check_files=False)


def test_sizes_that_stand_nowhere_are_asked_for_in_one_line(load, folder: Path, tmp_path: Path) -> None:
    line = "1 problem\n  model.path: {} {}, and model.vocab_size, hidden_size, .* are read from there; give"
    with pytest.raises(ConfigError, match=line.format(tmp_path / "gone", "is no folder")):
        load(f"model.path={tmp_path / 'gone'}", check_files=False)
    (folder / "config.json").unlink()
    (folder / "export").mkdir()
    (folder / "export" / "config.json").write_text("{}")  # as of a run
    with pytest.raises(ConfigError, match=f"has no config.json, .* from there; give {folder}/export, or set them"):
        load()
    with pytest.raises(ConfigError, match=line.format(folder, "has no config.json")):
        load()


def test_sizes_set_by_hand_need_no_folder(load, tmp_path: Path) -> None:
    sizes = [f"model.{key}={value}" for key, value in FOLDER.items() if key not in ("model_type", "torch_dtype")]
    config = load(f"model.path={tmp_path / 'gone'}", "model.architecture=qwen3", *sizes, check_files=False)
    assert config.model.head_dim == 32


def test_the_tokenizer_is_that_of_the_model_unless_set(load, folder: Path) -> None:
    assert load().tokenizer.path is None
    (folder / "tokenizer.json").write_text("{}")
    found = load("tokenizer.eos_tokens=[</s>]").tokenizer
    assert (found.path, found.eos_tokens) == (folder, ("</s>",))
    assert load("tokenizer.path=null").tokenizer.path is None
    assert load(f"tokenizer.path={folder.parent}").tokenizer.path == folder.parent


def test_a_file_of_model_and_plans_may_name_a_folder_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("model: {path: hf}\nplans: {train: {model_parallel: 2}}\n")
    found = load_model_and_plans(tmp_path / "model.yaml", ["plans.infer.model_parallel=2"])
    assert (found.model.architecture, found.plans.train.model_parallel) == ("qwen3", 2)
