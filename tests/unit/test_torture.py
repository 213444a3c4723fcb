"""The plan of kills, and what the judge finds in run folders made by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from torture_runs import REQUIRED, Kill, Life, Pace, Torture, _Moment, after_kill, at_the_end, planned_kills
from weight_files import write_safetensors

from mindgspo import faults
from mindgspo.checkpoint.store import Retention, save_checkpoint
from mindgspo.metrics import write_summary


@pytest.mark.parametrize("seed", range(30))
def test_each_part_of_a_step_is_hit_three_times_in_twenty(seed: int) -> None:
    kills = planned_kills(20, seed, workers=1)
    counts = Counter(kill.kind for kill in kills)
    assert len(kills) == 20 and min(counts[kind] for kind in REQUIRED) >= 3
    assert kills[-1].kind == "finish" and counts["finish"] == 1
    assert kills[0].fault is None or not kills[0].fault.startswith("resume.after"), "a first life resumes nothing"
    for kill in kills:
        if kill.fault is not None:
            assert [fault.what for fault in faults.faults_of(kill.fault)] == ["kill"]
        else:
            assert 0 <= kill.share < 1 and kill.steps in (0, 1, 2)
    assert planned_kills(20, seed, workers=1) == kills != planned_kills(20, seed + 1, workers=1)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 40])
def test_any_number_of_kills_on_several_ranks(number: int) -> None:
    kills = planned_kills(number, 5, workers=4)
    assert len(kills) == number
    for fault in (faults.faults_of(kill.fault)[0] for kill in kills if kill.fault is not None):
        assert fault.rank in range(4)
        assert fault.rank == 0 or fault.point not in ("save.inside", "save.rename", "save.remove")


def life(*seen: int, resumed_at: int | None = None) -> Life:
    text = "" if resumed_at is None else f"resumed at step {resumed_at} from /x\n"
    return Life(exit_code=-9, seconds=1.0, was_hit=True, seen=frozenset(seen), is_left=False, text=text)


def run_folder(folder: Path, *, steps: int, saved: tuple[int, ...], value: float = 1.0) -> Path:
    """A finished run as the judge sees one."""
    for step in saved:
        save_checkpoint(
            folder / "checkpoints", step=step, parameters={"w": np.full(3, value, np.float32)},
            optimizer={"m": np.full(3, step, np.float32)}, state={"kept": {}}, keep=Retention(last=9),
        )  # fmt: skip
    records = [
        {"step": step, "actor/loss": step * value, "timing_s/gen": np.random.rand()} for step in range(steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    samples = [{"step": step, "response": str(step)} for step in range(1, steps + 1)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in samples))
    (folder / "export").mkdir()
    write_safetensors(folder / "export" / "model.safetensors", {"w": np.full(3, value, np.float32)})
    write_summary(folder, finished=True, steps=steps, seconds=np.random.rand())
    return folder


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "whole", steps=4, saved=(2, 4))


def test_unsaved_steps_may_be_lost(tmp_path: Path, reference: Path) -> None:
    run = run_folder(tmp_path / "run", steps=3, saved=(0, 2))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "actor/lo')
    assert after_kill(run, reference, life(0, 2, resumed_at=0), newest_before=0) == (2, [])
    assert after_kill(tmp_path / "absent", reference, life(), newest_before=None) == (None, [])


def test_a_checkpoint_that_had_its_name_must_be_there(tmp_path: Path, reference: Path) -> None:
    run = run_folder(tmp_path / "run", steps=2, saved=(2,))
    newest, problems = after_kill(run, reference, life(2, 4), newest_before=2)
    assert newest == 2 and problems == ["the newest complete checkpoint is of step 2; that of step 4 had been saved"]
    assert after_kill(run, reference, life(2, resumed_at=1), newest_before=2)[1] == [
        "went on from step 1, although step 2 had been saved"
    ]


def test_a_checkpoint_with_its_name_must_be_whole(tmp_path: Path, reference: Path) -> None:
    run = run_folder(tmp_path / "run", steps=4, saved=(2, 4))
    path = run / "checkpoints" / "step_00000004" / "parameters.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    newest, problems = after_kill(run, reference, life(2, 4), newest_before=2)
    assert newest == 2 and len(problems) == 2 and "truncated" in problems[0]


def test_logs_up_to_the_checkpoint_are_those_of_the_whole_run(tmp_path: Path, reference: Path) -> None:
    run = run_folder(tmp_path / "run", steps=4, saved=(2,), value=2.0)
    _, problems = after_kill(run, reference, life(2), newest_before=None)
    assert problems == ["metrics.jsonl up to step 2: line 2 differs: actor/loss is 2.0, not 1.0"]
    lines = (run / "samples.jsonl").read_text().splitlines(keepends=True)
    (run / "samples.jsonl").write_text("".join(lines[:1] + lines[2:]))
    _, problems = after_kill(run, reference, life(2), newest_before=None)
    assert problems[1] == "samples.jsonl up to step 2: 1 lines, the uninterrupted run has 2"


def test_the_end_must_be_bit_equal(tmp_path: Path, reference: Path) -> None:
    assert at_the_end(run_folder(tmp_path / "same", steps=4, saved=(4,)), reference) == []
    other = run_folder(tmp_path / "other", steps=4, saved=(4,), value=np.nextafter(np.float32(1), np.float32(2)).item())
    problems = at_the_end(other, reference)
    assert len(problems) == 3 and problems[0].startswith("metrics.jsonl: line 2 differs")
    assert [problem.split("/")[-1] for problem in problems[1:]] == [
        "parameters.safetensors: 1 tensors are not bit-equal, e.g. w",
        "model.safetensors: 1 tensors are not bit-equal, e.g. w",
    ]
    shorter = run_folder(tmp_path / "shorter", steps=3, saved=(2,))
    assert any(
        "the last checkpoints are step_00000002 and step_00000004" in text for text in at_the_end(shorter, reference)
    )
    assert any(text.startswith("summary.json") for text in at_the_end(shorter, reference))


def test_a_kill_from_outside_waits_for_steps_of_this_life(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    pace = Pace(start_s=20.0, step_s=2.0)
    early = _Moment(Kill(kind="any time", share=0.5), pace, metrics)
    assert [early.has_come(seconds) for seconds in (0.0, 9.9, 10.0)] == [False, False, True]

    def write(*steps: int) -> None:
        metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps))

    late = _Moment(Kill(kind="any time", share=0.5, steps=2), pace, metrics)
    write(1, 2, 3)
    assert not late.has_come(5.0)
    write(1, 2)  # resumed at step 2
    assert not late.has_come(15.0)
    write(1, 2, 3)
    assert not late.has_come(17.0)
    write(1, 2, 3, 4)
    assert [late.has_come(seconds) for seconds in (19.0, 19.9, 20.0)] == [False, False, True]
    lines = [{"step": 0, "timing_s/testing": 9.0}, *({"step": step, "timing_s/step": 2.0} for step in (1, 2, 3))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Pace.of(tmp_path, 30.0) == Pace(start_s=24.0, step_s=2.0)


def test_a_kill_that_is_never_reached_is_left_out_at_the_second_run(tmp_path: Path) -> None:
    torture = Torture(folder=tmp_path, kills=2)
    first, second = (Kill(kind="eval", fault=f"eval.before:{number}=kill") for number in (8, 9))
    waiting = [first, second]
    assert list(torture._missed(waiting)) == [] and waiting == [first, second]
    assert list(torture._missed(waiting)) == ["left out: eval.before:8=kill is not reached by this experiment"]
    assert waiting == [second]
    assert list(torture._missed(waiting)) == [] and waiting == [second]
