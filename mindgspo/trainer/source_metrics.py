"""Metrics of training by source, where `data.train` is a list; named as those of an evaluation, `train-` for `val-`.

They are about the groups that the step's own rollouts generated, whether or not they are trained.

Metrics:
  Training data:
    train-core/<source>/acc/mean:
      meaning: responses to prompts of one source with the correct answer
      unit: share of responses
      healthy: rises
      action: 'near 0 or 1 while other sources learn: give it a smaller weight, or set data.curriculum'
    train-core/<source>/reward/mean:
      meaning: weighted sum of the reward functions, mean over the responses of one source that have a reward
      unit: reward
      healthy: rises
    train-aux/<source>/zero_signal_group_ratio:
      meaning: groups of one source whose responses all have the same reward, or none
      unit: share of groups
      healthy: below 0.7
      action: as reward/zero_signal_group_ratio
    train-aux/<source>/response_length/mean:
      meaning: length of the responses of one source
      unit: tokens
      healthy: as response_length
    train-aux/<source>/num_prompts:
      meaning: prompts of one source in the step's rollouts; any number of prompts drawn in a row holds its share
        of them to within less than two prompts, of two sources to within one
      unit: prompts
      healthy: its share of the prompts
    train-aux/<source>/epoch:
      meaning: passes over the rows of one source
      unit: epochs
      healthy: a few
      action: 'many on few rows: compare with held-out accuracy, or give it a smaller weight'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mindgspo.algorithms import has_signal
from mindgspo.types import ScoredGroup, Verdict


def source_metrics(groups: Sequence[ScoredGroup], epochs: Mapping[str, float]) -> dict[str, float]:
    """Metrics of each source, by its name. epochs: passes over the rows of each; a source without a group in the step
    has its number of prompts and its epoch alone."""
    metrics: dict[str, float] = {}
    for name, passes in epochs.items():
        own = [group for group in groups if group.prompt.source == name]
        metrics |= {f"train-aux/{name}/num_prompts": len(own), f"train-aux/{name}/epoch": passes}
        if not own:
            continue
        scores = [score for group in own for score in group.scores]
        values = [score.value for score in scores if score.value is not None]
        if values:
            metrics[f"train-core/{name}/reward/mean"] = float(np.mean(values))
        silent = [not has_signal([score.value for score in group.scores]) for group in own]
        lengths = [response.length for group in own for response in group.responses]
        metrics |= {
            f"train-core/{name}/acc/mean": float(np.mean([score.verdict is Verdict.CORRECT for score in scores])),
            f"train-aux/{name}/zero_signal_group_ratio": float(np.mean(silent)),
            f"train-aux/{name}/response_length/mean": float(np.mean(lengths)),
        }
    return metrics
