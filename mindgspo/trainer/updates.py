"""Applies one update of a step and guards it: handles a loss or gradient that is not finite, and checks that the first
importance ratios are 1.

All ranks know losses and gradient norm before the optimizer's step, so they all decide alike.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo import faults
from mindgspo.algorithms.loss_metrics import batch_mismatch
from mindgspo.algorithms.optim.updater import UpdateResult
from mindgspo.config import AlgorithmSection, TrainerSection
from mindgspo.errors import NonFiniteError, TrainingError
from mindgspo.io import atomic_file
from mindgspo.parallel.platform.cluster import is_first as is_first_rank
from mindgspo.types import Batch, ScoredGroup

_log = logging.getLogger(__name__)

MAX_SAVED_UPDATES = 8  # enough to look at, and few enough not to fill the disk
_FIRST = "_micro_batch_0.npz"


@dataclass(slots=True)
class SkippedUpdates:
    """Numbers of updates left out because they were not finite."""

    total: int = 0
    """In the whole run."""
    in_a_row: int = 0
    """Since the last applied update."""

    def count(self) -> None:
        """One more."""
        self.total += 1
        self.in_a_row += 1

    def state(self) -> dict[str, int]:
        """JSON-able; `load_state` reads it back."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; from 0 if it is empty."""
        self.total, self.in_a_row = int(state.get("total", 0)), int(state.get("in_a_row", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateGuard:
    """Handles an update whose loss or gradient is not finite (trainer.on_nonfinite)."""

    settings: TrainerSection
    failures_dir: Path
    """Folder for the batches of such updates."""
    skipped: SkippedUpdates = field(default_factory=SkippedUpdates)

    @contextmanager
    def __call__(self, batches: Sequence[Batch], name: str, *, is_first: bool) -> Iterator[Sequence[Batch]]:
        """Guard one update of these micro-batches; if it is skipped, the block ends without a result.

        name: of the files that a broken batch is saved in.
        is_first: whether it is the first update of its step.
        Raises TrainingError if the run must stop.
        """
        if not is_first:
            faults.reach("update.inside")
        batches = _with_injected_nan(batches)
        try:
            yield batches
        except NonFiniteError as error:
            message = f"{name}: {error}; {save_batches(self.failures_dir, name, batches)}"
            self._require_skip(message, error)
            self.skipped.count()
            if is_first_rank():
                _log.warning("%s; the update is skipped, number %d of this run", message, self.skipped.total)
        else:
            self.skipped.in_a_row = 0

    def _require_skip(self, message: str, error: NonFiniteError) -> None:
        settings, skipped = self.settings, self.skipped
        if settings.on_nonfinite == "stop":
            raise TrainingError(
                f"{message}. trainer.on_nonfinite=skip would go on without such updates; the run can be resumed with it"
            ) from error
        for key, limit, done in (
            ("max_nonfinite_skips_in_a_row", settings.max_nonfinite_skips_in_a_row, skipped.in_a_row),
            ("max_nonfinite_skips", settings.max_nonfinite_skips, skipped.total),
        ):
            if done >= limit:
                raise TrainingError(
                    f"{message}. trainer.{key} = {limit} updates were skipped before: look at the weights of the "
                    "newest checkpoint, optimizer.lr and the saved batches; the limit may be raised in a resumed run"
                ) from error


def _with_injected_nan(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The micro-batches. If the fault point `update.batch` is armed with nan, all their advantages are NaN, whichever
    of them the rank in question computes."""
    if not faults.reach("update.batch"):
        return batches
    return [
        dataclasses.replace(batch, advantages_NK=np.where(batch.mask_NK, np.float32(np.nan), batch.advantages_NK))
        for batch in batches
    ]


def save_batches(folder: Path, name: str, batches: Sequence[Batch]) -> str:
    """Save the micro-batches of an update as `<name>_micro_batch_<i>.npz`, one array per field of `Batch`, and say
    where; nothing if there are those of `MAX_SAVED_UPDATES` other updates. All ranks call it, rank 0 writes."""
    if not is_first_rank():  # rank 0 has the same batches
        return "rank 0 saves the batch"
    folder.mkdir(parents=True, exist_ok=True)
    first = batch_file(folder, name, 0)
    if not first.exists() and len(list(folder.glob(f"*{_FIRST}"))) >= MAX_SAVED_UPDATES:
        return f"the batch is not saved: {folder} holds those of {MAX_SAVED_UPDATES} updates already"
    paths = write_batches(folder, name, batches)
    siblings = f" and {len(paths) - 1} more beside it" if paths[1:] else ""
    return f"the batch is saved as {paths[0]}{siblings}"


def batch_file(folder: Path, name: str, index: int) -> Path:
    """Path of the micro-batch number `index` of an update, as `write_batches` names it."""
    return folder / f"{name}_micro_batch_{index}.npz"


def write_batches(folder: Path, name: str, batches: Sequence[Batch]) -> list[Path]:
    """The micro-batches of an update, one array per field of `Batch`; the first file comes last."""
    paths = [batch_file(folder, name, index) for index in range(len(batches))]
    for path, batch in reversed(list(zip(paths, batches, strict=True))):
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        arrays = {name: value for name, value in fields.items() if value is not None}
        with atomic_file(path) as file:
            np.savez(file, **arrays)
    return paths


@contextmanager
def saved_on_failure(folder: Path, name: str, batches: Sequence[Batch]) -> Iterator[None]:
    """Save the micro-batches on a NonFiniteError, and raise a TrainingError that names the files."""
    try:
        yield
    except NonFiniteError as error:
        raise TrainingError(f"{name}: {error}; {save_batches(folder, name, batches)}") from error


def require_rewards(groups: Sequence[ScoredGroup], step: int) -> None:
    """Raises TrainingError if no response has a reward: there is nothing to train on."""
    verdicts = Counter(score.verdict.value for group in groups for score in group.scores if score.value is None)
    if verdicts.total() == sum(len(group.scores) for group in groups):
        counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        raise TrainingError(
            f"step {step}: none of the {verdicts.total()} responses has a reward ({counted}), so nothing can be "
            "trained; the first error of a reward function is logged above with its traceback"
        )


def check_first_update(
    batches: Sequence[Batch],
    result: UpdateResult,
    step: int,
    settings: TrainerSection,
    algorithm: AlgorithmSection,
    *,
    temperature: float,
) -> None:
    """Require importance ratios of 1, up to rounding, of the first update after a rollout, since the policy is still
    the old one; where the sampler's log-probs are the old ones, that sampler and trainer agree. Raises
    TrainingError."""
    if algorithm.old_log_probs != "sampler":
        error, limit = result.metrics["ratio_error_max"], settings.max_ratio_error
        if not error <= limit:  # also if it is NaN
            raise TrainingError(
                f"step {step}: the importance ratio on the first mini-batch is off 1 by {error:.3g}, allowed is "
                f"trainer.max_ratio_error = {limit:g}. The old log-probs were not made by the weights that are "
                f"trained: look at temperature (rollout.temperature = {temperature:g}), padding, positions and weight "
                "versions; in bfloat16 set trainer.max_ratio_error to about 2e-3"
            )
    elif settings.schedule == "sync" or settings.max_staleness == 0:  # earlier weights drew with other log-probs
        found, limit = batch_mismatch(batches, result.logp_NK), settings.max_rollout_mismatch
        error = found["training/rollout_logprob_diff_mean"]
        if not error <= limit:
            raise TrainingError(
                f"step {step}: on the first mini-batch the log-probs of sampler and trainer differ by {error:.3g} nat "
                f"per token, allowed is trainer.max_rollout_mismatch = {limit:g}; at most by "
                f"{found['training/rollout_logprob_diff_max']:.3g}. algorithm.old_log_probs=sampler takes the "
                "sampler's for those of the old policy, and these are not: look at temperature (rollout.temperature = "
                f"{temperature:g}), positions and weight versions, or set algorithm.old_log_probs=recompute"
            )
