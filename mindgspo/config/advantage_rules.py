"""Rules of `algorithm.advantage` and of the number of responses it needs.

What enters: a resolved config. What leaves: lines as in `config.validate`, which calls this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import is_changed

# Which estimators read a key. The others would leave it without effect.
READERS: Mapping[str, tuple[str, ...]] = {
    "normalize_by_std": ("grpo", "pass_k"),
    "std_over": ("grpo", "pass_k"),
    "ddof": ("grpo", "pass_k"),
    "eps": ("grpo", "pass_k"),
    "singleton": ("grpo", "dr_grpo", "rloo", "opo", "max_rl", "pass_k", "gpg", "reinforce_plus_plus_baseline"),
    "combine": ("grpo",),
    "gamma": ("reinforce_plus_plus",),
    "whiten": ("reinforce_plus_plus", "reinforce_plus_plus_baseline"),
}

# What normalize_then_sum means; other values would not be read.
_FIXED_BY_COMBINE = ("normalize_by_std", "std_over", "singleton")

# Their baseline is not made of siblings, so one response per prompt will do.
WITHOUT_SIBLINGS = ("remax", "reinforce_plus_plus")

# They subtract a KL penalty from the reward of each token, the others its sum from the reward of the response.
_TOKEN_BY_TOKEN = ("remax", "reinforce_plus_plus")

# Keys that ask for another objective; where they have no effect, somebody expects what will not happen.
_REFUSED_WHERE_UNREAD = ("std_over", "combine", "gamma", "whiten")


def unread_keys(config: ExperimentConfig) -> list[str]:
    """Keys that were changed, but are not read by the estimator in use."""
    section = config.algorithm.advantage
    return [key for key, readers in READERS.items() if is_changed(section, key) and section.estimator not in readers]


def is_per_token(config: ExperimentConfig) -> bool:
    """Whether the tokens of one response may have different advantages."""
    section, kl = config.algorithm.advantage, config.algorithm.kl
    if kl.placement == "reward":
        return section.estimator in _TOKEN_BY_TOKEN
    return section.estimator == "reinforce_plus_plus" and section.gamma != 1


def advantage_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the estimator."""
    section, functions = config.algorithm.advantage, config.reward.functions
    for key in unread_keys(config):
        if key in _REFUSED_WHERE_UNREAD:
            yield (
                f"algorithm.advantage.{key}: {_shown(getattr(section, key))} is not read by estimator "
                f"{section.estimator}; remove it, or set algorithm.advantage.estimator={' or '.join(READERS[key])}"
            )
    if section.combine != "normalize_then_sum" or section.estimator not in READERS["combine"]:
        return
    if len(functions) < 2:
        yield (
            f"algorithm.advantage.combine: normalize_then_sum joins several reward functions, but reward.functions "
            f"has only {functions[0]}; add one, or set algorithm.advantage.combine=sum_then_normalize"
        )
    elif "auto" in functions:
        yield (
            "reward.functions: auto stands for another function in each row, but "
            "algorithm.advantage.combine=normalize_then_sum compares each function with itself; name the functions, "
            "e.g. [gsm8k, math_dapo]"
        )
    for key in _FIXED_BY_COMBINE:
        if is_changed(section, key):
            default = _shown(type(section).model_fields[key].default)
            yield (
                f"algorithm.advantage.{key}: {_shown(getattr(section, key))} is not read with "
                f"algorithm.advantage.combine=normalize_then_sum, which means {default}; remove it, or set "
                "algorithm.advantage.combine=sum_then_normalize"
            )
    if config.algorithm.kl.placement == "reward":
        yield (
            "algorithm.kl.placement: a penalty in the reward has no unit beside rewards that are normalised one by "
            "one (algorithm.advantage.combine=normalize_then_sum); set algorithm.kl.placement=loss"
        )


def group_problems(config: ExperimentConfig) -> Iterator[str]:
    """Too few responses per prompt for the estimator."""
    estimator = config.algorithm.advantage.estimator
    if config.rollout.num_generations < 2 and estimator not in WITHOUT_SIBLINGS:
        yield (
            f"rollout.num_generations: 1 leaves estimator {estimator} nothing to compare a response with; "
            f"nearest legal: 2 (usual: 8 or 16), or algorithm.advantage.estimator={' or '.join(WITHOUT_SIBLINGS)}"
        )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
