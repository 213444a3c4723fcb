"""Evaluates the policy on held-out problems: one answer each, and mean@n, maj@k, pass@k, best@k where samples are asked
for.

Metrics are named `val-core/<part>/...`, with the ends of their intervals. A part is each data source of a single set,
each set where sets have names, and below such a set `<set>/<source>` where it holds several sources.

Metrics:
  Evaluation on held-out problems:
    val-core/acc/mean@1:
      meaning: accuracy over all held-out problems of all sets, one answer each, greedy unless eval.do_sample;
        unless the reward is a function of your own, the best step is chosen by it
      unit: share of problems
      healthy: rises
      action: 'see val-core/acc/change: is it more than noise?'
    val-core/acc/mean@1/<bound>:
      meaning: ends of its 95 % interval, over problems like these
      unit: share of problems
    val-core/acc/change:
      meaning: change of val-core/acc/mean@1 since the first evaluation of the run, problem by problem
      unit: share of problems
      healthy: its low end above 0
      action: '0 between its ends: no change can be claimed; evaluate on more problems or train longer'
    val-core/acc/change/<bound>:
      meaning: ends of its 95 % interval; narrower than the accuracies' own, because the problems are the same
      unit: share of problems
    val-core/reward/mean@1:
      meaning: mean reward of the same answers, the weighted sum that training uses; shown beside the accuracy
        where it is another number, and the best step is chosen by it where the reward is a function of your
        own
      healthy: rises
      action: 'flat while critic/score/mean rises: the policy fits the training prompts only; use more of them'
    val-core/reward/mean@1/<bound>:
      meaning: ends of its 95 % interval, over problems like these
    val-core/reward/change:
      meaning: change of that mean reward since the first evaluation of the run, problem by problem
      healthy: its low end above 0
      action: '0 between its ends: no change can be claimed; evaluate on more problems or train longer'
    val-core/reward/change/<bound>:
      meaning: ends of its 95 % interval
    val-core/<source>/acc/mean@<n>:
      meaning: accuracy on held-out problems of one set or data source, mean over n samples each; mean@1 is
        greedy unless eval.do_sample
      unit: share of problems
      healthy: rises
      action: 'flat while critic/score/mean rises: the policy fits the training prompts only; use more of them'
    val-core/<source>/acc/pass@<n>:
      meaning: problems solved by at least one of n samples (unbiased estimate)
      unit: share of problems
      healthy: at least mean@n
      action: 'falls while mean@n rises: the policy loses variety; watch actor/entropy'
    val-core/<source>/acc/maj@<n>:
      meaning: problems whose most frequent answer among n samples is right, ties drawn by lot, expected over
        all ways of taking n
      unit: share of problems
      healthy: above mean@n
      action: 'below mean@n: the policy agrees with itself on wrong answers; longer training on such problems'
    val-core/<source>/reward/mean@<n>:
      meaning: mean reward of the answers to held-out problems, n per problem; @1 is greedy unless eval.do_sample
      healthy: rises
    val-core/<source>/reward/best@<n>:
      meaning: highest reward among n samples of a held-out problem, expected over all ways of taking n
      healthy: above mean@n
    val-core/<source>/<figure>/<bound>:
      meaning: 'ends of the 95 % interval of that figure, over problems like these: docs/evaluation.md'
    val-aux/<source>/failed_ratio:
      meaning: evaluation responses that could not be scored (time limit, error); they count as not correct
      unit: share of responses
      healthy: '0'
      action: raise reward.workers.timeout_s, or repair the reward function
    val-aux/<source>/no_answer_ratio:
      meaning: evaluation responses without a recognisable answer
      unit: share of responses
      healthy: below 0.2
      action: 'read samples.jsonl: prompt, answer format and reward function must fit together'
    val-aux/<source>/response_length/mean:
      meaning: length of evaluation responses
      unit: tokens
      healthy: as response_length
    val-aux/<source>/response_length/clip_ratio:
      meaning: evaluation responses cut
      unit: share of responses
      healthy: below 0.1
      action: raise rollout.max_new_tokens
    val-aux/<source>/num_problems:
      meaning: held-out problems
      unit: problems
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.config.data import OVERALL, OVERALL_REWARD, EvalSection
from mindgspo.config.rules import part_of
from mindgspo.config.schema import SwapSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.errors import ConfigError
from mindgspo.evaluation.estimates import Estimate, mean_estimate, share_estimate
from mindgspo.evaluation.scoring import ResponseScorer, logged_groups
from mindgspo.evaluation.summary import EvaluationSummary, ScoredProblem, reward_values, summarize
from mindgspo.rollout.protocol import Purpose, RandomStream, RolloutEngine, SamplingFilter, SamplingSettings
from mindgspo.swap.states import Phase
from mindgspo.swap.swap import Swap
from mindgspo.types import Prompt, ScoredGroup, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSet:
    """What is written down of a set. single: one answer per problem, greedy unless eval.do_sample. sampled:
    eval.num_samples of them, none where that is 1. Of eval.logged_problems problems, and of as many others whose
    scoring failed."""

    name: str
    single: tuple[ScoredGroup, ...]
    sampled: tuple[ScoredGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """sets: answers to look at. solved, rewards: whether the one answer is correct, and its reward, by problem, set
    after set; no rewards where no answer could be scored. metrics: by name, with the ends of intervals."""

    sets: tuple[EvaluatedSet, ...]
    solved: tuple[bool, ...]
    rewards: tuple[float, ...]
    metrics: Mapping[str, float]

    @property
    def accuracy(self) -> float:
        """Share of problems whose one answer is correct, over all sets."""
        return float(np.mean(self.solved))


class Evaluator:
    """Answers problems with the policy's weights and summarizes the answers.

    names_sets: whether the held-out sets have names, which their metrics then bear. swap: what is resident in which
    phase; all ranks call the methods together.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        scorer: ResponseScorer,
        section: EvalSection,
        *,
        max_new_tokens: int,
        seed: int,
        names_sets: bool = False,
        swap: Swap | None = None,
    ) -> None:
        self._engine, self._scorer, self._section = engine, scorer, section
        self._max_new_tokens, self._seed, self._names_sets = max_new_tokens, seed, names_sets
        self._swap = swap or Swap(SwapSection(), None)

    def evaluate(self, sets: Mapping[str, Sequence[Prompt]], step: int, *, weight_version: int) -> Evaluation:
        """One answer to each problem and, if eval.num_samples > 1, that many samples, with their summary."""
        section = self._section
        found, solved, scores, metrics = [], [], [], {}
        for name, prompts in sets.items():
            single = self.answers(prompts, step, temperature=single_temperature(section), weight_version=weight_version)
            sampled: tuple[ScoredGroup, ...] = ()
            if section.num_samples > 1:
                sampled = self.answers(
                    prompts,
                    step,
                    temperature=section.temperature,
                    num_samples=section.num_samples,
                    weight_version=weight_version,
                )
            metrics |= self._set_metrics(name, single, sampled)
            solved += [_is_solved(group) for group in single]
            scores += [group.scores for group in single]
            shown, shown_samples = (logged_groups(groups, section.logged_problems) for groups in (single, sampled))
            found.append(EvaluatedSet(name=name, single=shown, sampled=shown_samples))
        metrics |= with_bounds(OVERALL, share_estimate(solved))
        rewards = [reward for (reward,) in reward_values(scores)]
        if rewards:
            metrics |= with_bounds(OVERALL_REWARD, mean_estimate(rewards))
        return Evaluation(sets=tuple(found), solved=tuple(solved), rewards=tuple(rewards), metrics=metrics)

    def greedy_figures(self, prompts: Sequence[Prompt], *, weight_version: int) -> tuple[float, float | None]:
        """Share of problems whose greedy answer is correct, and the mean reward; None where no answer has one."""
        groups = self.answers(prompts, 0, weight_version=weight_version)
        rewards = reward_values([group.scores for group in groups])
        return float(np.mean([_is_solved(one) for one in groups])), float(np.mean(rewards)) if rewards else None

    def answers(
        self,
        prompts: Sequence[Prompt],
        step: int,
        *,
        temperature: float = 0.0,
        num_samples: int = 1,
        weight_version: int = 0,
    ) -> tuple[ScoredGroup, ...]:
        """The scored answers to `prompts`, in their order. temperature: 0 takes the likeliest token."""
        section = self._section
        assert section.top_k is not None and section.top_p is not None, "config is not resolved"
        settings = SamplingSettings(
            num_samples=num_samples,
            temperature=temperature,
            max_new_tokens=self._max_new_tokens,
            stream=RandomStream(seed=self._seed, purpose=Purpose.EVALUATION, step=step),
            sampling_filter=SamplingFilter(section.top_k, section.top_p),
        )
        with self._swap.phase(Phase.EVALUATE):
            rollout = self._engine.generate(prompts, settings, weight_version=weight_version)
        return self._scorer.score(prompts, rollout)

    def _set_metrics(
        self, name: str, single_groups: Sequence[ScoredGroup], sampled_groups: Sequence[ScoredGroup]
    ) -> dict[str, float]:
        single, sampled = _by_source(single_groups), _by_source(sampled_groups)
        metrics: dict[str, float] = {}
        for part, sources in part_names(name, single, names_sets=self._names_sets).items():
            summary = summarize([some for source in sources for some in single[source]], all_rewards=True)
            metrics |= dict(_core_metrics(part, summary)) | _single_metrics(part, summary)
            if sampled:
                some = [some for source in sources for some in sampled[source]]
                metrics |= dict(_core_metrics(part, summarize(some, self._section.pass_at_k, all_rewards=True)))
        return metrics


def single_temperature(section: EvalSection) -> float:
    """Of the one answer to each problem; 0 where it is greedy."""
    return section.temperature if section.do_sample else 0.0


def part_names(set_name: str, sources: Iterable[str], *, names_sets: bool) -> dict[str, list[str]]:
    """The parts of one set, each with the data sources that it holds. sources: of the set's rows."""
    distinct = sorted(set(sources))
    if not names_sets:
        return {source: [source] for source in distinct}
    whole = {set_name: distinct}
    return whole if len(distinct) == 1 else whole | {f"{set_name}/{source}": [source] for source in distinct}


def with_bounds(name: str, estimate: Estimate) -> dict[str, float]:
    """The estimate as metrics: its value, and the ends of its interval where it has one."""
    ends = {f"{name}/low": estimate.low, f"{name}/high": estimate.high}
    return {name: estimate.value, **{key: end for key, end in ends.items() if end is not None}}


def _by_source(groups: Sequence[ScoredGroup]) -> dict[str, list[ScoredProblem]]:
    by_source: dict[str, list[ScoredProblem]] = defaultdict(list)
    for group in groups:
        by_source[group.prompt.data_source].append(ScoredProblem.of(group))
    return by_source


def _core_metrics(part: str, summary: EvaluationSummary) -> Iterator[tuple[str, float]]:
    for name, estimate in summary.estimates.items():
        yield from with_bounds(f"val-core/{part}/{name}", estimate).items()


def _single_metrics(part: str, summary: EvaluationSummary) -> dict[str, float]:
    return {
        f"val-aux/{part}/num_problems": summary.num_problems,
        f"val-aux/{part}/no_answer_ratio": summary.no_answer,
        f"val-aux/{part}/failed_ratio": summary.failed,
        f"val-aux/{part}/response_length/mean": summary.mean_length,
        f"val-aux/{part}/response_length/clip_ratio": summary.cut,
    }


def _is_solved(group: ScoredGroup) -> bool:
    return group.scores[0].verdict is Verdict.CORRECT


def check_best_metric(section: EvalSection, eval_sets: Mapping[str, PromptDataset], *, names_sets: bool) -> None:
    """Raises ConfigError where eval.best_metric is about a data source that no set holds."""
    part = part_of(section.best_metric)
    names = [
        name
        for set_name, rows in eval_sets.items()
        for name in part_names(set_name, (row.data_source for row in rows), names_sets=names_sets)
    ]
    if part is not None and part not in names:
        raise ConfigError(
            f"eval.best_metric: {section.best_metric} is not measured: data.eval holds {', '.join(names)}"
        )
