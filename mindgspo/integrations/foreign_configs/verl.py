"""verl's overrides as an experiment: what the rows of its table leave to several keys at once.

What enters: a `Reading` of overrides. What leaves: the draft, filled. Called by `convert`.
"""

from __future__ import annotations

from mindgspo.integrations.foreign_configs import (
    verl_data_rows,
    verl_loss_rows,
    verl_rollout_rows,
    verl_trainer_rows,
    verl_update_rows,
)
from mindgspo.integrations.foreign_configs.apply import apply
from mindgspo.integrations.foreign_configs.draft import Draft, own_default
from mindgspo.integrations.foreign_configs.given import Given, is_on, size
from mindgspo.integrations.foreign_configs.known_models import sizes_of
from mindgspo.integrations.foreign_configs.plans import (
    INFER,
    TRAIN,
    assume_pipeline_micro_batches,
    drop_what_has_no_effect,
)
from mindgspo.integrations.foreign_configs.reading import Reading
from mindgspo.integrations.foreign_configs.table import Fate, Table
from mindgspo.integrations.foreign_configs.values import name_of_file
from mindgspo.integrations.foreign_configs.verl_names import ACTOR, MODEL, ROLLOUT, is_megatron

_PARTS = (verl_data_rows, verl_rollout_rows, verl_trainer_rows, verl_loss_rows, verl_update_rows)
TABLE = Table(name="verl", title="verl", rows=tuple(row for part in _PARTS for row in part.ROWS))
_MEGATRON = f"{ACTOR}.megatron"


def fill(reading: Reading, name: str, draft: Draft) -> None:
    """The experiment that the overrides describe. name: what the report calls the file."""
    given = apply(TABLE, reading, name, draft)
    _fill_model(given, draft)
    _fill_plans(given, draft)
    _fill_micro_batches(given, draft)
    _fill_slots(given, draft)
    if draft.get("experiment") is None:
        draft.assume("experiment", name_of_file(name), "the name of the file")


def _fill_model(given: Given, draft: Draft) -> None:
    key = f"{MODEL}.path"
    try:
        found = sizes_of(str(given[key])) if key in given else None
    except ValueError as error:
        found = None
        draft.say(Fate.UNREADABLE, key, given[key], str(error))
    if found is not None:
        sizes, origin = found
        draft.place({f"model.{name}": value for name, value in sizes.items()}, origin)
    longest = given[f"{MODEL}.override_config.max_position_embeddings"]
    if longest is not None:
        draft.place({"model.max_position_embeddings": longest}, f"{MODEL}.override_config.max_position_embeddings")
    draft.assume("model.dtype", "bfloat16", "verl computes in bfloat16")
    draft.assume("trainer.max_ratio_error", 2e-3, "model.dtype is bfloat16", "its own rounding")


def _fill_plans(given: Given, draft: Draft) -> None:
    for key in ("trainer.nnodes", "trainer.n_gpus_per_node"):
        if given[key] is None:
            draft.say(Fate.ASSUMED, key, 1, "its value is not in the file; set both plans' data_parallel")
    cards = size(given, "trainer.nnodes") * size(given, "trainer.n_gpus_per_node")
    slices = size(given, f"{ROLLOUT}.tensor_model_parallel_size")
    _fill_replicas(draft, INFER, cards, slices, f"cards / {ROLLOUT}.tensor_model_parallel_size")
    draft.place_from(given, f"{ROLLOUT}.tensor_model_parallel_size", f"{INFER}.model_parallel", slices)
    if is_megatron(given):
        _fill_megatron_plan(given, draft, cards)
    else:
        _fill_fsdp_plan(given, draft, cards, slices)


def _fill_fsdp_plan(given: Given, draft: Draft, cards: int, slices: int) -> None:
    """FSDP cuts every weight over all cards; here slices and stages do."""
    why = "FSDP cuts weights over all cards, which is not implemented here"
    how = "cut as for generation; `mindgspo plan` shows whether it fits; model_parallel and pipeline_stage cut more"
    draft.assume(f"{TRAIN}.model_parallel", slices, why, how)
    replicas = _fill_replicas(draft, TRAIN, cards, slices, "cards / model_parallel")
    if replicas > 1:
        draft.assume(f"{TRAIN}.optimizer_shard", True, "FSDP cuts moments over all cards", "over the replicas here")
    if is_on(given, f"{MODEL}.enable_gradient_checkpointing"):
        draft.place_from(given, f"{MODEL}.enable_gradient_checkpointing", f"{TRAIN}.recompute", "full")


def _fill_megatron_plan(given: Given, draft: Draft, cards: int) -> None:
    block = 1
    for key, target in (
        ("tensor_model_parallel_size", "model_parallel"),
        ("pipeline_model_parallel_size", "pipeline_stage"),
        ("context_parallel_size", "context_parallel"),
        ("expert_model_parallel_size", "expert_parallel"),
    ):
        number = size(given, f"{_MEGATRON}.{key}")
        block *= 1 if target == "expert_parallel" else number
        draft.place_from(given, f"{_MEGATRON}.{key}", f"{TRAIN}.{target}", number)
    _fill_replicas(draft, TRAIN, cards, block, "cards / (model x pipeline x context)")
    for key, target in (("sequence_parallel", "use_seq_parallel"), ("use_distributed_optimizer", "optimizer_shard")):
        draft.place_from(given, f"{_MEGATRON}.{key}", f"{TRAIN}.{target}", is_on(given, f"{_MEGATRON}.{key}"))
    key = f"{_MEGATRON}.override_transformer_config.recompute_granularity"
    granularity = given[key]
    if granularity in ("full", "selective"):
        draft.place({f"{TRAIN}.recompute": granularity}, key)
    drop_what_has_no_effect(draft)
    assume_pipeline_micro_batches(draft, "Megatron lets all micro-batches of an update through the stages")


def _fill_replicas(draft: Draft, plan: str, cards: int, block: int, origin: str) -> int:
    replicas = max(1, cards // block)
    draft.place({f"{plan}.data_parallel": replicas}, f"{origin} = {cards} / {block}")
    if cards % block:
        draft.say(Fate.NOT_BUILT, f"{plan}.data_parallel", replicas, f"{cards} cards are no multiple of {block}")
    return replicas


def _fill_micro_batches(given: Given, draft: Draft) -> None:
    """Responses of one pass as given per card, or its tokens: at least those of the longest sample."""
    key = "trainer.samples_per_micro_batch"
    longest = _number(draft, "data.max_prompt_length") + _number(draft, "rollout.max_new_tokens")
    if is_on(given, f"{ACTOR}.use_dynamic_bsz"):
        key, multiple = "trainer.max_tokens_per_micro_batch", own_default("trainer.length_multiple")
        longest = -(-longest // multiple) * multiple
        origin = f"{ACTOR}.ppo_max_token_len_per_gpu"
        tokens = size(given, origin)
        draft.place_from(given, origin, key, max(tokens, longest))
        if tokens < longest:
            draft.say(Fate.ADJUSTED, key, tokens, f"{longest}, the longest prompt and response; verl raises it as well")
        return
    altogether = f"{ACTOR}.ppo_micro_batch_size"
    if draft.get(key) is not None:
        return
    if given[altogether] is not None:
        draft.place({key: max(1, size(given, altogether) // _number(draft, f"{TRAIN}.data_parallel"))}, altogether)
    else:
        draft.assume(key, 1, "no micro-batch is given", "more is faster where memory allows")


def _fill_slots(given: Given, draft: Draft) -> None:
    key = f"{ROLLOUT}.max_num_seqs"
    if key in given:
        draft.place({"rollout.slots": size(given, key) * _number(draft, f"{INFER}.data_parallel")}, key)


def _number(draft: Draft, key: str) -> int:
    value = draft.get(key, 1)
    return value if isinstance(value, int) and value > 0 else 1
