"""Which groups of a step are written to samples.jsonl."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindgspo.evaluation.scoring import logged_groups
from mindgspo.types import FinishReason, Group, Prompt, Response, Score, Verdict


def group(index: int, messages: Sequence[str] = ("", "")) -> Group:
    ids = np.array([1], np.int32)
    zero = np.zeros(1, np.float32)
    return Group(
        prompt=Prompt(index=index, ids=ids, text="q", answer="1", data_source="gsm8k"),
        responses=tuple(
            Response(
                prompt_index=index, sample_index=sample, ids=ids, logprobs=zero, finish_reason=FinishReason.STOP,
                temperature=1.0, weight_version=0,
            )
            for sample in range(len(messages))
        ),
        scores=tuple(
            Score(value=None, verdict=Verdict.ERROR, message=text)
            if text
            else Score(value=1.0, verdict=Verdict.CORRECT)
            for text in messages
        ),
        advantages=(zero,) * len(messages),
    )  # fmt: skip


def test_the_first_groups_and_as_many_with_a_failure() -> None:
    groups = [group(0), group(1, ("", "broke")), group(2), group(3, ("broke", "")), *map(group, range(4, 6))]
    groups += [group(6, ("broke", "broke")), group(7, ("broke", ""))]
    shown = [[one.prompt.index for one in logged_groups(groups, count)] for count in (0, 1, 2, 8)]
    assert shown == [[], [0, 1], [0, 1, 3, 6], list(range(8))]
