"""Which responses are trained: the reasons of those that are not, and what a step does without them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mindgspo.config import FilterGroupsSection
from mindgspo.evaluation.evaluator import logged_groups
from mindgspo.trainer.dynamic_sampling import SampledGroup, left_out_rule
from mindgspo.trainer.dynamic_sampling import select as select_responses
from mindgspo.types import Score, ScoredGroup, Verdict

NO_FILTER, BY_REWARD = FilterGroupsSection(), FilterGroupsSection(metric="reward")


def select(groups, section, baselines, label=None):
    """The reasons by which responses of these groups are left out."""
    sampled = [
        SampledGroup(group=group, baseline=None if baselines is None else baselines[index], step=1)
        for index, group in enumerate(groups)
    ]
    reason = left_out_rule(section, label, needs_baseline=baselines is not None)
    return select_responses([(one, reason(one)) for one in sampled])


@pytest.fixture
def group(prompts, response) -> Callable[..., ScoredGroup]:
    """group(*values): responses with these rewards; None is a scorer that ran out of time."""

    def make(*values: float | None) -> ScoredGroup:
        verdicts = [Verdict.TIMEOUT if value is None else Verdict.WRONG for value in values]
        return ScoredGroup(
            prompt=prompts[0],
            responses=tuple(response([1], [-1.0]) for _ in values),
            scores=tuple(Score(value=value, verdict=found) for value, found in zip(values, verdicts, strict=True)),
        )

    return make


@pytest.fixture
def by_prompt(answer):
    """by_prompt({prompt: number of right answers}): the first so many siblings are right, the others say 999."""
    return lambda num_right: (
        lambda prompt, sample: answer(prompt.answer if sample < num_right[prompt.index % 4] else "999")
    )


def test_reasons_by_hand(group) -> None:
    selection = select([group(1.0, 1.0), group(None, 0.0)], NO_FILTER, None)
    assert selection.reasons == (None, None, "timeout", None)
    assert len(selection.responses) == 4
    assert (selection.trained(0, 4), selection.trained(2, 4), selection.trained(2, 3)) == ([0, 1, 3], [3], [])
    groups = [group(1.0, 1.0), group(0.0, 1.0), group(None, 1.0), group(None, 0.1, 0.2), group(0.1, 0.1)]
    expected = ["zero_signal"] * 2 + [None] * 2 + ["timeout", "zero_signal"] + ["timeout", None, None]
    assert list(select(groups, BY_REWARD, None).reasons) == [*expected, "zero_signal", "zero_signal"]
    groups = [group(0.0, 1.0), group(None, 1.0), group(1.0, 1.0)]
    assert select(groups, NO_FILTER, [0.0, None, None]).reasons == (
        *(None, None),
        *("timeout", "no_baseline"),
        *("no_baseline", "no_baseline"),
    )
    # The baseline is missing whatever the filter says; a baseline of 0 is one.
    assert select(groups, BY_REWARD, [None, 1.0, 0.0]).reasons == (
        *("no_baseline", "no_baseline"),
        *("timeout", "zero_signal"),
        *("zero_signal", "zero_signal"),
    )


def test_filtered_groups_leave_the_rows_and_the_denominators(make_trainer, by_prompt) -> None:
    """Prompts 0 and 2 have one right answer; both answers of 1 are right, both of 3 wrong."""
    trainer = make_trainer(by_prompt({0: 1, 1: 2, 2: 1, 3: 0}), "algorithm.filter_groups.metric=reward")
    result = trainer.train_step(1)
    metrics = result.metrics
    names = ("generated", "trained", "filtered", "filtered/zero_signal")
    assert [metrics[f"samples/{name}"] for name in names] == [8, 4, 4, 4]
    assert (metrics["critic/score/mean"], metrics["reward/zero_signal_group_ratio"]) == (0.5, 0.5)
    for group, batches, numbers in zip(result.groups[::2], trainer.updater.batches, ([0, 1], [4, 5]), strict=True):
        num_tokens = sum(response.length for response in group.responses)
        assert {(batch.num_sequences, batch.num_tokens) for batch in batches} == {(2, num_tokens)}
        assert sorted(number for batch in batches for number in batch.samples_N if number >= 0) == numbers
    for group, size in zip(result.groups, (math.sqrt(0.5), 0, math.sqrt(0.5), 0), strict=True):
        for advantages, sign in zip(group.advantages, (1, -1), strict=True):
            np.testing.assert_allclose(advantages, np.full(advantages.size, sign * size), rtol=1e-5)


def test_groups_without_signal_count_unfiltered_and_make_no_update_filtered(make_trainer, by_prompt) -> None:
    trainer = make_trainer(by_prompt({0: 1, 1: 2, 2: 1, 3: 0}))
    metrics = trainer.train_step(1).metrics
    assert (metrics["samples/trained"], metrics["samples/filtered"], metrics["actor/updates"]) == (8, 0, 2)
    assert metrics["reward/zero_signal_group_ratio"] == 0.5
    for batches in trainer.updater.batches:
        assert {batch.num_sequences for batch in batches} == {4}
        found = {
            int(number): batch.advantages_NK[row] for batch in batches for row, number in enumerate(batch.samples_N)
        }
        assert [bool(found[number].any()) for number in sorted(found)] == [True, True, False, False]
    trainer = make_trainer(by_prompt({0: 0, 1: 2, 2: 1, 3: 1}), "algorithm.filter_groups.metric=reward")
    metrics = trainer.train_step(1).metrics
    assert (metrics["actor/updates"], metrics["training/updates"], trainer.weights.version) == (1, 1, 1)
    numbers = {int(number) for batch in trainer.updater.batches[0] for number in batch.samples_N}
    assert numbers == {4, 5, 6, 7}


@pytest.mark.parametrize("settings", [
    (), ("algorithm.kl.placement=reward",),
    ("algorithm.kl.placement=loss", "algorithm.rollout_correction.level=sequence"),
    ("algorithm.name=gspo_token", "algorithm.advantage.estimator=reinforce_plus_plus"),
    ("algorithm.advantage.estimator=remax",),
], ids=["plain", "kl in the reward", "kl in the loss", "per token", "greedy baseline"])  # fmt: skip
def test_a_step_in_which_nothing_is_left_trains_nothing_and_says_so(settings, make_trainer, by_prompt, fakes) -> None:
    trainer = make_trainer(
        by_prompt({0: 2, 1: 0, 2: 2, 3: 0}), "algorithm.filter_groups.metric=reward", *settings,
        reference=fakes.reference(lambda ids: -0.5 - 0.01 * ids) if "kl" in "".join(settings) else None,
    )  # fmt: skip
    result = trainer.train_step(1)
    assert trainer.updater.batches == [] and trainer.weights.version == 0
    metrics = result.metrics
    assert [name for name, value in metrics.items() if not math.isfinite(value)] == []
    assert [metrics[f"samples/{name}"] for name in ("generated", "trained", "filtered")] == [8, 0, 8]
    assert (metrics["actor/updates"], metrics["training/updates"], metrics["critic/score/mean"]) == (0, 0, 0.5)
    assert metrics["reward/zero_signal_group_ratio"] == 1
    measured = ("actor/pg_loss", "actor/entropy", "critic/kl", "rollout_corr/weight_mean")
    assert not metrics.keys() & {*measured, "training/rollout_logprob_diff_max"}, "nothing was measured"
    assert not any(advantages.any() for group in result.groups for advantages in group.advantages)
    # The next step goes on, with the next prompts.
    assert [group.prompt.index for group in trainer.train_step(2).groups] == [4, 5, 6, 7]


def test_the_first_groups_and_as_many_with_a_failure_are_logged(prompts, response) -> None:
    right, failed = Score(value=1.0, verdict=Verdict.CORRECT), Score(value=None, verdict=Verdict.ERROR, message="broke")
    scores = [(right, right)] * 8
    for index, found in {1: (right, failed), 3: (failed, right), 6: (failed, failed), 7: (failed, right)}.items():
        scores[index] = found
    responses = (response([1], [-1.0]),) * 2
    groups = [
        ScoredGroup(prompt=prompt, responses=responses, scores=found)
        for prompt, found in zip(prompts, scores, strict=True)
    ]
    shown = [[one.prompt.index for one in logged_groups(groups, count)] for count in (0, 1, 2, 8)]
    assert shown == [[], [0, 1], [0, 1, 3, 6], list(range(8))]
