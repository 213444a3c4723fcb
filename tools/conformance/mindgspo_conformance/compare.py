"""Numbers against the numbers they should be, and what the numpy twins make of a case in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.rewards.functions.shaping import overlong_penalty
from mindgspo_conformance.advantages import advantages_of_case, normalized_rewards
from mindgspo_conformance.cases import Case, Float64Array, shape_text
from mindgspo_conformance.definitions import OverlongConfig, loss_config
from mindgspo_conformance.strict import read_model
from mindgspo_conformance.twins.aggregation import aggregate
from mindgspo_conformance.twins.policy_loss import conformance_metrics, policy_loss
from mindgspo_conformance.twins.surrogates import kl_penalty

Quantities = Mapping[str, ArrayLike]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """An entry may differ by atol + atol_of_largest * max |expected| + rtol * |expected|."""

    rtol: float
    atol: float = 0.0
    atol_of_largest: float = 0.0

    def bounds(self, expected: Float64Array, largest: float) -> Float64Array:
        """Allowed error of every entry."""
        return self.atol + self.atol_of_largest * largest + self.rtol * _finite_sizes(expected)


# float64 with the peers' own epsilons, and float32 with its rounding.
TWIN_TOLERANCE = Tolerance(rtol=1e-9, atol=1e-12)
CELL_TOLERANCE = Tolerance(rtol=1e-3, atol_of_largest=2e-4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The worst entry of one quantity.

    place: the quantity with the entry's index, e.g. "grad_logp[0, 3]". error: absolute; 0 between two equal numbers
    that are not finite, inf where only one is not. bound: what was allowed. relative: error over the largest expected
    entry, see `check`; 0 where there is no error.
    """

    place: str
    expected: float
    got: float
    error: float
    bound: float
    relative: float

    @property
    def share(self) -> float:
        """Error as a share of the bound; more than 1 fails. A bound of 0 allows no error at all."""
        if self.error == 0:
            return 0.0
        return self.error / self.bound if self.bound > 0 else float("inf")

    @property
    def passed(self) -> bool:
        return self.share <= 1.0


def compare(
    quantity: str,
    expected: ArrayLike,
    got: ArrayLike,
    tolerance: Tolerance,
    *,
    largest: float | None = None,
    counted: ArrayLike | None = None,
) -> Comparison | str:
    """The worst entry, or a sentence where shapes differ.

    largest: max |expected| of the tolerance, by default that of this quantity. counted: bool, the entries that are
    looked at, by default all.
    """
    expected, got = np.asarray(expected, dtype=np.float64), np.asarray(got, dtype=np.float64)
    if expected.shape != got.shape:
        return f"{quantity}: expected {shape_text(expected)}, got {shape_text(got)}"
    if counted is not None:
        # Entries that do not count are as if they were right, and small.
        expected, got = np.where(counted, expected, 0.0), np.where(counted, got, 0.0)
    if largest is None:
        largest = _largest(expected)
    error, bound = _errors(expected, got), tolerance.bounds(expected, largest)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / bound)
        relative = np.where(error == 0, 0.0, error / np.float64(largest))
    worst = np.unravel_index(int(np.argmax(share)), share.shape)
    return Comparison(
        place=quantity + (str([int(i) for i in worst]) if worst else ""),
        expected=float(expected[worst]),
        got=float(got[worst]),
        error=float(error[worst]),
        bound=float(bound[worst]),
        relative=float(relative[worst]),
    )


def _finite_sizes(values: Float64Array) -> Float64Array:
    return np.where(np.isfinite(values), np.abs(values), 0.0)


def _largest(values: Float64Array) -> float:
    return float(_finite_sizes(values).max(initial=0.0))


def _errors(expected: Float64Array, got: Float64Array) -> Float64Array:
    """|expected - got|; 0 where both are the same inf or both nan, inf where just one of them is not finite."""
    same = (expected == got) | (np.isnan(expected) & np.isnan(got))
    both_finite = np.isfinite(expected) & np.isfinite(got)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(expected - got)
    return np.where(same, 0.0, np.where(both_finite, difference, np.inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one side, twin or cell, made of one case.

    comparisons: one per quantity that could be compared. problems: sentences about those that could not, and about
    an exception. skipped: why this side was not asked, None if it was.
    """

    comparisons: tuple[Comparison, ...] = ()
    problems: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        return self.skipped is None and not self.problems and all(one.passed for one in self.comparisons)

    @property
    def failed(self) -> bool:
        return self.skipped is None and not self.passed

    @property
    def worst(self) -> Comparison | None:
        return max(self.comparisons, key=lambda one: one.share, default=None)


def check(
    expected: Mapping[str, ArrayLike],
    got: Mapping[str, ArrayLike],
    tolerance: Tolerance,
    *,
    counted: ArrayLike | None = None,
) -> Check:
    """Compare every expected quantity. `counted` applies to those that have its shape.

    max |expected| of an array is its own: a gradient is not measured by the size of the loss. That of a number is the
    largest of the whole case: a loss of 1e-6 between token losses of 5 is their rounding, in the peers' float32 too.
    """
    arrays = {quantity: np.asarray(values, dtype=np.float64) for quantity, values in expected.items()}
    case_largest = max(map(_largest, arrays.values()), default=0.0)
    comparisons, problems = [], []
    for quantity, values in arrays.items():
        if quantity not in got:
            problems.append(f"{quantity}: expected, but not computed")
            continue
        found = compare(
            quantity,
            values,
            got[quantity],
            tolerance,
            largest=case_largest if values.ndim == 0 else None,
            counted=counted if counted is not None and np.shape(counted) == values.shape else None,
        )
        (problems if isinstance(found, str) else comparisons).append(found)
    assert comparisons or problems, "a case that expects nothing"
    return Check(comparisons=tuple(comparisons), problems=tuple(problems))


def failed_check(error: Exception) -> Check:
    """The computation itself failed. Only the first lines: a compiler may write pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Check(problems=(f"{type(error).__name__}: {' '.join(lines)[:300]}",))


# ----- the twins


def check_twin(case: Case) -> Check:
    """Compute one case and compare. An exception, also about an option that an estimator does not know, is a failure
    of this case, and no reason to leave out the others."""
    metrics = {f"metrics.{name}": value for name, value in case.metrics.items()}
    counted = case.inputs["mask"] == 1 if case.config.get("compare") == "valid_slots" else None
    try:
        with np.errstate(all="ignore"):  # what is not finite shows in the comparison
            got = compute_twin(case)
    except Exception as error:
        return failed_check(error)
    return check({**case.expected, **metrics}, got, TWIN_TOLERANCE, counted=counted)


def compute_twin(case: Case) -> Quantities:
    """Everything that a case of its kind may expect, by the names of the file; metrics as `metrics.<name>`.

    Raises DataError where the case itself is wrong.
    """
    return _TWINS[case.kind](case)


def _policy_loss(case: Case) -> Quantities:
    inputs, config = case.inputs, loss_config(case.config)
    mask_NK = inputs["mask"]
    definition = config.definition(mask_NK.shape[1])
    num_sequences, num_tokens = config.denominators(definition.aggregation, mask_NK)
    kl_num_sequences = None
    if definition.kl is not None:
        kl_num_sequences, _ = config.denominators(definition.kl.aggregation, mask_NK)
    arrays = {
        "logp_NK": inputs["logp"],
        "old_logp_NK": inputs["old_logp"],
        "advantages_NK": inputs["advantages"],
        "mask_NK": mask_NK,
        "ref_logp_NK": inputs.get("ref_logp"),
        "correction_NK": case.correction,
        "sampler_logp_NK": inputs.get("sampling_logp"),
        "selected_NK": inputs.get("selected"),
    }
    result = policy_loss(
        definition,
        **arrays,
        kl_coef=config.kl_coef or 0.0,
        num_sequences=num_sequences,
        num_tokens=num_tokens,
        kl_num_sequences=kl_num_sequences,
    )
    metrics = conformance_metrics(
        definition,
        **arrays,
        metric_tokens=config.metric_tokens,
        metric_eps=config.metric_eps or 0.0,
        ppo_kl_clamped=bool(config.ppo_kl_clamped),
    )
    return {
        "loss": result.loss,
        "pg_loss": result.pg_loss,
        "kl_loss": result.kl_loss,
        "grad_logp": result.grad_logp_NK,
        **{f"metrics.{name}": value for name, value in metrics.items()},
    }


def _kl(case: Case) -> Quantities:
    inputs, mask_NK, config = case.inputs, case.inputs["mask"], loss_config(case.config)
    term = config.kl_term(mask_NK.shape[1])
    kl_NK, slope_NK = kl_penalty(
        term,
        logp_NK=inputs["logp"],
        ref_logp_NK=inputs["ref_logp"],
        mask_NK=mask_NK,
        old_logp_NK=inputs.get("old_logp"),
    )
    num_sequences, num_tokens = config.denominators(term.aggregation, mask_NK)
    loss, share_NK = aggregate(term.aggregation, kl_NK, mask_NK, num_sequences=num_sequences, num_tokens=num_tokens)
    kl_coef = 1.0 if config.kl_coef is None else config.kl_coef
    return {"kl_token": kl_NK, "loss": kl_coef * loss, "grad_logp": kl_coef * share_NK * slope_NK}


def _agg(case: Case) -> Quantities:
    mask_NK, config = case.inputs["mask"], loss_config(case.config)
    aggregation = config.aggregation(mask_NK.shape[1])
    num_sequences, num_tokens = config.denominators(aggregation, mask_NK)
    loss, grad_NK = aggregate(
        aggregation, case.inputs["loss_mat"], mask_NK, num_sequences=num_sequences, num_tokens=num_tokens
    )
    return {"loss": loss, "grad_loss_mat": grad_NK}


def _advantage(case: Case) -> Quantities:
    result = advantages_of_case(case.config, case.inputs)
    got: dict[str, ArrayLike] = {"advantages": result.advantages}
    return got if result.returns is None else {**got, "returns": result.returns}


def _reward_norm(case: Case) -> Quantities:
    return {"advantages": normalized_rewards(case.config, case.inputs)}


def _overlong(case: Case) -> Quantities:
    config = read_model("config", OverlongConfig, case.config)
    penalty_N = overlong_penalty(
        case.inputs["lengths"],
        max_len=config.max_len,
        buffer_len=config.buffer_len,
        factor=config.penalty_factor,
        floor=config.floor,
    )
    return {"penalty": penalty_N}


_TWINS: Mapping[str, Callable[[Case], Quantities]] = {
    "policy_loss": _policy_loss,
    "kl": _kl,
    "agg": _agg,
    "advantage": _advantage,
    "reward_norm": _reward_norm,
    "overlong": _overlong,
}
