"""Kills runs of an experiment again and again, and compares what is left with an uninterrupted run; see `torture.py`.

Runs are processes of their own; their folders are read without MindSpore.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from mindgspo import faults
from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, step_of, steps_newest_first
from mindgspo.errors import MindGSPOError, TrainingError
from mindgspo.metrics.files import LOGS, read_summary
from mindgspo.tensor_files.writer import read_safetensors

_PLANS = {
    1: "",
    2: "plans: {train: {data_parallel: 2}, infer: {data_parallel: 2}}\n",
    4: ("plans: {train: {data_parallel: 2, model_parallel: 2}, infer: {data_parallel: 2, model_parallel: 2}}\n"),
}
WORKERS = tuple(_PLANS)
"""Numbers of workers that it can have."""

TINY_MODEL = """\
model:
  vocab_size: 384
  hidden_size: 32
  intermediate_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  max_position_embeddings: 64
"""
_EXPERIMENT = f"""\
experiment: torture
seed: 3
{TINY_MODEL}"""
_EXPERIMENT += """\
data:
  train: {{format: arithmetic, split: train, max_rows: 22}}
  eval: {{format: arithmetic, split: test, max_rows: 4}}
  max_prompt_length: 32
reward: {{functions: [reward.py:score], workers: {{count: 1}}}}
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 8, slots: 16}}
algorithm: {{name: gspo}}
optimizer: {{lr: 1e-3}}
trainer:
  max_steps: {max_steps}
  prompts_per_mini_batch: 2
  samples_per_micro_batch: 4
  length_multiple: 32
  save_every: 2
eval: {{every: 2}}
logging: {{groups_per_step: null, progress: false}}
"""
# 22 rows by 4: an epoch ends between two steps that share a checkpoint, and its rest is deferred.

_REWARD = '''\
"""A reward that depends on every character, and on nothing that could be learnt."""


def score(data_source, solution_str, ground_truth, extra_info):
    return sum(ord(letter) * (place % 5 + 1) for place, letter in enumerate(solution_str)) % 11 / 10
'''


def write_experiment(folder: Path, *, max_steps: int, workers: int) -> Path:
    """Write it; returns the YAML's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reward.py").write_text(_REWARD)
    path = folder / "torture.yaml"
    path.write_text(_EXPERIMENT.format(max_steps=max_steps) + _PLANS[workers])
    return path


# {kind: {point: up to which occurrence}}: within about three steps or two checkpoints of a life of the built-in
# experiment.
KINDS: Mapping[str, Mapping[str, int]] = {
    "save": {"save.before": 2, "save.inside": 6, "save.rename": 2, "save.remove": 2, "save.after": 2},
    "rollout": {"rollout.before": 3, "rollout.inside": 22},
    "reward": {"reward.before": 4, "reward.inside": 4},
    "update": {"update.before": 3, "update.batch": 6, "update.inside": 3, "update.after": 3, "weights.after": 3},
    "eval": {"eval.before": 2, "eval.inside": 14},
    "other": {"log.after": 3, "resume.after": 1},
}
REQUIRED = ("save", "rollout", "reward", "update")
"""Kinds of which each gets at least three kills of twenty."""
_RANDOM = "any time"
_FINISH = "finish"
_FINISH_POINTS = ("finish.before", "finish.inside")
_RANK_0_ONLY = ("save.inside", "save.rename", "save.remove", "finish.inside")
# Where ranks that judge and ranks that do not differ, rank 0 always does.
_NEEDS_SPEAKER = ("reward.before", "reward.inside")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """kind: of `KINDS`, "any time" or "finish". fault: for MINDGSPO_FAULT; None for a kill from outside, of all
    processes at once: after `share` of what a start takes, or, with steps, after that many steps and `share` of
    another."""

    kind: str
    fault: str | None = None
    share: float = 0.0
    steps: int = 0

    @property
    def point(self) -> str:
        """The point's name, or the kind."""
        return self.kind if self.fault is None else self.fault.partition(":")[0]


def planned_kills(number: int, seed: int, workers: int) -> list[Kill]:
    """`number` kills; the last, if there are enough, is between the last step and the end of the run."""
    choose = random.Random(seed)
    kinds = [kind for kind in REQUIRED for _ in range(-(-number * 3 // 20))]
    has_finish = number > len(kinds)
    while len(kinds) < number - has_finish:
        kinds.append(choose.choice([*KINDS, _RANDOM, _RANDOM, _RANDOM]))
    choose.shuffle(kinds)
    kinds = [*kinds[: number - has_finish], *[_FINISH] * has_finish]
    return [_kill(kind, choose, workers, is_first=place == 0) for place, kind in enumerate(kinds)]


def _kill(kind: str, choose: random.Random, workers: int, *, is_first: bool) -> Kill:
    if kind == _RANDOM:
        return Kill(kind=kind, share=choose.random(), steps=choose.choice((0, 1, 1, 2)))
    if kind == _FINISH:
        return Kill(kind=kind, fault=_fault(choose.choice(_FINISH_POINTS), 1, choose, workers))
    points = [point for point in KINDS[kind] if not (is_first and point == "resume.after")]
    point = choose.choice(points)
    return Kill(kind=kind, fault=_fault(point, choose.randint(1, KINDS[kind][point]), choose, workers))


def _fault(point: str, number: int, choose: random.Random, workers: int) -> str:
    """One rank where there are several: the launcher must end the others."""
    rank = 0 if point in (*_RANK_0_ONLY, *_NEEDS_SPEAKER) else choose.randrange(workers)
    return f"{point}:{number}=kill" + (f"@{rank}" if workers > 1 else "")


_MARK = "MINDGSPO_TORTURE"
_LOOK_S = 0.005
_END_S = 60.0  # for what is left of a run after its first process was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """exit_code: of the command. seconds: that it lived. was_hit: whether the kill happened; False where the run ended
    before. seen: steps whose checkpoint had its name while it lived. is_left: a process outlived it. text: printed."""

    exit_code: int
    seconds: float
    was_hit: bool
    seen: frozenset[int]
    is_left: bool
    text: str

    @property
    def resumed_at(self) -> int | None:
        """The step that it said it went on from."""
        words = [line for line in self.text.splitlines() if line.startswith("resumed at step ")]
        return int(words[0].split()[3]) if words else None


def lived(
    config: Path,
    run_dir: Path,
    overrides: Sequence[str],
    log: Path,
    *,
    kill: Kill | None,
    pace: Pace,
    limit_s: float,
) -> Life:
    """Start or resume the run, and wait for its end.

    pace: of the uninterrupted run, for kills from outside. limit_s: seconds after which it counts as hanging; all of it
    is then killed (exit code -9, not hit).
    """
    mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != faults.VARIABLE} | {_MARK: mark}
    if kill is not None and kill.fault is not None:
        environment[faults.VARIABLE] = kill.fault
    settings = [*overrides, f"run_dir={run_dir}", "resume=auto"]
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "mindgspo.cli", "run", str(config), *sets]
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        seen: set[int] = set()
        was_killed = False
        moment = None if kill is None or kill.fault is not None else _Moment(kill, pace, run_dir / "metrics.jsonl")
        while process.poll() is None:
            seen |= _steps(run_dir / "checkpoints")
            now = time.monotonic()
            if now - began > limit_s or (moment is not None and moment.has_come(now - began)):
                was_killed = now - began <= limit_s
                kill_all(mark)
                break
            time.sleep(_LOOK_S)
        process.wait()
    seconds = time.monotonic() - began
    is_left = _is_left(mark)
    kill_all(mark)
    text = log.read_text(errors="replace") + _rank_logs(run_dir, kill)
    was_hit = was_killed or (kill is not None and kill.fault is not None and f"fault on purpose: {kill.fault}" in text)
    return Life(
        exit_code=process.returncode,
        seconds=seconds,
        was_hit=was_hit,
        seen=frozenset(seen),
        is_left=is_left,
        text=text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """start_s: what a process does but steps, most of it before the first. step_s: of one step."""

    start_s: float = 0.0
    step_s: float = 0.0

    @staticmethod
    def of(run_dir: Path, seconds: float) -> Pace:
        """Of a run that ended after so many seconds."""
        records = map(json.loads, (run_dir / "metrics.jsonl").read_bytes().splitlines())
        steps = [record["timing_s/step"] for record in records if "timing_s/step" in record]
        return Pace(start_s=max(0.0, seconds - sum(steps)), step_s=median(steps))


class _Moment:
    """When a kill from outside is due."""

    def __init__(self, kill: Kill, pace: Pace, metrics: Path) -> None:
        self._kill, self._pace, self._metrics = kill, pace, metrics
        self._first: int | None = None
        self._due: float | None = None if kill.steps else kill.share * pace.start_s

    def has_come(self, seconds: float) -> bool:
        """seconds: since the start of the process."""
        if self._due is None:
            step = self._newest_step()
            # A run that is resumed first forgets what was logged beyond its checkpoint.
            self._first = step if self._first is None else min(self._first, step)
            if step < self._first + self._kill.steps:
                return False
            self._due = seconds + self._kill.share * self._pace.step_s
        return seconds >= self._due

    def _newest_step(self) -> int:
        with suppress(OSError, ValueError, IndexError):
            return int(json.loads(self._metrics.read_bytes().splitlines()[-1])["step"])
        return 0


def kill_all(mark: str) -> None:
    """SIGKILL to every process of a life, found by the environment that they inherit."""
    for process in _processes(mark):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)


def _processes(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _is_left(mark: str) -> bool:
    """Whether a process of a life is there long after its first one has ended."""
    give_up = time.monotonic() + _END_S
    while list(_processes(mark)):
        if time.monotonic() > give_up:
            return True
        time.sleep(0.1)
    return False


def _steps(checkpoints: Path) -> set[int]:
    """Steps whose checkpoints have their names. The run may rename while we look."""
    with suppress(FileNotFoundError):
        return {step for path in checkpoints.iterdir() if (step := step_of(path)) is not None}
    return set()


def _rank_logs(run_dir: Path, kill: Kill | None) -> str:
    """What the killed rank printed, which the launcher need not show."""
    if kill is None or kill.fault is None or "@" not in kill.fault:
        return ""
    path = run_dir / "logs" / f"rank_{kill.fault.rpartition('@')[2]}.log"
    return path.read_text(errors="replace") if path.is_file() else ""


_CLOCK = re.compile(r"timing_s/|perf/|schedule/.*_idle_share$")
_CLOCKS_OF_SUMMARY = ("seconds", "training_seconds", "tokens_per_second", "peak_rss_mb")


def after_kill(
    run_dir: Path, reference: Path, life: Life, *, newest_before: int | None
) -> tuple[int | None, list[str]]:
    """(Step of the newest checkpoint that is complete, problems). newest_before: the same before this life."""
    problems = []
    complete: list[int] = []
    checkpoints = run_dir / "checkpoints"
    for path in steps_newest_first(checkpoints) if checkpoints.is_dir() else ():
        try:
            complete.append(verify(path, required=CHECKPOINT_FILES).step)
        except MindGSPOError as error:
            problems.append(f"a checkpoint has its name and is not complete: {error}")
    newest = max(complete, default=None)
    promised = max([*life.seen, *([] if newest_before is None else [newest_before])], default=None)
    if promised is not None and (newest is None or newest < promised):
        problems.append(f"the newest complete checkpoint is of step {newest}; that of step {promised} had been saved")
    if newest_before is not None and life.resumed_at not in (None, newest_before):
        problems.append(f"went on from step {life.resumed_at}, although step {newest_before} had been saved")
    if newest is not None:
        for name in ("metrics.jsonl", "samples.jsonl"):
            ours, theirs = (list(_lines(folder / name, newest)) for folder in (run_dir, reference))
            problems += _difference(f"{name} up to step {newest}", ours, theirs)
    if life.is_left:
        problems.append("a process outlived the run")
    return newest, problems


def at_the_end(run_dir: Path, reference: Path) -> list[str]:
    """Whatever differs from the uninterrupted run: tensors of the last checkpoint and the export, metrics but for
    timings and memory, samples, summary."""
    problems = []
    for name in LOGS:
        ours, theirs = (list(_lines(folder / name, None)) for folder in (run_dir, reference))
        problems += _difference(name, ours, theirs)
    last = [max((folder / "checkpoints").glob("step_*")) for folder in (run_dir, reference)]
    if last[0].name != last[1].name:
        problems.append(f"the last checkpoints are {last[0].name} and {last[1].name}")
    for ours, theirs in (last, [folder / "export" for folder in (run_dir, reference)]):
        for path in sorted(theirs.glob("*.safetensors")):
            problems += _tensors(ours / path.name, path)
    summaries = [
        {key: value for key, value in read_summary(folder).items() if key not in _CLOCKS_OF_SUMMARY}
        for folder in (run_dir, reference)
    ]
    return problems + _difference("summary.json", *([sorted(summary.items())] for summary in summaries))


def _lines(path: Path, last_step: int | None) -> Iterator[dict[str, Any]]:
    """Records of whole lines up to a step, without what clocks and the machine decide."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return  # the last one of a process that was killed
        record = json.loads(line)
        if last_step is None or record["step"] <= last_step:
            yield {key: value for key, value in record.items() if not _CLOCK.match(key)}


def _difference(name: str, ours: list[Any], theirs: list[Any]) -> list[str]:
    if ours == theirs:
        return []
    if len(ours) != len(theirs):
        return [f"{name}: {len(ours)} lines, the uninterrupted run has {len(theirs)}"]
    place = next(place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
    return [f"{name}: line {place + 1} differs: {_shown(ours[place], theirs[place])}"]


def _shown(ours: Any, theirs: Any) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        differing = sorted(key for key in ours | theirs if ours.get(key) != theirs.get(key))
        return ", ".join(f"{key} is {ours.get(key)!r}, not {theirs.get(key)!r}" for key in differing[:4])
    return f"{ours!r}, not {theirs!r}"


def _tensors(path: Path, reference: Path) -> list[str]:
    if not path.is_file():
        return [f"{path} is missing"]
    ours, theirs = read_safetensors(path), read_safetensors(reference)
    if ours.keys() != theirs.keys():
        return [f"{path}: other tensors"]
    differing = [name for name in theirs if np.asarray(ours[name]).tobytes() != np.asarray(theirs[name]).tobytes()]
    return [f"{path}: {len(differing)} tensors are not bit-equal, e.g. {differing[0]}"] if differing else []


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
