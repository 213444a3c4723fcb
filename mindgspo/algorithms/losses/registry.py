"""Settings -> the cell of a policy loss. The table of names is `config.algorithm`."""

from __future__ import annotations

from mindgspo.algorithms.losses.clipped import ClippedLoss
from mindgspo.algorithms.losses.covariance import ClipCovLoss, KLCovLoss
from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.algorithms.losses.future import FIPOLoss
from mindgspo.algorithms.losses.off_policy import DPPOKLLoss, DPPOTVLoss, VESPOLoss
from mindgspo.algorithms.losses.policy_loss import PolicyLoss
from mindgspo.algorithms.losses.ratios import Ratio, SequenceRatio, SequenceTokenRatio, TokenRatio, TurnRatio
from mindgspo.algorithms.losses.surrogates import CISPOLoss, GMPOLoss, GPGLoss, SAPOLoss
from mindgspo.config import AlgorithmSection, KLSection
from mindgspo.config.algorithm import POLICY_LOSSES

_RATIOS: dict[str, type[Ratio]] = {
    "token": TokenRatio,
    "sequence": SequenceRatio,
    "sequence_token": SequenceTokenRatio,
    "turn": TurnRatio,
    "none": TokenRatio,
}
_SURROGATES: dict[str, type[PolicyLoss]] = {
    "clip": ClippedLoss,
    "cispo": CISPOLoss,
    "sapo": SAPOLoss,
    "gpg": GPGLoss,
    "gmpo": GMPOLoss,
    "dppo_tv": DPPOTVLoss,
    "dppo_kl": DPPOKLLoss,
    "vespo": VESPOLoss,
    "fipo": FIPOLoss,
    "clip_cov": ClipCovLoss,
    "kl_cov": KLCovLoss,
}


def build_policy_loss(section: AlgorithmSection) -> PolicyLoss:
    """The cell of the loss that a resolved config describes."""
    return policy_loss_cell(loss_definition(section))


def policy_loss_cell(definition: LossDefinition) -> PolicyLoss:
    """A cell for any pair of ratio and surrogate, named or not."""
    return _SURROGATES[definition.surrogate](definition, _RATIOS[definition.ratio_level])


def loss_definition(section: AlgorithmSection) -> LossDefinition:
    """Return the mathematical definition of the loss that a resolved config describes."""
    assert section.loss_agg_mode is not None, "config is not resolved"
    recipe = POLICY_LOSSES[section.name]
    level = "turn" if section.ratio_over == "turn" else recipe.ratio_level
    if level == "sequence" and section.has_taught_advantages:
        level = "sequence_token"  # each token has a gradient of its own
    return LossDefinition(
        ratio_level=level,
        surrogate=recipe.surrogate,
        aggregation=Aggregation(mode=section.loss_agg_mode, loss_scale_factor=section.loss_scale_factor),
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        clip_ratio_c=section.clip_ratio_c,
        ratio_upper_clamp=section.ratio_upper_clamp,
        loss_upper_clamp=section.loss_upper_clamp,
        log_ratio_min=section.log_ratio_min,
        log_ratio_max=section.log_ratio_max,
        tau_pos=section.tau_pos,
        tau_neg=section.tau_neg,
        k_pos=section.vespo.k_pos,
        lambda_pos=section.vespo.lambda_pos,
        k_neg=section.vespo.k_neg,
        lambda_neg=section.vespo.lambda_neg,
        future_half_life=section.fipo.half_life,
        influence_low=section.fipo.influence_low,
        influence_high=section.fipo.influence_high,
        safety_ratio=section.fipo.safety_ratio,
        kl_cov_coef=section.covariance.kl_coef,
        opsm_threshold=section.rollout_correction.opsm_threshold,
        # Estimators may give every token its own advantage.
        advantage_pool="masked-mean" if recipe.surrogate == "gmpo" else "none",
        kl=_kl_term(section) if section.kl.placement == "loss" else None,
        entropy_coef=section.entropy_coef,
        distillation_coef=section.distillation.coef if section.distillation and section.teacher_top_k else 0.0,
    )


def _kl_term(section: AlgorithmSection) -> KLTerm:
    kl: KLSection = section.kl
    assert kl.agg_mode is not None, "config is not resolved"
    is_k3 = kl.estimator in ("k3", "low_var_kl")
    return KLTerm(
        kind="k3" if kl.estimator == "low_var_kl" else kl.estimator,
        aggregation=Aggregation(mode=kl.agg_mode, loss_scale_factor=section.loss_scale_factor),
        arg_clamp=_symmetric(kl.exponent_clamp) if is_k3 else None,
        value_clamp=_symmetric(kl.value_clamp) if is_k3 else None,
        importance_weight=kl.importance_weight,
        log_ratio_max=section.log_ratio_max,
        straight_through_k2=kl.straight_through,
    )


def _symmetric(bound: float | None) -> tuple[float, float] | None:
    return None if bound is None else (-bound, bound)
