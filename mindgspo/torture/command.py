"""The whole of a torture: the uninterrupted run, then lives that are killed, then the comparison.

What enters: `Torture`, from the command line. What leaves: lines to print, and whether only unsaved steps were lost.
Called by `tools/torture.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mindgspo.errors import TrainingError
from mindgspo.torture.experiment import write_experiment
from mindgspo.torture.judge import after_kill, at_the_end
from mindgspo.torture.kills import Kill, planned_kills
from mindgspo.torture.life import Life, Pace, lived

_SPARE_STEPS = 6
_PATIENCE = 10.0  # times the uninterrupted run, and a minute, before a life counts as hanging
_NUM_LAST_LINES = 15


@dataclass(slots=True, kw_only=True)
class Torture:
    """folder: for all runs. config: an experiment of the user's; None: the built-in one. num_lost: kills after which
    something other than unsaved steps was lost, one more for an end that differs."""

    folder: Path
    kills: int
    seed: int = 0
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    workers: int = 1
    num_lost: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)
    _tried: Kill | None = None

    def lines(self) -> Iterator[str]:
        """Do it, and say what happens; the last line sums up. Raises TrainingError where a run ends badly by itself."""
        config = self.config or write_experiment(
            self.folder / "experiment", max_steps=2 * self.kills + _SPARE_STEPS, workers=self.workers
        )
        reference = self.folder / "uninterrupted"
        whole = self._lived(config, reference, None, Pace(), limit_s=24 * 3600.0)
        if whole.exit_code != 0:
            raise TrainingError(f"the uninterrupted run ended with exit code {whole.exit_code}:\n{_last(whole.text)}")
        yield f"uninterrupted run: {whole.seconds:.0f} s"
        waiting = planned_kills(self.kills, self.seed, self.workers)
        number = 0
        while waiting:  # a run that has ended before all kills were spent is followed by another one
            number += 1
            run_dir = self.folder / f"killed_{number}"
            yield from self._killed(config, run_dir, reference, waiting, whole)
            problems = at_the_end(run_dir, reference)
            self.num_lost += bool(problems)
            yield f"{run_dir.name}: " + ("bit-equal to the uninterrupted run" if not problems else "DIFFERS")
            yield from (f"  {problem}" for problem in problems)
        yield from self._table()
        hits = [entry for entry in self.entries if entry["was_hit"]]
        num_survived = sum(not entry["problems"] for entry in hits)
        yield f"survived {num_survived} of {len(hits)}, lost {self.num_lost}"

    def report(self) -> dict[str, Any]:
        """All that was done, for a JSON file."""
        return {"seed": self.seed, "workers": self.workers, "lost": self.num_lost, "kills": self.entries}

    def _killed(self, config: Path, run_dir: Path, reference: Path, waiting: list[Kill], whole: Life) -> Iterator[str]:
        """Lives of one run until it has ended. Takes the kills that happened out of `waiting`."""
        limit_s = _PATIENCE * whole.seconds + 60.0
        pace = Pace.of(reference, whole.seconds)
        newest: int | None = None
        while True:
            kill = waiting[0] if waiting else None
            life = self._lived(config, run_dir, kill, pace, limit_s=limit_s)
            if not life.was_hit:
                if life.exit_code != 0:
                    raise TrainingError(
                        f"{run_dir.name} ended by itself with exit code {life.exit_code} after {life.seconds:.0f} s "
                        f"(waiting for {kill}):\n{_last(life.text)}"
                    )
                if kill is not None:
                    yield from self._missed(waiting)
                return
            assert kill is not None
            waiting.pop(0)
            newest, problems = after_kill(run_dir, reference, life, newest_before=newest)
            if not life.exit_code:
                problems.append("a process was killed, and the run ended with exit code 0")
            self.num_lost += bool(problems)
            self.entries.append(
                {
                    **asdict(kill),
                    "point": kill.point,
                    "run": run_dir.name,
                    "was_hit": life.was_hit,
                    "exit_code": life.exit_code,
                    "seconds": round(life.seconds, 1),
                    "resumed_at": life.resumed_at,
                    "newest_checkpoint": newest,
                    "problems": problems,
                }
            )
            place = kill.fault or f"{life.seconds:.1f} s after its start"
            yield (
                f"kill {len(self.entries):>3}: {place:<28} exit code {life.exit_code:>4}, went on from step "
                f"{'-' if life.resumed_at is None else life.resumed_at}, newest checkpoint "
                f"{'-' if newest is None else newest}: {'ok' if not problems else 'LOST'}"
            )
            yield from (f"  {problem}" for problem in problems)

    def _missed(self, waiting: list[Kill]) -> Iterator[str]:
        """The run ended before the first of `waiting` was reached. The next run tries it from its beginning, where it
        has the most steps; where that is not enough either, it is left out."""
        kill = waiting[0]
        if kill is self._tried:
            waiting.pop(0)
            yield f"left out: {kill.fault or kill.kind} is not reached by this experiment"
        self._tried = kill

    def _lived(self, config: Path, run_dir: Path, kill: Kill | None, pace: Pace, *, limit_s: float) -> Life:
        log = self.folder / f"{run_dir.name}_{len(self.entries)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        return lived(config, run_dir, self.overrides, log, kill=kill, pace=pace, limit_s=limit_s)

    def _table(self) -> Iterator[str]:
        yield "hit        kills  where"
        for kind, count in sorted(Counter(entry["kind"] for entry in self.entries).items()):
            points = Counter(entry["point"] for entry in self.entries if entry["kind"] == kind)
            shown = ", ".join(f"{point} {times}" for point, times in sorted(points.items()) if point != kind)
            yield f"{kind:<9}  {count:>5}  {shown}".rstrip()


def _last(text: str) -> str:
    return "\n".join(text.splitlines()[-_NUM_LAST_LINES:])
