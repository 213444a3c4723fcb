"""What a run folder must hold after a kill, and at the end.

What enters: the folder, the folder of the uninterrupted run, what was seen before. What leaves: problems as text; none
where nothing but unsaved steps was lost. Called by `command`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, steps_newest_first
from mindgspo.errors import MindGSPOError
from mindgspo.metrics.files import read_summary
from mindgspo.tensor_files import read_safetensors
from mindgspo.torture.life import Life

_CLOCKS = ("timing_s/", "perf/")
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
    for name in sorted({path.name for folder in (run_dir, reference) for path in folder.glob("*.jsonl")}):
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
            yield {key: value for key, value in record.items() if not key.startswith(_CLOCKS)}


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
