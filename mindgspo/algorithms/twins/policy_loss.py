"""The twin of every policy-loss cell.

loss = policy loss + kl_coef * KL - entropy_coef * entropy, each aggregated with global denominators.

    N  responses    K  response-token slots

Called by tests and by `conformance`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.losses.definition import LossDefinition
from mindgspo.algorithms.twins.aggregation import denominators, response_weights, token_weights
from mindgspo.algorithms.twins.evaluate import evaluate
from mindgspo.algorithms.twins.inputs import Float64Array, Responses, read_responses
from mindgspo.algorithms.twins.metrics import policy_metrics
from mindgspo.algorithms.twins.result import PolicyLossResult
from mindgspo.errors import DataError


def policy_loss(
    definition: LossDefinition,
    *,
    logp_NK: ArrayLike,
    old_logp_NK: ArrayLike,
    advantages_NK: ArrayLike,
    mask_NK: ArrayLike,
    ref_logp_NK: ArrayLike | None = None,
    correction_NK: ArrayLike | None = None,
    entropy_NK: ArrayLike | None = None,
    kl_coef: float = 0.0,
    num_sequences: float | None = None,
    num_tokens: float | None = None,
    kl_num_sequences: float | None = None,
) -> PolicyLossResult:
    """Loss, gradient by logp and metrics of a batch, or of one micro-batch of it.

    All arrays are [N, K] of any float type, with anything in masked slots; advantages_NK may be [N]. mask_NK: 0 and 1,
    or bool. ref_logp_NK, entropy_NK: needed by a definition with a KL term or an entropy bonus. correction_NK: weights
    against the mismatch of sampler and trainer, which multiply every token's loss; for GMPO their geometric mean
    multiplies the response's.

    num_sequences, num_tokens: global denominators; those of these arrays by default, see `denominators`.
    kl_num_sequences: the KL term's own, num_sequences by default. The two differ in one case only: beside a
    batch-mean, which counts every row, a KL term whose aggregation leaves out empty rows. Where both are left to their
    defaults each term is given its own.

    Raises DataError where a shape, the mask or a missing array is wrong.
    """
    batch = read_responses(
        logp_NK=logp_NK,
        old_logp_NK=old_logp_NK,
        advantages_NK=advantages_NK,
        mask_NK=mask_NK,
        ref_logp_NK=ref_logp_NK,
        correction_NK=correction_NK,
        entropy_NK=entropy_NK,
    )
    own_sequences, own_tokens = denominators(batch.mask_NK, definition.aggregation)
    if kl_num_sequences is None:
        kl_num_sequences = num_sequences
    if kl_num_sequences is None and definition.kl is not None:
        kl_num_sequences, _ = denominators(batch.mask_NK, definition.kl.aggregation)
    num_sequences = own_sequences if num_sequences is None else num_sequences
    num_tokens = own_tokens if num_tokens is None else num_tokens

    per = {"num_sequences": num_sequences, "num_tokens": num_tokens}
    weights_NK = token_weights(definition.aggregation, batch.mask_NK, **per)
    weights_N = response_weights(definition.aggregation, batch.mask_NK, **per)
    kl_weights_NK = np.zeros(batch.mask_NK.shape)
    if definition.kl is not None:
        kl_weights_NK = token_weights(
            definition.kl.aggregation, batch.mask_NK, num_sequences=kl_num_sequences, num_tokens=num_tokens
        )

    pg_loss, kl_loss, grad_NK, evaluated = 0.0, 0.0, np.zeros(batch.mask_NK.shape), []
    for row, response in batch:
        real = batch.mask_NK[row]
        one = evaluate(definition, response, token_weights=weights_NK[row, real], response_weight=weights_N[row])
        kl_weights = kl_weights_NK[row, real]
        pg_loss += one.pg_loss
        kl_loss += float((kl_weights * one.kl).sum())
        grad_NK[row, real] = one.grad_logp + kl_coef * kl_weights * one.kl_slope
        evaluated.append(one)
    loss = pg_loss + kl_coef * kl_loss - definition.entropy_coef * _entropy(definition, batch, weights_NK)
    metrics = policy_metrics(evaluated, pg_loss=pg_loss, kl_loss=kl_loss, **per)
    return PolicyLossResult(loss=loss, pg_loss=pg_loss, kl_loss=kl_loss, grad_logp_NK=grad_NK, metrics=metrics)


def _entropy(definition: LossDefinition, batch: Responses, weights_NK: Float64Array) -> float:
    """Entropy averaged with the weights of the token losses; 0 without a bonus."""
    if definition.entropy_coef == 0:
        return 0.0
    total = 0.0
    for row, response in batch:
        if response.entropy is None:
            raise DataError("the entropy bonus needs entropy")
        total += float((weights_NK[row, batch.mask_NK[row]] * response.entropy).sum())
    return total
