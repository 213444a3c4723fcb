"""Training from Python: a closure as reward, rows, callbacks; a run that a callback ends is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import read_lines, training_lines, write_experiment

import mindgspo
from mindgspo.errors import ConfigError, TrainingError

SETTINGS = {
    "warmup": None,
    "trainer.max_steps": 3,
    "trainer.save_every": None,
    "eval.num_samples": 1,
    "eval.pass_at_k": [1],
}
ROWS = [{"prompt": f"{number} pens and one more?", "answer": number + 1, "hint": "add"} for number in range(1, 9)]


class Seen:
    """Remembers its calls; raises or asks for the end of the run at a step."""

    def __init__(self, *, raises_at: int | None = None, stops_at: int | None = None) -> None:
        self.raises_at, self.stops_at = raises_at, stops_at
        self.steps, self.evaluations, self.runs = [], [], []

    def on_step(self, record) -> str | None:
        self.steps.append(record)
        if record.step == self.raises_at:
            raise KeyError("no such axis")
        return "stop" if record.step == self.stops_at else None

    def on_evaluation(self, record) -> None:
        self.evaluations.append(record)

    def on_end(self, run: mindgspo.Run) -> None:
        self.runs.append(run.path)


def test_a_closure_rows_and_callbacks_in_a_run_that_fails_stops_and_is_resumed(tmp_path: Path) -> None:
    config, root = write_experiment(tmp_path), tmp_path / "run"
    settings = SETTINGS | {"run_dir": root, "data.train": {"format": "arithmetic"}}
    lengths, calls = [3, 5], []

    def near(data_source, solution_str, ground_truth, extra_info):
        calls.append((data_source, ground_truth, extra_info.get("hint")))
        return {"score": -min(abs(len(solution_str) - length) for length in lengths), "chars": len(solution_str)}

    def train(seen: Seen, **changes: object) -> mindgspo.Run:
        given = {"reward": near, "data": ROWS, "callbacks": [seen]}
        return mindgspo.train(config, settings | changes, **given)

    broken = Seen(raises_at=1)
    with pytest.raises(
        TrainingError, match=r"callback Seen.on_step failed \(KeyError: 'no such axis'\) at step 1, which"
    ) as failure:
        train(broken)
    assert isinstance(failure.value.__cause__, KeyError) and broken.runs == []
    assert [record.step for record in broken.steps] == [1] and [one.step for one in broken.evaluations] == [0]
    assert ("rows", "2", "add") in calls and len(training_lines(root)) == 1
    assert sorted(path.name for path in (root / "checkpoints").iterdir())[-1] == "step_00000001"

    stopping = Seen(stops_at=2)
    run = train(stopping, resume="auto")
    assert [record.step for record in stopping.steps] == [2] and stopping.runs == [root] == [run.path]
    assert run.summary == {} and (run.overview.state.value, run.overview.step) == ("stopped", 2)

    with pytest.raises(ConfigError, match="data.train.path: .*, the run has .*/run/data/rows-"):
        mindgspo.train(config, settings | {"resume": "auto"}, reward=near, data=ROWS[1:])
    last = Seen()
    run = train(last, resume="auto")
    assert run.summary["steps"] == 3 and last.runs == [root]
    assert [record.step for record in last.steps + last.evaluations] == [3, 3]

    records = {(record.step, "samples/generated" in record.metrics): record for seen in (broken, stopping, last)
               for record in seen.steps + seen.evaluations}  # fmt: skip
    lines = read_lines(root / "metrics.jsonl")
    assert [{"step": record.step, **record.metrics} for record in records.values()] == [{**line} for line in lines], (
        "each line once, as it was written"
    )
    assert {record.total_steps for record in records.values()} == {3}
    with pytest.raises(TypeError):
        last.steps[0].metrics["actor/lr"] = 0
    assert run.config.reward.functions == ("python:near",) and run.config.eval.best_metric == "val-core/reward/mean@1"
    assert (
        run.samples[0].record["parts"] == {"near": run.samples[0].score}
        and "near/chars" in run.samples[0].record["extras"]
    )
