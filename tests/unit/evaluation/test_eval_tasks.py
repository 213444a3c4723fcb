"""Options of `mindgspo eval` -> configurations, and what is refused before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.config import ColumnsSection, ModelSection, TokenizerSection, dump_config, load_config
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.errors import ConfigError, DataError, MindGSPOError, WeightsError
from mindgspo.evaluation.tasks import DataChoice, EvalOptions, tasks_of_data, tasks_of_experiment
from mindgspo.tokenization import load_tokenizer

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
ARITHMETIC = DataChoice(texts=("arithmetic",))


def write_model(folder: Path, *, positions: int = 96) -> Path:
    """A folder that names a tiny model; its weights are no weights, so whoever reads them fails."""
    folder.mkdir()
    model = ModelSection(
        vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(huggingface_config(model, eos_ids=[378], pad_id=376)))
    (folder / "model.safetensors").write_bytes(b"no weights")
    load_tokenizer(TokenizerSection()).save(folder)
    return folder


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def test_every_option_arrives_and_set_wins(model_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer"
    load_tokenizer(TokenizerSection()).save(other)
    options = EvalOptions(
        num_samples=8, pass_at_k=(1, 8), temperature=0.6, top_p=0.95, max_new_tokens=20, max_rows=5, seed=3, batch=4,
        device="Ascend", tokenizer=other, eos_tokens=("<|endoftext|>",), system_prompt="Think.",
        instruction_suffix='\nSay "#### n".',
    )  # fmt: skip
    for task in (
        tasks_of_data(model_dir, ARITHMETIC, options, ["seed=4", "model.head_dim=8", "device=CPU"])[0],
        *tasks_of_experiment(model_dir, QUICKSTART, options, ["seed=4", "device=CPU"]),
    ):
        config = task.config
        assert (config.eval.num_samples, config.eval.pass_at_k, config.eval.temperature) == (8, (1, 8), 0.6)
        assert (config.eval.top_p, config.rollout.max_new_tokens, config.rollout.slots) == (0.95, 20, 4)
        assert (config.data.eval.max_rows, config.seed, config.device) == (5, 4, "CPU")
        assert (config.tokenizer.path, config.tokenizer.eos_tokens) == (other, ("<|endoftext|>",))
        assert (config.data.system_prompt, config.data.instruction_suffix) == ("Think.", '\nSay "#### n".')


def test_every_held_out_set_of_an_experiment_is_a_task(model_dir: Path, tmp_path: Path) -> None:
    sets = "{easy: {format: arithmetic, split: test, max_rows: 9}, dev: {format: arithmetic, split: dev}}"
    experiment = tmp_path / "two_sets.yaml"
    experiment.write_text(dump_config(load_config(QUICKSTART, ["warmup=null", "data.eval=null", f"data.eval={sets}"])))
    tasks = tasks_of_experiment(model_dir, experiment, EvalOptions(max_rows=5), ["data.eval.dev.max_rows=3"])
    found = [(task.label, task.config.data.eval.split, task.config.data.eval.max_rows) for task in tasks]
    assert found == [("easy", "test", 5), ("dev", "dev", 3)]


def test_defaults_of_data_and_of_an_experiment(model_dir: Path) -> None:
    (task,) = tasks_of_experiment(model_dir, QUICKSTART, EvalOptions(), [])
    own = load_config(QUICKSTART)
    assert task.config.model.num_hidden_layers == 1 and task.config.model.path == model_dir
    assert (task.config.data, task.config.eval, task.config.reward) == (own.data, own.eval, own.reward)
    assert task.label == "arithmetic-gspo"
    (task,) = tasks_of_data(model_dir, ARITHMETIC, EvalOptions(), [])
    config = task.config
    assert (task.label, config.data.eval.format, config.data.eval.max_rows) == ("arithmetic", "arithmetic", 512)
    assert (config.model.path, config.model.num_hidden_layers, config.tokenizer.path) == (model_dir, 1, model_dir)
    assert config.tokenizer.eos_tokens == ("<|im_end|>",)
    assert config.rollout.max_new_tokens == 96 // 2, "2,048 do not fit: half of the positions"
    assert (config.eval.num_samples, config.eval.temperature, config.rollout.top_p) == (1, 1.0, 1.0)
    assert (config.device, config.seed, config.reward.functions) == ("CPU", 1, ("gsm8k",))
    (task,) = tasks_of_data(model_dir, ARITHMETIC, EvalOptions(num_samples=4), [])
    assert task.config.eval.pass_at_k == (4,)
    (model_dir / "generation_config.json").write_text(json.dumps({"max_new_tokens": 70}))
    (task,) = tasks_of_data(model_dir, ARITHMETIC, EvalOptions(), [])
    assert task.config.rollout.max_new_tokens == 70, "also more than half"
    (task,) = tasks_of_data(model_dir, ARITHMETIC, EvalOptions(max_new_tokens=30), [])
    assert task.config.rollout.max_new_tokens == 30


def test_several_data_sets_have_labels_of_their_own(model_dir: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "test.jsonl", tmp_path / "b" / "test.jsonl", tmp_path / "dev.jsonl"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    choice = DataChoice(texts=("arithmetic", *map(str, paths)))
    tasks = tasks_of_data(model_dir, choice, EvalOptions(), [])
    assert [task.label for task in tasks] == ["arithmetic", str(paths[0]), str(paths[1]), "dev.jsonl"]
    assert tasks[3].config.data.instruction_suffix.endswith('"####".'), "its format's"
    assert tasks[0].config.data.instruction_suffix == ""


def refused(model_dir: Path, choice: DataChoice, options: EvalOptions, *overrides: str) -> MindGSPOError:
    with pytest.raises(MindGSPOError) as error:
        tasks_of_data(model_dir, choice, options, overrides)
    return error.value


@pytest.mark.parametrize(("options", "said"), [
    ({"num_samples": 4, "pass_at_k": (8,)}, "set eval.num_samples=8 or drop 8"),
    ({"max_new_tokens": 96}, "give less than 96"),
    ({"temperature": 0.5}, "--temperature: greedy answers do not depend on it"),
    ({"top_p": 0.9}, "--top-p: greedy answers do not depend on it"),
    ({"num_samples": 2, "temperature": 0.0}, "eval.temperature"),
])  # fmt: skip
def test_options_that_contradict_each_other(options: dict, said: str, model_dir: Path) -> None:
    error = refused(model_dir, ARITHMETIC, EvalOptions(**options))
    assert isinstance(error, ConfigError) and said in str(error)


def test_what_is_refused(model_dir: Path, tmp_path: Path) -> None:
    assert "is there twice" in str(refused(model_dir, DataChoice(texts=("arithmetic",) * 2), EvalOptions()))
    named = DataChoice(texts=("arithmetic",), format="verl")
    for alone in ({"format": "columns"}, {"columns": ColumnsSection(prompt="p", answer="a", data_source_name="math")}):
        assert "go together" in str(refused(model_dir, DataChoice(texts=("rows.jsonl",), **alone), EvalOptions()))
    assert "a named data set has its own" in str(refused(model_dir, named, EvalOptions()))
    small = write_model(tmp_path / "small", positions=48)
    with pytest.raises(ConfigError, match=r"48 positions, but .* = 54; lower one of them with --set"):
        tasks_of_experiment(small, QUICKSTART, EvalOptions(), [])
    error = refused(tmp_path / "nowhere", DataChoice(texts=("gsm8k",)), EvalOptions())
    assert isinstance(error, WeightsError) and "nowhere: no such folder" in str(error)
    error = refused(model_dir, DataChoice(texts=("gsm8k",), folder=tmp_path), EvalOptions())
    assert isinstance(error, DataError) and "--data gsm8k=" in str(error)
    (model_dir / "model.safetensors").unlink()
    assert "holds no *.safetensors" in str(refused(model_dir, ARITHMETIC, EvalOptions()))
    with pytest.raises(WeightsError, match="holds no"):
        tasks_of_experiment(model_dir, QUICKSTART, EvalOptions(), [])
