"""MindFormers' cells against ours: the same folders, each side in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from weight_files import write_safetensors

from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.models.names import weight_shapes
from mindgspo.tensor_files.writer import read_safetensors

Run = Callable[..., CompletedProcess[str]]
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 12345.0,
}
# With wavelengths of 6 to 2000 tokens: some below 64 / 4, some above 64 / 1, some between.
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MODELS = {
    "qwen2": {},
    "qwen2_tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama": {"architecture": "llama"},
    "llama_scaled": {"architecture": "llama", "rope_scaling": SCALING},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Hugging Face folders with random weights, wide enough that no logit is near zero."""
    folder = tmp_path_factory.mktemp("models")
    for name, own in MODELS.items():
        section = ModelSection(**SHAPE | own)
        rng = np.random.default_rng(7)
        weights = {
            weight: (float(weight.endswith("norm.weight")) + rng.normal(0, 0.2, shape)).astype(np.float32)
            for weight, shape in weight_shapes(section).items()
        }
        (folder / name).mkdir()
        config = huggingface_config(section, eos_ids=(1,), pad_id=0)
        (folder / name / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / name / "model.safetensors", weights)
    return folder


def compared(run: Run, python: str, backend: str, models: Path, folder: Path) -> dict[str, np.ndarray]:
    done = run(python, Path(__file__).with_name("compare.py"), backend, models, folder / "found.npz", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and [path.name for path in folder.iterdir()] == ["found.npz"]
    with np.load(folder / "found.npz") as found:
        return dict(found)


@pytest.fixture(scope="module")
def theirs(run: Run, mindformers_python: str, models: Path, tmp_path_factory) -> dict[str, np.ndarray]:
    return compared(run, mindformers_python, "mindformers", models, tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module", params=["this MindSpore", "MindFormers' MindSpore"])
def ours(request, run: Run, mindformers_python: str, models: Path, tmp_path_factory) -> dict[str, np.ndarray]:
    python = sys.executable if request.param == "this MindSpore" else mindformers_python
    return compared(run, python, "native", models, tmp_path_factory.mktemp("ours"))


@pytest.mark.parametrize("model", MODELS)
def test_logits_and_scores(ours, theirs, model: str) -> None:
    assert np.abs(ours[f"{model}/logits"]).max() > 1, "the comparison needs logits away from zero"
    for what in ("logits", "logp", "entropy"):
        np.testing.assert_allclose(theirs[f"{model}/{what}"], ours[f"{model}/{what}"], rtol=0, atol=1e-4, err_msg=what)


@pytest.mark.parametrize("model", MODELS)
def test_one_gspo_update(ours, theirs, models: Path, model: str) -> None:
    assert 0 < ours[f"{model}/clipped"] < 1, "some responses must be clipped, others not"
    assert theirs[f"{model}/clipped"] == ours[f"{model}/clipped"]
    for what in ("loss", "grad_norm"):
        np.testing.assert_allclose(theirs[f"{model}/{what}"], ours[f"{model}/{what}"], rtol=1e-5, err_msg=what)
    names = weight_shapes(ModelSection(**SHAPE | MODELS[model]))
    assert len(names) >= 20
    for name in names:
        gradient = ours[f"{model}/first_moment/{name}"]
        largest = np.abs(gradient).max()
        assert largest > 0, name
        found = theirs[f"{model}/first_moment/{name}"]
        np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-5 * largest, err_msg=name)
        weight = ours[f"{model}/weight/{name}"]
        np.testing.assert_allclose(theirs[f"{model}/weight/{name}"], weight, rtol=0, atol=1e-5, err_msg=name)


def test_the_update_moved_the_weights_by_more_than_the_tolerance(ours, models: Path) -> None:
    before = read_safetensors(models / "qwen2")
    for name, array in before.items():
        assert np.abs(ours[f"qwen2/weight/{name}"] - array).max() > 5e-5, name


def test_logprobs_command(run: Run, mindformers_python: str, models: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 97, length).tolist() for length in (1, 2, 70)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    scored = {}
    for backend, python in (("native", sys.executable), ("mindformers", mindformers_python)):
        command = ("-m", "mindgspo.cli", "logprobs", models / "qwen2", "--input", "rows.jsonl", "--backend", backend)
        done = run(python, *command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        scored[backend] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(row["logprobs"]) for row in scored["mindformers"]] == [0, 1, 69]
    for native, mindformers in zip(scored["native"], scored["mindformers"], strict=True):
        np.testing.assert_allclose(mindformers["logprobs"], native["logprobs"], rtol=0, atol=1e-4)
        assert mindformers["next"] == native["next"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"], "MindFormers' logs do not belong here"


REFUSED = """
import sys
from pathlib import Path
import numpy as np
from mindspore import Tensor
from mindgspo.integrations.mindformers.model import build_mindformers_model
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.parallel.platform.runtime import call_compiled, set_up_runtime
set_up_runtime("CPU")
model = build_mindformers_model(read_model_section(Path(sys.argv[1])), longest_row=8)
ids = Tensor(np.arange(16, dtype=np.int32).reshape(2, 8))
for segments in ([1] * 8, [1] * 5 + [0] * 3, [0] * 8, [1] * 4 + [2] * 4, [0] * 2 + [1] * 6):
    segments_RT = Tensor(np.array([[1] * 8, segments], np.int32))
    print(int(np.isfinite(call_compiled(model, ids, ids, segments_RT).asnumpy()).all()))
"""


def test_rows_that_mindformers_would_read_otherwise_are_nan(
    run: Run, mindformers_python: str, models: Path, tmp_path: Path
) -> None:
    done = run(mindformers_python, "-c", REFUSED, models / "qwen2", cwd=tmp_path)
    assert done.stdout.split() == ["1", "1", "1", "0", "0"], done.stderr
