"""Metrics that follow from a step's groups alone: rewards, verdicts, advantages, lengths."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mindgspo.types import FinishReason, Group, Score, Verdict


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """critic/*, reward/*, response*/* and prompt_length/* of all responses of `groups` (at least one).

    Responses without a reward (value None) count in reward/invalid_ratio and lengths, not in critic/*: if
    none is left, the critic names are absent. The shares of the six verdicts add up to 1. Names of functions and
    of a user's further numbers enter the metrics' names with "_" for what is no letter, digit, "_", "." or "-".
    """
    assert groups, "metrics of no groups"
    responses = [response for group in groups for response in group.responses]
    scores = [score for group in groups for score in group.scores]
    metrics = _verdict_shares(scores)
    metrics |= _means("reward/part", (score.parts for score in scores))
    metrics |= _means("reward/extra", (score.extras for score in scores))
    valid = [score.value for score in scores if score.value is not None]
    if valid:
        metrics |= _statistics("critic/score", valid) | _statistics("critic/rewards", valid)
        metrics |= _statistics(
            "critic/advantages",
            [
                float(advantage)
                for group in groups
                for score, advantages in zip(group.scores, group.advantages, strict=True)
                if score.value is not None
                for advantage in advantages
            ],
        )
    silent = sum(not any(advantages.any() for advantages in group.advantages) for group in groups)
    cut = sum(response.finish_reason is FinishReason.LENGTH for response in responses)
    return (
        metrics
        | {"reward/zero_signal_group_ratio": silent / len(groups)}
        | _statistics("response_length", [response.length for response in responses])
        | {"response_length/clip_ratio": cut / len(responses)}
        | {"response/aborted_ratio": sum(response.length == 0 for response in responses) / len(responses)}
        | _statistics("prompt_length", [group.prompt.ids.size for group in groups])
    )


def _statistics(name: str, values: Iterable[float]) -> dict[str, float]:
    array = np.asarray(list(values), np.float64)
    return {
        f"{name}/mean": float(array.mean()),
        f"{name}/max": float(array.max()),
        f"{name}/min": float(array.min()),
    }


def _verdict_shares(scores: Sequence[Score]) -> dict[str, float]:
    counts = Counter(score.verdict for score in scores)
    shares = {f"reward/{verdict.value}_ratio": counts[verdict] / len(scores) for verdict in Verdict}
    return shares | {"reward/invalid_ratio": sum(score.value is None for score in scores) / len(scores)}


def _means(prefix: str, tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each name over the responses that have it; where two names become one, they are counted together."""
    values: dict[str, list[float]] = {}
    for table in tables:
        for name, value in table.items():
            values.setdefault(_metric_name(name), []).append(value)
    return {f"{prefix}/{name}/mean": float(np.mean(found)) for name, found in sorted(values.items())}


def _metric_name(name: str) -> str:
    """The keys of a user's dict may be any text; the slash between function and key stays, further ones do not."""
    return "/".join(re.sub(r"[^\w.-]", "_", part) or "_" for part in name.split("/", 1))
