"""What HCCL refuses on an emulated card as on a card: ranks that come late, rings that wait, products of some types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.launch import error_codes

WORKER = Path(__file__).parent / "workers" / "hccl_steps.py"
FORM = ["form"]
INT16, FLOAT32, BFLOAT16 = 1, 4, 11
SUM, PRODUCT = 0, 1
ALL_REDUCE = ["all_reduce", FLOAT32, SUM]
LIMIT = "3"
LATE = ["sleep", 8]


def told(folder: Path, *steps_of_ranks: list, **limits: str) -> list[str]:
    """What each rank says in the end."""
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"ASCEND_EMULATOR_FOLDER": str(folder)} | limits
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), str(len(steps_of_ranks)), json.dumps(steps)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for rank, steps in enumerate(steps_of_ranks)
    ]  # fmt: skip
    return [rank.communicate()[0].splitlines()[-1] for rank in ranks]


def codes(message: str) -> list[str]:
    return [seen.error.code for seen in error_codes.find([message])]


@pytest.mark.parametrize(
    ("early", "late", "place"),
    [
        ([FORM], [LATE, FORM], "in the making of a group"),
        ([FORM, ALL_REDUCE], [FORM, LATE, ALL_REDUCE], "in AllReduce"),
        ([FORM, ["send", 1]], [FORM, LATE, ["receive", 0]], "in Send to rank 1"),
        ([FORM, ["receive", 1]], [FORM, LATE, ["send", 0]], "in Receive from rank 1"),
    ],
)
def test_ranks_that_meet_too_late_for_the_first_time(cards: None, tmp_path: Path, early, late, place) -> None:
    first, second = told(tmp_path, early, late, HCCL_CONNECT_TIMEOUT=LIMIT)
    assert codes(first) == ["EI0006"] and place in first, first
    assert first.endswith(f"for {LIMIT} s, which is HCCL_CONNECT_TIMEOUT")
    assert second == "done"


def test_ranks_that_have_met_may_come_late(cards: None, tmp_path: Path) -> None:
    steps = [FORM, ALL_REDUCE, ALL_REDUCE]
    late = [FORM, ALL_REDUCE, LATE, ALL_REDUCE]
    assert told(tmp_path / "a", steps, late, HCCL_CONNECT_TIMEOUT=LIMIT) == ["done", "done"]
    first, _ = told(tmp_path / "b", steps, late, HCCL_EXEC_TIMEOUT=LIMIT)
    assert codes(first) == ["EI0002"] and first.endswith(f"for {LIMIT} s, which is HCCL_EXEC_TIMEOUT"), first


def test_a_ring_in_which_all_send_first_is_ended(cards: None, tmp_path: Path) -> None:
    """As the first messages of these ranks, and when they have exchanged some."""
    meet = [ALL_REDUCE, ["send", 1], ["receive", 1]], [ALL_REDUCE, ["receive", 0], ["send", 0]]
    for name, before in (("first", ([], [])), ("later", meet)):
        ring = [[FORM, *steps, ["send", 1 - rank], ["receive", 1 - rank]] for rank, steps in enumerate(before)]
        answers = told(tmp_path / name, *ring, HCCL_CONNECT_TIMEOUT=LIMIT, HCCL_EXEC_TIMEOUT=LIMIT)
        for rank, answer in enumerate(answers):
            assert f"rank {rank} in Send to rank {1 - rank}" in answer, answer
            assert codes(answer) == ["EI0006" if name == "first" else "EI0002"]


@pytest.mark.parametrize(("dtype", "operation"), [(INT16, PRODUCT), (BFLOAT16, PRODUCT)])
def test_products_that_hccl_does_not_have(cards: None, tmp_path: Path, dtype: int, operation: int) -> None:
    answers = told(tmp_path, *[[FORM, ["all_reduce", dtype, operation]]] * 2)
    assert all("is not supported" in answer for answer in answers), answers
    assert told(tmp_path / "sum", *[[FORM, ["all_reduce", dtype, SUM]]] * 2) == ["done", "done"]
