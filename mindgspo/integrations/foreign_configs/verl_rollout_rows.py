"""verl's keys of rollout, evaluation and rewards. See `verl_data_rows`."""

from __future__ import annotations

from typing import Any

from mindgspo.integrations.foreign_configs.given import Given, flag, local_path, number, whole
from mindgspo.integrations.foreign_configs.table import (
    Outcome,
    joined,
    left_out,
    mapped,
    needless,
    not_built,
    to,
    unbuilt,
)
from mindgspo.integrations.foreign_configs.verl_names import ROLLOUT

_OVERLONG = (
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
_MAX_LENGTHS = ("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len")
_CUSTOM = ("custom_reward_function", "reward.custom_reward_function")
_MANAGERS = ("reward_model.reward_manager", "reward_manager.name", "reward.reward_manager.name")


def _top_k(value: Any, given: Given) -> int:
    return max(0, whole(value))


def _slots(value: Any, given: Given) -> Any:
    return mapped({}, "times plans.infer.data_parallel, because slots are counted over all replicas")


def _val_temperature(value: Any, given: Given) -> Any:
    if whole(given[f"{ROLLOUT}.val_kwargs.n"]) == 1:
        return left_out("one sample per problem is greedy here (eval.num_samples=1)")
    return number(value)


def _val_samples(value: Any, given: Given) -> Any:
    samples = whole(value)
    return mapped({"eval.num_samples": samples, **({"eval.pass_at_k": [1, samples]} if samples > 1 else {})})


def _val_do_sample(value: Any, given: Given) -> Any:
    if flag(value) and whole(given[f"{ROLLOUT}.val_kwargs.n"]) == 1:
        return not_built("one drawn sample per problem; here one is greedy: set eval.num_samples for drawn ones")
    return left_out("eval.num_samples=1 is greedy, more of them are drawn")


def _overlong_is_on(value: Any, given: Given) -> Any:
    if not flag(value):
        return left_out("no overlong penalty")
    return mapped({"reward.functions": ["auto", "overlong"]})


def _if_overlong(target: str, convert: Any) -> Any:
    def checked(value: Any, given: Given) -> Any:
        is_on = any(str(given[f"{prefix}.enable"]).lower() == "true" for prefix in _OVERLONG)
        return mapped({target: convert(value)}) if is_on else left_out("read with the overlong penalty only; it is off")

    return checked


def _reward_file(prefix: str) -> Any:
    def convert(value: Any, given: Given) -> Any:
        if value is None:
            return left_out("no function of your own")
        name = given[f"{prefix}.name"] or "compute_score"
        return mapped({"reward.functions": [f"{local_path(value)}:{name}"]})

    return convert


def _manager(value: Any, given: Given) -> Outcome:
    if value in ("naive", "dapo", "prime", "batch"):
        return left_out("reward.functions=[auto] goes by the rows' data_source, as it does there")
    return not_built("name functions under reward.functions")


ROWS = (
    # rollout
    to(f"{ROLLOUT}.n", "rollout.num_generations", whole, default=1),
    to(f"{ROLLOUT}.temperature", "rollout.temperature", number),
    to(f"{ROLLOUT}.top_p", "rollout.top_p", number),
    to(f"{ROLLOUT}.top_k", "rollout.top_k", _top_k, note="-1: 0, which switches it off"),
    to(f"{ROLLOUT}.max_num_seqs", "rollout.slots", _slots, note="per replica there, altogether here"),
    joined(f"{ROLLOUT}.tensor_model_parallel_size", "plans.infer.model_parallel", "plan of generation", default=2),
    unbuilt(f"{ROLLOUT}.pipeline_model_parallel_size", "decoding runs on one stage", harmless=(1,)),
    unbuilt(f"{ROLLOUT}.data_parallel_size", "replicas follow from the cards", harmless=(1,)),
    to(f"{ROLLOUT}.expert_parallel_size", "plans.infer.expert_parallel", whole),
    to(f"{ROLLOUT}.val_kwargs.n", "eval.num_samples, eval.pass_at_k", _val_samples, default=1),
    to(f"{ROLLOUT}.val_kwargs.temperature", "eval.temperature", _val_temperature, note="with several samples"),
    to(f"{ROLLOUT}.val_kwargs.do_sample", "", _val_do_sample, note="one sample is greedy here, more are drawn"),
    unbuilt(f"{ROLLOUT}.val_kwargs.top_p", "evaluation draws from all tokens", harmless=(1, 1.0)),
    unbuilt(f"{ROLLOUT}.val_kwargs.top_k", "evaluation draws from all tokens", harmless=(-1, 0)),
    unbuilt(f"{ROLLOUT}.multi_turn.enable", "one turn per prompt", harmless=(False,)),
    unbuilt(f"{ROLLOUT}.multi_turn.*", "one turn per prompt", harmless=(None,)),
    unbuilt(f"{ROLLOUT}.ignore_eos", "responses end at tokenizer.eos_tokens", harmless=(False,)),
    unbuilt(f"{ROLLOUT}.dtype", "generation uses model.dtype", harmless=("bfloat16",)),
    needless(f"{ROLLOUT}.name", "generation is this project's own"),
    needless(f"{ROLLOUT}.mode", "generation is this project's own"),
    needless(f"{ROLLOUT}.do_sample", "training always draws"),
    needless(f"{ROLLOUT}.calculate_log_probs", "the sampler's log-probs are always kept"),
    needless(f"{ROLLOUT}.gpu_memory_utilization", "rollout.slots sets the cache; `mindgspo plan` shows what fits"),
    needless(f"{ROLLOUT}.log_prob_*", "log-probs are computed in micro-batches of trainer.samples_per_micro_batch"),
    needless(f"{ROLLOUT}.max_*", "lengths follow from data.max_prompt_length and rollout.max_new_tokens"),
    needless(f"{ROLLOUT}.*enable_*", "the engine's own switch; here it is one engine"),
    needless(f"{ROLLOUT}.enforce_eager", "graphs are always compiled"),
    needless(f"{ROLLOUT}.cudagraph_*", "graphs are always compiled"),
    needless(f"{ROLLOUT}.free_cache_engine", "swap.enabled frees what a phase does not read"),
    needless(f"{ROLLOUT}.load_format", "weights go from the trained model to generation in memory"),
    needless(f"{ROLLOUT}.engine_kwargs*", "settings of another engine"),
    needless(f"{ROLLOUT}.checkpoint_engine.*", "reshard.bucket_mb sets the buckets that weights travel in"),
    needless(f"{ROLLOUT}.layered_summon", "weights travel in buckets (reshard.bucket_mb)"),
    needless(f"{ROLLOUT}.agent.*", "generation is this project's own"),
    needless(f"{ROLLOUT}.*", "a setting of another engine"),
    # rewards
    *(to(key, "", _manager, note="auto goes by data_source; another manager: name the functions") for key in _MANAGERS),
    *(to(f"{key}.enable", "reward.functions", _overlong_is_on, note="[auto, overlong]") for key in _OVERLONG),
    *(
        to(f"{key}.len", "reward.overlong.buffer_len", _if_overlong("reward.overlong.buffer_len", whole))
        for key in _OVERLONG
    ),
    *(
        to(f"{key}.penalty_factor", "reward.overlong.factor", _if_overlong("reward.overlong.factor", number))
        for key in _OVERLONG
    ),
    *(needless(f"{key}.log", "parts of the reward are always logged") for key in _OVERLONG),
    *(to(key, "reward.overlong.max_len", _if_overlong("reward.overlong.max_len", whole)) for key in _MAX_LENGTHS),
    *(to(f"{key}.path", "reward.functions", _reward_file(key), note="your own file.py:function") for key in _CUSTOM),
    *(joined(f"{key}.name", "reward.functions", "with the path", default="compute_score") for key in _CUSTOM),
    unbuilt("reward_model.enable", "rewards are functions; there is no reward model", harmless=(False, None)),
    unbuilt("reward.reward_model.enable", "rewards are functions; there is no reward model", harmless=(False, None)),
    unbuilt("reward_model.sandbox_fusion.*", "your own function runs in a worker process", harmless=(None,)),
    needless("reward_model.launch_reward_fn_async", "reward.workers judges in processes of their own"),
    needless("reward*.num_workers", "reward.workers.count sets the processes"),
    needless("reward_model.*", "there is no reward model"),
    needless("reward.reward_model.*", "there is no reward model"),
)
