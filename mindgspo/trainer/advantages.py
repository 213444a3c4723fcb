"""Rewards of a step -> the advantages of its responses.

N  responses of the step    F  reward functions    L  tokens of the longest response

Metrics:
  Loss, KL and entropy:
    distillation/kl:
      meaning: mean of the old policy's minus the teachers' log-probability per taught response token, an estimate
        of the reverse KL (k1); may be slightly negative
      unit: nat
      healthy: falls
      action: 'flat: raise algorithm.distillation.coef or optimizer.lr; read samples.jsonl for responses that no
        teacher would give'
    distillation/taught_share:
      meaning: response tokens that a teacher scored
      unit: share of tokens
      healthy: 1, unless some sources have no teacher
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mindgspo.algorithms import AdvantageInputs, estimate_advantages
from mindgspo.algorithms.kl_control import reward_penalty
from mindgspo.algorithms.losses.covariance import select_tokens
from mindgspo.algorithms.rollout_correction import correction_weights
from mindgspo.batches.rows import gathered, scattered
from mindgspo.config import AlgorithmSection, KLSection
from mindgspo.config.distillation import DistillationSection
from mindgspo.trainer.batches import MiniBatches
from mindgspo.trainer.dynamic_sampling import StepSamples
from mindgspo.types import Batch, Float32Array, Group, ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAdvantages:
    """The advantages of one step.

    Example: two responses of 3 and 2 tokens, the second better, have advantages [-0.7, -0.7, -0.7] and [0.7, 0.7].
    """

    groups: tuple[Group, ...]
    """The step's groups, with their advantages."""
    advantages: tuple[Float32Array, ...]
    """float32 [length] by response number."""
    rewards: NDArray[np.float64]
    """The trained responses' rewards as they entered the advantages."""
    kl: float | None
    """Mean KL estimate per trained token; None without KL in the reward."""
    distillation: Mapping[str, float]
    """Metrics of teachers; empty without them."""


def step_advantages(
    samples: StepSamples,
    batches: Sequence[Batch],
    algorithm: AlgorithmSection,
    *,
    energies: Sequence[Float32Array] | None,
    teacher_logp: Sequence[np.ndarray] | None,
    kl_coef: float,
    reward_labels: Sequence[str],
    reward_weights: Sequence[float],
) -> StepAdvantages:
    """Estimate the advantages of all responses of a step; those that are not trained have zeros.

    batches: the trained responses with the log-probs of the old and the reference policy, in any order.
    energies: float32 [N, K] of each batch, for optimal_token_baseline; see `PolicyScores.energies`.
    teacher_logp: float64 [N, K] of each batch; see `Teachers.log_probs`. None without teachers.
    kl_coef: coefficient of the KL penalty in the reward.
    reward_labels, reward_weights: names and weights of the reward functions.
    """
    groups, selection, baselines = samples.groups, samples.selection, samples.baselines
    scores = [score for group in groups for score in group.scores]
    sizes = [len(group.responses) for group in groups]
    counted_N = np.array([reason is None for reason in selection.reasons])
    lengths_N = np.array([response.length for response in selection.responses])
    values = [0.0 if score.value is None else score.value for score in scores]
    rewards_N = np.where(counted_N, values, 0.0)
    kl_NL = _reward_kl(algorithm.kl, batches, lengths_N)
    penalty_NL = None if kl_NL is None else kl_coef * kl_NL
    parts_NF = [[score.parts.get(label, np.nan) for label in reward_labels] for score in scores]
    inputs = AdvantageInputs(
        rewards_N=rewards_N,
        counted_N=counted_N,
        part_rewards_NF=np.array(parts_NF, np.float64).reshape(len(scores), -1),
        part_weights_F=np.array(reward_weights),
        groups_N=np.repeat(np.arange(len(groups)), sizes),
        lengths_N=lengths_N,
        baselines_N=None if baselines is None else np.repeat([value or 0.0 for value in baselines], sizes),
        token_penalties=penalty_NL,
        energies_NT=None
        if energies is None
        else _by_response(batches, _corrected(algorithm, batches, energies), lengths_N),
    )
    advantages = estimate_advantages(algorithm.advantage, inputs)
    taught: dict[str, float] = {}
    if teacher_logp is not None:
        assert algorithm.distillation is not None, "teachers without a section"
        advantages, taught = _taught(algorithm.distillation, advantages, batches, teacher_logp)
    penalty_N = np.zeros(len(scores)) if penalty_NL is None else penalty_NL.sum(axis=1)
    num_tokens = int(lengths_N[counted_N].sum())
    return StepAdvantages(
        groups=_with_advantages(groups, advantages),
        advantages=advantages,
        rewards=(rewards_N - penalty_N)[counted_N],
        kl=None if kl_NL is None or not num_tokens else float(kl_NL.sum()) / num_tokens,
        distillation=taught,
    )


def _taught(
    section: DistillationSection,
    advantages: Sequence[Float32Array],
    batches: Sequence[Batch],
    teacher_logp: Sequence[np.ndarray],
) -> tuple[tuple[Float32Array, ...], dict[str, float]]:
    """Advantages with the teachers' part, log teacher - log old of each token, and its metrics.

    A response without a teacher keeps its advantage from rewards, if they count.
    """
    gaps = [logp_NK - batch.old_logp_NK for batch, logp_NK in zip(batches, teacher_logp, strict=True)]
    by_response, total = gathered(batches, gaps, len(advantages)), []
    for own, gap in zip(advantages, by_response, strict=True):
        part = np.nan_to_num(section.coef * gap) if gap.size else np.zeros(own.size)
        total.append(((own if section.with_rewards else 0.0) + part).astype(np.float32))
    tokens = np.concatenate([row for row in by_response if row.size] or [np.zeros(0)])
    known = tokens[~np.isnan(tokens)]
    metrics = {"distillation/taught_share": known.size / max(tokens.size, 1)}
    return tuple(total), metrics | ({"distillation/kl": float(-known.mean())} if known.size else {})


def _reward_kl(
    section: KLSection, batches: Sequence[Batch], lengths_N: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """KL estimates [N, L] of the trained responses, 0 elsewhere; None unless the penalty belongs to the reward."""
    if section.placement != "reward":
        return None
    estimates = [reward_penalty(section, batch.old_logp_NK, batch.ref_logp_NK, batch.mask_NK) for batch in batches]
    return _by_response(batches, estimates, lengths_N)


def _by_response(
    batches: Sequence[Batch], arrays_NK: Sequence[np.ndarray], lengths_N: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The tokens' numbers [N, L] by response number; 0 in responses that are in no batch."""
    values_NL = np.zeros((lengths_N.size, int(lengths_N.max())))
    for number, row in enumerate(gathered(batches, arrays_NK, lengths_N.size)):
        values_NL[number, : row.size] = row
    return values_NL


def _corrected(
    algorithm: AlgorithmSection, batches: Sequence[Batch], energies: Sequence[Float32Array]
) -> list[np.ndarray]:
    """Energies of gradients that are multiplied by the weights against the mismatch of sampler and trainer."""
    section = algorithm.rollout_correction
    return [
        energy_NK * correction_weights(section, batch.old_logp_NK, batch.rollout_logp_NK, batch.mask_NK) ** 2
        for batch, energy_NK in zip(batches, energies, strict=True)
    ]


def with_advantages(
    mini_batches: MiniBatches, advantages: Sequence[Float32Array], algorithm: AlgorithmSection, *, seed: Sequence[int]
) -> MiniBatches:
    """Return the batches with the advantages of their responses, by number, the weights that correct the mismatch of
    sampler and trainer, and the tokens that clip_cov or kl_cov selects. seed: of the step, not negative."""
    section = algorithm.rollout_correction
    filled = [
        [
            replace(
                batch,
                advantages_NK=scattered(batch, advantages),
                correction_NK=correction_weights(section, batch.old_logp_NK, batch.rollout_logp_NK, batch.mask_NK),
            )
            for batch in batches
        ]
        for batches in mini_batches
    ]
    if algorithm.name not in ("clip_cov", "kl_cov"):
        return filled
    return [
        [
            replace(batch, selected_NK=selected_NK)
            for batch, selected_NK in zip(
                batches,
                select_tokens(
                    algorithm.covariance, batches, at_random=algorithm.name == "clip_cov", seed=(*seed, number)
                ),
                strict=True,
            )
        ]
        for number, batches in enumerate(filled)
    ]


def _with_advantages(groups: Sequence[ScoredGroup], advantages: Sequence[Float32Array]) -> tuple[Group, ...]:
    remaining = iter(advantages)
    return tuple(
        Group(
            prompt=group.prompt,
            responses=group.responses,
            scores=group.scores,
            advantages=tuple(next(remaining) for _ in group.responses),
        )
        for group in groups
    )
