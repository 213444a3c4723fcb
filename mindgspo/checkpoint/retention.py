"""Which checkpoints stay: the newest ones, and the best ones by the evaluation at their step.

What enters: a folder of checkpoints and how many to keep. What leaves: fewer folders. Called by the store behind every
save. What an evaluation at a checkpoint's own step came to stands in its state, so there is no second record that could
disagree with the folders, whatever a crash leaves of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo import faults
from mindgspo.checkpoint.steps import complete_steps, read_state, step_of
from mindgspo.errors import CheckpointError
from mindgspo.io import fsync, remove_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """last: newest checkpoints that stay. best: of those that were evaluated at their step, the best that stay."""

    last: int
    best: int = 0

    def __post_init__(self) -> None:
        assert self.last >= 1 and self.best >= 0, f"{self}"


def evaluation_of(step: Path) -> float | None:
    """What the evaluation with a checkpoint's weights came to, higher is better; None where there was none."""
    try:
        latest = read_state(step)["progress"]["latest"]
        return float(latest["value"]) if latest["step"] == step_of(step) else None
    except (CheckpointError, KeyError, TypeError, ValueError):
        return None


def best_first(steps: Sequence[Path]) -> list[Path]:
    """Those that were evaluated, the best first; of equal ones the one with fewer steps."""
    values = {step: value for step in steps if (value := evaluation_of(step)) is not None}
    return sorted(values, key=lambda step: (-values[step], step_of(step)))


def remove_others(checkpoints_dir: Path, keep: Keep, *, just_written: Path) -> None:
    """Remove complete checkpoints that nobody asked to keep. Damaged ones neither count nor go: people may look."""
    complete = list(complete_steps(checkpoints_dir))
    kept = {*complete[: keep.last], *(best_first(complete)[: keep.best] if keep.best else ()), just_written}
    for path in complete:
        if path not in kept:
            faults.reach("save.remove")
            remove_folder(path)
    fsync(checkpoints_dir)
