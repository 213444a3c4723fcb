"""Records the phases of the steps that `profile.steps` names.

`run_dir/profile/`:

    step_00000003.json   a Chrome trace: the phases of all recorded ranks, one process per rank
    step_00000003/       on Ascend: rank_0_<process>_<time>_ascend_ms per rank and collection, for MindStudio Insight
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mindspore import profiler

from mindgspo.config.profile import ProfileSection
from mindgspo.io import json_bytes, make_folder, write_file
from mindgspo.metrics.files import PROFILE_FOLDER
from mindgspo.parallel.collectives.host import exchange
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import first_rank_first

# A phase: its name, its start on a clock that all ranks share, and its length, in nanoseconds.
_Span = tuple[str, int, int]


class Collector(Protocol):
    """Collects what the device does in a phase, and names the phases in what it collected."""

    def start(self, folder: Path) -> None: ...

    def stop(self) -> None: ...

    def enter(self, phase: str) -> int:
        """Begin a range; returns its number."""
        ...

    def exit(self, number: int) -> None: ...


class MindSporeCollector:
    """MindSpore's profiler. What it collected is parsed at once, by processes that it starts."""

    def __init__(self, rank: int) -> None:
        self._worker, self._profile = f"rank_{rank}", None

    def start(self, folder: Path) -> None:
        """Begin a collection in a new folder below `folder`."""
        ready = profiler.tensorboard_trace_handler(str(folder), worker_name=self._worker)
        level = profiler.ProfilerLevel.Level0
        config = profiler._ExperimentalConfig(profiler_level=level, mstx=True)
        self._profile = profiler.profile(start_profile=False, on_trace_ready=ready, experimental_config=config)
        self._profile.start()

    def stop(self) -> None:
        """End the collection, and write what MindStudio Insight reads."""
        assert self._profile is not None, "not started"
        self._profile.stop()
        self._profile = None

    def enter(self, phase: str) -> int:
        """Begin the phase's range in the timeline."""
        return profiler.mstx.range_start(phase)

    def exit(self, number: int) -> None:
        """End it."""
        profiler.mstx.range_end(number)


class PhaseProfiler:
    """Records phases on one rank. Its `enter` and `exit` are told of all phases, by `metrics.Timers`."""

    def __init__(self, section: ProfileSection, run_dir: Path, *, collector: Collector | None = None) -> None:
        """collector: None on CPU and on emulated cards, where phases alone are recorded."""
        self._section, self._folder, self._collector = section, run_dir / PROFILE_FOLDER, collector
        self._ranks = range(runtime.world_size()) if section.ranks is None else section.ranks
        self._since_epoch = time.time_ns() - time.perf_counter_ns()
        self._step, self._has_room, self._is_recording = 0, True, False
        self._open: list[int] = []  # ranges of the phases that are being recorded, outermost first
        self._spans: list[_Span] = []

    def begin_step(self, step: int) -> None:
        """Record what follows, if the step is one to record. All ranks call it."""
        self._step = step if step in self._section.steps else 0
        if self._step == 0:
            return
        first_rank_first(lambda: make_folder(self._folder))
        largest = max((size_on_disk(entry) for entry in self._folder.iterdir()), default=0)
        self._has_room = self._fits(largest)
        self._is_recording = self._has_room and runtime.rank() in self._ranks

    def enter(self, phase: str) -> None:
        """A phase begins."""
        if not self._is_recording or not (self._open or phase in self._section.phases):
            return
        if self._collector is None:
            self._open.append(0)
            return
        if not self._open:
            self._collector.start(self._step_folder)
        self._open.append(self._collector.enter(phase))

    def exit(self, phase: str, start: float, seconds: float) -> None:
        """A phase has ended. start: by time.perf_counter."""
        if not self._open:
            return
        begun, ended = round(start * 1e9), round((start + seconds) * 1e9)
        self._spans.append((phase, begun + self._since_epoch, ended - begun))
        number = self._open.pop()
        if self._collector is not None:
            self._collector.exit(number)
            if not self._open:
                self._collector.stop()

    def end_step(self) -> str | None:
        """Write the step's trace, if it is one to record; returns a line for the user. All ranks call it."""
        step, self._step, self._is_recording = self._step, 0, False
        if step == 0:
            return None
        messages = exchange(json.dumps(self._spans).encode(), senders=self._ranks)
        self._spans = []
        path = self._folder / f"step_{step:08d}.json"
        trace = json_bytes(chrome_trace(dict(zip(self._ranks, map(json.loads, messages), strict=True)), step))
        if not self._has_room or not self._fits(len(trace)):
            held_gb, limit_gb = size_on_disk(self._folder) / 2**30, self._section.limit_gb
            return (
                f"profile: step {step} is not recorded: {self._folder} holds {held_gb:.3g} GB of profile.limit_gb "
                f"{limit_gb:.3g}, too much for another step; raise it, or move the folder away"
            )
        if runtime.rank() == 0:
            write_file(path, trace)
        return f"profile: step {step} is recorded in {path}{f' and {path.stem}/' if self._collector else ''}"

    @property
    def _step_folder(self) -> Path:
        return self._folder / f"step_{self._step:08d}"

    def _fits(self, more: int) -> bool:
        return size_on_disk(self._folder) + more <= self._section.limit_gb * 2**30


def size_on_disk(path: Path) -> int:
    """Size of a file, or of all files below a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def chrome_trace(spans: Mapping[int, Sequence[_Span]], step: int) -> dict[str, Any]:
    """Phases by rank in Chrome's trace event format: microseconds from the first phase of any rank on."""
    first = min((start for found in spans.values() for _, start, _ in found), default=0)
    events: list[dict[str, Any]] = []
    for rank, found in spans.items():
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events += (
            {
                "ph": "X",
                "name": phase,
                "cat": "phase",
                "ts": (start - first) / 1e3,
                "dur": length / 1e3,
                "pid": rank,
                "tid": 0,
                "args": {"step": step},
            }
            for phase, start, length in sorted(found, key=lambda span: (span[1], -span[2]))
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}
