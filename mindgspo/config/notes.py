"""Advice about legal settings that may not do what they seem to.

What enters: a resolved config. What leaves: lines for the start banner, none when nothing stands out. Called
by the command line. What is wrong rather than surprising is refused in `config.validate`. The notes about `algorithm`
fill a file of their own, `algorithm_notes`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.algorithm_notes import algorithm_notes
from mindgspo.config.batch_rules import longest_row
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.validate import data_sources


def notes(config: ExperimentConfig) -> list[str]:
    """Advice about legal settings that may not do what they seem to."""
    rules = (algorithm_notes, _sampling_notes, _unread_notes, _packing_notes, _same_rows_notes)
    return [line for rule in rules for line in rule(config)]


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
    if config.plans.reference is not None and config.algorithm.kl.placement == "none":
        yield "plans.reference: not read, because algorithm.kl.placement is none, so there is no reference policy"


def _packing_notes(config: ExperimentConfig) -> Iterator[str]:
    tokens, longest = config.trainer.max_tokens_per_micro_batch, longest_row(config)
    if config.trainer.packing and tokens is not None and tokens < 2 * longest:
        yield (
            f"trainer.max_tokens_per_micro_batch: {tokens} token slots leave little to pack beside a sample of up to "
            f"{longest}; {2 * longest} or more pack better, where memory allows"
        )


def _same_rows_notes(config: ExperimentConfig) -> Iterator[str]:
    train = config.data.train.path
    for key, source in data_sources(config)[1:]:
        if train is not None and source.path == train:
            yield f"{key}.path: the same as data.train.path, so accuracy is measured on trained rows"
