"""The package's four names: what they read, generate and score; the pages' code as it stands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from markdown_pages import code_blocks
from running import PROJECT, environment, python, write_experiment, write_model

import mindgspo
from mindgspo.config import TokenizerSection
from mindgspo.errors import ConfigError, DataError, RunFolderError, WeightsError
from mindgspo.tokenization import load_tokenizer

SAMPLE = {
    "step": 1, "prompt_index": 7, "sample_index": 2, "prompt": "1+1=", "response": "3", "answer": "2",
    "verdict": "wrong", "score": 0.0, "extracted": "3", "advantage": -1.5, "length": 2, "finish_reason": "stop",
}  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    lines = [{"step": 1, "critic/score/mean": 0.25}, {"step": 2, "critic/score/mean": 0.5, "actor/lr": 1}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "samples.jsonl").write_text(json.dumps(SAMPLE) + "\n")
    held_out = {key: value for key, value in SAMPLE.items() if key not in ("sample_index", "advantage")}
    held_out |= {"sample": "greedy", "set": "eval", "score": None}
    (folder / "validation.jsonl").write_text(json.dumps(held_out) + "\n")
    (folder / "config.yaml").write_text(write_experiment(tmp_path).read_text())
    return folder


def test_a_run_is_read_by_name(run_dir: Path) -> None:
    run = mindgspo.Run.load(run_dir)
    series = run.metrics["critic/score/mean"]
    assert (series.steps.tolist(), series.values.tolist()) == ([1, 2], [0.25, 0.5])
    assert (series.steps.dtype, series.values.dtype) == (np.int64, np.float64)
    assert list(run.metrics) == ["critic/score/mean", "actor/lr"] and run.metrics["actor/lr"].steps.tolist() == [2]
    with pytest.raises(KeyError, match="critic/score/maen: no such metric in this run; did you mean"):
        run.metrics["critic/score/maen"]
    with pytest.raises(KeyError, match="score: no such metric in this run; did you mean critic/score/mean?"):
        run.metrics["score"]
    with pytest.raises(KeyError, match="zzz: no such metric in this run; names: critic/score/mean, actor/lr"):
        run.metrics["zzz"]
    assert run.summary == {} and run.config.optimizer.lr == 1e-3
    assert (run.overview.state.value, run.overview.step) == ("stopped", 2)
    (sample,) = run.samples
    assert (sample.sample, sample.advantage, sample.set_name, sample.record) == (2, -1.5, None, SAMPLE)
    (answer,) = run.validation
    assert (answer.sample, answer.advantage, answer.set_name, answer.score) == ("greedy", None, "eval", None)


def test_samples_have_indices_and_can_be_read_again(run_dir: Path) -> None:
    lines = [SAMPLE | {"step": step} for step in (1, 2, 3)]
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = mindgspo.Run.load(run_dir).samples
    assert (samples[0].step, samples[2].step, samples[-1].step, len(samples)) == (1, 3, 3, 3)
    assert [sample.step for sample in samples[1:]] == [2, 3] and [s.step for s in samples] == [s.step for s in samples]
    with pytest.raises(IndexError, match=r"sample 3: .*samples.jsonl holds 3"):
        samples[3]
    (run_dir / "samples.jsonl").unlink()
    assert not mindgspo.Run.load(run_dir).samples


def test_what_stands_where_a_list_belongs_is_named(run_dir: Path) -> None:
    run = mindgspo.Run.load(run_dir)
    conversation = [{"role": "user", "content": "Tom had 9"}]
    with pytest.raises(DataError, match=r"prompts: expected a list, got one text; write \[prompt\]"):
        mindgspo.generate(run, "Tom had 9")
    with pytest.raises(DataError, match=r"prompts: expected a list, got one conversation; write \[prompt\]"):
        mindgspo.generate(run, conversation)
    with pytest.raises(DataError, match=r"responses: expected a list, got one text; write \[response\]"):
        mindgspo.score(run, ["1+2="], "3")
    with pytest.raises(ConfigError, match="temprature: no option of generate; did you mean temperature?"):
        mindgspo.generate(run, ["Tom had 9"], temprature=1.0)
    for wrong, said in (
        ({"temperature": "hot"}, "temperature: input should be a valid number, .*, got 'hot'"),
        ({"device": "GPU"}, "device: input should be 'CPU' or 'Ascend', got 'GPU'"),
        ({"eos_tokens": "<eos>"}, "eos_tokens: input should be a valid tuple, got '<eos>'"),
    ):
        with pytest.raises(ConfigError, match=said):
            mindgspo.generate(run, ["Tom had 9"], **wrong)
    for prompts in (None, 5, (text for text in ["Tom had 9"])):
        with pytest.raises(DataError, match="prompts: expected a list, got (NoneType|int|generator)"):
            mindgspo.generate(run, prompts)
    with pytest.raises(WeightsError, match=r"run: holds no config.json; give"):
        mindgspo.generate(run, ["Tom had 9"])
    with pytest.raises(ConfigError, match=r"run: is a folder; give .*run/config.yaml"):
        mindgspo.train(run_dir)


def test_train_names_what_it_cannot_take() -> None:
    with pytest.raises(ConfigError, match="config: expected the path of a YAML file or a mapping, got int"):
        mindgspo.train(5)
    with pytest.raises(ConfigError, match="config: 5 problems\n.*experiment: missing"):
        mindgspo.train({"run_dir": "runs/x"})
    with pytest.raises(ConfigError, match="overrides: expected a mapping or a list of texts, got one text"):
        mindgspo.train("gspo.yaml", "run_dir=runs/x")

    def my_reward(**_: object) -> float:
        return 1.0

    for settings in ({"reward.functions": [my_reward]}, {"reward": {"functions": [my_reward]}}):
        named = r"reward.*: settings name functions; write 'FILE.py:my_reward', or train\(..., reward=...\), got <func"
        with pytest.raises(ConfigError, match=named):
            mindgspo.train("gspo.yaml", settings)
    with pytest.raises(ConfigError, match=r"rollout.top_p: expected text, numbers, lists and mappings, got \{1\}"):
        mindgspo.train("gspo.yaml", {"rollout.top_p": {1}})


def test_what_is_no_run_or_no_sample_is_named(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        mindgspo.Run.load(tmp_path)
    (run_dir / "samples.jsonl").write_text(json.dumps(SAMPLE) + '\n{"step": 1}\n')
    with pytest.raises(RunFolderError, match=r"samples.jsonl, line 2: no sample \(KeyError: 'prompt_index'\)"):
        list(mindgspo.Run.load(run_dir).samples)


def test_scores_are_the_log_probs_of_what_was_generated(cpu_runtime, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", write_experiment(tmp_path), lambda weights: None)
    load_tokenizer(TokenizerSection()).save(model)
    (found,) = mindgspo.generate(model, ["1+2="], max_new_tokens=6)
    ids = found.completions[0].ids
    first, alone = mindgspo.score(model, ["1+2=", "1+2="], [ids, "3"])
    np.testing.assert_allclose(first.logprobs, found.completions[0].logprobs, rtol=1e-4)
    assert first.ids.tolist() == ids.tolist() and alone.logprobs.shape == (1,)
    with pytest.raises(DataError, match="1 prompts and 0 responses"):
        mindgspo.score(model, ["1"], [])
    for prompt in (5, [], ["1"], ({"role": "user"},), [{"role": "usr", "content": "1"}]):
        with pytest.raises(DataError, match=r"prompt 1.*: expected|prompt 1\[0\]: role"):
            mindgspo.score(model, [prompt], ["1"])
    with pytest.raises(DataError, match="response 1: no ids"):
        mindgspo.score(model, ["1"], [""])
    with pytest.raises(DataError, match="response 1: expected a text or a list of ids"):
        mindgspo.score(model, ["1"], [["three"]])
    with pytest.raises(DataError, match="response 1: id .* is outside the vocabulary, 0 to 383"):
        mindgspo.score(model, ["1"], [np.array([384])])
    with pytest.raises(DataError, match="1: .* the model has 64 positions"):
        mindgspo.score(model, ["1"], ["3 " * 64])


def test_train_takes_settings_as_the_command_line_does() -> None:
    quickstart = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
    for overrides in (["rollout.top_p=2"], {"rollout.top_p": 2}, {"rollout": {"top_p": 2}}):
        with pytest.raises(ConfigError, match="rollout.top_p: must be <= 1, got 2"):
            mindgspo.train(quickstart, overrides)


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = (
        "import sys, mindgspo; assert 'numpy' not in sys.modules and 'mindgspo.api' not in sys.modules;"
        "mindgspo.Run, mindgspo.train; assert not any(name.split('.')[0] == 'mindspore' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        mindgspo.trian  # noqa: B018
    assert {"Run", "generate", "score", "train"} <= set(dir(mindgspo))


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    program, chinese = (
        "".join(content for language, content in code_blocks(page.read_text(encoding="utf-8")) if language == "python")
        for page in (PROJECT / "docs" / "python.md", PROJECT / "docs" / "python_cn.md")
    )
    assert program == chinese
    done = python("-c", program, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert "18" in done.stdout and (tmp_path / "runs" / "short" / "export").is_dir()
