"""The weights that generation computes with, and where its log-probs are those of training."""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.model import ModelSection
from mindgspo.config.schema import ExperimentConfig
from mindgspo_kernels.build import has_compiler


def reads_trained_weights(config: ExperimentConfig) -> bool:
    """Whether generation reads the trained weights in place, without a copy.

    It does where every rank holds the same slices under both plans and computes with them in the same way. Several
    cards generate from a copy in their compute type, unless adapters leave the weights in that; so do all from weights
    that adapters are merged into. A backend other than native has parameters of its own.
    """
    lora, is_card = config.model.lora, config.device == "Ascend"
    if config.model.backend != "native" or (is_card and lora is not None and config.rollout.lora == "merged"):
        return False
    train, infer = config.plans.train, config.plans.infer
    if train.world_size == 1:
        return True
    sizes = ("data_parallel", "model_parallel", "pipeline_stage", "vocab_emb_dp", "expert_parallel", "expert_slices")
    return (lora is not None or not is_card) and all(getattr(train, size) == getattr(infer, size) for size in sizes)


def merges_adapters(config: ExperimentConfig) -> bool:
    """Whether generation computes with weights that the adapters are merged into; see `RolloutSection.lora`."""
    if config.model.lora is None:
        return False
    if config.rollout.lora != "auto":
        return config.rollout.lora == "merged"
    # On CPU merged weights are packed copies, and latent attention has none.
    has_place = config.device == "Ascend" or config.model.kv_lora_rank is None
    return config.has_servers or (has_place and not reads_trained_weights(config))


def generating_model(config: ExperimentConfig) -> ModelSection:
    """The model whose parameters generation holds where they are its own. On Ascend merged weights take the place of
    the base; on CPU they are packed beside it (`graphs.PackedWeights`), so that only adapters travel."""
    return config.model.base if config.device == "Ascend" and merges_adapters(config) else config.model


def log_prob_differences(config: ExperimentConfig) -> Iterator[str]:
    """Yield every setting with which the sampler's log-prob of a token has other bits than the trainer's under the same
    weights: "key value, why; what to set instead".

    Kernels sum and round a token's numbers in the same way in every batch. Routers, temperature, sampling filters,
    packing, pre-emption, adapters beside their weights and pipeline stages change nothing.
    """
    model, rollout, plans = config.model, config.rollout, config.plans
    if model.backend != "native":
        yield f"model.backend {model.backend}, whose operators train while ours sample; set model.backend=native"
    if model.kv_lora_rank is not None:
        yield (
            f"model.architecture {model.architecture}, whose generation multiplies the expansion of latents into "
            "queries instead; remove the setting"
        )
    if config.device == "CPU" and not has_compiler():
        yield "MindSpore's own operators, for want of g++; apt-get install g++, which compiles our kernels"
    if rollout.servers.api != "mindgspo":
        yield (
            f"rollout.servers.api {rollout.servers.api}, whose operators are its own; generate with this suite: leave "
            "rollout.servers out, or start `mindgspo serve`"
        )
    if rollout.cache_dtype not in (model.dtype, "float32"):  # neither rounds what is not rounded already
        yield (
            f"rollout.cache_dtype {rollout.cache_dtype}, to which generation alone rounds keys and values; set "
            f"rollout.cache_dtype={model.dtype} (model.dtype) or float32"
        )
    if merges_adapters(config):
        why = "servers and generation under another plan merge" if rollout.lora == "auto" else "generation merges"
        yield f"rollout.lora {rollout.lora}, because {why} adapters into weights; set rollout.lora=separate"
    for name, plan in (("train", plans.train), ("infer", plans.infer)):
        if plan.model_parallel > 1:
            yield (
                f"plans.{name}.model_parallel {plan.model_parallel}, because the log-prob head sums over slices of the "
                f"vocabulary; set plans.{name}.model_parallel=1"
            )
        elif plan.expert_parallel > 1:
            yield (
                f"plans.{name}.expert_parallel {plan.expert_parallel}, because a token's experts are summed rank by "
                f"rank; set plans.{name}.expert_parallel=1"
            )


def exact_log_prob_problems(config: ExperimentConfig) -> Iterator[str]:
    """Violated rules of `trainer.require_exact_logprobs`."""
    trainer = config.trainer
    if not trainer.require_exact_logprobs:
        return
    for difference in log_prob_differences(config):
        yield f"trainer.require_exact_logprobs: true does not hold with {difference}"
    if trainer.schedule == "one_step_off" and config.staleness > 0:
        yield (
            "trainer.require_exact_logprobs: true compares responses that the trained weights drew, and with "
            f"trainer.max_staleness {config.staleness} those of trainer.schedule=one_step_off are a step old; set "
            "trainer.max_staleness=0, or trainer.schedule=bounded, where some are not"
        )
