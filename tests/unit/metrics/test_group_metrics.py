"""Rewards, verdicts and lengths of hand-made groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mindgspo.metrics import group_metrics, unknown_names
from mindgspo.types import Group, Score, Verdict

BuildGroup = Callable[..., Group]
C, W, N = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER


def test_two_groups_by_hand(build_group: BuildGroup) -> None:
    metrics = group_metrics([build_group(0, [C, W, N, W]), build_group(1, [C, C, C, C])])
    assert metrics["critic/score/mean"] == 5 / 8
    assert (metrics["critic/score/max"], metrics["critic/score/min"]) == (1.0, 0.0)
    assert metrics["reward/correct_ratio"] == 5 / 8
    assert metrics["reward/wrong_ratio"] == 2 / 8
    assert metrics["reward/no_answer_ratio"] == 1 / 8
    assert metrics["reward/invalid_ratio"] == 0.0
    assert metrics["reward/zero_signal_group_ratio"] == 1 / 2
    assert metrics["reward/part/gsm8k/mean"] == 5 / 8
    # first group: rewards 1, 0, 0, 0 have mean 0.25 and deviation (ddof 1) 0.5
    assert metrics["critic/advantages/max"] == pytest.approx(1.5, rel=1e-4)
    assert metrics["critic/advantages/min"] == pytest.approx(-0.5, rel=1e-4)
    assert metrics["response_length/mean"] == 11.5  # 10, 11, 12, 13 in either group
    assert (metrics["response_length/max"], metrics["response_length/min"]) == (13.0, 10.0)
    assert metrics["response_length/clip_ratio"] == 1 / 8
    assert metrics["prompt_length/mean"] == 12.0
    assert unknown_names(metrics) == []


def test_responses_without_a_reward_count_as_invalid_only(build_group: BuildGroup) -> None:
    group = build_group(0, [C, W])
    failed = Score(value=None, verdict=Verdict.ERROR)
    metrics = group_metrics([replace(group, scores=(group.scores[0], failed))])
    assert metrics["critic/score/mean"] == 1.0
    assert metrics["reward/invalid_ratio"] == 0.5
    nothing = replace(
        group, scores=(failed, failed), advantages=tuple(np.zeros_like(each) for each in group.advantages)
    )
    metrics = group_metrics([nothing])
    assert "critic/score/mean" not in metrics
    assert metrics["reward/invalid_ratio"] == metrics["reward/zero_signal_group_ratio"] == 1.0


def scored(group: Group, *scores: Score) -> Group:
    return replace(group, scores=scores)


def test_every_verdict_has_its_share_and_they_add_up_to_one(build_group: BuildGroup) -> None:
    counts = {C: 3, W: 2, N: 1, Verdict.UNPARSEABLE_GOLD: 2, Verdict.TIMEOUT: 1, Verdict.ERROR: 1}
    invalid = (Verdict.UNPARSEABLE_GOLD, Verdict.TIMEOUT, Verdict.ERROR)
    scores = [
        Score(value=None if verdict in invalid else 0.5, verdict=verdict)
        for verdict, count in counts.items()
        for _ in range(count)
    ]
    metrics = group_metrics([scored(build_group(0, [C] * 10), *scores)])
    shares = {verdict: metrics[f"reward/{verdict.value}_ratio"] for verdict in Verdict}
    assert shares == {verdict: count / 10 for verdict, count in counts.items()}
    assert metrics["reward/invalid_ratio"] == 4 / 10
    assert unknown_names(metrics) == []


def test_parts_and_extras_are_means_over_the_responses_that_have_them(build_group: BuildGroup) -> None:
    first = Score(
        value=1.0, verdict=C, parts={"gsm8k": 1.0, "mine.f": 0.25}, extras={"mine.f/acc": 1.0, "mine.f/steps": 7}
    )
    second = Score(value=0.0, verdict=W, parts={"gsm8k": 0.0, "mine.f": 0.75}, extras={"mine.f/acc": 0.0})
    third = Score(value=None, verdict=Verdict.TIMEOUT, parts={"gsm8k": 1.0}, message="mine.f: out of time")
    metrics = group_metrics([scored(build_group(0, [C, W, W]), first, second, third)])
    assert metrics["reward/part/gsm8k/mean"] == pytest.approx(2 / 3)
    assert metrics["reward/part/mine.f/mean"] == 0.5
    assert metrics["reward/extra/mine.f/acc/mean"] == 0.5
    assert metrics["reward/extra/mine.f/steps/mean"] == 7.0
    assert unknown_names(metrics) == []


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("acc", "acc"),
        ("two words", "two_words"),
        ("a/b//c", "a_b__c"),
        ("50%\n", "50__"),
        ("", "_"),
        ("<stat>", "_stat_"),
        ("\u683c\u5f0f", "\u683c\u5f0f"),  # letters of any language
        ("\ud800", "_"),
        ("v1.2-x_y", "v1.2-x_y"),
    ],
)
def test_names_from_a_users_dict_become_names_of_metrics(build_group: BuildGroup, key: str, name: str) -> None:
    score = Score(value=1.0, verdict=C, extras={f"my file.f/{key}": 3.0})
    metrics = group_metrics([scored(build_group(0, [C]), score)])
    extras = {metric: value for metric, value in metrics.items() if metric.startswith("reward/extra/")}
    assert extras == {f"reward/extra/my_file.f/{name}/mean": 3.0}
    assert unknown_names(metrics) == []


def test_keys_that_become_one_name_are_counted_together(build_group: BuildGroup) -> None:
    score = Score(value=1.0, verdict=C, extras={"m.f/a b": 1.0, "m.f/a+b": 2.0})
    metrics = group_metrics([scored(build_group(0, [C]), score)])
    assert metrics["reward/extra/m.f/a_b/mean"] == 1.5
