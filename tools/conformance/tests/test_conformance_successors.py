"""GSPO's successors against verl's, FIPO's and TRL's own functions."""

from pathlib import Path

import numpy as np
import pytest

from mindgspo.algorithms.losses.covariance import covariances
from mindgspo_conformance.cases import Case, Filters, read_cases
from mindgspo_conformance.cells import CellRuns
from mindgspo_conformance.compare import check_twin

OWN = Path(__file__).resolve().parents[1] / "conformance_successors.json"
TRL = Path(__file__).resolve().parents[4] / "shared" / "conformance" / "successors.json"
# Of each surrogate those that are the farthest from the old policy, and one that is near.
CELLS = Filters(name="17x2x30x8_")


@pytest.fixture(scope="module")
def own_cases() -> list[Case]:
    return read_cases(OWN)


def assert_twins_agree(cases: list[Case]) -> None:
    found = {case.name: check_twin(case) for case in cases}
    assert not [name for name, check in found.items() if not check.passed]


def assert_cells_agree(cases: list[Case]) -> None:
    """Within 2e-5 of the largest entry, which is nearer than the format asks."""
    runs = CellRuns(dict(enumerate(cases)))
    assert not runs.skipped
    for checks in runs.checks():
        for number, check in checks:
            assert check.passed, (cases[number].name, check.problems)
            assert all(one.relative < 2e-5 for one in check.comparisons), cases[number].name


def test_the_twins_agree_with_every_case(own_cases):
    assert len(own_cases) == 226
    assert_twins_agree(own_cases)


def test_cells_agree_with_the_largest_batches(own_cases):
    cases = [case for case in CELLS.select(OWN, own_cases) if case.kind == "policy_loss"]
    assert {case.config["surrogate"] for case in cases} == {"dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "fipo"}
    assert_cells_agree(cases)


@pytest.mark.slow
def test_cells_agree_with_every_case(own_cases):
    assert_cells_agree([case for case in own_cases if case.kind == "policy_loss"])


def test_kl_cov_selected_what_training_would_select(own_cases):
    cases = [case for case in own_cases if case.config.get("surrogate") == "kl_cov"]
    for case in cases:
        real = case.inputs["mask"] == 1
        covariance, selected = (
            covariances(case.inputs["advantages"][real], case.inputs["logp"][real]),
            case.inputs["selected"][real],
        )
        count = int(selected.sum())
        assert set(np.flatnonzero(selected)) == set(np.argsort(-covariance, kind="stable")[:count]), case.name


@pytest.mark.skipif(not TRL.exists(), reason="the vectors of TRL are in a folder beside this project")
def test_vespo_and_the_off_policy_mask_agree_with_trl():
    cases = read_cases(TRL)
    assert_twins_agree(cases)
    assert_cells_agree(CELLS.select(TRL, cases))
