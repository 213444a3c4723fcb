"""What MindSpore 2.10.0 said about wrong cells, cut to the lines that matter, and the entry of the plan to change.

refusals.json holds its words on tests/dryrun/wrong_cells.py: {mistake: {failure, log}}.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mindgspo.ascend.dryrun.error_text import Refusal, cut
from mindgspo.ascend.dryrun.job import Failure
from mindgspo.ascend.dryrun.plan_hints import plan_hints
from mindgspo.config import ParallelPlan

REFUSALS = json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8"))
PLAN = ParallelPlan(data_parallel=2, model_parallel=4)

# mistake: (message begins with, reason begins with, line of code, plan, hints)
SPLIT = "MatMul: Input index 1, the strategy is ((2, 1), (4, 1)), shape is [66, 64], shape value 66 at dim index 0"
ATTENTION = "FlashAttentionScore: head_num % query_strategy[2] must be 0, but got 6(head_num) and 4(query_strategy[2])"
PRODUCT = "data_parallel x model_parallel"
TABLE = {
    "rows_do_not_divide": (
        "operator MatMul init failed",
        SPLIT,
        "self.matmul(x",
        ["model_parallel: 4 does not divide 66"],
    ),
    "batch_does_not_divide": (
        "operator MatMul init failed",
        "MatMul: Input index 0, the strategy is ((2, 1), (4, 1)), shape is [7, 64]",
        "self.matmul(x",
        ["data_parallel: 2 does not divide 7"],
    ),
    "inner_axes_differ": (
        "operator MatMul init failed",
        "MatMul: Invalid strategy for mat_a [2, 4] and mat_b [1, 2].",
        "self.matmul(x",
        [],
    ),
    "strategy_too_short": (
        "operator MatMul init failed",
        "MatMul: The strategy is ((2), (4, 1)), strategy len: 1 is not equal to inputs len: 2, index: 0",
        "self.matmul(x",
        [],
    ),
    "one_strategy_for_two": (
        "operator MatMul init failed",
        "MatMul: The strategy is ((2, 1),), strategy size: 1 is not equal to inputs size: 2",
        "self.matmul(x",
        [],
    ),
    "more_than_ranks": (
        "operator MatMul init failed",
        "MatMul: The strategy is ((4, 1), (4, 1)), it requires 16 devices, but the device number of this stage is 8",
        "self.matmul(x",
        [f"model_parallel: {PRODUCT} is 2 x 4; an operator is split 16 ways, but a stage has 8 ranks"],
    ),
    "three_ways": (
        "operator MatMul init failed",
        "MatMul: The strategy is ((1, 1), (3, 1)), the value of strategy must be the power of 2, but get 3",
        "self.matmul(x",
        [],
    ),
    "split_of_sharded_axis": (
        "operator SplitWithSize init failed",
        "SplitWithSize: The axis can not be split",
        "left, right = self.split(",
        ["model_parallel: 4; an operator wants an axis whole that is split over ranks"],
    ),
    "rows_over_all_ranks": (
        "operator RmsNorm init failed",
        "RmsNorm: Input index 0, the strategy is ((8, 1), (1)), shape is [12, 64]",
        "self.norm(x",
        [f"model_parallel: {PRODUCT} = 8 does not divide 12"],
    ),
    "heads_do_not_divide": (
        "operator FlashAttentionScore init failed",
        ATTENTION,
        "self.flash(x",
        ["model_parallel: 4 does not divide 6 attention heads"],
    ),
    "cache_over_data_parallel": (
        "operator ReshapeAndCache init failed",
        "ReshapeAndCache: Invalid strategy: The slot_mapping can't be shard",
        "self.write(x",
        ["data_parallel: 2; a KV cache belongs to one replica, its tokens cannot be split"],
    ),
    "table_does_not_divide": (
        "operator Gather init failed",
        "Gather: Input index 0, the strategy is ((4, 1), (2, 1)), shape is [130, 64]",
        "self.gather(self.table",
        ["model_parallel: 4 does not divide 130"],
    ),
    "shape_mismatch": ("For 'Add', input1.shape and input2.shape need to broadcast.", None, "x + self.bias", []),
    "no_such_name": ("ClassMember: 'Namespace:wrong_cells", None, "x + self.absent", []),
    "few_micro_batches": (
        "For pipeline parallelism, batch data must be split into micro batch along one dimension.",
        None,
        "self.sum(self.last(",
        ["micro_batch_num: 1; 1 pipeline stages need at least as many"],
    ),
    "micro_batches_do_not_divide": (
        "For micro batch initialization, the 0th dimension shape of input(8) must be divided by micro size(3)",
        None,
        None,
        ["micro_batch_num: 3 does not divide the 8 rows of a mini-batch"],
    ),
    "stages_do_not_divide": (
        "parallel init failed.",
        "The parameter 'device_num' must be divided by 'split_stage_num'",
        "self.sum(self.last(",
        ["pipeline_stage: 3 does not divide 8 ranks"],
    ),
    "plain_step_over_stages": ("The pointer[micro] is null.", None, "self.sum(self.last(", []),
}


def refusal(mistake: str) -> Refusal:
    stored = REFUSALS[mistake]
    return cut(Failure(**stored["failure"]), stored["log"])


def test_every_stored_refusal_is_in_the_table() -> None:
    assert set(REFUSALS) == set(TABLE)


@pytest.mark.parametrize("mistake", TABLE)
def test_refusals_are_cut_to_the_lines_that_matter(mistake: str) -> None:
    message, reason, code, _ = TABLE[mistake]
    found = refusal(mistake)
    kind = REFUSALS[mistake]["failure"]["kind"]
    assert found.message.startswith(f"{kind}: {message}")
    assert "\n" not in found.message
    assert len(found.reasons) == (0 if reason is None else 1), "consequences and repetitions are left out"
    if reason is not None:
        assert found.reasons[0].startswith(reason)
    if code is None:
        assert found.place == ""
    else:
        assert re.match(r"/project/tests/dryrun/(wrong|toy)_cells\.py:\d+: ", found.place) and code in found.place


@pytest.mark.parametrize("mistake", TABLE)
def test_the_entry_of_the_plan_is_named(mistake: str) -> None:
    hints = plan_hints(refusal(mistake).text(), "plans.train", PLAN)
    assert hints == [f"plans.train.{hint}" for hint in TABLE[mistake][3]]


@pytest.mark.parametrize(
    "plan, hints",
    [
        (ParallelPlan(model_parallel=4), ["model_parallel: 4 does not divide 66"]),
        (ParallelPlan(data_parallel=4), ["data_parallel: 4 does not divide 66"]),
        (
            ParallelPlan(data_parallel=4, model_parallel=4),
            ["model_parallel: 4 does not divide 66", "data_parallel: 4 does not divide 66"],
        ),
        (
            ParallelPlan(data_parallel=2, model_parallel=2),
            ["model_parallel: data_parallel x model_parallel = 4 does not divide 66"],
        ),
        (ParallelPlan(data_parallel=8, model_parallel=2), []),
    ],
)
def test_the_entry_is_found_by_its_number(plan: ParallelPlan, hints: list[str]) -> None:
    found = plan_hints(refusal("rows_do_not_divide").text(), "plans.infer", plan)
    assert found == [f"plans.infer.{hint}" for hint in hints]


def test_our_own_lines_are_shown_from_the_package_on() -> None:
    project = Path(__file__).resolve().parents[3]
    text = (
        "Failure:operator MatMul init failed\n\n----------------------------------------------------\n"
        "# In file /venv/site-packages/mindspore/nn/cell.py:7, 8~9\n        return outer(x)\n               ^~~~\n\n"
        f"# In file {project}/mindgspo/parallel/layers.py:120~122, 8~9\n    def construct(self, x):\n    ^\n\n"
        f"# In file {project}/mindgspo/parallel/layers.py:121, 8~9\n        return self.matmul(x)\n        ^~~~\n\n"
        "# In file /venv/site-packages/mindspore/ops/add.py:3, 8~9\n        return inner(x)\n               ^~~~\n"
    )
    found = cut(Failure(phase="compile", kind="RuntimeError", text=text), "")
    assert found == Refusal(
        message="RuntimeError: operator MatMul init failed",
        reasons=(),
        place="mindgspo/parallel/layers.py:121: return self.matmul(x)",
    )


def test_an_error_of_ours_is_shown_as_it_is() -> None:
    failure = Failure(phase="build", kind="ConfigError", text="plans.train:\n  one\n  two", place="a.py:3: raise x")
    assert cut(failure, "") == Refusal(message="plans.train:\n  one\n  two", reasons=(), place="a.py:3: raise x")


def test_an_exception_without_words_shows_its_class() -> None:
    assert cut(Failure(phase="build", kind="AssertionError", text=""), "").message == "AssertionError"


def test_only_the_last_reasons_are_shown_and_long_ones_are_cut() -> None:
    line = "[ERROR] PARALLEL(1,7f0000000000,python):2026-11-22-00:15:00.398.201 [mindspore/ccsrc/a.cc:248] Check] "
    log = "".join(
        f"{line}AddInfo{number}: reason {number}{'!' * (1000 if number == 9 else 0)}\n" for number in range(10)
    )
    reasons = cut(Failure(phase="compile", kind="RuntimeError", text="refused"), log).reasons
    assert reasons[:2] == ("Add: reason 7", "Add: reason 8")
    assert reasons[2].endswith("!!! ...") and len(reasons[2]) < 700
