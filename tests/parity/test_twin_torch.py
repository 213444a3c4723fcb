"""The twins against torch's own autograd in float64, subgradients at ties included.

The loss is written here a second time, over whole matrices and with `detach`, from the definitions of the conformance
format; definitions are drawn at random from all of its keys.
"""

import numpy as np
import pytest

from mindgspo_conformance.definitions import loss_config
from mindgspo_conformance.twins.policy_loss import policy_loss
from mindgspo_conformance.twins.surrogates import kl_penalty

torch = pytest.importorskip("torch", reason="needs the `parity` extra")

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("error")]

SLOTS = 5
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
SURROGATES = ("clip", "clip", "clip", "cispo", "sapo", "gpg", "gmpo")


def random_config(rng):
    """One config of the format; every optional key is there with probability 0.4."""
    surrogate = str(rng.choice(SURROGATES))
    config = {
        "surrogate": surrogate,
        "ratio_level": "none" if surrogate == "gpg" else str(rng.choice(["token", "sequence", "sequence_token"])),
        "loss_agg_mode": "batch-mean" if surrogate == "gmpo" else str(rng.choice([*MODES, "batch-token-sum-norm"])),
        "empty_rows": str(rng.choice(["exclude", "include"])),
        "kl_type": str(rng.choice(["k1", "k2", "k3", "abs"])),
        "kl_coef": 0.5,
    }
    optional = {
        "clip_low": rng.choice([0.0, 0.2, 1.0, 3.0]), "clip_high": rng.choice([0.0, 0.2, 0.5]),
        "clip_ratio_c": rng.choice([1.0, 1.2, 3.0]), "ratio_upper_clamp": rng.choice([1.0, 1.5]),
        "loss_upper_clamp": rng.choice([0.5, 1.0, 2.0]), "log_ratio_min": -0.5, "log_ratio_max": 0.5,
        "ratio_len_eps": 0.25, "tau_pos": 2.0, "tau_neg": 3.0, "advantage_pool": "masked-mean", "seq_len_eps": 0.125,
        "token_mean_eps": 0.5, "norm_seqs": 9, "norm_tokens": 37, "dp_size": 2, "loss_scale_factor": 64,
        "kl_agg_mode": str(rng.choice(MODES)), "kl_arg_clamp": [-0.5, 0.5], "kl_value_clamp": [-0.125, 0.125],
        "kl_importance_weight": True, "kl_straight_through_k2": True,
    }  # fmt: skip
    chosen = {key: value for key, value in optional.items() if rng.random() < 0.4}
    if surrogate == "gmpo":
        chosen["kl_agg_mode"] = optional["kl_agg_mode"]
    return config | {key: float(value) if isinstance(value, np.floating) else value for key, value in chosen.items()}


def random_inputs(rng, *, coarse):
    """Five responses, one without a token. coarse: on a grid of halves, so that many ratios and losses tie exactly."""
    mask = np.arange(SLOTS) < np.array([5, 1, 0, 4, 3])[:, None]
    mask[3, 1] = False

    def numbers(spread):
        values = spread * rng.normal(size=mask.shape)
        return np.round(2 * values) / 2 if coarse else values

    logp = -1.0 - np.abs(numbers(1.0))
    # GMPO's own advantage is one per response.
    advantages = numbers(1.0)[:, 0] if rng.random() < 0.5 else numbers(1.0)
    return {
        "logp_NK": logp, "old_logp_NK": logp - numbers(0.4), "ref_logp_NK": logp - numbers(0.4),
        "advantages_NK": advantages, "correction_NK": rng.choice([0.5, 1.0, 2.0], size=mask.shape), "mask_NK": mask,
    }  # fmt: skip


def torch_log_ratio(config, difference, mask):
    lengths = mask.sum(1, keepdim=True)
    lengths = lengths + config["ratio_len_eps"] if "ratio_len_eps" in config else lengths.clamp(min=1)
    mean = (difference * mask).sum(1, keepdim=True) / lengths
    log_ratio = {
        "token": lambda: difference,
        "none": lambda: difference * 0.0,
        "sequence": lambda: mean + 0.0 * difference.detach(),
        "sequence_token": lambda: mean.detach() + difference - difference.detach(),
    }[config["ratio_level"]]()
    return log_ratio.clamp(config.get("log_ratio_min", -torch.inf), config.get("log_ratio_max", torch.inf))


def torch_token_losses(config, log_ratio, advantages, logp):
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.get("clip_low", torch.inf), 1 + config.get("clip_high", torch.inf))
    if config["surrogate"] == "gpg":
        return -advantages * logp
    if config["surrogate"] == "cispo":
        return -clipped.detach() * advantages * logp
    if config["surrogate"] == "sapo":
        tau_pos, tau_neg = logp.new_tensor([config.get("tau_pos", 1.0), config.get("tau_neg", 1.05)])
        tau = torch.where(advantages > 0, tau_pos, tau_neg)
        return -advantages * torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    free = ratio.clamp(max=config["ratio_upper_clamp"]) if "ratio_upper_clamp" in config else ratio
    losses = torch.maximum(-advantages * free, -advantages * clipped)
    if "clip_ratio_c" in config:
        losses = torch.where(advantages < 0, torch.minimum(losses, -advantages * config["clip_ratio_c"]), losses)
    if "loss_upper_clamp" in config:
        losses = torch.minimum(losses, torch.full_like(losses, config["loss_upper_clamp"]))
    return losses


def torch_gmpo(config, log_ratio, advantages, correction, mask):
    """Mean over all rows of -A exp(mean of the clipped log-ratio) times the geometric mean of the weights."""
    pooled = config.get("advantage_pool") == "masked-mean"
    lengths = mask.sum(1)
    lengths = lengths + config["seq_len_eps"] if "seq_len_eps" in config else lengths.clamp(min=1)
    if not pooled and advantages.ndim == 2:
        # One advantage per response is asked for: the mean of what is given.
        advantages = (advantages * mask).sum(1) / mask.sum(1).clamp(min=1)
    rows = advantages if advantages.ndim == 1 else None
    advantages = advantages[:, None].expand(mask.shape) if advantages.ndim == 1 else advantages
    inside = log_ratio.clamp(-config.get("clip_low", torch.inf), config.get("clip_high", torch.inf))
    kept = torch.sign(advantages) * torch.minimum(torch.sign(advantages) * log_ratio, torch.sign(advantages) * inside)
    ratio = ((kept * mask).sum(1) / lengths).exp()
    weight = ((correction.log() * mask).sum(1) / lengths).exp()
    if pooled:
        rows = (advantages * mask).sum(1) / lengths
    elif config["empty_rows"] == "exclude":
        rows = torch.where(mask.sum(1) > 0, rows, 0.0)
    return (-rows * ratio * weight).mean()


def torch_kl(config, logp, ref_logp, old_logp):
    above = logp - ref_logp
    below = (-above).clamp(*config.get("kl_arg_clamp", (-torch.inf, torch.inf)))
    kl = {"k1": above, "k2": above**2 / 2, "k3": below.exp() - below - 1, "abs": above.abs()}[config["kl_type"]]
    if config.get("kl_importance_weight"):
        kl = kl * (logp - old_logp).exp()
    kl = kl.clamp(*config.get("kl_value_clamp", (-torch.inf, torch.inf)))
    if config.get("kl_straight_through_k2"):
        kl = above**2 / 2 + (kl - above**2 / 2).detach()
    return kl


def torch_aggregate(config, mode, losses, mask):
    dp_size, scale = config.get("dp_size", 1), config.get("loss_scale_factor", SLOTS)
    sequences = (mask.sum(1) > 0).sum() if config["empty_rows"] == "exclude" else mask.shape[0]
    sequences = config.get("norm_seqs", sequences)
    tokens = config.get("norm_tokens", mask.sum()) + config.get("token_mean_eps", 0.0)
    lengths = mask.sum(1) + config["seq_len_eps"] if "seq_len_eps" in config else mask.sum(1).clamp(min=1)
    total = (losses * mask).sum()
    return {
        "token-mean": total / tokens * dp_size, "token-sum": total * dp_size,
        "seq-mean-token-sum": total / sequences * dp_size,
        "seq-mean-token-mean": ((losses * mask).sum(1) / lengths).sum() / sequences * dp_size,
        "seq-mean-token-sum-norm": total / sequences / scale * dp_size, "batch-token-sum-norm": total / scale,
    }[mode]  # fmt: skip


def torch_policy_loss(config, inputs):
    tensors = {name: torch.tensor(np.asarray(values, dtype=np.float64)) for name, values in inputs.items()}
    logp, old_logp, mask = tensors["logp_NK"].requires_grad_(), tensors["old_logp_NK"], tensors["mask_NK"]
    advantages, correction = tensors["advantages_NK"], tensors["correction_NK"]
    log_ratio = torch_log_ratio(config, logp - old_logp, mask)
    if config["surrogate"] == "gmpo":
        pg_loss = torch_gmpo(config, log_ratio, advantages, correction, mask)
    else:
        advantages = advantages[:, None].expand(mask.shape) if advantages.ndim == 1 else advantages
        losses = torch_token_losses(config, log_ratio, advantages, logp) * correction
        pg_loss = torch_aggregate(config, config["loss_agg_mode"], losses, mask)
    kl = torch_kl(config, logp, tensors["ref_logp_NK"], old_logp)
    kl_loss = torch_aggregate(config, config.get("kl_agg_mode", config["loss_agg_mode"]), kl, mask)
    loss = pg_loss + config["kl_coef"] * kl_loss
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.item(), pg_loss.item(), kl_loss.item(), gradient.numpy()


@pytest.mark.parametrize("coarse", [False, True], ids=["smooth", "ties"])
def test_loss_and_gradient_of_random_definitions_equal_torch(coarse):
    rng = np.random.default_rng(2025)
    for number in range(600):
        config, inputs = random_config(rng), random_inputs(rng, coarse=coarse)
        definition = loss_config(config).definition(SLOTS)
        num_sequences, num_tokens = loss_config(config).denominators(definition.aggregation, inputs["mask_NK"])
        kl_num_sequences, _ = loss_config(config).denominators(definition.kl.aggregation, inputs["mask_NK"])
        got = policy_loss(
            definition, **inputs, kl_coef=loss_config(config).kl_coef or 0.0, num_sequences=num_sequences,
            num_tokens=num_tokens, kl_num_sequences=kl_num_sequences,
        )  # fmt: skip
        for mine, torchs in zip(
            (got.loss, got.pg_loss, got.kl_loss, got.grad_logp_NK), torch_policy_loss(config, inputs), strict=True
        ):
            np.testing.assert_allclose(mine, torchs, rtol=1e-9, atol=1e-12, err_msg=f"{number}: {config}")


def test_kl_estimates_of_random_terms_equal_torch():
    rng = np.random.default_rng(7)
    for _ in range(200):
        config, inputs = random_config(rng), random_inputs(rng, coarse=bool(rng.integers(2)))
        logp = torch.tensor(inputs["logp_NK"], requires_grad=True)
        ref_logp, old_logp = torch.tensor(inputs["ref_logp_NK"]), torch.tensor(inputs["old_logp_NK"])
        kl = torch.where(torch.tensor(inputs["mask_NK"]), torch_kl(config, logp, ref_logp, old_logp), 0.0)
        (gradient,) = torch.autograd.grad(kl.sum(), logp)
        value, slope = kl_penalty(
            loss_config(config).kl_term(SLOTS),
            **{name: inputs[name] for name in ("logp_NK", "ref_logp_NK", "old_logp_NK", "mask_NK")},
        )
        np.testing.assert_allclose(value, kl.detach().numpy(), rtol=1e-12, atol=1e-15, err_msg=str(config))
        np.testing.assert_allclose(slope, gradient.numpy(), rtol=1e-12, atol=1e-15, err_msg=str(config))
