"""The few settings that change how a run's metrics are read, taken from its config.yaml.

What enters: what a run has recorded. What leaves: `RunSettings`. Called by the plots and the diagnosis. Folders of
older runs, or ones without a configuration, simply know less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from mindgspo.config.eval_section import OVERALL
from mindgspo.config.policy_losses import POLICY_LOSSES
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.metrics.recorded import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """algorithm: name of the policy loss, None if unknown. log_clip_range: lowest and highest log ratio that is not
    clipped, None where unknown or where the loss clips no ratio from both sides. max_new_tokens: the longest response.
    best_metric: by which the best evaluation is chosen."""

    algorithm: str | None
    log_clip_range: tuple[float, float] | None
    max_new_tokens: int | None = None
    best_metric: str = OVERALL

    @property
    def clips_responses(self) -> bool | None:
        """Whether whole responses are clipped, as in gspo. None: unknown."""
        if self.algorithm not in POLICY_LOSSES:
            return None
        recipe = POLICY_LOSSES[self.algorithm]
        return recipe.ratio_level in ("sequence", "sequence_token") and recipe.clip is not None


def run_settings(run: Recorded) -> RunSettings:
    """What the run's configuration says, if it can be read."""
    try:
        document = parse_document(run.config_text)
    except yaml.YAMLError:
        document = None
    section, rollout, evaluation = (_section(document, key) for key in ("algorithm", "rollout", "eval"))
    longest, best = rollout.get("max_new_tokens"), evaluation.get("best_metric")
    name = section.get("name", run.summary.get("algorithm"))
    name = name if isinstance(name, str) else None
    return RunSettings(
        algorithm=name,
        log_clip_range=_log_clip_range(name, section.get("clip_low"), section.get("clip_high")),
        max_new_tokens=longest if isinstance(longest, int) else None,
        best_metric=best if isinstance(best, str) else OVERALL,
    )


def _section(document: object, key: str) -> Mapping[str, object]:
    section = document.get(key) if isinstance(document, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _log_clip_range(algorithm: str | None, low: object, high: object) -> tuple[float, float] | None:
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)) or not (0 < low < 1 and high > 0):
        return None
    if algorithm == "gmpo":  # its range bounds the logarithm itself
        return -float(low), float(high)
    return math.log1p(-low), math.log1p(high)
