"""How single values of MindRLHF become values here; the keys are in `mindrlhf_rows`.

What enters: a value, and the settings of the file. What leaves: the value here, or an `Outcome`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindgspo.integrations.foreign_configs.given import Given, flag, is_on, local_path, number, text, whole
from mindgspo.integrations.foreign_configs.table import adjusted, left_out, mapped, not_built
from mindgspo.integrations.foreign_configs.values import run_name

RL, ACTOR, REF, GENERATE = "rl_config", "actor_config", "ref_config", "generate_config"
SAMPLING = f"{GENERATE}.sampling_config"
# verifier_function -> reward.functions
VERIFIERS = {
    "accuracy_reward": "gsm8k",
    "qwen_accuracy_reward": "math",
    "accuracy_reward_2": "math",
    "format_reward": "format",
}


def penalty(value: Any, given: Given) -> Any:
    """beta: a k3 penalty in the loss."""
    if number(value) == 0:
        return left_out("no penalty")
    values = {"algorithm.kl.placement": "loss", "algorithm.kl.coef": number(value)}
    return mapped(values, "k3 in the loss, bounded at |u| = 20 here")


def verifiers(value: Any, given: Given) -> Any:
    """verifier_function: names of functions here."""
    names = value if isinstance(value, list) else [value]
    unknown = [name for name in names if name not in VERIFIERS]
    if unknown:
        return not_built(f"{', '.join(map(str, unknown))}: write it as file.py:function under reward.functions")
    found = [VERIFIERS["qwen_accuracy_reward"] if is_qwen(name, given) else VERIFIERS[name] for name in names]
    return mapped({"reward.functions": found}, "here answers are compared as numbers or expressions, not as text")


def is_qwen(name: str, given: Given) -> bool:
    """MindRLHF looks for the boxed answer of a model whose name says qwen."""
    return name == "accuracy_reward" and "qwen" in str(given[f"{RL}.model_name"] or "qwen2.5")  # its default


def weights(value: Any, given: Given) -> Any:
    """verifier_weight."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list of numbers, got {value!r}")
    return [number(weight) for weight in value]


def load(value: Any, given: Given) -> Any:
    """actor_config.load: a Hugging Face folder."""
    if not value:
        return left_out("none is given; set model.path to a Hugging Face folder")
    if given[f"{RL}.load_ckpt_format"] not in (None, "hf_safetensors"):  # its default
        return not_built("weights are read from Hugging Face folders: `mindgspo convert weights`, then set model.path")
    return mapped({"model.path": local_path(value)})


def ref_load(value: Any, given: Given) -> Any:
    """ref_config.load: that of the actor, or none."""
    if not value or value == given[f"{ACTOR}.load"]:
        return left_out("the reference policy is the first policy")
    return not_built("the reference policy is the first policy (model.path)")


def tokenizer(value: Any, given: Given) -> str:
    """tokenizer_dir: a folder, or a file in it."""
    path = local_path(value)
    return str(Path(path).parent) if Path(path).suffix in (".json", ".txt") else path


def last_rate(value: Any, given: Given) -> Any:
    """min_lr as a share of lr."""
    if given[f"{ACTOR}.lr_schedule.lr_decay_style"] != "cosine":
        return left_out("read with a cosine only")
    peak = number(given[f"{ACTOR}.lr_schedule.lr"])
    if peak <= 0:
        raise ValueError(f"expected lr above 0, got {peak:g}")
    return mapped({"optimizer.min_lr_ratio": min(1.0, number(value) / peak)}, "min_lr / lr")


def decay(value: Any, given: Given) -> Any:
    """weight_decay."""
    return mapped({"optimizer.weight_decay": number(value)}, "MindRLHF itself reads 0.1 whatever stands here")


def schedule(value: Any, given: Given) -> Any:
    """lr_decay_style."""
    return value if value in ("constant", "cosine") else not_built("optimizer.schedule is constant or cosine")


def warmup(value: Any, given: Given) -> Any:
    """warmup_step, which needs the length of the run."""
    if whole(value) == 0:
        return mapped({"optimizer.warmup_ratio": 0.0})
    return not_built(f"set optimizer.warmup_ratio to {value} / number of updates (`mindgspo check` counts them)")


def decay_steps(value: Any, given: Given) -> Any:
    """The end of the cosine."""
    if given[f"{ACTOR}.lr_schedule.lr_decay_style"] != "cosine":
        return left_out("read with a cosine only")
    return not_built(
        f"the cosine ends with the run; there after {value} updates, so that in a much shorter run the rate hardly "
        "falls: then set optimizer.schedule=constant"
    )


def iterations(value: Any, given: Given) -> Any:
    """num_iterations: passes over a rollout."""
    return left_out("once, as here") if whole(value) == 1 else not_built("every rollout is trained on once")


def old_policy(value: Any, given: Given) -> Any:
    """enable_oldpolicy."""
    why = "old log-probs are always computed"
    return left_out(why) if flag(value) else not_built(why)


def opt_offload(value: Any, given: Given) -> Any:
    """Moments that leave the device."""
    if not flag(value):
        return left_out("moments stay on the device")
    return adjusted({"swap.enabled": True}, "moments leave the device between phases, and are there during updates")


def top_k(value: Any, given: Given) -> int:
    """-1 switches it off, as 0 here."""
    return max(0, whole(value))


def pack(value: Any, given: Given) -> Any:
    """packing."""
    if not flag(value):
        return left_out("one response per row, as here")
    return not_built("set trainer.packing with trainer.max_tokens_per_micro_batch; the result is the same")


def experiment(value: Any, given: Given) -> Any:
    """model_name, as a name of a run."""
    return run_name(f"{text(value)}-grpo")


def sync(value: Any, given: Given) -> Any:
    """sync_ref_model: whether the reference follows the policy, where there is one."""
    if not flag(value):
        return left_out("the reference policy stays the first policy, as by default here")
    return "sync" if _has_penalty(given) else left_out("no penalty, hence no reference policy")


def sync_steps(value: Any, given: Given) -> Any:
    """ref_model_sync_steps."""
    if is_on(given, f"{REF}.sync_ref_model") and _has_penalty(given):
        return mapped({"algorithm.kl.reference.every": whole(value)})
    return left_out("read with sync_ref_model and a penalty only")


def _has_penalty(given: Given) -> bool:
    return number(given[f"{RL}.beta"] or 0) != 0
