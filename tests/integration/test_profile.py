"""Recorded steps of a whole run: their traces beside the run's own seconds, over a stop, and where disk space ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import mindgspo, sets, succeeded, training_lines, write_experiment

INSIDE = {"gen", "reward", "old_log_prob", "adv", "update_actor", "update_weights"}


def slices(path: Path) -> list[tuple[str, float, float]]:
    """(phase, beginning, seconds) of a trace of one rank."""
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0}
    return [(one["name"], one["ts"] / 1e6, one["dur"] / 1e6) for one in events if one["ph"] == "X"]


@pytest.mark.slow
def test_recorded_steps_have_the_seconds_of_the_metrics_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    config = write_experiment(tmp_path)
    root, common = tmp_path / "runs" / "tiny", ("warmup=null", "profile.phases=[step,testing,save_checkpoint]")
    done = succeeded("run", config, *sets(*common, "trainer.max_steps=2", "profile.steps=[2]"), cwd=tmp_path)
    (banner,) = (line for line in done.stdout.splitlines() if line.startswith("profile  "))
    assert banner.split("  ")[-1].strip().startswith("step/testing/save_checkpoint of steps 2, ranks 0, in ")
    assert banner.endswith("runs/tiny/profile")
    trace = root / "profile" / "step_00000002.json"
    assert f"profile: step 2 is recorded in {trace}" in done.stdout
    assert 'href="profile/step_00000002.json"' in (root / "report.html").read_text(encoding="utf-8")

    (_, line), found = training_lines(root), slices(trace)
    assert [name for name, _, _ in found if name not in INSIDE] == ["step", "testing", "save_checkpoint"]
    (_, began, seconds), *rest = found
    inside = [one for one in rest if one[0] in INSIDE]
    assert {name for name, _, _ in inside} == INSIDE and rest[: len(inside)] == inside
    ends = [began]
    for name, start, length in inside:  # each in the step, and after the one before it
        assert ends[-1] <= start and start + length <= began + seconds
        ends.append(start + length)
        assert length == pytest.approx(line[f"timing_s/{name}"], abs=1e-6)
    assert seconds == pytest.approx(line["timing_s/step"], abs=1e-6)
    assert all(start >= began + seconds for _, start, _ in rest[len(inside) :])

    # More steps, recorded with less room than a trace takes: the run goes on, and says so.
    more = ("resume=auto", "trainer.max_steps=4", "profile.steps=[3]", "profile.limit_gb=1e-6")
    done = succeeded("run", config, *sets(*common, *more), cwd=tmp_path)
    assert f"profile: step 3 is not recorded: {root / 'profile'} holds " in done.stdout
    assert [path.name for path in trace.parent.iterdir()] == [trace.name]


def test_steps_that_the_data_do_not_reach_are_one_line(tmp_path: Path) -> None:
    """10 rows make 2 steps of 4 prompts, which only those who count the rows know."""
    config = write_experiment(tmp_path)
    done = mindgspo("check", config, *sets("trainer.max_steps=null", "profile.steps=[3]"), cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "profile.steps: 3 comes after the run's 2 steps; largest legal: 2" in done.stderr
