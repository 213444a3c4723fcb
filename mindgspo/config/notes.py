"""Advice about legal settings that may not do what they seem to.

What enters: a resolved config. What leaves: lines for the start banner, none when nothing stands out. Called
by the command line. What is wrong rather than surprising is refused in `config.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.validate import WIDEST_GSPO_CLIP, data_sources


def notes(config: ExperimentConfig) -> list[str]:
    """Advice about legal settings that may not do what they seem to."""
    rules = (_clipping_notes, _sampling_notes, _unread_notes, _same_rows_notes)
    return [line for rule in rules for line in rule(config)]


def _clipping_notes(config: ExperimentConfig) -> Iterator[str]:
    prompts, algorithm = config.rollout.prompts_per_step, config.algorithm
    if config.trainer.prompts_per_mini_batch == prompts:
        yield (
            "one update per rollout: every ratio is 1 when it is used, so nothing is ever clipped and the "
            "clip fraction is 0; a smaller trainer.prompts_per_mini_batch makes more updates (the paper "
            "makes 4)"
        )
    low, high = algorithm.clip_low, algorithm.clip_high
    assert low is not None and high is not None, "config is not resolved"
    is_wide = max(low, high) > WIDEST_GSPO_CLIP
    if algorithm.name == "gspo" and is_wide:
        yield "algorithm.allow_wide_clip: with this range practically no sequence ratio is clipped"
    if algorithm.name == "grpo" and not is_wide:
        yield (
            f"algorithm.clip_low / clip_high: {low:g} / {high:g} is a range for gspo; grpo's token ratios "
            "leave it almost at once (usual: 0.2 / 0.27)"
        )
    if config.model.dtype != "float32" and algorithm.name == "gspo":
        yield (
            f"model.dtype: {config.model.dtype} rounds the sequence ratio by up to about 2e-3, more than the "
            f"clip range {low:g} / {high:g}; watch the ratio of the first "
            "mini-batch"
        )


def _sampling_notes(config: ExperimentConfig) -> Iterator[str]:
    cuts = [f"top_p {config.rollout.top_p:g}"] if config.rollout.top_p < 1 else []
    cuts += [f"top_k {config.rollout.top_k}"] if config.rollout.top_k > 0 else []
    if cuts:
        yield (
            f"rollout: {' and '.join(cuts)} cut the distribution that responses are drawn from, while the "
            "trained ratio compares uncut ones, so it is not against the policy that sampled; the paper uses "
            "top_p 1, top_k 0"
        )


def _unread_notes(config: ExperimentConfig) -> Iterator[str]:
    if config.trainer.max_steps is not None and config.trainer.epochs != 1:
        yield f"trainer.epochs: {config.trainer.epochs} is not read, because trainer.max_steps is set"


def _same_rows_notes(config: ExperimentConfig) -> Iterator[str]:
    train = config.data.train.path
    for key, source in data_sources(config)[1:]:
        if train is not None and source.path == train:
            yield f"{key}.path: the same as data.train.path, so accuracy is measured on trained rows"
