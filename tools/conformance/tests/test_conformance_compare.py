"""Tolerances and worst errors by hand, and the report: table, failures, filters."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindgspo.errors import DataError
from mindgspo_conformance.cases import Case, Filters
from mindgspo_conformance.compare import (
    CELL_TOLERANCE,
    TWIN_TOLERANCE,
    Check,
    Comparison,
    check,
    compare,
    compute_twin,
    failed_check,
)
from mindgspo_conformance.run import Outcome, Report


def compared(expected: object, got: object, tolerance: object = TWIN_TOLERANCE, **options: object) -> Comparison:
    found = compare("x", expected, got, tolerance, **options)
    assert isinstance(found, Comparison)
    return found


def test_the_bound_of_twins_is_relative_to_each_entry() -> None:
    # Entry 0: bound 1e-12 + 1e-9 * 2 = 2.001e-9. Entry 1: 1e-12 + 1e-9 * 0.001 = 2e-12.
    good = compared([2.0, 0.001], [2.0 + 1e-9, 0.001])
    assert good.place == "x[0]" and good.passed
    assert good.share == pytest.approx(1e-9 / 2.001e-9, rel=1e-5) and good.relative == pytest.approx(5e-10, rel=1e-5)
    bad = compared([2.0, 0.001], [2.0, 0.001 + 3e-12])
    assert bad.place == "x[1]" and not bad.passed and bad.share == pytest.approx(1.5, rel=1e-3)
    assert (bad.expected, bad.got) == (0.001, 0.001 + 3e-12)


@pytest.mark.parametrize(("expected", "got", "tolerance", "counted", "passed"), [
    # max |expected| 4: bound of the zero entry 2e-4 * 4 = 8e-4; of the largest, 8e-4 + 4e-3.
    ([[-4.0, 0.0]], [[-4.0, 7.9e-4]], CELL_TOLERANCE, None, True),
    ([[-4.0, 0.0]], [[-4.0, 8.1e-4]], CELL_TOLERANCE, None, False),
    ([-4.0, 0.0], [-4.0047, 0.0], CELL_TOLERANCE, None, True),
    ([-4.0, 0.0], [-4.0049, 0.0], CELL_TOLERANCE, None, False),
    # Where zero is expected everywhere nothing else passes.
    ([0.0, 0.0], [0.0, -0.0], CELL_TOLERANCE, None, True),
    (0.0, 1e-12, TWIN_TOLERANCE, None, True),
    (0.0, 1.1e-12, TWIN_TOLERANCE, None, False),
    ([np.nan, np.inf, -np.inf, 1.0], [np.nan, np.inf, -np.inf, 1.0], TWIN_TOLERANCE, None, True),
    # An inf must not make the bound of its neighbours infinite.
    ([np.inf, 1.0], [np.inf, 1.1], CELL_TOLERANCE, None, False),
    # Neither are slots looked at that do not count, nor does their size widen the bound.
    ([1.0, 5.0], [1.0, np.nan], TWIN_TOLERANCE, [True, False], True),
    ([1.0, 5.0], [1.1, 5.0], TWIN_TOLERANCE, [True, False], False),
    ([0.0, 1e9], [1e-3, 1e9], CELL_TOLERANCE, [True, False], False),
])  # fmt: skip
def test_what_passes(expected, got, tolerance, counted, passed):
    assert compared(expected, got, tolerance, counted=counted).passed is passed


@pytest.mark.parametrize(("expected", "got"), [
    (1.0, np.nan), (np.nan, 1.0), (np.inf, -np.inf), (np.inf, 1e300), (np.nan, np.inf), (0.0, 1e-30),
])  # fmt: skip
def test_what_is_infinitely_wrong(expected, got):
    wrong = compared([0.5 if expected else 0.0, expected], [0.5 if expected else 0.0, got], CELL_TOLERANCE)
    assert not wrong.passed and wrong.place == "x[1]" and wrong.share == np.inf
    assert wrong.relative == np.inf if expected == 0 else wrong.error == np.inf


def test_shapes_that_differ_are_a_sentence() -> None:
    assert compare("x", [[1.0]], [1.0], TWIN_TOLERANCE) == "x: expected [1, 1], got [1]"
    assert compare("x", 1.0, [1.0], TWIN_TOLERANCE) == "x: expected a number, got [1]"


def test_a_number_is_judged_by_the_size_of_the_case_and_an_array_by_its_own() -> None:
    expected = {"loss": 1e-6, "grad": np.array([0.5, 0.0]), "small": np.array([1e-6])}
    right = check(expected, {**expected, "loss": 1.1e-6}, CELL_TOLERANCE)
    assert right.passed and right.worst.place == "loss" and right.worst.bound == pytest.approx(1e-4, rel=1e-3)
    assert check(expected, {**expected, "loss": 1.1e-4}, CELL_TOLERANCE).failed
    assert check(expected, {**expected, "small": np.array([1.1e-6])}, CELL_TOLERANCE).failed
    # Twins have no such allowance.
    assert check(expected, {**expected, "loss": 1.1e-6}, TWIN_TOLERANCE).failed


def test_what_is_expected_must_have_been_computed() -> None:
    found = check({"loss": 1.0, "pg_loss": 1.0}, {"loss": 1.0, "other": 3.0}, TWIN_TOLERANCE)
    assert found.failed and found.problems == ("pg_loss: expected, but not computed",)
    assert check({"loss": 1.0}, {"loss": 1.0, "other": np.nan}, TWIN_TOLERANCE).passed


def test_results() -> None:
    skipped = Check(skipped="tie")
    assert not skipped.passed and not skipped.failed and skipped.worst is None
    failed = failed_check(RuntimeError("first\n\n  second\n" + "x" * 1000))
    assert failed.failed and failed.problems[0].startswith("RuntimeError: first second xxx")
    assert len(failed.problems[0]) < 330


def case(name: str = "a/b/c", source: str = "verl 1: f", kind: str = "policy_loss") -> Case:
    return Case(name=name, kind=kind, source=source, config={}, inputs={}, expected={"loss": np.zeros(())})


def checked(*shares: float, problems: tuple[str, ...] = ()) -> Check:
    comparisons = tuple(
        Comparison(place=f"loss[{i}]", expected=1.0, got=1.0 + share / 10, error=share / 10, bound=0.1, relative=share)
        for i, share in enumerate(shares)
    )
    return Check(comparisons=comparisons, problems=problems)


SKIPPED = Check(skipped="float64_only")


def report(*outcomes: Outcome) -> list[str]:
    return list(Report(outcomes=outcomes).lines())


def test_a_table_of_sources_and_kinds() -> None:
    lines = report(
        Outcome(case=case("one"), twin=checked(0.25), cell=checked(0.5, 0.75)),
        Outcome(case=case("two", source="trl 2: g"), twin=checked(0.125), cell=SKIPPED),
        Outcome(case=case("three", kind="overlong"), twin=checked(0.0), cell=None),
        Outcome(case=case("four"), twin=checked(0.5), cell=checked(2.0)),
    )
    rows = [" ".join(line.split()) for line in lines]
    assert rows[1].startswith("source kind cases passed failed worst error passed failed skipped worst error")
    assert rows[3] == "verl 1 policy_loss 2 2 0 5.0e-01 (5e-01) 1 1 0 2.0e+00 (2e+00)"
    assert rows[4] == "overlong 1 1 0 0.0e+00 (0e+00) - - - -"
    assert rows[5] == "trl 2 policy_loss 1 1 0 1.2e-01 (1e-01) 0 0 1 -"
    assert rows[7] == "all 4 4 0 5.0e-01 (5e-01) 1 1 1 2.0e+00 (2e+00)"
    assert "worst twin: four, loss[0]: error 0.05, relative 0.5, 0.5 of the allowed 0.1" in lines
    assert "worst cell: four, loss[0]: error 0.2, relative 2, 2 of the allowed 0.1" in lines
    assert "skipped in float32: 1 of 3 (1 float64_only); their twins were compared" in lines
    assert lines[-1] == "3 passed, 1 failed"


def test_a_case_passes_only_if_both_sides_do() -> None:
    good, bad = checked(0.1), checked(1.1)
    assert [
        Outcome(case=case(), twin=twin, cell=cell).passed
        for twin, cell in [(good, good), (good, None), (good, SKIPPED), (good, bad), (bad, good), (bad, SKIPPED)]
    ] == [True, True, True, False, False, False]


def test_failures_are_told_with_numbers() -> None:
    lines = report(Outcome(case=case(), twin=checked(0.5, 3.0), cell=checked(problems=("RuntimeError: no such op",))))
    assert lines[-4:] == [
        "FAILED a/b/c (policy_loss; verl 1: f)",
        "  twin loss[1]: expected 1, got 1.3; error 0.3 is 3 times the allowed 0.1",
        "  cell RuntimeError: no such op",
        "0 passed, 1 failed",
    ]


def test_twenty_failures_are_enough() -> None:
    lines = report(*[Outcome(case=case(f"n{i}"), twin=checked(2.0), cell=None) for i in range(23)])
    assert sum(line.startswith("FAILED") for line in lines) == 20
    assert lines[-2:] == ["... and 3 more", "0 passed, 23 failed"]


def test_a_long_source_is_cut() -> None:
    lines = report(
        Outcome(case=case(source="a very long name of a project without any version: f"), twin=checked(0.1), cell=None)
    )
    assert lines[3].startswith("a very long name of a project wit...  policy_loss")


def test_filters() -> None:
    cases = [case("base/gspo/verl-1"), case("base/gspo/trl-2", source="TRL 2: g"), case("kl/x", kind="kl")]

    def names(**given: str) -> list[str]:
        return [one.name for one in Filters(**given).select(Path("f.json"), cases)]

    assert names() == [one.name for one in cases]
    assert names(source="trl") == ["base/gspo/trl-2"] and names(name="GSPO/v") == ["base/gspo/verl-1"]
    assert names(kind="kl") == ["kl/x"] and names(source="verl", kind="policy_loss") == ["base/gspo/verl-1"]


def test_filters_that_match_nothing_are_an_error() -> None:
    with pytest.raises(DataError, match="--kind: unknown 'kll'; did you mean 'kl'"):
        Filters(kind="kll")
    with pytest.raises(
        DataError, match=r"f.json: none of 1 cases has --source 'x' --kind 'kl'; kinds here: policy_loss; s"
    ):
        Filters(source="x", kind="kl").select(Path("f.json"), [case()])


@pytest.mark.filterwarnings("error")
def test_nothing_in_masked_slots_is_ever_read(public_cases: list[Case]) -> None:
    for case in public_cases:
        if case.kind not in ("policy_loss", "kl", "agg"):
            continue
        masked = case.inputs["mask"] == 0
        garbage = np.resize([np.nan, np.inf, -np.inf, 1e30, -1e30], masked.shape)
        inputs = {
            name: np.where(masked, garbage, values) if name != "mask" and values.shape == masked.shape else values
            for name, values in case.inputs.items()
        }
        clean, poisoned = compute_twin(case), compute_twin(replace(case, inputs=inputs))
        for name in clean:
            np.testing.assert_array_equal(poisoned[name], clean[name], err_msg=f"{case.name}: {name}")
        for name in {"grad_logp", "grad_loss_mat", "kl_token"} & clean.keys():
            assert not poisoned[name][masked].any(), case.name
