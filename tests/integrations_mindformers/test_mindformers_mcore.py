"""Weights of mcore models: ours against MindFormers' own conversions, which need no Ascend.

    MINDGSPO_MINDFORMERS2_PYTHON=/path/to/python ./run_tests.sh tests/integrations_mindformers/test_mindformers_mcore.py

The variable names an interpreter that imports mindformers 2.1, see docs/integrations.md; without it they are skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config import ModelSection
from mindgspo.models.mcore import fused_tensors
from mindgspo.models.names import weight_shapes
from mindgspo.tensor_files.tensors import ArraySource

VARIABLE = "MINDGSPO_MINDFORMERS2_PYTHON"
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 7}
MODELS = {
    "qwen3": ModelSection(**SHAPE, architecture="qwen3"),
    "qwen3_moe": ModelSection(**SHAPE, **EXPERTS, architecture="qwen3_moe"),
    "glm4": ModelSection(**SHAPE, architecture="glm4", partial_rotary_factor=0.5),
}
LAYOUTS = {"turns": (), "contiguous": ("qkv", "fc1")}


def theirs(model: ModelSection, arrays: dict[str, np.ndarray], layout: str) -> dict[str, np.ndarray]:
    source, names = ArraySource(arrays, path=Path("of the test")), {name: name for name in arrays}
    return {
        one.name: np.concatenate(list(one.fused(source, names))).reshape(one.shape)
        for one in fused_tensors(model, LAYOUTS[layout])
    }


def sizes(name: str, model: ModelSection) -> dict[str, object]:
    """In the names of their TransformerConfig."""
    return {
        "class": name,
        "kv_channels": model.head_dim,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.intermediate_size,
        "num_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_key_value_heads,
        "num_moe_experts": model.num_experts,
        "moe_ffn_hidden_size": model.moe_intermediate_size,
    }


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each side has written what it makes of the same weights."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"needs {VARIABLE}, an interpreter that imports mindformers 2.1: see docs/integrations.md")
    folder = tmp_path_factory.mktemp("mcore")
    (folder / "models.json").write_text(json.dumps({name: sizes(name, model) for name, model in MODELS.items()}))
    for name, model in MODELS.items():
        rng = np.random.default_rng(6)
        arrays = {weight: rng.random(shape, np.float32) for weight, shape in weight_shapes(model).items()}
        np.savez(folder / f"{name}.hf.npz", **arrays)
        for layout in LAYOUTS:
            np.savez(folder / f"{name}.{layout}.npz", **theirs(model, arrays, layout))
    done = run(python, Path(__file__).with_name("mcore_child.py"), folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def found(folder: Path, name: str, layout: str, direction: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}.{layout}.found.npz") as arrays:
        return {key.partition("/")[2]: arrays[key] for key in arrays if key.startswith(f"{direction}/")}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(right[name], array, err_msg=name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_what_training_loads(folder: Path, name: str, layout: str) -> None:
    same(dict(np.load(folder / f"{name}.{layout}.npz")), found(folder, name, layout, "to"))


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_what_its_templates_make_of_our_file(folder: Path, name: str) -> None:
    same(dict(np.load(folder / f"{name}.hf.npz")), found(folder, name, "turns", "from"))


def test_what_generation_makes_of_our_file_of_glm4(folder: Path) -> None:
    """Its names are those to which it translates Hugging Face's, and its parts those of the contiguous layout."""
    ours = dict(np.load(folder / "glm4.contiguous.npz"))
    same(ours, found(folder, "glm4", "turns", "from"))
    assert found(folder, "glm4", "turns", "to").keys() == ours.keys()
