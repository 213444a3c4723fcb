"""verl's keys of the algorithm: policy loss, advantages, KL penalty, rollout correction. See `verl_data_rows`.

Defaults are verl's own; where this project would do something else, they are written out.
"""

from __future__ import annotations

from typing import Any

from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo.integrations.foreign_configs.given import Given, flag, is_on, number, text, whole
from mindgspo.integrations.foreign_configs.table import (
    adjusted,
    joined,
    left_out,
    mapped,
    needless,
    not_built,
    to,
    unbuilt,
)
from mindgspo.integrations.foreign_configs.verl_names import ACTOR, LOSS_MODES, loss_name

_CORRECTION = "algorithm.rollout_correction"
_FILTER = "algorithm.filter_groups"
ESTIMATORS = {
    **{name: name for name in ("grpo", "rloo", "opo", "gpg", "remax", "reinforce_plus_plus")},
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "grpo_passk": "pass_k",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
}
_KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}


def _loss_mode(value: Any, given: Given) -> Any:
    if value not in LOSS_MODES:
        return not_built(f"algorithm.name is one of {', '.join(POLICY_LOSSES)}")
    if value != "vanilla":
        return LOSS_MODES[value]
    return mapped(
        {"algorithm.name": "grpo", "algorithm.log_ratio_max": 20.0, "algorithm.log_ratio_min": -20.0},
        "log-ratios are bounded at 20, as there",
    )


def _clip(target: str) -> Any:
    def convert(value: Any, given: Given) -> Any:
        name = loss_name(given)
        if name is None or POLICY_LOSSES[name].clip is None:
            return left_out(f"the loss {given[f'{ACTOR}.policy_loss.loss_mode']} clips nothing")
        both = given[f"{ACTOR}.clip_ratio"] if value is None else value
        return mapped({target: number(both)})

    return convert


def _clip_ratio(value: Any, given: Given) -> Any:
    sides = [f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"]
    if all(key in given for key in sides):
        return left_out("clip_ratio_low and clip_ratio_high are given")
    return not_built(
        "versions of verl differ on whether it stands in for clip_ratio_low and _high, which are 0.2 by default; "
        "set algorithm.clip_low and algorithm.clip_high"
    )


def _dual_clip(value: Any, given: Given) -> Any:
    if given[f"{ACTOR}.policy_loss.loss_mode"] != "vanilla":
        return left_out("read with loss_mode vanilla only")
    return mapped({"algorithm.clip_ratio_c": number(value)})


def _aggregation(value: Any, given: Given) -> Any:
    name = loss_name(given)
    if f"{ACTOR}.loss_agg_mode" not in given and name in ("gspo", "sapo", "gmpo"):
        return left_out(f"{name} averages over responses there up to 0.9.0 whatever the mode, and so it does here")
    if name == "gmpo":
        return left_out("gmpo has one loss per response; the mode is not read there either")
    return mapped({"algorithm.loss_agg_mode": text(value)})


def _estimator(value: Any, given: Given) -> Any:
    if value not in ESTIMATORS:
        return not_built(
            "it needs a value model; set algorithm.advantage.estimator, e.g. grpo"
            if value == "gae"
            else f"algorithm.advantage.estimator is one of {', '.join(sorted(set(ESTIMATORS.values())))}"
        )
    return ESTIMATORS[value]


def _only_if(target: str, convert: Any, condition: Any, why: str) -> Any:
    """Sets `target` where the condition holds, and has no effect elsewhere."""

    def checked(value: Any, given: Given) -> Any:
        return mapped({target: convert(value)}) if condition(given) else left_out(why)

    return checked


def _tau(target: str) -> Any:
    return _only_if(target, number, lambda given: loss_name(given) == "sapo", "read by the loss sapo only")


def _kl_estimator(is_wanted: Any, why: str) -> Any:
    def convert(value: Any, given: Given) -> Any:
        if not is_wanted(given):
            return left_out(why)
        name = str(value).removesuffix("+")
        if name not in _KL:
            return not_built(f"algorithm.kl.estimator is one of {', '.join(sorted(set(_KL.values())))}")
        straight = {"algorithm.kl.straight_through": True} if str(value).endswith("+") else {}
        return mapped({"algorithm.kl.estimator": _KL[name], **straight})

    return convert


def _in_loss(given: Given) -> bool:
    return is_on(given, f"{ACTOR}.use_kl_loss")


def _in_reward(given: Given) -> bool:
    return is_on(given, "algorithm.use_kl_in_reward") and not _in_loss(given)


def _adapts(given: Given) -> bool:
    return _in_reward(given) and given["algorithm.kl_ctrl.type"] == "adaptive"


def _use_kl_in_reward(value: Any, given: Given) -> Any:
    if not flag(value):
        return left_out("no penalty in the reward")
    if _in_loss(given):
        return not_built("a penalty in the loss and one in the reward; one of the two: algorithm.kl.placement")
    return "reward"


def _use_kl_loss(value: Any, given: Given) -> Any:
    return "loss" if flag(value) else left_out("no penalty in the loss")


def _level(value: Any, given: Given) -> Any:
    if value in (None, "null", "None"):
        return left_out("no correction")
    if is_on(given, f"{_CORRECTION}.bypass_mode"):
        return left_out("with bypass_mode the ratio carries the mismatch")
    return value if value in ("token", "sequence") else not_built(f"{_CORRECTION}.level is token or sequence")


def _corrects(given: Given) -> bool:
    is_bypassed = is_on(given, f"{_CORRECTION}.bypass_mode")
    return given[f"{_CORRECTION}.rollout_is"] in ("token", "sequence") and not is_bypassed


def _bypass(value: Any, given: Given) -> Any:
    return "sampler" if flag(value) else left_out("old log-probs are computed by the trainer, as by default here")


def _filter_groups(value: Any, given: Given) -> Any:
    if not flag(value):
        return left_out("groups without signal stay in the batch, as by default here")
    return mapped({f"{_FILTER}.refill": True, f"{_FILTER}.when_short": "stop"}, "stop: as its DAPO recipe does")


def _filter_metric(value: Any, given: Given) -> Any:
    if not flag(given[f"{_FILTER}.enable"]):
        return left_out("filter_groups is off")
    if value == "acc":
        return "accuracy"
    if value in ("score", "seq_reward"):
        return "reward"
    if value == "seq_final_reward":
        return adjusted({f"{_FILTER}.metric": "reward"}, "compared before a KL penalty is taken off")
    return not_built(f"{_FILTER}.metric is reward, accuracy or one of reward.functions")


def _most_draws(value: Any, given: Given) -> Any:
    if not flag(given[f"{_FILTER}.enable"]):
        return left_out("filter_groups is off")
    if whole(value) > 0:
        return whole(value)
    return adjusted({f"{_FILTER}.max_num_gen_batches": 1000}, "0 is no limit there; 1,000 draws come close")


def _prompts_per_draw(value: Any, given: Given) -> Any:
    if value is None or not flag(given[f"{_FILTER}.enable"]):
        return left_out("filter_groups is off, so every step draws its batch at once")
    return whole(value)


ROWS = (
    # policy loss
    to(
        f"{ACTOR}.policy_loss.loss_mode",
        "algorithm.name",
        _loss_mode,
        note="vanilla: grpo, geo_mean: gmpo; gspo, sapo, gpg, cispo as they are",
        default="vanilla",
    ),
    to(f"{ACTOR}.clip_ratio_low", "algorithm.clip_low", _clip("algorithm.clip_low"), default=0.2),
    to(f"{ACTOR}.clip_ratio_high", "algorithm.clip_high", _clip("algorithm.clip_high"), default=0.2),
    to(f"{ACTOR}.clip_ratio", "", _clip_ratio, note="give clip_ratio_low and clip_ratio_high"),
    to(f"{ACTOR}.clip_ratio_c", "algorithm.clip_ratio_c", _dual_clip, note="vanilla only", default=3.0),
    to(
        f"{ACTOR}.loss_agg_mode",
        "algorithm.loss_agg_mode",
        _aggregation,
        note="the same names; verl up to 0.7.0 means batch-token-sum-norm by seq-mean-token-sum-norm",
        default="token-mean",
    ),
    to(
        f"{ACTOR}.loss_scale_factor",
        "algorithm.loss_scale_factor",
        lambda value, given: left_out("rollout.max_new_tokens") if value is None else number(value),
    ),
    to(f"{ACTOR}.tau_pos", "algorithm.tau_pos", _tau("algorithm.tau_pos"), note="sapo only"),
    to(f"{ACTOR}.tau_neg", "algorithm.tau_neg", _tau("algorithm.tau_neg"), note="sapo only"),
    to(f"{ACTOR}.entropy_coeff", "algorithm.entropy_coef", number),
    unbuilt(f"{ACTOR}.policy_loss.*", "a setting of a loss that is not built"),
    unbuilt(f"{ACTOR}.tis_imp_ratio_cap", f"{_CORRECTION}.level=token and .max", harmless=(-1, None)),
    # advantages
    to(
        "algorithm.adv_estimator", "algorithm.advantage.estimator", _estimator, note="grpo_passk: pass_k", default="gae"
    ),
    to(
        "algorithm.norm_adv_by_std_in_grpo",
        "algorithm.advantage.normalize_by_std",
        flag,
    ),
    to(
        "algorithm.gamma",
        "algorithm.advantage.gamma",
        _only_if(
            "algorithm.advantage.gamma",
            number,
            lambda given: given["algorithm.adv_estimator"] == "reinforce_plus_plus",
            "read by reinforce_plus_plus only",
        ),
        note="reinforce_plus_plus only",
    ),
    needless("algorithm.lam", "read with a value model only"),
    to(f"{_FILTER}.enable", f"{_FILTER}.refill", _filter_groups, note="with when_short: stop", default=False),
    to(f"{_FILTER}.metric", f"{_FILTER}.metric", _filter_metric, note="acc: accuracy; score, seq_reward: reward"),
    to(f"{_FILTER}.max_num_gen_batches", f"{_FILTER}.max_num_gen_batches", _most_draws, note="0: 1,000"),
    to("data.gen_batch_size", f"{_FILTER}.prompts_per_draw", _prompts_per_draw),
    unbuilt("algorithm.use_pf_ppo", "no reweighting of samples", harmless=(False,)),
    needless("algorithm.pf_ppo.*", "read with use_pf_ppo only"),
    # KL penalty
    to(f"{ACTOR}.use_kl_loss", "algorithm.kl.placement", _use_kl_loss, note="true: loss", default=False),
    to(
        f"{ACTOR}.kl_loss_coef",
        "algorithm.kl.coef",
        _only_if("algorithm.kl.coef", number, _in_loss, "there is no penalty in the loss"),
        default=0.001,
    ),
    to(
        f"{ACTOR}.kl_loss_type",
        "algorithm.kl.estimator, algorithm.kl.straight_through",
        _kl_estimator(_in_loss, "there is no penalty in the loss"),
        note="kl: k1, mse: k2, low_var_kl: k3; a + at the end: straight_through",
        default="low_var_kl",
    ),
    to("algorithm.use_kl_in_reward", "algorithm.kl.placement", _use_kl_in_reward, note="true: reward", default=False),
    to(
        "algorithm.kl_penalty",
        "algorithm.kl.estimator",
        _kl_estimator(_in_reward, "there is no penalty in the reward"),
        note="kl: k1, mse: k2, low_var_kl: k3",
        default="kl",
    ),
    to(
        "algorithm.kl_ctrl.kl_coef",
        "algorithm.kl.coef",
        _only_if("algorithm.kl.coef", number, _in_reward, "there is no penalty in the reward"),
        default=0.001,
    ),
    joined("algorithm.kl_ctrl.type", "algorithm.kl.target", "adaptive: target and horizon are read", default="fixed"),
    to(
        "algorithm.kl_ctrl.target_kl",
        "algorithm.kl.target",
        _only_if("algorithm.kl.target", number, _adapts, "the coefficient is fixed"),
        default=0.1,
    ),
    to(
        "algorithm.kl_ctrl.horizon",
        "algorithm.kl.horizon",
        _only_if("algorithm.kl.horizon", whole, _adapts, "the coefficient is fixed"),
        default=10_000,
    ),
    # sampler against trainer
    to(f"{_CORRECTION}.rollout_is", f"{_CORRECTION}.level", _level, note="token or sequence"),
    to(
        f"{_CORRECTION}.rollout_is_threshold",
        f"{_CORRECTION}.max",
        _only_if(f"{_CORRECTION}.max", number, _corrects, "there is no correction"),
    ),
    unbuilt(
        f"{_CORRECTION}.rollout_rs", f"{_CORRECTION}.mode=mask leaves out weights beyond a range", harmless=(None,)
    ),
    to(f"{_CORRECTION}.bypass_mode", "algorithm.old_log_probs", _bypass, note="true: sampler", default=False),
    unbuilt(f"{_CORRECTION}.*", f"{_CORRECTION} has level, mode, max and min", harmless=(None, False)),
)
