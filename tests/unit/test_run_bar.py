"""The bar of a run: stages with their own count, the time left by the run's own steps, and what a step is doing."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from running import PROJECT

from mindgspo import progress
from mindgspo.metrics.run_log import StepPrinter
from mindgspo.progress import RunBar


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=0.0)


@pytest.fixture
def bar(clock: SimpleNamespace):
    made = RunBar(Console(file=io.StringIO(), force_terminal=True, width=100), lambda: clock.now)
    yield made
    made.close()


def test_time_left_of_steps_that_take_minutes(bar: RunBar, clock: SimpleNamespace) -> None:
    """The first step compiles for 300 s, the others take 90 s; the fifth has run for 30 s, then for 200 s."""
    bar.show("training", 0, 10)
    assert bar.left() is None
    for step, now in ((1, 300.0), (2, 390.0), (3, 480.0), (4, 570.0)):
        clock.now = now
        bar.show("training", step, 10)
    assert bar.left() == pytest.approx(6 * 90)
    clock.now += 30
    bar.show("training", 4, 10)  # an evaluation's line, of the same step
    assert bar.left() == pytest.approx(6 * 90 - 30)
    clock.now += 170
    assert bar.left() == pytest.approx(5 * 90), "a step that takes long takes nothing from the next ones"


def test_one_step_is_enough_and_a_stage_begins_anew(bar: RunBar, clock: SimpleNamespace) -> None:
    bar.show("warm-up", 0, 400)
    clock.now = 2.0
    bar.show("warm-up", 1, 400)
    assert bar.left() == pytest.approx(2 * 399)
    clock.now = 50.0
    bar.show("training", 0, 40)
    assert bar.left() is None
    clock.now = 95.0
    bar.show("training", 1, 40)
    assert bar.left() == pytest.approx(45 * 39)


def test_what_a_step_is_doing(bar: RunBar) -> None:
    bar.show("training", 3, 8)
    progress.enter_phase("gen")
    progress.count(24, 256, "responses")
    assert bar._rest() == "generating 24/256 responses"
    progress.enter_phase("step")  # the timer around all phases
    assert bar._rest() == "generating 24/256 responses"
    progress.enter_phase("update_actor")
    assert bar._rest() == "updating"


def test_the_screen_of_a_run_with_a_warm_up() -> None:
    """No step is ever -1, which is what a log is cut to before its first line."""
    screen = io.StringIO()
    printer = StepPrinter(Console(file=screen, force_terminal=True, width=100), progress=True, total_steps=40)
    printer.show("warm-up", 0, 400)
    printer.show("warm-up", 150, 400)
    printer._bar._bar.refresh()
    printer.start_at(-1)
    printer._bar._bar.refresh()
    printer.close()
    shown = screen.getvalue()
    assert "warm-up" in shown and "150/400" in shown and " 0/40" in shown and "-1" not in shown
    progress.enter_phase("gen")  # nothing shows it any more
    progress.count(1, 2, "responses")


def test_a_wait_is_told_with_its_count_and_the_time_left(capsys, monkeypatch) -> None:
    """4 of 16 in 2 s: another 6 s. Nothing is told while something is printed, and nothing after the end."""
    monkeypatch.setattr(progress, "_QUIET_S", 0.7)
    with progress.told_waits():
        with progress.activity("loading weights", 16, "tensors") as doing:
            doing.began -= 2.0
            progress.count(4, 16, "tensors")
            time.sleep(1.5)
        first = capsys.readouterr().err.splitlines()[0]
        assert re.fullmatch(r"\.\.\. loading weights 4/16 tensors, [234] s, (6|7|8|9|10|11|12) s left", first)
        progress.enter_phase("gen")
        with progress.activity("compiling NextLogits"):
            time.sleep(1.5)
        assert capsys.readouterr().err.startswith("... compiling NextLogits, ")
    time.sleep(1.5)
    assert capsys.readouterr().err == ""


def test_the_tool_that_measures_pauses() -> None:
    child = "import time; print('a', flush=True); time.sleep(0.6); print('b', flush=True)"
    command = [sys.executable, PROJECT / "tools/bench_silence.py", sys.executable, "-c", child]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    figures = json.loads(found.stdout)
    assert found.stderr == "a\nb\n" and figures["pauses_over_10_s"] == 0
    assert 0.5 < figures["longest_pause_s"] <= figures["seconds"]
