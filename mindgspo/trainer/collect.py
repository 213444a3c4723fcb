"""The judged groups of a step: sampled once, or drawn again until enough of them can teach something.

What enters: the parts of the experiment and the number of the step. What leaves: `StepSamples`: the groups of the
batch, those left out with the reasons, and what it took to find them. Called by `step`, on every rank at once.

With `algorithm.filter_groups.refill` this is DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): the batch holds
`rollout.prompts_per_step` groups whose responses differ in a metric. Prompts that are always or never solved are left
out, so what is trained is not what was drawn: `sampling_metrics` says by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindgspo.config import FilterGroupsSection
from mindgspo.errors import TrainingError
from mindgspo.parallel.swap.states import Phase
from mindgspo.rollout.protocol import RolloutCounters, SamplingSettings
from mindgspo.rollout.random import Purpose, RandomStream
from mindgspo.trainer.judge import judge
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.selection import KEPT, SHORT, SURPLUS, JudgedGroup, Marked, Selection, left_out_by, selection_of
from mindgspo.types import ScoredGroup, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """groups: those of the batch first. selection: which of their responses are trained. baselines: greedy rewards by
    group, None where the estimator needs none. num_earlier: groups at the start of `groups` that earlier steps
    generated. num_with_signal: of the groups generated in this step. num_draws: rollouts. counters: of all of them."""

    groups: tuple[ScoredGroup, ...]
    selection: Selection
    baselines: tuple[float | None, ...] | None
    num_earlier: int
    num_with_signal: int
    num_draws: int
    counters: RolloutCounters

    @property
    def generated(self) -> tuple[ScoredGroup, ...]:
        """The groups of this step's own rollouts."""
        return self.groups[self.num_earlier :]


def collect(parts: TrainingParts, step: int) -> StepSamples:
    """Sample and judge the groups of a step. Raises TrainingError if the batch cannot be filled and that is to end the
    run."""
    section, wanted = parts.config.algorithm.filter_groups, parts.config.rollout.prompts_per_step
    label = dict(zip(parts.config.reward.functions, parts.scorer.labels, strict=True)).get(section.metric)
    reason = left_out_by(section, label, needs_baseline=_compares_with_greedy(parts))
    found = parts.surplus.take(wanted, step=step)
    num_earlier = len(found)
    drawn: list[Marked] = []
    counters: list[RolloutCounters] = []
    while not drawn or (section.refill and len(found) < wanted and len(counters) < section.max_num_gen_batches):
        num_prompts = prompts_to_draw(parts, missing=wanted - len(found), drawn=drawn)
        if not num_prompts:
            break
        groups, of_call = _draw(parts, step, num_prompts, draw=len(counters))
        marked = [(judged, reason(judged)) for judged in groups]
        drawn += marked
        counters.append(of_call)
        found += [judged for judged, why in marked if why is None]
    every = _divided(parts, found, drawn, step) if section.refill else drawn
    return StepSamples(
        groups=tuple(judged.group for judged, _ in every),
        selection=selection_of(every),
        baselines=tuple(judged.baseline for judged, _ in every) if _compares_with_greedy(parts) else None,
        num_earlier=num_earlier,
        num_with_signal=sum(why is None for _, why in drawn),
        num_draws=len(counters),
        counters=RolloutCounters.total(counters),
    )


def prompts_to_draw(parts: TrainingParts, *, missing: int, drawn: Sequence[Marked]) -> int:
    """Prompts of the next draw: all of a step without refill; else as `filter_groups.prompts_per_draw` says, and 0
    where nothing is missing."""
    section, most = parts.config.algorithm.filter_groups, parts.config.rollout.prompts_per_step
    if not section.refill:
        return most
    if missing <= 0:
        return 0
    if section.prompts_per_draw is not None:
        return section.prompts_per_draw
    num_useful = max(sum(why is None for _, why in drawn), 1)
    # Not rounded to the replicas' number: what a run draws does not depend on its plan.
    return min(-(-missing * max(len(drawn), 1) // num_useful), most)


def sampling_settings(parts: TrainingParts, step: int, draw: int = 0) -> SamplingSettings:
    """How the training responses of a draw are sampled."""
    rollout = parts.config.rollout
    return SamplingSettings(
        num_samples=rollout.num_generations,
        temperature=rollout.temperature,
        max_new_tokens=rollout.max_new_tokens,
        stream=RandomStream(seed=parts.config.seed, purpose=Purpose.TRAINING, step=step, draw=draw),
    )


def _compares_with_greedy(parts: TrainingParts) -> bool:
    return parts.config.algorithm.advantage.estimator == "remax"


def _draw(parts: TrainingParts, step: int, num_prompts: int, *, draw: int) -> tuple[list[JudgedGroup], RolloutCounters]:
    """One rollout of the next prompts, judged; with the greedy answers to compare with, where an estimator does."""
    prompts = [parts.train_set[index] for index in parts.stream.take(num_prompts)]
    settings = sampling_settings(parts, step, draw)
    greedy = None
    with parts.timers("gen"), parts.swap.phase(Phase.ROLLOUT):
        rollout = parts.engine.generate(prompts, settings, weight_version=parts.weight_version)
        if _compares_with_greedy(parts):
            greedy = parts.engine.generate(
                prompts, replace(settings, num_samples=1, temperature=0.0), weight_version=parts.weight_version
            )
        if not parts.config.algorithm.filter_groups.refill:  # with it the next phase may be another rollout
            parts.swap.prefetch(Phase.SCORE)
    with parts.timers("reward"):
        groups = judge(parts, prompts, rollout)
        baselines = [None] * len(groups)
        if greedy is not None:
            baselines = [group.scores[0].value for group in judge(parts, prompts, greedy)]
    judged = [
        JudgedGroup(group=group, baseline=baseline, step=step)
        for group, baseline in zip(groups, baselines, strict=True)
    ]
    return judged, rollout.counters


def _divided(parts: TrainingParts, found: list[JudgedGroup], drawn: Sequence[Marked], step: int) -> list[Marked]:
    """All groups of a step with refill, each with the reason why it is not trained: the batch, what is beyond it, and
    those without a signal. found: with a signal, earlier ones first. What is to be kept is put aside here."""
    section, wanted = parts.config.algorithm.filter_groups, parts.config.rollout.prompts_per_step
    silent = [(judged, why) for judged, why in drawn if why is not None]
    is_short = len(found) < wanted
    if is_short and section.when_short == "stop":
        raise TrainingError(_short_text(section, step, wanted, len(found), len(found) + len(silent)))
    size = 0 if is_short and section.when_short == "skip" else wanted
    batch, rest = found[:size], found[size:]
    if parts.surplus.keeps:
        parts.surplus.put(rest)
    rest_reason = KEPT if parts.surplus.keeps else SHORT if is_short else SURPLUS
    return [
        *((judged, None) for judged in batch),
        *((judged, rest_reason) for judged in rest),
        *silent,
    ]


def _short_text(section: FilterGroupsSection, step: int, wanted: int, found: int, seen: int) -> str:
    return (
        f"step {step}: after {section.max_num_gen_batches} draws {found} of {wanted} groups have a signal in "
        f"{section.metric} ({seen} groups were seen). Raise algorithm.filter_groups.max_num_gen_batches, choose "
        "prompts that are solved sometimes, or set algorithm.filter_groups.when_short=train (updates on the groups "
        "there are) or skip"
    )


def sampling_metrics(parts: TrainingParts, samples: StepSamples) -> dict[str, float]:
    """What the filter did, and how far what is trained differs from what was drawn; nothing without a filter."""
    if parts.config.algorithm.filter_groups.metric == "none":
        return {}
    generated = samples.generated
    correct = [[score.verdict is Verdict.CORRECT for score in group.scores] for group in generated]
    metrics = {
        "sampling/num_gen_batches": samples.num_draws,
        "sampling/prompts": len(generated),
        "sampling/groups_earlier": samples.num_earlier,
        "sampling/groups_waiting": len(parts.surplus),
        "sampling/groups_expired": parts.surplus.num_expired,
    }
    if generated:
        metrics |= {
            "sampling/signal_share": samples.num_with_signal / len(generated),
            # By advantages alone, groups beyond the batch would seem to have no signal.
            "reward/zero_signal_group_ratio": 1 - samples.num_with_signal / len(generated),
            "sampling/all_correct_share": float(np.mean([all(of_group) for of_group in correct])),
            "sampling/none_correct_share": float(np.mean([not any(of_group) for of_group in correct])),
        }
    return metrics | _shifts(samples)


def _shifts(samples: StepSamples) -> dict[str, float]:
    """Means over the trained responses minus means over the generated ones."""
    reasons = samples.selection.reasons
    scores = [score.value for group in samples.groups for score in group.scores]
    lengths = [response.length for response in samples.selection.responses]
    first = sum(len(group.responses) for group in samples.groups[: samples.num_earlier])
    trained = [number for number, reason in enumerate(reasons) if reason is None]
    drawn = [number for number in range(first, len(scores)) if scores[number] is not None]
    if not trained or not drawn:
        return {}
    return {
        f"sampling/{name}_shift": float(np.mean([of[number] for number in trained]))
        - float(np.mean([of[number] for number in drawn]))
        for name, of in (("score", scores), ("length", lengths))
    }
