"""Where verl's keys stand, and what of a file many of its rows ask.

What enters: the settings of a file. What leaves: names, and answers. Called by the tables of verl and by `verl`.
"""

from __future__ import annotations

from mindgspo.integrations.foreign_configs.given import Given

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIM = f"{ACTOR}.optim"

# policy_loss.loss_mode -> algorithm.name. vanilla is the token-level clip that grpo, dapo and ppo share here.
LOSS_MODES = {"vanilla": "grpo", "gspo": "gspo", "sapo": "sapo", "gpg": "gpg", "geo_mean": "gmpo", "cispo": "cispo"}

MEGATRON_TRAINERS = ("ppo_megatron_trainer", "dapo_megatron_trainer")


def is_megatron(given: Given) -> bool:
    """Whether the actor is trained by Megatron: by its strategy, else by the configuration that the command names."""
    if f"{ACTOR}.strategy" in given:
        return given[f"{ACTOR}.strategy"] == "megatron"
    if "model_engine" in given:
        return given["model_engine"] == "megatron"
    return str(given["--config-name"]).removesuffix(".yaml") in MEGATRON_TRAINERS


def loss_name(given: Given) -> str | None:
    """`algorithm.name` of the file's loss mode; None for one that is not built."""
    return LOSS_MODES.get(given[f"{ACTOR}.policy_loss.loss_mode"])
