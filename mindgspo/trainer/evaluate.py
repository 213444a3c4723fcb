"""Accuracy on held-out problems: greedy, and mean@n, maj@n and pass@k where samples are asked for.

What enters: parts of an experiment, a data set, the step. What leaves: metrics under `val-core/<source>/...` and the
greedy groups. Called before, during and after training, and by the warm-up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.parallel.swap.states import Phase
from mindgspo.rollout.protocol import SamplingSettings
from mindgspo.rollout.random import Purpose, RandomStream
from mindgspo.trainer.figures import Answered, figures_of
from mindgspo.trainer.judge import judge
from mindgspo.trainer.parts import EvaluationParts
from mindgspo.types import FinishReason, Prompt, ScoredGroup, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """accuracy: share of problems whose greedy answer is correct, over all sources. metrics: by data source.
    groups: one greedy response per problem."""

    accuracy: float
    metrics: dict[str, float]
    groups: tuple[ScoredGroup, ...]


def evaluate(parts: EvaluationParts, prompts: Sequence[Prompt], step: int) -> Evaluation:
    """Greedy accuracy of all prompts and, if eval.num_samples > 1, mean, vote and pass@k of that many samples."""
    section = parts.config.eval
    groups = answers(parts, prompts, step, temperature=0.0, num_samples=1)
    metrics = _by_source(groups, _greedy_metrics)
    if section.num_samples > 1:
        sampled = answers(parts, prompts, step, temperature=section.temperature, num_samples=section.num_samples)
        metrics |= _by_source(sampled, lambda some: _sampled_metrics(some, section.pass_at_k))
    return Evaluation(accuracy=_accuracy(groups), metrics=metrics, groups=groups)


def greedy_accuracy(parts: EvaluationParts, prompts: Sequence[Prompt]) -> float:
    """Share of problems whose greedy answer is correct."""
    return _accuracy(answers(parts, prompts, step=0, temperature=0.0, num_samples=1))


def answers(
    parts: EvaluationParts, prompts: Sequence[Prompt], step: int, *, temperature: float, num_samples: int
) -> tuple[ScoredGroup, ...]:
    """The judged answers to `prompts`, in their order. temperature: 0 takes the likeliest token."""
    settings = SamplingSettings(
        num_samples=num_samples,
        temperature=temperature,
        max_new_tokens=parts.config.rollout.max_new_tokens,
        stream=RandomStream(seed=parts.config.seed, purpose=Purpose.EVALUATION, step=step),
    )
    with parts.swap.phase(Phase.EVALUATE):
        rollout = parts.engine.generate(prompts, settings, weight_version=parts.weight_version)
    return judge(parts, prompts, rollout)


def _by_source(
    groups: Sequence[ScoredGroup], measure: Callable[[Sequence[ScoredGroup]], dict[tuple[str, str], float]]
) -> dict[str, float]:
    by_source: dict[str, list[ScoredGroup]] = defaultdict(list)
    for group in groups:
        by_source[group.prompt.data_source].append(group)
    return {
        f"{prefix}/{source}/{name}": value
        for source, some in sorted(by_source.items())
        for (prefix, name), value in measure(some).items()
    }


def _greedy_metrics(groups: Sequence[ScoredGroup]) -> dict[tuple[str, str], float]:
    responses = [response for group in groups for response in group.responses]
    lengths = [response.length for response in responses]
    unanswered = sum(group.scores[0].verdict is Verdict.NO_ANSWER for group in groups)
    cut = sum(response.finish_reason is FinishReason.LENGTH for response in responses)
    return {
        ("val-core", "acc/mean@1"): _accuracy(groups),
        ("val-aux", "no_answer_ratio"): unanswered / len(groups),
        ("val-aux", "response_length/mean"): float(np.mean(lengths)),
        ("val-aux", "response_length/clip_ratio"): cut / len(responses),
    }


def _sampled_metrics(groups: Sequence[ScoredGroup], ks: Sequence[int]) -> dict[tuple[str, str], float]:
    """Figures of rewards are left out: a run has those of its training prompts."""
    estimates = figures_of([Answered.of(group) for group in groups], ks).estimates
    return {("val-core", name): found.value for name, found in estimates.items() if name.startswith("acc/")}


def _accuracy(groups: Sequence[ScoredGroup]) -> float:
    return float(np.mean([group.scores[0].verdict is Verdict.CORRECT for group in groups]))
