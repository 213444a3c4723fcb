"""Draws the scored groups of a step: one rollout, or as many as are needed to fill the batch.

With `algorithm.filter_groups.refill` this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): the batch holds
`rollout.prompts_per_step` groups whose responses differ in a metric. Prompts that are always or never solved are left
out, so the trained groups differ from those drawn: `sampling_metrics` measures by how much. Groups beyond the batch may
wait in a `LeftoverBuffer` for a later step.

Metrics:
  Dynamic sampling:
    sampling/num_gen_batches:
      meaning: rollouts of the step
      unit: rollouts
      healthy: 1 to 3
      action: 'near algorithm.filter_groups.max_num_gen_batches: hardly any prompt teaches; choose others'
    sampling/prompts:
      meaning: prompts drawn in the step
      unit: prompts
      healthy: the batch divided by signal_share
    sampling/signal_share:
      meaning: groups of the step's rollouts whose responses differ in the filter's metric
      unit: share of groups
      healthy: falls as the policy learns the prompts
      action: see all_correct_share and none_correct_share
    sampling/all_correct_share:
      meaning: groups of the step's rollouts in which every response is right
      unit: share of groups
      healthy: rises as the policy learns
      action: 'high from the start: harder prompts'
    sampling/none_correct_share:
      meaning: groups of the step's rollouts in which no response is right
      unit: share of groups
      healthy: falls as the policy learns
      action: 'high: easier prompts, a larger group, or a longer rollout.max_new_tokens'
    sampling/groups_earlier:
      meaning: groups of the batch that an earlier step generated
      unit: groups
      healthy: '0'
    sampling/groups_waiting:
      meaning: groups that wait for a later step
      unit: groups
      healthy: less than a batch
    sampling/groups_expired:
      meaning: groups that were kept and became too old, over the whole run
      unit: groups
      healthy: '0'
      action: draw fewer prompts at once, or raise algorithm.filter_groups.keep_surplus_steps
    sampling/score_shift:
      meaning: 'mean reward of the trained responses minus that of the generated ones: the selection''s bias'
      unit: reward
      healthy: 'towards the middle: positive while most groups fail, negative when most succeed'
    sampling/length_shift:
      meaning: 'mean length of the trained responses minus that of the generated ones: the selection''s bias'
      unit: tokens
      healthy: positive where hard prompts have longer answers
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgspo.algorithms import has_signal
from mindgspo.config import FilterGroupsSection
from mindgspo.errors import TrainingError
from mindgspo.evaluation.evaluator import score_from_json, score_to_json
from mindgspo.parallel.platform.cluster import is_first
from mindgspo.rollout.protocol import RolloutCounters
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.trainer.partial_responses import PromptsByIndex, StoredTokens
from mindgspo.trainer.routing_transfer import RoutingTransfer, Wanted
from mindgspo.types import Episode, FinishReason, Response, Score, ScoredGroup, Verdict

SURPLUS, SHORT, KEPT = "surplus", "short", "kept"
"""Why whole groups with a signal are not trained: beyond the full batch; in a step that found too few of them and is
skipped; put aside for a later step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """A scored group of responses to one prompt."""

    group: ScoredGroup
    baseline: float | None
    """Reward of the greedy response; None where there is none."""
    step: int
    """The step that generated it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Responses of a step, and which of them are trained."""

    responses: tuple[Response, ...]
    """All of the step, group by group."""
    reasons: tuple[str | None, ...]
    """Reason why each response is left out of the update; None for a trained one."""

    def trained(self, start: int, stop: int) -> list[int]:
        """Numbers of the trained responses from `start` to `stop` (excluded)."""
        return [number for number in range(start, stop) if self.reasons[number] is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """Groups of one step: those that are trained, and those that were drawn."""

    groups: tuple[ScoredGroup, ...]
    """Those of the batch first."""
    selection: Selection
    """Responses of the groups, and which of them are trained."""
    baselines: tuple[float | None, ...] | None
    """Greedy rewards by group; None if the estimator needs none."""
    num_earlier: int
    """Groups at the start of `groups` that earlier steps generated."""
    num_with_signal: int
    """Groups generated in this step whose responses differ."""
    num_draws: int
    """Rollouts."""
    counters: RolloutCounters
    """Totals over all rollouts."""

    @property
    def generated(self) -> tuple[ScoredGroup, ...]:
        """The groups of this step's own rollouts."""
        return self.groups[self.num_earlier :]


MarkedGroup = tuple[SampledGroup, str | None]
"""A group with the reason why it is left out as a whole, None for one that is trained."""
LeftOutRule = Callable[[SampledGroup], str | None]


class StepBatch:
    """The groups of one step while they are drawn: `missing` returns how many prompts to roll out, `add` takes their
    groups, and `close` ends the step once nothing is missing."""

    def __init__(
        self,
        section: FilterGroupsSection,
        *,
        batch_size: int,
        left_out: LeftOutRule,
        leftovers: LeftoverBuffer,
        step: int,
        has_baselines: bool = False,
    ) -> None:
        """batch_size: groups of a full batch. leftovers: groups of earlier steps, which come first."""
        self._section, self._batch_size, self._left_out = section, batch_size, left_out
        self._leftovers, self._step, self._has_baselines = leftovers, step, has_baselines
        self._found = leftovers.take(batch_size, step=step)
        self._num_earlier = len(self._found)
        self._drawn: list[MarkedGroup] = []
        self._counters: list[RolloutCounters] = []

    @property
    def num_draws(self) -> int:
        """Rollouts so far."""
        return len(self._counters)

    @property
    def missing(self) -> int:
        """Prompts of the next rollout; 0 if the batch is full, or no further rollout is allowed."""
        section, batch_size, drawn = self._section, self._batch_size, self._drawn
        missing = batch_size - len(self._found)
        if not section.refill:
            return 0 if drawn else batch_size
        if missing <= 0 or self.num_draws == section.max_num_gen_batches:
            return 0
        if section.prompts_per_draw is not None:
            return section.prompts_per_draw
        num_useful = max(sum(reason is None for _, reason in drawn), 1)
        # Not rounded to the number of replicas: what a run draws does not depend on its plan.
        return min(-(-missing * max(len(drawn), 1) // num_useful), batch_size)

    def add(self, groups: Sequence[SampledGroup], counters: RolloutCounters) -> None:
        """Take the groups of one rollout."""
        marked = [(sampled, self._left_out(sampled)) for sampled in groups]
        self._drawn += marked
        self._counters.append(counters)
        self._found += [sampled for sampled, reason in marked if reason is None]

    def close(self) -> StepSamples:
        """Return the samples of the step. Raises TrainingError if the batch is not full and `when_short` is stop."""
        marked = self._filled() if self._section.refill else self._drawn
        return StepSamples(
            groups=tuple(sampled.group for sampled, _ in marked),
            selection=select(marked),
            baselines=tuple(sampled.baseline for sampled, _ in marked) if self._has_baselines else None,
            num_earlier=self._num_earlier,
            num_with_signal=sum(reason is None for _, reason in self._drawn),
            num_draws=self.num_draws,
            counters=RolloutCounters.total(self._counters),
        )

    def _filled(self) -> list[MarkedGroup]:
        """All groups of a step with refill: the batch, the groups beyond it (kept in the leftover buffer, if it keeps
        any), and those without a signal."""
        section, found, leftovers = self._section, self._found, self._leftovers
        silent = [(sampled, reason) for sampled, reason in self._drawn if reason is not None]
        is_short = len(found) < self._batch_size
        if is_short and section.when_short == "stop":
            raise TrainingError(
                f"step {self._step}: after {section.max_num_gen_batches} draws {len(found)} of {self._batch_size} "
                f"groups have a signal in {section.metric} ({len(found) + len(silent)} groups were seen). Raise "
                "algorithm.filter_groups.max_num_gen_batches, choose prompts that are solved sometimes, or set "
                "algorithm.filter_groups.when_short=train (updates on the groups there are) or skip"
            )
        size = 0 if is_short and section.when_short == "skip" else self._batch_size
        batch, rest = found[:size], found[size:]
        if leftovers.keeps:
            leftovers.put(rest)
        rest_reason = KEPT if leftovers.keeps else SHORT if is_short else SURPLUS
        return [*((sampled, None) for sampled in batch), *((sampled, rest_reason) for sampled in rest), *silent]


def left_out_rule(section: FilterGroupsSection, label: str | None, *, needs_baseline: bool) -> LeftOutRule:
    """Returns why a whole group is left out: `no_baseline` if its greedy answer has no reward, `zero_signal` if its
    responses do not differ in the filter's metric; None for a group that is trained.

    label: the name of the filter's reward function in scores, None if the metric is none of them. needs_baseline:
    whether the estimator compares with the greedy answer.
    """

    def reason(sampled: SampledGroup) -> str | None:
        if needs_baseline and sampled.baseline is None:
            return "no_baseline"
        if section.metric == "none":
            return None
        values = [_metric_value(score, section.metric, label) for score in sampled.group.scores]
        return None if has_signal(values) else "zero_signal"

    return reason


def _metric_value(score: Score, metric: str, label: str | None) -> float | None:
    """Value that the filter compares; None for a response without one, which is then ignored."""
    if score.value is None:
        return None
    if metric == "reward":
        return score.value
    if metric == "accuracy":
        return float(score.verdict is Verdict.CORRECT)
    return None if label is None else score.parts.get(label)


def select(groups: Sequence[MarkedGroup]) -> Selection:
    """Select the trained responses. One without a reward is left out with its verdict as the reason, unless its group
    is kept: then a later step counts it."""
    reasons: list[str | None] = []
    for sampled, whole in groups:
        reasons += [
            score.verdict.value if score.value is None and whole != KEPT else whole for score in sampled.group.scores
        ]
    return Selection(
        responses=tuple(response for sampled, _ in groups for response in sampled.group.responses),
        reasons=tuple(reasons),
    )


def sampling_metrics(section: FilterGroupsSection, samples: StepSamples, leftovers: LeftoverBuffer) -> dict[str, float]:
    """Metrics of the filter, and of the difference between trained and drawn responses; none without a filter."""
    if section.metric == "none":
        return {}
    generated = samples.generated
    correct = [[score.verdict is Verdict.CORRECT for score in group.scores] for group in generated]
    metrics = {
        "sampling/num_gen_batches": samples.num_draws,
        "sampling/prompts": len(generated),
        "sampling/groups_earlier": samples.num_earlier,
        "sampling/groups_waiting": len(leftovers),
        "sampling/groups_expired": leftovers.num_expired,
    }
    if generated:
        metrics |= {
            "sampling/signal_share": samples.num_with_signal / len(generated),
            # Judged by advantages alone, groups beyond the batch would seem to have no signal.
            "reward/zero_signal_group_ratio": 1 - samples.num_with_signal / len(generated),
            "sampling/all_correct_share": float(np.mean([all(of_group) for of_group in correct])),
            "sampling/none_correct_share": float(np.mean([not any(of_group) for of_group in correct])),
        }
    return metrics | _shifts(samples)


def _shifts(samples: StepSamples) -> dict[str, float]:
    """Means over the trained responses minus means over the generated ones."""
    reasons = samples.selection.reasons
    values = [score.value for group in samples.groups for score in group.scores]
    scores = [math.nan if value is None else value for value in values]
    lengths = [response.length for response in samples.selection.responses]
    first = sum(len(group.responses) for group in samples.groups[: samples.num_earlier])
    trained = [number for number, reason in enumerate(reasons) if reason is None]
    drawn = [number for number in range(first, len(values)) if values[number] is not None]
    if not trained or not drawn:
        return {}
    return {
        f"sampling/{name}_shift": float(np.mean([of[number] for number in trained]))
        - float(np.mean([of[number] for number in drawn]))
        for name, of in (("score", scores), ("length", lengths))
    }


class LeftoverBuffer:
    """Groups with a signal that their step had no room for; stateful.

    keep_steps: number of steps after its own in which a group may be trained.
    train_set: the prompts of training, by index.
    routing: given if experts are recorded.
    """

    def __init__(self, keep_steps: int, train_set: PromptsByIndex, routing: RoutingTransfer | None = None) -> None:
        self._keep_steps, self._train_set, self._routing = keep_steps, train_set, routing
        self._groups: list[SampledGroup] = []
        self.num_expired = 0
        """Groups that became too old before there was room for them, over the whole run."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def keeps(self) -> bool:
        """Whether anything is ever kept."""
        return self._keep_steps > 0

    def put(self, groups: Sequence[SampledGroup]) -> None:
        """Append groups."""
        self._groups += groups

    def take(self, most: int, *, step: int) -> list[SampledGroup]:
        """Take at most `most` groups that step `step` may still train, oldest first; groups that are too old are
        dropped."""
        young = [sampled for sampled in self._groups if step - sampled.step <= self._keep_steps]
        self.num_expired += len(self._groups) - len(young)
        self._groups = young[most:]
        return young[:most]

    def state(self) -> dict[str, Any]:
        """The state of the groups, without token ids and log-probs."""
        return {"num_expired": self.num_expired, "groups": [_describe(sampled) for sampled in self._groups]}

    def arrays(self) -> dict[str, np.ndarray]:
        """ids and logprobs of all responses, end to end, and their routing if it is recorded; empty if no group
        waits."""
        responses = [response for sampled in self._groups for response in sampled.group.responses]
        if not responses:
            return {}
        arrays = {
            "ids": np.concatenate([response.ids for response in responses]),
            "logprobs": np.concatenate([response.logprobs for response in responses]),
        }
        if self._routing is None:
            return arrays
        numbers = tuple(range(len(responses)))
        found = self._routing.brought([sampled.group for sampled in self._groups], [Wanted(numbers, (0,))])
        if not found:  # rank 0 writes
            return arrays
        firsts = np.cumsum([0, *(len(sampled.group.responses) for sampled in self._groups[:-1])]).tolist()
        return arrays | {
            "experts": np.concatenate([found[number].response_LX for number in numbers]),
            "prompt_experts": np.concatenate([found[number].prompt_LX for number in firsts]),
        }

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Continue from what `state` and `arrays` returned."""
        self.num_expired = int(state["num_expired"])
        # Only one rank has the routing; it sends it to those that train.
        stored = StoredTokens({name: arrays.read(name) for name in arrays.tensors}, with_routing=is_first())
        self._groups = [self._restored(described, stored) for described in state["groups"]]

    def _restored(self, described: Mapping[str, Any], stored: StoredTokens) -> SampledGroup:
        prompt = self._train_set[described["prompt"]]
        prompt_LX, lengths = stored.prompt_experts(prompt), described["lengths"]
        told = described.get("episodes", [None] * len(lengths))
        episodes = [None if fields is None else Episode.from_json(fields) for fields in told]
        responses = tuple(
            Response(
                prompt_index=prompt.index,
                sample_index=sample,
                ids=stored.take("ids", length),
                logprobs=stored.take("logprobs", length if episode is None else episode.num_sampled),
                finish_reason=FinishReason(reason),
                temperature=described["temperature"],
                weight_version=described["weight_version"],
                routing=stored.routing(prompt_LX, length),
                episode=episode,
            )
            for sample, (length, reason, episode) in enumerate(
                zip(lengths, described["reasons"], episodes, strict=True)
            )
        )
        scores = tuple(score_from_json(json.dumps(fields)) for fields in described["scores"])
        return SampledGroup(
            group=ScoredGroup(prompt=prompt, responses=responses, scores=scores),
            baseline=described["baseline"],
            step=described["step"],
        )


def _describe(sampled: SampledGroup) -> dict[str, Any]:
    group = sampled.group
    first = group.responses[0]
    return {
        "prompt": group.prompt.index,
        "step": sampled.step,
        "baseline": sampled.baseline,
        "temperature": first.temperature,
        "weight_version": first.weight_version,
        "lengths": [response.ids.size for response in group.responses],
        "episodes": [response.episode and response.episode.to_json() for response in group.responses],
        "reasons": [response.finish_reason.value for response in group.responses],
        "scores": [json.loads(score_to_json(score)) for score in group.scores],
    }
