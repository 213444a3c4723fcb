"""Bad input, as a user meets it: `mindgspo run` gives one clear error and leaves what was on disk as it was.

The packages' own tests look at many more mistakes; here one of each kind goes through the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from running import tree, write_model

from mindgspo.cli import main


def edit(path: Path, old: str, new: str) -> list[str]:
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path}"
    path.write_text(text.replace(old, new, 1))
    return []


def model(folder: Path, change: Callable = lambda weights: None, file: Callable = lambda path: None) -> list[str]:
    """Another model's folder; its weights and their file as these functions change them."""
    file(write_model(folder / "model", folder / "tiny.yaml", change) / "model.safetensors")
    return ["--set", f"model.path={folder / 'model'}"]


def another_row(folder: Path, **row: str) -> list[str]:
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return []


def unreadable_gold(folder: Path) -> list[str]:
    row = {"data_source": "my/own", "prompt": [{"role": "user", "content": "How many?"}],
           "reward_model": {"ground_truth": "several"}}  # fmt: skip
    (folder / "verl.jsonl").write_text(json.dumps(row) + "\n")
    source = "{format: verl, path: " + str(folder / "verl.jsonl") + "}"
    return ["--set", f"data.eval={source}", "--set", "reward.functions=[gsm8k]"]


def broken_reward_file(folder: Path) -> list[str]:
    (folder / "mine.py").write_text("def scores(): pass\n")
    return ["--set", "reward.functions=['mine.py:score']"]


def data_of_another_tokenizer(folder: Path) -> list[str]:
    code = main([*("data", "prepare", "--format", "gsm8k", "--input", str(folder / "rows.jsonl")),
                 *("--tokenizer", str(folder / "tokenizer"), "--eos-token", "<|endoftext|>"),
                 *("--max-prompt-length", "32", "--output", str(folder / "prepared"))])  # fmt: skip
    assert code == 0
    return ["--set", "data.train={format: prepared, path: " + str(folder / "prepared") + "}"]


MISTAKES = {
    "unknown key": (
        lambda folder: edit(folder / "tiny.yaml", "save_every: 2", "save_evry: 2"),
        ["trainer.save_evry: unknown key", "did you mean trainer.save_every?"],
    ),
    "wrong type": (
        lambda folder: ["--set", "rollout.num_generations=eight"],
        ["rollout.num_generations: expected an integer, got 'eight'"],
    ),
    "a batch that does not divide": (
        lambda folder: ["--set", "trainer.prompts_per_mini_batch=3"],
        ["trainer.prompts_per_mini_batch: 3 does not divide rollout.prompts_per_step 4", "nearest legal: 2 or 4"],
    ),
    "more prompts per step than rows": (
        lambda folder: ["--set", "rollout.prompts_per_step=12"],
        ["rollout.prompts_per_step: 12 different prompts cannot be drawn from 10 rows", "largest legal: 10"],
    ),
    "missing weights file": (
        lambda folder: model(folder, file=lambda path: path.unlink()),
        ["model: neither model.safetensors nor", "config.json"],
    ),
    "another architecture": (
        lambda folder: [*model(folder), "--set", "model.num_key_value_heads=4"],
        ["model.num_key_value_heads: 4, but ", "/model/config.json says 2"],
    ),
    "missing name in the weights": (
        lambda folder: model(folder, lambda weights: weights.pop("model.norm.weight")),
        ["model/model.safetensors: ", "model.norm.weight"],
    ),
    "extra name in the weights": (
        lambda folder: model(folder, lambda weights: weights.update(extra=weights["model.norm.weight"])),
        ["model/model.safetensors: ", "extra"],
    ),
    "truncated weights": (
        lambda folder: model(folder, file=lambda path: path.write_bytes(path.read_bytes()[:-1000])),
        ["model.safetensors", "truncated"],
    ),
    "missing tokenizer file": (
        lambda folder: (folder / "tokenizer" / "merges.txt").unlink() or [],
        ["tokenizer", "merges.txt"],
    ),
    "missing tokenizer folder": (
        lambda folder: edit(folder / "tiny.yaml", "path: tokenizer", "path: tokeniser"),
        ["tokenizer.path", "tokeniser does not exist"],
    ),
    "empty data set": (lambda folder: (folder / "rows.jsonl").write_text("") or [], ["rows.jsonl", "row"]),
    "a row without an answer": (lambda folder: another_row(folder, question="?"), ["rows.jsonl:11", "answer"]),
    "a gold answer that is no number": (
        unreadable_gold,
        ["verl.jsonl: 1 gold answers", "row 0 (gsm8k): answer 'several'"],
    ),
    "a reward file without the function": (broken_reward_file, ["mine.py has no function 'score'", "'scores'"]),
    "a prompt longer than allowed": (
        lambda folder: another_row(folder, question="pens " * 40, answer="#### 1"),
        ["rows.jsonl:11", "max_prompt_length"],
    ),
    "a solution longer than the model": (
        lambda folder: another_row(folder, question="How many?", answer="1+1=2\n" * 20 + "#### 2"),
        ["warmup: row 10", "max_position_embeddings is 64"],
    ),
    "data of another tokenizer": (data_of_another_tokenizer, ["prepared: was made with another tokenizer"]),
    "a device that is not here": (
        lambda folder: ["--set", "device=Ascend", "--set", "model.hidden_size=64"],
        ["device: Ascend cannot be used here"],
    ),
}


@pytest.mark.parametrize(("prepare", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gives_one_clear_error_and_no_run(prepare, said, experiment, capsys, monkeypatch):
    folder = experiment.parent
    monkeypatch.chdir(folder)
    options = prepare(folder)
    before = tree(folder)
    capsys.readouterr()
    assert main(["run", str(experiment), *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == "", "no line of a run may stand before the error"
    assert printed.err.startswith("error: ") and printed.err.count("error: ") == 1
    assert all(fragment in printed.err for fragment in said), printed.err
    after = tree(folder)
    assert {name: after.get(name) for name in before} == before
    begun = {Path(name).parts[2] for name in after.keys() - before.keys() if name.startswith("runs/")}
    assert begun <= {"run.json", "data"}, "a run must not have begun: the next start would be refused"


def test_after_a_mistake_the_corrected_experiment_starts(experiment, capsys, monkeypatch, cpu_runtime):
    """Data prepared by the start that failed must not stand in the way of other settings."""
    from mindgspo.config import load_config
    from mindgspo.trainer.build import build_experiment

    folder = experiment.parent
    monkeypatch.chdir(folder)
    with (folder / "held_out.jsonl").open("a") as file:
        file.write(json.dumps({"question": "pens " * 40, "answer": "#### 7"}) + "\n")
    assert main(["run", str(experiment)]) == 1
    assert "held_out.jsonl:7 with" in capsys.readouterr().err
    edit(folder / "held_out.jsonl", "pens " * 40, "Seven?")
    run_dir = folder / "runs" / "tiny"
    built = build_experiment(load_config(experiment), data_dir=run_dir / "data", failures_dir=run_dir / "failures",
                             swap_dir=run_dir / "swap", new_run=True)  # fmt: skip
    assert built.validation.sets["eval"][6].answer == "7"
