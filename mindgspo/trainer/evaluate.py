"""Figures of the policy on held-out problems: greedy, and mean@n, maj@k, pass@k, best@k where samples are asked for.

What enters: parts of an experiment, sets of problems, the step. What leaves: metrics under `val-core/<part>/...` with
the ends of their intervals, and answers to look at. Called before, during and after training, and by the warm-up.

A part is what figures are made of: each data source of a single set, each set where sets have names, and below such a
set `<set>/<source>` where it holds several sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.config import ExperimentConfig
from mindgspo.config.data import OVERALL
from mindgspo.metrics.estimates import Estimate, share_estimate
from mindgspo.parallel.swap.states import Phase
from mindgspo.rollout.protocol import SamplingSettings
from mindgspo.rollout.random import Purpose, RandomStream
from mindgspo.trainer.figures import Answered, Figures, figures_of
from mindgspo.trainer.judge import judge
from mindgspo.trainer.logged_groups import logged_groups
from mindgspo.trainer.parts import EvaluationParts
from mindgspo.types import Prompt, ScoredGroup, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSet:
    """What is written down of a set. greedy: one answer per problem. sampled: eval.num_samples of them, none where that
    is 1. Of eval.logged_problems problems, and of as many others whose judgement failed."""

    name: str
    greedy: tuple[ScoredGroup, ...]
    sampled: tuple[ScoredGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """sets: answers to look at. solved: whether the greedy answer is correct, by problem, set after set. metrics: by
    name, with the ends of intervals."""

    sets: tuple[EvaluatedSet, ...]
    solved: tuple[bool, ...]
    metrics: Mapping[str, float]

    @property
    def accuracy(self) -> float:
        """Share of problems whose greedy answer is correct, over all sets."""
        return float(np.mean(self.solved))


def evaluate(parts: EvaluationParts, sets: Mapping[str, Sequence[Prompt]], step: int) -> Evaluation:
    """Greedy answers to all problems and, if eval.num_samples > 1, that many samples, with their figures."""
    section = parts.config.eval
    found, solved, metrics = [], [], {}
    for name, prompts in sets.items():
        greedy = answers(parts, prompts, step, temperature=0.0, num_samples=1)
        sampled: tuple[ScoredGroup, ...] = ()
        if section.num_samples > 1:
            sampled = answers(parts, prompts, step, temperature=section.temperature, num_samples=section.num_samples)
        metrics |= _set_metrics(parts.config, name, greedy, sampled)
        solved += [_is_solved(group) for group in greedy]
        shown, shown_samples = (logged_groups(groups, section.logged_problems) for groups in (greedy, sampled))
        found.append(EvaluatedSet(name=name, greedy=shown, sampled=shown_samples))
    metrics |= with_bounds(OVERALL, share_estimate(solved))
    return Evaluation(sets=tuple(found), solved=tuple(solved), metrics=metrics)


def greedy_accuracy(parts: EvaluationParts, prompts: Sequence[Prompt]) -> float:
    """Share of problems whose greedy answer is correct."""
    return float(np.mean([_is_solved(one) for one in answers(parts, prompts, step=0, temperature=0.0, num_samples=1)]))


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


def part_names(config: ExperimentConfig, set_name: str, sources: Iterable[str]) -> dict[str, list[str]]:
    """The parts of one set, each with the data sources that it holds. sources: of the set's rows."""
    distinct = sorted(set(sources))
    if not config.data.names_eval_sets:
        return {source: [source] for source in distinct}
    whole = {set_name: distinct}
    return whole if len(distinct) == 1 else whole | {f"{set_name}/{source}": [source] for source in distinct}


def with_bounds(name: str, estimate: Estimate) -> dict[str, float]:
    """The estimate as metrics: its value, and the ends of its interval where it has one."""
    ends = {f"{name}/low": estimate.low, f"{name}/high": estimate.high}
    return {name: estimate.value, **{key: end for key, end in ends.items() if end is not None}}


def _set_metrics(
    config: ExperimentConfig, name: str, greedy_groups: Sequence[ScoredGroup], sampled_groups: Sequence[ScoredGroup]
) -> dict[str, float]:
    greedy, sampled = _by_source(greedy_groups), _by_source(sampled_groups)
    metrics: dict[str, float] = {}
    for part, sources in part_names(config, name, greedy).items():
        figures = figures_of([some for source in sources for some in greedy[source]], all_rewards=True)
        metrics |= dict(_core_metrics(part, figures)) | _greedy_metrics(part, figures)
        if sampled:
            some = [some for source in sources for some in sampled[source]]
            metrics |= dict(_core_metrics(part, figures_of(some, config.eval.pass_at_k, all_rewards=True)))
    return metrics


def _by_source(groups: Sequence[ScoredGroup]) -> dict[str, list[Answered]]:
    by_source: dict[str, list[Answered]] = defaultdict(list)
    for group in groups:
        by_source[group.prompt.data_source].append(Answered.of(group))
    return by_source


def _core_metrics(part: str, figures: Figures) -> Iterator[tuple[str, float]]:
    for name, estimate in figures.estimates.items():
        yield from with_bounds(f"val-core/{part}/{name}", estimate).items()


def _greedy_metrics(part: str, figures: Figures) -> dict[str, float]:
    return {
        f"val-aux/{part}/num_problems": figures.num_problems,
        f"val-aux/{part}/no_answer_ratio": figures.no_answer,
        f"val-aux/{part}/failed_ratio": figures.failed,
        f"val-aux/{part}/response_length/mean": figures.mean_length,
        f"val-aux/{part}/response_length/clip_ratio": figures.cut,
    }


def _is_solved(group: ScoredGroup) -> bool:
    return group.scores[0].verdict is Verdict.CORRECT
