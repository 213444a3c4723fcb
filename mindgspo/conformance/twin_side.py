"""What the numpy twins make of a case, in float64, and whether it is right.

What enters: a `Case`. What leaves: a `Judgement` at rtol 1e-9, atol 1e-12, metrics included. Called by `command`.
numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.twins import aggregate, conformance_metrics, kl_penalty, policy_loss
from mindgspo.conformance.advantage_cases import advantages_of_case, normalized_rewards
from mindgspo.conformance.case import Case
from mindgspo.conformance.definitions import (
    aggregation_of,
    definition_of,
    denominators_of,
    kl_coef_of,
    kl_term_of,
    metric_options_of,
)
from mindgspo.conformance.judging import TWINS, Judgement, broken, judge
from mindgspo.conformance.overlong import overlong_settings_of
from mindgspo.rewards.functions.shaping import overlong_penalty

Quantities = Mapping[str, ArrayLike]


def judge_twin(case: Case) -> Judgement:
    """Compute one case and compare. An exception, also about an option that an estimator does not know, is a failure
    of this case, and no reason to leave out the others."""
    metrics = {f"metrics.{name}": value for name, value in case.metrics.items()}
    counted = case.inputs["mask"] == 1 if case.config.get("compare") == "valid_slots" else None
    try:
        with np.errstate(all="ignore"):  # what is not finite shows in the comparison
            got = compute_twin(case)
    except Exception as error:
        return broken(error)
    return judge({**case.expected, **metrics}, got, TWINS, counted=counted)


def compute_twin(case: Case) -> Quantities:
    """Everything that a case of its kind may expect, by the names of the file; metrics as `metrics.<name>`.

    Raises DataError where the case itself is wrong.
    """
    return _TWINS[case.kind](case)


def _policy_loss(case: Case) -> Quantities:
    inputs, config = case.inputs, case.config
    mask_NK = inputs["mask"]
    definition = definition_of(config, mask_NK.shape[1])
    num_sequences, num_tokens = denominators_of(config, definition.aggregation, mask_NK)
    kl_num_sequences = None
    if definition.kl is not None:
        kl_num_sequences, _ = denominators_of(config, definition.kl.aggregation, mask_NK)
    arrays = {
        "logp_NK": inputs["logp"],
        "old_logp_NK": inputs["old_logp"],
        "advantages_NK": inputs["advantages"],
        "mask_NK": mask_NK,
        "ref_logp_NK": inputs.get("ref_logp"),
        "correction_NK": inputs.get("rollout_is_weights"),
    }
    result = policy_loss(
        definition,
        **arrays,
        kl_coef=kl_coef_of(config),
        num_sequences=num_sequences,
        num_tokens=num_tokens,
        kl_num_sequences=kl_num_sequences,
    )
    options = metric_options_of(config)
    metrics = conformance_metrics(
        definition,
        **arrays,
        metric_tokens=options.metric_tokens,
        metric_eps=options.metric_eps,
        ppo_kl_clamped=options.ppo_kl_clamped,
    )
    return {
        "loss": result.loss,
        "pg_loss": result.pg_loss,
        "kl_loss": result.kl_loss,
        "grad_logp": result.grad_logp_NK,
        **{f"metrics.{name}": value for name, value in metrics.items()},
    }


def _kl(case: Case) -> Quantities:
    inputs, mask_NK = case.inputs, case.inputs["mask"]
    term = kl_term_of(case.config, mask_NK.shape[1])
    kl_NK, slope_NK = kl_penalty(
        term,
        logp_NK=inputs["logp"],
        ref_logp_NK=inputs["ref_logp"],
        mask_NK=mask_NK,
        old_logp_NK=inputs.get("old_logp"),
    )
    num_sequences, num_tokens = denominators_of(case.config, term.aggregation, mask_NK)
    loss, share_NK = aggregate(term.aggregation, kl_NK, mask_NK, num_sequences=num_sequences, num_tokens=num_tokens)
    kl_coef = kl_coef_of(case.config, absent=1.0)
    return {"kl_token": kl_NK, "loss": kl_coef * loss, "grad_logp": kl_coef * share_NK * slope_NK}


def _agg(case: Case) -> Quantities:
    mask_NK = case.inputs["mask"]
    aggregation = aggregation_of(case.config, mask_NK.shape[1])
    num_sequences, num_tokens = denominators_of(case.config, aggregation, mask_NK)
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
    settings = overlong_settings_of(case.config)
    penalty_N = overlong_penalty(
        case.inputs["lengths"],
        max_len=settings.max_len,
        buffer_len=settings.buffer_len,
        factor=settings.factor,
        floor=settings.floor,
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
