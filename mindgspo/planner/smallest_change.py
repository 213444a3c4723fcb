"""The smallest change of settings that makes a run fit: candidates are tried, cheapest first, with the same plan.

Only settings that do not change the results (except for rounding) are changed, and only to values that `config.rules`
accepts. A price is a rough rank of what a change costs in time or cards; the cheapest combination is the smallest. Pure
Python.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from mindgspo.config import ExperimentConfig
from mindgspo.config.rules import joined_problems, longest_sample
from mindgspo.config.section import Section
from mindgspo.planner.expected import expected_memory, level_of

Settings = Mapping[str, Any]
"""Values by key, as in --set."""
Rung = tuple[int, Settings]
"""Price, and settings in the place of those of lower rungs."""

_OPTIMIZER_SHARD, _SEQUENCE = 1, 1
_SELECTIVE, _FULL_RECOMPUTE = 2, 4
_HALF_MICRO_BATCH, _HALF_SLOTS = 2, 2
_SWAP, _RESHARD_BY_STEP = 3, 5
_OTHER_PLAN = 6  # per doubling of a size of the plan
_TWICE_THE_CARDS = 40  # per doubling of the cards, dearer than any other plan
_MAX_DOUBLINGS = 3


def smallest_change(config: ExperimentConfig) -> dict[str, Any] | None:
    """The cheapest settings with which the resolved configuration fits its memory; None if nothing that is tried does,
    {} if it fits as it is."""
    best: tuple[int, dict[str, Any]] | None = None
    for plan_price, plan_settings in sorted(_plan_changes(config), key=lambda rung: rung[0]):
        if best is not None and plan_price >= best[0]:
            break
        base = changed(config, plan_settings)
        found = _cheapest(base, limit=None if best is None else best[0] - plan_price)
        if found is not None:
            best = plan_price + found[0], {**plan_settings, **found[1]}
    return None if best is None else best[1]


def set_options(settings: Settings) -> str:
    """The settings as they stand on a command line."""
    return " ".join(f"--set {key}={_spelled(value)}" for key, value in settings.items())


def changed(config: ExperimentConfig, settings: Settings) -> ExperimentConfig:
    """The configuration with other values at dotted keys; not validated."""
    for key, value in settings.items():
        config = _with(config, key.split("."), value)
    return config


def _with(section: Any, keys: Sequence[str], value: Any) -> Any:
    assert isinstance(section, Section) and keys[0] in type(section).model_fields, keys
    below = value if len(keys) == 1 else _with(getattr(section, keys[0]), keys[1:], value)
    return section.model_copy(update={keys[0]: below})


def _cheapest(base: ExperimentConfig, limit: int | None) -> tuple[int, dict[str, Any]] | None:
    """Search all combinations of rungs, cheapest first. No rung needs more memory than the one below it: if all the
    highest together do not fit, nothing does."""
    ladders = _ladders(base)
    top = tuple(len(ladder) - 1 for ladder in ladders)
    if not _fits(base, _combined(ladders, top)[1]):
        return None
    start = tuple(0 for _ in ladders)
    waiting, seen = [(0, start)], {start}
    while waiting:
        price, rungs = heapq.heappop(waiting)
        if limit is not None and price >= limit:
            return None
        settings = _combined(ladders, rungs)[1]
        if _fits(base, settings):
            return price, settings
        for number in range(len(ladders)):
            higher = (*rungs[:number], rungs[number] + 1, *rungs[number + 1 :])
            if rungs[number] < top[number] and higher not in seen:
                seen.add(higher)
                heapq.heappush(waiting, (_combined(ladders, higher)[0], higher))
    return None


def _fits(base: ExperimentConfig, settings: Settings) -> bool:
    config = changed(base, settings)
    return not joined_problems(config) and expected_memory(config, levels=[level_of(config)]).fits()


def _combined(ladders: Sequence[Sequence[Rung]], rungs: Sequence[int]) -> tuple[int, dict[str, Any]]:
    """Price and settings of one rung of each ladder."""
    chosen = [ladder[rung] for ladder, rung in zip(ladders, rungs, strict=True)]
    return sum(price for price, _ in chosen), {key: value for _, settings in chosen for key, value in settings.items()}


def _ladders(config: ExperimentConfig) -> list[list[Rung]]:
    """Ladders of changes that keep the plans' sizes; the lowest rung changes nothing."""
    ladders = (
        _shard(config),
        _sequence(config),
        _recompute(config),
        _micro_batch(config),
        _swap(config),
        _slots(config),
    )
    return [[(0, {}), *ladder] for ladder in ladders]


def _shard(config: ExperimentConfig) -> list[Rung]:
    plan = config.plans.train
    if plan.optimizer_shard or plan.token_parts == 1:
        return []
    return [(_OPTIMIZER_SHARD, {"plans.train.optimizer_shard": True})]


def _sequence(config: ExperimentConfig) -> list[Rung]:
    rung = (_SEQUENCE, {"plans.train.use_seq_parallel": True})
    is_legal = config.device == "Ascend" and not joined_problems(changed(config, rung[1]))
    return [rung] if is_legal and not config.plans.train.use_seq_parallel else []


def _recompute(config: ExperimentConfig) -> list[Rung]:
    rungs = [(_SELECTIVE, "selective"), (_FULL_RECOMPUTE, "full")]
    skipped = {"none": 0, "selective": 1, "full": 2}[config.plans.train.recompute]
    return [(price, {"plans.train.recompute": value}) for price, value in rungs[skipped:]]


def _swap(config: ExperimentConfig) -> list[Rung]:
    on, by_step = {"swap.enabled": True}, {"swap.reshard_level": 1}
    if not config.swap.enabled:
        return [(_SWAP, on), (_RESHARD_BY_STEP, {**on, **by_step})]
    return [] if config.swap.reshard_level == 1 else [(_RESHARD_BY_STEP - _SWAP, by_step)]


def _micro_batch(config: ExperimentConfig) -> list[Rung]:
    trainer = config.trainer
    if trainer.max_tokens_per_micro_batch is None:
        assert trainer.samples_per_micro_batch is not None
        return list(_halvings("trainer.samples_per_micro_batch", trainer.samples_per_micro_batch, _HALF_MICRO_BATCH))
    key, lowest = "trainer.max_tokens_per_micro_batch", longest_sample(config)
    rungs = _halvings(key, trainer.max_tokens_per_micro_batch, _HALF_MICRO_BATCH)
    return [rung for rung in rungs if rung[1][key] >= lowest]


def _slots(config: ExperimentConfig) -> list[Rung]:
    """Not below one per replica, which it would be taken for."""
    replicas = config.plans.infer.data_parallel
    rungs = _halvings("rollout.slots", config.rollout.slots, _HALF_SLOTS)
    return [rung for rung in rungs if rung[1]["rollout.slots"] >= replicas]


def _halvings(key: str, value: int, price: int) -> Iterator[Rung]:
    number = 1
    while value % 2 == 0:
        value //= 2
        yield number * price, {key: value}
        number += 1


def _plan_changes(config: ExperimentConfig) -> Iterator[Rung]:
    """Other sizes of the plans, by powers of two: replicas that become slices, stages or parts of sequences, more
    cards. On CPU all ranks share one memory, so that plans stay as they are."""
    yield 0, {}
    if config.device == "CPU":
        return
    doublings = range(_MAX_DOUBLINGS + 1)
    of_experts = doublings if config.model.num_experts else range(1)
    for cards, *others in product(doublings, doublings, doublings, doublings, doublings, of_experts):
        settings = _other_plans(config, cards, *others)
        if settings and not joined_problems(changed(config, settings)):
            yield _TWICE_THE_CARDS * cards + _OTHER_PLAN * sum(others), settings


def _other_plans(
    config: ExperimentConfig, cards: int, slices: int, stages: int, parts: int, infer_slices: int, experts: int
) -> dict[str, Any]:
    """Settings after this many doublings of the cards, of the training plan's slices, stages and parts of sequences, of
    the infer plan's slices, and of the parts of the experts; the number of replicas compensates. Empty if it cannot."""
    train, infer = config.plans.train, config.plans.infer
    replicas = _scaled(train.data_parallel, cards - slices - stages - parts)
    infer_replicas = _scaled(infer.data_parallel, cards - infer_slices)
    if replicas is None or infer_replicas is None:
        return {}
    pipeline = train.pipeline_stage << stages
    context = train.context_parallel << parts
    sliced = train.model_parallel << slices
    largest = replicas * context * (sliced if train.expert_tensor_parallel == 1 else 1)
    settings = {
        "plans.train.data_parallel": replicas,
        "plans.train.model_parallel": sliced,
        # As where nothing is said: the output table, which is split, may be the embedding table.
        "plans.train.vocab_emb_dp": train.vocab_emb_dp and not (config.model.tie_word_embeddings and sliced > 1),
        "plans.train.pipeline_stage": pipeline,
        "plans.train.context_parallel": context,
        "plans.train.micro_batch_num": max(train.micro_batch_num, pipeline) if pipeline > 1 else 1,
        "plans.train.expert_parallel": min(train.expert_parallel << experts, largest),
        "plans.train.optimizer_shard": train.optimizer_shard and replicas * context > 1,
        "plans.train.overlap_grad_reduce": train.overlap_grad_reduce and replicas * context > 1,
        "plans.infer.data_parallel": infer_replicas,
        "plans.infer.model_parallel": infer.model_parallel << infer_slices,
    }
    if infer.expert_parallel > 1:
        settings["plans.infer.expert_parallel"] = infer.expert_parallel << infer_slices
    return {key: value for key, value in settings.items() if _value(config, key) != value}


def _scaled(value: int, doublings: int) -> int | None:
    """value * 2^doublings, None if that is no whole number."""
    if doublings >= 0:
        return value << doublings
    return None if value % 2**-doublings else value >> -doublings


def _value(config: ExperimentConfig, key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def _spelled(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
