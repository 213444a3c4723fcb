"""Rules of `algorithm.filter_groups` that join several keys.

What enters: a resolved config. What leaves: lines as in `config.validate`, which calls this.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.filter_section import FilterGroupsSection
from mindgspo.config.schema import ExperimentConfig
from mindgspo.text import did_you_mean

_KEY = "algorithm.filter_groups"
METRICS = ("none", "reward", "accuracy")
_OF_REFILL = ("prompts_per_draw", "max_num_gen_batches", "when_short", "keep_surplus_steps")


def filter_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of filtering groups and drawing others in their place."""
    section = config.algorithm.filter_groups
    legal = [*METRICS, *config.reward.functions]
    if section.metric not in legal:
        hint = did_you_mean(section.metric, legal)
        yield f"{_KEY}.metric: {section.metric!r} is unknown{hint} (one of {', '.join(legal)})"
    if not section.refill:
        yield from _needless(section)
        return
    if section.metric == "none":
        yield f"{_KEY}.refill: no group is left out while metric is none; set {_KEY}.metric=reward, or refill=false"
    draw, replicas = section.prompts_per_draw, config.plans.infer.data_parallel
    if draw is not None and draw % replicas:
        lower = draw // replicas * replicas
        yield (
            f"{_KEY}.prompts_per_draw: {draw} is not shared evenly by the {replicas} replicas of plans.infer; nearest "
            f"legal: {f'{lower} or ' if lower else ''}{lower + replicas}"
        )


def _needless(section: FilterGroupsSection) -> Iterator[str]:
    for key in _OF_REFILL:
        value = getattr(section, key)
        if value != FilterGroupsSection.model_fields[key].default:
            yield (
                f"{_KEY}.{key}: {value} is read only where prompts are drawn again; set {_KEY}.refill=true, or "
                "remove it"
            )
