"""Plans and batch sizes that fit: candidates in the order in which one would want them, tried with the planner.

First what divides the model least, for every division costs messages; before more of it activations are computed again;
only where nothing else helps, weights leave the card between the phases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

from mindgspo.config import ExperimentConfig, ModelSection, ParallelPlan, load_mapping
from mindgspo.config.load import merge
from mindgspo.config.plan import legal_expert_parallel, legal_model_parallel
from mindgspo.config.rules import longest_row
from mindgspo.errors import ConfigError
from mindgspo.planner.expected import expected_memory, level_of
from mindgspo.planner.memory_plan import GIB, MemoryPlan
from mindgspo.planner.rank_work import FLOAT, whole_bytes
from mindgspo.text import counted, divisors

SHARE = 0.9
"""Of the memory that a plan may take: it is an estimate."""
UPDATES = 4
"""Per rollout, as in the paper."""
_STEPS_PER_EPOCH = 4
_SERVER = 8
_BYTES_TRAINED = 3 * FLOAT  # a float32 weight, its gradient and at least a share of its moments
_MICRO_BATCH = {"CPU": 4096, "Ascend": 16_384}
_SLOTS = (128, 64, 32, 16, 8)
_OTHER_CARDS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the run gets. capacity: bytes of a card, on CPU of the whole machine; None: 64 GiB, or what it has."""

    device: str
    cards: int
    capacity: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An experiment that fits: its mapping, the same resolved, and its memory."""

    mapping: Mapping[str, Any]
    config: ExperimentConfig
    memory: MemoryPlan


def prompts_per_step(machine: Machine, num_rows: int) -> int:
    """A number that every plan on these cards can share out: a multiple of the cards and of the updates, at most what
    is usual and what leaves a few steps per epoch. Raises ConfigError where there are too few rows."""
    step = lcm(UPDATES, machine.cards)
    usual = min(32 * machine.cards, 512) if machine.device == "Ascend" else 16
    number = max(min(usual, num_rows // _STEPS_PER_EPOCH) // step * step, step)
    if number > num_rows:
        raise ConfigError(
            f"--cards {machine.cards}: {num_rows} questions to train on are too few, a step draws at least {step} "
            "different ones; give more rows, or fewer cards"
        )
    return number


def fitting(source: str, base: Mapping[str, Any], machine: Machine) -> Fit:
    """The base experiment with the first plans that fit, the largest micro-batch and the most slots that fit then.

    source: what errors call it. base: without plans, slots and micro-batch. Raises ConfigError: no legal plan, or
    nothing fits, with the number of cards on which something would.
    """
    fit, smallest = _first_fit(source, base, machine)
    if fit is None:
        raise ConfigError(_refusal(source, base, machine, smallest))
    for key, settings in (("trainer", _micro_batches(fit, machine)), ("rollout", _slots(fit))):
        for section in settings:
            larger = _tried(source, merge(fit.mapping, {key: section}), machine)
            if larger is not None and _fits(larger):
                fit = larger
                break
    return fit


def _first_fit(source: str, base: Mapping[str, Any], machine: Machine) -> tuple[Fit | None, Fit | None]:
    """The first candidate that fits; failing that, None and the one that needs least."""
    model = load_mapping(source, merge(base, _smallest_batch(base, 1)), check_files=False).model
    smallest: Fit | None = None
    for replicas, settings in _candidates(model, machine):
        tried = _tried(source, merge(merge(base, _smallest_batch(base, replicas)), settings), machine)
        if tried is None:
            continue
        if _fits(tried):
            return tried, None
        if smallest is None or tried.memory.peak()[1] < smallest.memory.peak()[1]:
            smallest = tried
    return None, smallest


def _tried(source: str, mapping: Mapping[str, Any], machine: Machine) -> Fit | None:
    """None where a rule refuses the plans."""
    try:
        config = load_mapping(source, mapping, check_files=False)
    except ConfigError:
        return None
    memory = expected_memory(config, capacity=machine.capacity, levels=[level_of(config)])
    return Fit(mapping=mapping, config=config, memory=memory)


def _fits(fit: Fit) -> bool:
    return fit.memory.peak()[1] <= SHARE * fit.memory.capacity


def _smallest_batch(base: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    """One row per micro-batch, and few sequences at a time."""
    longest = base["data"]["max_prompt_length"] + base["rollout"]["max_new_tokens"]
    multiple = base["trainer"]["length_multiple"]
    return {
        "trainer": {"max_tokens_per_micro_batch": -(-longest // multiple) * multiple},
        "rollout": {"slots": _SLOTS[-1] * replicas},
    }


def _micro_batches(fit: Fit, machine: Machine) -> Iterator[dict[str, int]]:
    longest, tokens = longest_row(fit.config), _MICRO_BATCH[machine.device]
    while tokens > longest:
        yield {"max_tokens_per_micro_batch": tokens}
        tokens //= 2


def _slots(fit: Fit) -> Iterator[dict[str, int]]:
    rollout, replicas = fit.config.rollout, fit.config.plans.infer.data_parallel
    most = rollout.prompts_per_step * rollout.num_generations // replicas
    for slots in _SLOTS[:-1]:
        if slots <= most:
            yield {"slots": slots * replicas}


def _candidates(model: ModelSection, machine: Machine) -> Iterator[tuple[int, dict[str, Any]]]:
    """(replicas that generate, settings of plans and swap); what is a default is left out."""
    cards = machine.cards
    experts = 0
    if model.num_experts is not None and model.moe_intermediate_size is not None:
        experts = model.num_hidden_layers * model.num_experts * 3 * model.hidden_size * model.moe_intermediate_size
    others = whole_bytes(model) // FLOAT - experts
    capacity = machine.capacity or 64 * GIB
    slices = [size for size in legal_model_parallel(ParallelPlan(), model) if cards % size == 0 and size <= _SERVER]
    for swap in ({}, {"swap": {"enabled": True}}) if machine.device == "Ascend" else ({},):
        for parts in divisors(cards):
            held = _BYTES_TRAINED * (others // parts + experts // cards)
            if machine.device == "Ascend" and held > capacity:
                continue
            for size in sorted(slices, reverse=True):
                stages = parts // size
                if parts % size or (stages > 1 and (machine.device == "CPU" or size < max(slices))):
                    continue
                for saving in _savings(size, machine):
                    for infer in slices:
                        train = _train_plan(model, machine, size, stages) | saving
                        plans = {"train": train, "infer": _infer_plan(model, machine, infer)}
                        plans = {name: plan for name, plan in plans.items() if plan}
                        yield cards // infer, {**swap, **({"plans": plans} if plans else {})}


def _savings(slices: int, machine: Machine) -> list[dict[str, Any]]:
    """What a plan can do against activations."""
    split = [{"recompute": "full", "use_seq_parallel": True}] if slices > 1 and machine.device == "Ascend" else []
    return [{}, {"recompute": "full"}, *split]


def _train_plan(model: ModelSection, machine: Machine, slices: int, stages: int) -> dict[str, Any]:
    replicas = machine.cards // slices // stages
    plan = _sizes(replicas, slices)
    if stages > 1:
        plan |= {"pipeline_stage": stages, "micro_batch_num": 2 * stages}
    if replicas > 1 and machine.device == "Ascend":
        plan["optimizer_shard"] = True
    if model.num_experts is not None and machine.device == "Ascend" and replicas * slices > 1:
        sizes = ParallelPlan(data_parallel=replicas, model_parallel=slices, expert_tensor_parallel=1)
        plan |= {"expert_parallel": legal_expert_parallel(sizes, model.num_experts)[-1], "expert_tensor_parallel": 1}
    return plan


def _sizes(replicas: int, slices: int) -> dict[str, Any]:
    """Tables are divided too, for whole ones would take gigabytes."""
    tables = {"vocab_emb_dp": False} if slices > 1 else {}
    sizes = {"data_parallel": replicas, "model_parallel": slices}
    return {key: size for key, size in sizes.items() if size > 1} | tables


def _infer_plan(model: ModelSection, machine: Machine, slices: int) -> dict[str, Any]:
    plan = _sizes(machine.cards // slices, slices)
    if model.num_experts is not None and slices > 1 and model.num_experts % slices == 0:
        plan |= {"expert_parallel": slices, "expert_tensor_parallel": 1}
    return plan


def _refusal(source: str, base: Mapping[str, Any], machine: Machine, smallest: Fit | None) -> str:
    plain = {"plans": {name: {"data_parallel": machine.cards} for name in ("train", "infer")}}
    if smallest is None:
        try:
            load_mapping(source, merge(merge(base, _smallest_batch(base, machine.cards)), plain), check_files=False)
        except ConfigError as error:
            return f"--cards {machine.cards}: no plan is legal; the plain one: {error}"
    where = counted(machine.cards, "card") if machine.device == "Ascend" else "this machine"
    needs = (
        ""
        if smallest is None
        else (
            f": the least that was found needs {smallest.memory.peak()[1] / GIB:.1f} GiB, and {100 * SHARE:.0f} % of "
            f"{smallest.memory.capacity / GIB:.1f} may be planned"
        )
    )
    capacity = machine.capacity if machine.device == "Ascend" else None
    for cards in _OTHER_CARDS:
        if machine.device == "Ascend" and cards <= machine.cards:
            continue
        other = Machine(device="Ascend", cards=cards, capacity=capacity)
        on_cards = merge(base, {"device": "Ascend", "model": {"dtype": "bfloat16"}})
        if base["rollout"]["prompts_per_step"] % lcm(UPDATES, cards) == 0 and _first_fit(source, on_cards, other)[0]:
            return f"{source} does not fit on {where}{needs}; on {counted(cards, 'card')} it does: --cards {cards}"
    return f"{source} does not fit on {where}{needs}; take a smaller model, shorter responses or more cards"
