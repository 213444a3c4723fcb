"""Which phases of which steps are recorded, what a trace of them holds, and where the disk space ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import python

from mindgspo.config.profile import ProfileSection
from mindgspo.metrics import Timers
from mindgspo.trainer.profiling import PhaseProfiler, chrome_trace, size_on_disk


class FakeCollector:
    """Notes what is asked of it; every collection leaves `size` bytes."""

    def __init__(self, size: int = 100) -> None:
        self.calls: list[str] = []
        self._size, self._folder = size, Path()

    def start(self, folder: Path) -> None:
        self.calls.append(f"start {folder.name}")
        self._folder = folder

    def stop(self) -> None:
        self.calls.append("stop")
        self._folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self._folder.iterdir()))
        (self._folder / f"rank_0_{number}_ascend_ms").write_bytes(bytes(self._size))

    def enter(self, phase: str) -> int:
        self.calls.append(f"enter {phase}")
        return len(self.calls)

    def exit(self, number: int) -> None:
        self.calls.append(f"exit {self.calls[number - 1].removeprefix('enter ')}")


def steps_of(profiler: PhaseProfiler, last: int, phases: Sequence[str] = ("gen", "reward", "gen")) -> list[str | None]:
    """Lines of the steps 1 to `last`, each with these phases inside it and an evaluation after it."""
    ticks = iter(range(1000))
    timers = Timers(clock=lambda: float(next(ticks)), on_enter=profiler.enter, on_exit=profiler.exit)
    lines = []
    for step in range(1, last + 1):
        profiler.begin_step(step)
        with timers("step"):
            for phase in phases:
                with timers(phase):
                    pass
        with timers("testing"):
            pass
        lines.append(profiler.end_step())
    return lines


def slices(path: Path) -> list[tuple[str, float, float]]:
    """(phase, beginning, end) in seconds, in the trace's order."""
    events = json.loads(path.read_text())["traceEvents"]
    return [(one["name"], one["ts"] / 1e6, (one["ts"] + one["dur"]) / 1e6) for one in events if one["ph"] == "X"]


@pytest.mark.usefixtures("cpu_runtime")
def test_a_recorded_step_has_its_phases_nested_and_the_others_have_no_file(tmp_path: Path) -> None:
    profiler = PhaseProfiler(ProfileSection(steps=(2,)), tmp_path)
    path = tmp_path / "profile" / "step_00000002.json"
    assert steps_of(profiler, 3) == [None, f"profile: step 2 is recorded in {path}", None]
    assert list(path.parent.iterdir()) == [path]
    # The clock ticks at every beginning and every end: the evaluation lies outside the step, and is not asked for.
    assert slices(path) == [("step", 0, 7), ("gen", 1, 2), ("reward", 3, 4), ("gen", 5, 6)]


@pytest.mark.usefixtures("cpu_runtime")
def test_only_the_phases_asked_for_are_recorded_each_with_a_collection_of_its_own(tmp_path: Path) -> None:
    collector = FakeCollector()
    section = ProfileSection(steps=(1, 3), phases=("gen", "testing"))
    line, none, _ = steps_of(PhaseProfiler(section, tmp_path, collector=collector), 3)
    folder = tmp_path / "profile"
    assert line == f"profile: step 1 is recorded in {folder}/step_00000001.json and step_00000001/" and none is None
    assert slices(folder / "step_00000003.json") == [("gen", 0, 1), ("gen", 4, 5), ("testing", 7, 8)]
    one = [call for phase in ("gen", "gen", "testing") for call in
           ("start step_00000001", f"enter {phase}", f"exit {phase}", "stop")]  # fmt: skip
    assert collector.calls == [*one, *(call.replace("00001", "00003") for call in one)]


@pytest.mark.usefixtures("cpu_runtime")
def test_a_whole_step_is_one_collection_that_names_what_is_inside_it(tmp_path: Path) -> None:
    collector = FakeCollector()
    steps_of(PhaseProfiler(ProfileSection(steps=(1,)), tmp_path, collector=collector), 1, phases=("gen", "reward"))
    inside = [f"{word} {phase}" for phase in ("gen", "reward") for word in ("enter", "exit")]
    assert collector.calls == ["start step_00000001", "enter step", *inside, "exit step", "stop"]


@pytest.mark.usefixtures("cpu_runtime")
def test_a_step_that_would_not_fit_is_not_begun(tmp_path: Path) -> None:
    """Collections of 1000 bytes, traces of less: two steps fit in 3500 bytes, a third as large would not."""
    collector = FakeCollector(size=1000)
    section = ProfileSection(steps=(1, 2, 3), limit_gb=3500 / 2**30)
    lines = steps_of(PhaseProfiler(section, tmp_path, collector=collector), 3, phases=())
    folder = tmp_path / "profile"
    held = size_on_disk(folder)
    assert 2000 < held <= 3500 and collector.calls.count("stop") == 2
    assert lines[-1] is not None and lines[-1].startswith(f"profile: step 3 is not recorded: {folder} holds ")
    assert "of profile.limit_gb 3.26e-06" in lines[-1] and not (folder / "step_00000003.json").exists()
    # A run that is resumed counts what is there.
    (line,) = steps_of(PhaseProfiler(section, tmp_path, collector=collector), 1, phases=())
    assert line is not None and "step 1 is not recorded" in line and size_on_disk(folder) == held


@pytest.mark.usefixtures("cpu_runtime")
def test_no_trace_is_larger_than_the_limit(tmp_path: Path) -> None:
    (line,) = steps_of(PhaseProfiler(ProfileSection(steps=(1,), limit_gb=100 / 2**30), tmp_path), 1)
    assert line is not None and "step 1 is not recorded" in line and list((tmp_path / "profile").iterdir()) == []


def test_ranks_are_processes_on_one_clock() -> None:
    trace = chrome_trace({0: [("step", 5_000, 4_000)], 3: [("gen", 6_500, 500), ("step", 4_500, 5_000)]}, step=7)
    named = [(one["pid"], one["args"]["name"]) for one in trace["traceEvents"] if one["ph"] == "M"]
    assert named == [(0, "rank 0"), (3, "rank 3")]
    found = [(one["pid"], one["name"], one["ts"], one["dur"]) for one in trace["traceEvents"] if one["ph"] == "X"]
    assert found == [(0, "step", 0.5, 4.0), (3, "step", 0.0, 5.0), (3, "gen", 2.0, 0.5)]  # microseconds


COLLECTED = """
import sys
from pathlib import Path
import mindspore as ms
from mindgspo.trainer.profiling import MindSporeCollector

ms.set_device("CPU")
collector = MindSporeCollector(rank=5)
for folder in map(Path, sys.argv[1:]):
    collector.start(folder)
    collector.exit(collector.enter("gen"))
    ms.ops.exp(ms.Tensor([1.0])).asnumpy()
    collector.stop()
"""


@pytest.mark.slow
def test_mindspores_profiler_takes_what_it_is_told(tmp_path: Path) -> None:
    """On a CPU it collects the operators of the host, with the calls that a card gets."""
    folders = [tmp_path / "step_00000001", tmp_path / "step_00000002"]
    done = python("-c", COLLECTED, *folders, cwd=tmp_path)
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr
    for folder in folders:
        (collected,) = folder.iterdir()
        assert collected.name.startswith("rank_5_") and collected.name.endswith("_ascend_ms")
        view = json.loads((collected / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text())
        assert "Exp" in {str(event.get("name", "")).split("/")[-1].split("-")[0].split("_")[-1] for event in view}, view
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name for folder in folders]
