"""Training from Python: a closure as the reward, rows, callbacks; a run that a callback ends is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import read_lines, reproducible, write_experiment

import mindgspo
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import TrainingError

SETTINGS = {
    "warmup": None, "data.train": {"format": "arithmetic"}, "trainer.max_steps": 2, "trainer.save_every": None,
    "rollout.max_new_tokens": 4, "eval.before": False, "eval.every": None, "eval.num_samples": 1, "eval.pass_at_k": [1],
}  # fmt: skip
ROWS = [{"prompt": f"{number} pens and one more?", "answer": number + 1, "hint": "add"} for number in range(1, 9)]


class Seen:
    """Remembers its calls; does something at a step."""

    def __init__(self, **at_step: object) -> None:
        self.at_step = at_step
        self.lines: list[dict] = []
        self.runs: list[mindgspo.Run] = []

    def on_step(self, record) -> object:
        self.on_evaluation(record)
        answer = self.at_step.get(f"step_{record.step}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def on_evaluation(self, record) -> None:
        assert record.total_steps == 2
        self.lines.append({"step": record.step, **record.metrics})

    def on_end(self, run: mindgspo.Run) -> None:
        self.runs.append(run)


def test_two_steps_with_a_closure_rows_and_a_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parse_document(write_experiment(tmp_path).read_text())
    monkeypatch.chdir(tmp_path)
    seen, calls = Seen(), []

    def near(data_source, solution_str, ground_truth, extra_info):
        calls.append((data_source, ground_truth, extra_info.get("hint")))
        return {"score": -abs(len(solution_str) - 3), "chars": len(solution_str)}

    run = mindgspo.train(whole, SETTINGS, reward=near, data=ROWS, callbacks=[seen])
    assert run.path == Path("runs/tiny") and run.summary["steps"] == 2 and seen.runs == [run]
    assert seen.lines == read_lines(run.path / "metrics.jsonl"), "every line as it was written, in its order"
    assert {call for call in calls if call[0] == "rows"} <= {("rows", str(row["answer"]), "add") for row in ROWS}
    assert ("openai/gsm8k", "2", None) in calls, "held-out problems are scored by it, too"
    assert (run.config.reward.functions, run.config.eval.best_metric) == (("python:near",), "val-core/reward/mean@1")
    sample = run.samples[0]
    record = sample.record
    assert sample.score == -abs(record["extras"]["near/chars"] - 3) and record["parts"] == {"near": sample.score}
    assert run.metrics["reward/part/near/mean"].steps.tolist() == [1, 2]


@pytest.mark.slow
def test_a_run_that_a_callback_breaks_and_another_stops_ends_as_if_it_had_not(tmp_path: Path) -> None:
    config = write_experiment(tmp_path)

    def train(name: str, seen: Seen, **changes: object) -> mindgspo.Run:
        settings = SETTINGS | {"run_dir": tmp_path / name, "trainer.max_steps": 2, **changes}
        reward = lambda solution_str, **_: float(len(solution_str) > 3)  # noqa: E731
        return mindgspo.train(config, settings, reward=reward, data=ROWS, callbacks=[seen])

    train("whole", whole := Seen())
    broken = Seen(step_1=KeyError("no such axis"))
    said = "callback Seen.on_step failed at step 1, .*: KeyError: 'no such axis'"
    with pytest.raises(TrainingError, match=said) as failure:
        train("run", broken)
    assert failure.value.__cause__ is broken.at_step["step_1"] and broken.runs == []
    assert [one.name for one in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_00000000", "step_00000001"]
    stopping = Seen(step_2="stop")
    run = train("run", stopping, resume="auto")
    assert run.summary["steps"] == 2, "a stop at the last step is its end"
    assert reproducible(broken.lines + stopping.lines) == reproducible(whole.lines)
    for name in ("metrics.jsonl", "samples.jsonl", "export/model.safetensors"):
        ours, theirs = tmp_path / "run" / name, tmp_path / "whole" / name
        is_log = name.endswith("l")
        assert (
            reproducible(read_lines(ours)) == reproducible(read_lines(theirs))
            if is_log
            else (ours.read_bytes() == theirs.read_bytes())
        ), name
    stopped = train("stopped", first := Seen(step_1="stop"))
    assert (stopped.summary, stopped.overview.state.value, stopped.overview.step) == ({}, "stopped", 1)
    assert first.runs == [stopped] and reproducible(first.lines) == reproducible(whole.lines[:1])
