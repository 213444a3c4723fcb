"""Evaluation of the policy on held-out problems, and scoring of responses by their text, in training as in evaluation.

One answer per problem, and mean@n, maj@k, pass@k, best@k if samples are requested. Metrics are named
`val-core/<part>/...`, with the ends of their intervals. The parts are the data sources of a single set, or the named
sets, with `<set>/<source>` below a set of several sources.

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

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from mindgspo import faults
from mindgspo.config.data import OVERALL, OVERALL_REWARD, EvalSection
from mindgspo.config.reward import RewardSection
from mindgspo.config.rules import part_of
from mindgspo.config.schema import SwapSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.errors import ConfigError
from mindgspo.evaluation import estimates
from mindgspo.evaluation.estimates import Estimate, EvaluationSummary, ScoredProblem
from mindgspo.parallel.collectives.replicas import Replicas
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import heartbeat
from mindgspo.rewards import Candidate, RewardFunction, Scorer
from mindgspo.rollout.protocol import Purpose, RandomStream, Rollout, RolloutEngine, SamplingFilter, SamplingSettings
from mindgspo.swap.states import Phase
from mindgspo.swap.swap import Swap
from mindgspo.tokenization import Tokenizer
from mindgspo.types import FinishReason, Group, Prompt, Response, Score, ScoredGroup, Verdict

AnyGroup = TypeVar("AnyGroup", Group, ScoredGroup)


def start_scorer(
    section: RewardSection, place: Placement, objects: Mapping[str, RewardFunction] | None = None
) -> Scorer:
    """Create the reward functions. Only ranks that score start worker processes. place: this rank's, in the infer
    plan. objects: see `Scorer`."""
    scorer = Scorer(section, objects=objects, on_answer=heartbeat.tick)
    if place.is_replica_leader:
        scorer.start()
    return scorer


class ResponseScorer:
    """Scores the engine's responses; each scoring rank takes its share, and all ranks get all scores."""

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer, replicas: Replicas | None = None) -> None:
        self._scorer, self._tokenizer = scorer, tokenizer
        self._replicas = replicas or Replicas()
        self.labels = scorer.labels

    def score(self, prompts: Sequence[Prompt], rollout: Rollout) -> tuple[ScoredGroup, ...]:
        """Score every response by its text up to the EOS, of an episode by that of its last turn; in the order of
        `prompts`."""
        faults.reach("reward.before")
        groups = list(zip(prompts, rollout.responses, strict=True))
        candidates = [self._candidate(prompt, response) for prompt, siblings in groups for response in siblings]
        own = self._scorer.score(self._replicas.own(candidates)) if self._replicas.is_leader else []
        faults.reach("reward.inside")
        collected = self._replicas.collect_objects(
            own, num_items=len(candidates), encode=score_to_json, decode=score_from_json
        )
        scores = iter(collected)
        return tuple(
            ScoredGroup(prompt=prompt, responses=siblings, scores=tuple(next(scores) for _ in siblings))
            for prompt, siblings in groups
        )

    def _candidate(self, prompt: Prompt, response: Response) -> Candidate:
        return Candidate(
            text=self._tokenizer.decode(response.last_turn.tolist(), skip_special_tokens=True),
            gold=prompt.answer,
            data_source=prompt.data_source,
            index=prompt.index,
            num_tokens=response.length,
            is_cut=response.finish_reason is FinishReason.LENGTH,
            extra_info=prompt.extra_info,
            episode=response.episode,
        )


def score_to_json(score: Score) -> str:
    """Write a score as JSON."""
    return json.dumps({**asdict(score), "verdict": score.verdict.value})


def score_from_json(text: str) -> Score:
    """Read what `score_to_json` wrote."""
    fields = json.loads(text)
    return Score(**{**fields, "verdict": Verdict(fields["verdict"])})


def logged_groups(groups: Sequence[AnyGroup], count: int | None) -> tuple[AnyGroup, ...]:
    """The first `count` groups, and up to as many others in which a reward function failed, so that its message is
    logged. None: all."""
    if count is None:
        return tuple(groups)
    failed = [group for group in groups[count:] if any(score.message for score in group.scores)]
    return (*groups[:count], *failed[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSet:
    """Answers of a set that are logged: to eval.logged_problems problems and as many others whose scoring failed."""

    name: str
    single: tuple[ScoredGroup, ...]
    """One answer per problem, greedy unless eval.do_sample."""
    sampled: tuple[ScoredGroup, ...] = ()
    """eval.num_samples answers per problem; empty if that is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Outcome of an evaluation on all held-out sets."""

    sets: tuple[EvaluatedSet, ...]
    """Answers to look at."""
    solved: tuple[bool, ...]
    """Whether the one answer is correct, by problem, set after set."""
    rewards: tuple[float, ...]
    """Reward of the one answer, by problem; empty if no answer could be scored."""
    metrics: Mapping[str, float]
    """Metrics by name, with the ends of intervals."""

    @property
    def accuracy(self) -> float:
        """Share of problems whose one answer is correct, over all sets."""
        return float(np.mean(self.solved))


class Evaluator:
    """Answers problems with the policy's weights and summarizes the answers.

    names_sets: whether the held-out sets have names, which then appear in their metrics. swap: moves memory between
    phases; all ranks call the methods together.
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
        """Answer each problem once and, if eval.num_samples > 1, that many times, and summarize the answers."""
        section = self._section
        evaluated, solved, scores, metrics = [], [], [], {}
        for name, prompts in sets.items():
            temperature = single_temperature(section)
            single = self.answers(prompts, step, temperature=temperature, weight_version=weight_version)
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
            evaluated.append(EvaluatedSet(name=name, single=shown, sampled=shown_samples))
        metrics |= with_bounds(OVERALL, estimates.share_estimate(solved))
        rewards = [reward for (reward,) in estimates.reward_values(scores)]
        if rewards:
            metrics |= with_bounds(OVERALL_REWARD, estimates.mean_estimate(rewards))
        return Evaluation(sets=tuple(evaluated), solved=tuple(solved), rewards=tuple(rewards), metrics=metrics)

    def greedy_figures(self, prompts: Sequence[Prompt], *, weight_version: int) -> tuple[float, float | None]:
        """Share of problems whose greedy answer is correct, and the mean reward; None if no answer has one."""
        groups = self.answers(prompts, 0, weight_version=weight_version)
        rewards = estimates.reward_values([group.scores for group in groups])
        return float(np.mean([_is_solved(group) for group in groups])), float(np.mean(rewards)) if rewards else None

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
        single, sampled = (by_source(map(ScoredProblem.of, groups)) for groups in (single_groups, sampled_groups))
        metrics: dict[str, float] = {}
        for part, sources in part_names(name, single, names_sets=self._names_sets).items():
            summary = _summary_of(single, sources)
            metrics |= dict(_core_metrics(part, summary)) | _single_metrics(part, summary)
            if sampled:
                metrics |= dict(_core_metrics(part, _summary_of(sampled, sources, self._section.pass_at_k)))
        return metrics


def single_temperature(section: EvalSection) -> float:
    """Temperature of the one answer to each problem; 0 if it is greedy."""
    return section.temperature if section.do_sample else 0.0


def part_names(set_name: str, sources: Iterable[str], *, names_sets: bool) -> dict[str, list[str]]:
    """The parts of one set, each with its data sources. sources: of the set's rows."""
    distinct = sorted(set(sources))
    if not names_sets:
        return {source: [source] for source in distinct}
    whole = {set_name: distinct}
    return whole if len(distinct) == 1 else whole | {f"{set_name}/{source}": [source] for source in distinct}


def with_bounds(name: str, estimate: Estimate) -> dict[str, float]:
    """The estimate as metrics: its value, and the ends of its interval if it has one."""
    ends = {f"{name}/low": estimate.low, f"{name}/high": estimate.high}
    return {name: estimate.value, **{key: end for key, end in ends.items() if end is not None}}


def by_source(problems: Iterable[ScoredProblem]) -> dict[str, list[ScoredProblem]]:
    """Problems by their data source."""
    grouped: dict[str, list[ScoredProblem]] = defaultdict(list)
    for problem in problems:
        grouped[problem.data_source].append(problem)
    return grouped


def _summary_of(
    problems: Mapping[str, Sequence[ScoredProblem]], sources: Sequence[str], ks: Sequence[int] = ()
) -> EvaluationSummary:
    chosen = [problem for source in sources for problem in problems[source]]
    return estimates.summarize_problems(chosen, ks, all_rewards=True)


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
    """Raises ConfigError if eval.best_metric is about a data source that no set holds."""
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
