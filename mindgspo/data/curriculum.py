"""Curriculum by measured pass rate: rows that the policy always or never solves rest for a while.

A row's pass rate p is the share of right answers in its latest group. Rewards of 0 and 1 then have the variance
p (1 - p): at both ends nothing is left to learn. GRESO (arXiv 2506.02177) finds that prompts without a signal in one
epoch mostly have none in the next, and skips a prompt with probability 1 - q^z after z such groups in a row, which on
average is q^-z - 1 epochs; it has a q for each end and adapts both. Here q is 1/2, and epochs are counted instead of
drawn by lot: a row rests for 1, 3, 7, ... of its source's epochs and is then tried again, and the first group with a
signal sets z back to 0. What is drawn thus follows from the seed, the position and the rewards so far. Older groups
count through z alone: other weights answered them.

Metrics:
  Training data:
    curriculum/known_share:
      meaning: training rows whose pass rate has been measured (data.curriculum)
      unit: share of rows
      healthy: 1 after the first epoch
    curriculum/pass_rate:
      meaning: share of right answers in the latest group of a row, mean over the measured rows
      unit: share of responses
      healthy: rises
    curriculum/resting_share:
      meaning: training rows that are passed over when their turn comes next, because they were always or never solved
      unit: share of rows
      healthy: below 0.7, while pass_rate rises
      action: 'near 1: hardly any row teaches; choose others, or lower data.curriculum.max_rest_epochs'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindgspo.config.data import CurriculumSection
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.types import ScoredGroup, Verdict

_LONGEST_STREAK = 8  # 2^8 - 1 epochs are the most that a row may rest


class Curriculum:
    """What is known of each training row, by its index; stateful, six bytes per row.

    Example: with the defaults, a row whose four answers are all right is passed over in the next epoch and drawn in the
    one after; all right again, it is passed over in the next three.
    """

    def __init__(self, section: CurriculumSection, num_rows: int) -> None:
        self._section = section
        self._pass_rates = np.full(num_rows, np.nan, np.float32)  # NaN: not measured
        self._streaks = np.zeros(num_rows, np.uint8)  # groups without a signal in a row
        self._rests = np.zeros(num_rows, np.uint8)  # turns that are still to be passed over

    def passes_over(self, index: int) -> bool:
        """Whether the row rests at its turn, which has come; it then has one turn less to rest."""
        if not self._rests[index]:
            return False
        self._rests[index] -= 1
        return True

    def observe(self, groups: Sequence[ScoredGroup]) -> None:
        """Take note of scored groups. Responses without a reward do not count."""
        section = self._section
        for group in groups:
            verdicts = [score.verdict for score in group.scores if score.value is not None]
            if not verdicts:
                continue
            index, rate = group.prompt.index, verdicts.count(Verdict.CORRECT) / len(verdicts)
            has_signal = section.min_pass_rate < rate < section.max_pass_rate
            streak = 0 if has_signal else min(int(self._streaks[index]) + 1, _LONGEST_STREAK)
            self._pass_rates[index], self._streaks[index] = rate, streak
            self._rests[index] = min(2**streak - 1, section.max_rest_epochs)

    def metrics(self) -> dict[str, float]:
        """Metrics of the rows as they are now."""
        is_known = ~np.isnan(self._pass_rates)
        metrics = {
            "curriculum/known_share": float(is_known.mean()),
            "curriculum/resting_share": float((self._rests > 0).mean()),
        }
        if is_known.any():
            metrics["curriculum/pass_rate"] = float(self._pass_rates[is_known].mean(dtype=np.float64))
        return metrics

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """See `Stateful`."""
        return {name: array.copy() for name, array in self._by_name().items()}

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """See `Stateful`. Raises ValueError for arrays of other rows."""
        for name, array in self._by_name().items():
            stored = arrays.read(name)
            if stored.shape != array.shape or stored.dtype != array.dtype:
                raise ValueError(f"{name} of {stored.shape} rows in {stored.dtype}, this run has {array.shape}")
            array[:] = stored

    def _by_name(self) -> dict[str, np.ndarray]:
        return {"pass_rate": self._pass_rates, "streak": self._streaks, "rest": self._rests}
