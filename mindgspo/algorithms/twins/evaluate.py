"""One response under a policy loss: its loss under given weights, its gradient, and what metrics look at.

Called by `policy_loss` and `metrics`.    L  real tokens of one response
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.twins.inputs import BoolArray, Float64Array, Response
from mindgspo.algorithms.twins.kl import token_kl
from mindgspo.algorithms.twins.ratios import gradient_by_logp, log_ratios
from mindgspo.algorithms.twins.subgradients import exponential
from mindgspo.algorithms.twins.surrogates import gmpo_loss, token_losses
from mindgspo.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """pg_loss: its share of the policy loss. grad_logp [L]: d pg_loss / d logp. The others are [L], token by token.

    log_ratio: before its bounds. ratio: e to the bounded log-ratio. clipped, capped: see `surrogates.TokenLosses`.
    kl, kl_slope: the KL estimate and its derivative by logp, 0 without a KL term.
    """

    pg_loss: float
    grad_logp: Float64Array
    advantages: Float64Array
    difference: Float64Array
    log_ratio: Float64Array
    ratio: Float64Array
    clipped: BoolArray
    capped: BoolArray
    kl: Float64Array
    kl_slope: Float64Array

    @property
    def length(self) -> int:
        return self.log_ratio.size


def evaluate(
    definition: LossDefinition, response: Response, *, token_weights: Float64Array, response_weight: float
) -> Evaluated:
    """token_weights [L], response_weight: d loss / d token loss and d loss / d response's loss, from `aggregation`."""
    ratios = log_ratios(definition, response)
    capped = np.zeros(response.length, dtype=np.bool_)
    if definition.surrogate == "gmpo":
        response_loss = gmpo_loss(definition, response, ratios.used)
        pg_loss = response_weight * response_loss.value
        by_log_ratio, by_logp = response_weight * response_loss.by_log_ratio, np.zeros(response.length)
        clipped = response_loss.clipped
    else:
        losses = token_losses(definition, response, ratios.used)
        weights = token_weights * response.correction
        pg_loss = float((weights * losses.value).sum())
        by_log_ratio, by_logp = weights * losses.by_log_ratio, weights * losses.by_logp
        clipped, capped = losses.clipped, losses.capped
    kl, kl_slope = _kl(definition, response)
    return Evaluated(
        pg_loss=pg_loss,
        grad_logp=gradient_by_logp(definition, response, ratios, by_log_ratio) + by_logp,
        advantages=response.advantages,
        difference=response.difference,
        log_ratio=ratios.raw,
        ratio=exponential(ratios.bounded)[0],
        clipped=clipped,
        capped=capped,
        kl=kl,
        kl_slope=kl_slope,
    )


def _kl(definition: LossDefinition, response: Response) -> tuple[Float64Array, Float64Array]:
    if definition.kl is None:
        return np.zeros(response.length), np.zeros(response.length)
    if response.ref_logp is None:
        raise DataError("the KL term needs ref_logp")
    return token_kl(definition.kl, response.logp, response.ref_logp, response.old_logp)
