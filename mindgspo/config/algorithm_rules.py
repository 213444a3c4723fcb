"""Rules of `algorithm` that join several of its keys: the policy loss, its clip range and its aggregation.

What enters: a resolved config. What leaves: lines as in `config.validate`, which calls this. Whatever only looks odd is
a note (`config.algorithm_notes`). The rules of `algorithm.kl` and `.rollout_correction` stand in `penalty_rules`, those
of `.advantage` in `advantage_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.algorithm_section import AlgorithmSection
from mindgspo.config.policy_losses import POLICY_LOSSES, LossRecipe
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import is_changed

# A sequence ratio is a geometric mean over a whole response: beyond this a range practically never clips it.
WIDEST_GSPO_CLIP = 0.01

# What an aggregation makes of the gradient of response i, against the paper's mean over responses.
# B: responses of a mini-batch, |y_i|: tokens of a response, L: loss_scale_factor.
LENGTH_FACTORS = {
    "token-mean": "B |y_i| / sum |y|",
    "token-sum": "B |y_i|",
    "seq-mean-token-sum": "|y_i|",
    "seq-mean-token-sum-norm": "|y_i| / L",
    "batch-token-sum-norm": "B |y_i| / L",
}

_CAPS = ("clip_ratio_c", "ratio_upper_clamp", "loss_upper_clamp")


def recipe_of(algorithm: AlgorithmSection) -> LossRecipe:
    """The registry's line on the chosen loss."""
    return POLICY_LOSSES[algorithm.name]


def has_sequence_ratio(algorithm: AlgorithmSection) -> bool:
    """Whether there is one ratio per response: gspo and gspo_token."""
    return recipe_of(algorithm).ratio_level in ("sequence", "sequence_token")


def names_with(surrogate: str) -> str:
    """Names of the losses with this surrogate: "gspo, gspo_token, ..."."""
    return ", ".join(name for name, recipe in POLICY_LOSSES.items() if recipe.surrogate == surrogate)


def loss_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of the loss itself."""
    algorithm = config.algorithm
    yield from _clip_problems(algorithm)
    yield from _aggregation_problems(algorithm)
    yield from _surrogate_problems(algorithm)


def _clip_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    low, high = algorithm.clip_low, algorithm.clip_high
    if recipe_of(algorithm).clip is None:
        for key in ("clip_low", "clip_high"):
            if getattr(algorithm, key) is not None:
                yield (
                    f"algorithm.{key}: {getattr(algorithm, key):g}, but {algorithm.name} has no clip range; "
                    f"remove it (--set algorithm.{key}=), or set algorithm.name to a loss that clips, e.g. grpo"
                )
        return
    assert low is not None and high is not None, "config is not resolved"
    if has_sequence_ratio(algorithm) and max(low, high) > WIDEST_GSPO_CLIP and not algorithm.allow_wide_clip:
        key = "clip_low" if low > WIDEST_GSPO_CLIP else "clip_high"
        yield (
            f"algorithm.{key}: a clip range of {low:g} / {high:g} is made for token ratios; {algorithm.name}'s ratio "
            "averages over the response and stays within about 1e-3 of 1, so nothing would be clipped and "
            "the objective would be a plain, unbounded policy gradient; set algorithm.clip_low=3e-4 and "
            "algorithm.clip_high=4e-4 (paper), or algorithm.allow_wide_clip=true to insist"
        )


def _aggregation_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    mode, name = algorithm.loss_agg_mode, algorithm.name
    assert mode is not None, "config is not resolved"
    is_per_response = recipe_of(algorithm).surrogate == "gmpo"
    if is_per_response and mode != "batch-mean":
        yield (
            f"algorithm.loss_agg_mode: {mode} adds up losses of tokens, but {name} has one loss per response; "
            "set algorithm.loss_agg_mode=batch-mean"
        )
    if not is_per_response and mode == "batch-mean":
        yield (
            f"algorithm.loss_agg_mode: batch-mean is for gmpo, which has one loss per response and none per token; "
            f"for {name} set algorithm.loss_agg_mode={recipe_of(algorithm).agg_mode}"
        )
    if has_sequence_ratio(algorithm) and mode in LENGTH_FACTORS and not algorithm.allow_token_weighting:
        yield (
            f"algorithm.loss_agg_mode: {mode} multiplies each response's gradient in {name} by "
            f"{LENGTH_FACTORS[mode]} (B responses of |y_i| tokens), so long responses dominate and short ones hardly "
            "count; the paper's objective weighs all responses the same; set "
            "algorithm.loss_agg_mode=seq-mean-token-mean (paper), or algorithm.allow_token_weighting=true to insist"
        )


def _surrogate_problems(algorithm: AlgorithmSection) -> Iterator[str]:
    surrogate, name = recipe_of(algorithm).surrogate, algorithm.name
    for key in _CAPS:
        if surrogate != "clip" and getattr(algorithm, key) is not None:
            yield (
                f"algorithm.{key}: {getattr(algorithm, key):g} bounds the clipped surrogate, which {name} does not "
                f"use; remove it (--set algorithm.{key}=), or set algorithm.name to one of {names_with('clip')}"
            )
    if surrogate == "clip" and algorithm.ratio_upper_clamp is not None and algorithm.ratio_upper_clamp <= 1:
        yield (
            f"algorithm.ratio_upper_clamp: {algorithm.ratio_upper_clamp:g} is not above 1, where every ratio starts, "
            "so nothing but ratios below it would be trained; set it above 1 + algorithm.clip_high"
        )
    for key in ("tau_pos", "tau_neg"):
        if surrogate != "sapo" and is_changed(algorithm, key):
            yield (
                f"algorithm.{key}: {getattr(algorithm, key):g} is read by sapo alone, not by {name}; remove it, or "
                "set algorithm.name=sapo"
            )
