"""Plans and batch sizes that fit: candidates in the order of preference, tried with the planner.

Plans that divide the model least come first, because every division costs messages; activations are recomputed before
the model is divided further; weights leave the card between phases only if nothing else helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from mindgspo.config import ExperimentConfig, ModelSection, ParallelPlan, load_mapping
from mindgspo.config.load import merge
from mindgspo.config.plan import legal_expert_parallel, legal_model_parallel
from mindgspo.config.rules import longest_sample
from mindgspo.errors import ConfigError
from mindgspo.planner.cache_budget import SHARE, most_slots
from mindgspo.planner.expected import capacity, expected_memory, level_of
from mindgspo.planner.memory_plan import GIB, MemoryPlan
from mindgspo.planner.rank_work import FLOAT, whole_bytes
from mindgspo.planner.time.estimate import estimate_step
from mindgspo.text import counted, divisors, either

UPDATES = 4
"""Per rollout, as in the paper."""
_STEPS_PER_EPOCH = 4  # at least, so that a small file is not used up by one step
_SERVER = 8  # cards; model_parallel stays within a server, where links are fast
_BYTES_GENERATING = 2  # of a weight in bfloat16
_MICRO_BATCH = {"CPU": 4096, "Ascend": 16_384}
_FEWEST_SLOTS = 8
_TABLE_ROWS = 512  # Qwen2.5's larger models have a multiple of it
_OTHER_CARDS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Hardware of the run. Memory of a card is a setting of the experiment."""

    device: str
    cards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An experiment that fits: its mapping, the same resolved, and its memory. seconds: that a step is expected to
    take, None if nothing is known of the speed. padding: why the tables have more rows than the vocabulary."""

    mapping: Mapping[str, Any]
    config: ExperimentConfig
    memory: MemoryPlan
    seconds: float | None = None
    padding: str = ""


def prompts_per_step(machine: Hardware, num_rows: int) -> int:
    """A number that every plan on these cards can divide: a multiple of the cards and of the updates, at most the usual
    number, and small enough for a few steps per epoch. Raises ConfigError if there are too few rows."""
    step = lcm(UPDATES, machine.cards)
    usual = min(32 * machine.cards, 512) if machine.device == "Ascend" else 16
    number = max(min(usual, num_rows // _STEPS_PER_EPOCH) // step * step, step)
    if number > num_rows:
        raise ConfigError(
            f"--cards {machine.cards}: {num_rows} questions to train on are too few, a step draws at least {step} "
            "different ones; give more rows, or fewer cards"
        )
    return number


def fitting(source: str, base: Mapping[str, Any], machine: Hardware) -> Fit:
    """The base experiment with plans that fit, and the most slots and largest micro-batch that fit then. Of several
    ways to generate, the one with the fastest expected step.

    source: its name in errors. base: without plans, slots and micro-batch. Raises ConfigError if nothing fits, with the
    number of cards on which something would.
    """
    refused: list[Fit] = []
    found = [_tuned(source, fit, machine) for fit in _fits_by_generation(source, base, machine, refused)]
    if not found and (padded := _padded(source, base, machine)):
        settings, why = padded
        found = [_tuned(source, fit, machine) for fit in _fits_by_generation(source, settings, machine, refused)]
        found = [replace(fit, padding=why) for fit in found]
    if not found:
        raise ConfigError(_refusal(source, base, machine, refused))
    if machine.device == "CPU":
        return found[0]
    timed = [(estimate.seconds, fit) for fit in found if (estimate := estimate_step(fit.config))]
    seconds, fastest = min(timed, key=lambda pair: pair[0])
    return replace(fastest, seconds=seconds)


def _fits_by_generation(source: str, base: Mapping[str, Any], machine: Hardware, refused: list[Fit]) -> Iterator[Fit]:
    """For each way to generate, yield the first training plan that fits. refused: collects those that do not fit."""
    config = load_mapping(source, merge(base, _smallest_batch(base, 1)), check_files=False)
    model, most = config.model, SHARE * capacity(config)
    for is_swapped in (False, True) if machine.device == "Ascend" else (False,):
        for slices in _slices(model, machine):
            infer = _infer_plan(model, machine, slices)
            batch = merge(base, _smallest_batch(base, machine.cards // slices))
            for train in _train_plans(model, machine, slices, most, is_swapped=is_swapped):
                plans = {name: plan for name, plan in (("train", train), ("infer", infer)) if plan}
                settings = ({"plans": plans} if plans else {}) | ({"swap": {"enabled": True}} if is_swapped else {})
                tried = _tried(source, merge(batch, settings), machine)
                if tried is None:
                    continue
                if _fits(tried):
                    yield tried
                    break
                refused.append(tried)


def _tuned(source: str, fit: Fit, machine: Hardware) -> Fit:
    """The same plans with the most slots and the largest micro-batch that still fit."""
    slots = {"slots": most_slots(fit.config)}
    larger = _tried(source, merge(fit.mapping, {"rollout": slots}), machine)
    assert larger is not None, "rollout.slots breaks no rule"
    for section in _micro_batches(larger, machine):
        found = _tried(source, merge(larger.mapping, {"trainer": section}), machine)
        if found is not None and _fits(found):
            return found
    return larger


def _tried(source: str, mapping: Mapping[str, Any], machine: Hardware) -> Fit | None:
    """The plans with the memory they need; None if a rule rejects them."""
    try:
        config = load_mapping(source, mapping, check_files=False)
    except ConfigError:
        return None
    memory = expected_memory(config, levels=[level_of(config)])
    return Fit(mapping=mapping, config=config, memory=memory)


def _fits(fit: Fit) -> bool:
    return fit.memory.peak()[1] <= SHARE * fit.memory.capacity


def _smallest_batch(base: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    """One row per micro-batch, and few sequences at a time."""
    longest = base["data"]["max_prompt_length"] + base["rollout"]["max_new_tokens"]
    multiple = base["trainer"]["length_multiple"]
    return {
        "trainer": {"max_tokens_per_micro_batch": -(-longest // multiple) * multiple},
        "rollout": {"slots": _FEWEST_SLOTS * replicas},
    }


def _micro_batches(fit: Fit, machine: Hardware) -> Iterator[dict[str, int]]:
    longest, tokens = longest_sample(fit.config), _MICRO_BATCH[machine.device]
    while tokens > longest:
        yield {"max_tokens_per_micro_batch": tokens}
        tokens //= 2


def _slices(model: ModelSection, machine: Hardware) -> list[int]:
    """Legal sizes of model_parallel within a server, ascending."""
    return [
        size for size in legal_model_parallel(ParallelPlan(), model) if machine.cards % size == 0 and size <= _SERVER
    ]


def _train_plans(
    model: ModelSection, machine: Hardware, infer_slices: int, most: float, *, is_swapped: bool
) -> Iterator[dict[str, Any]]:
    """Training plans from the fewest divisions to the most; pipelines only where slices alone are not enough.

    Default entries are left out, and so are plans that cannot fit with any batch. most: bytes that a card may hold.
    """
    experts = 0
    if model.num_experts is not None and model.moe_intermediate_size is not None:
        experts = len(model.expert_layers) * model.num_experts * 3 * model.hidden_size * model.moe_intermediate_size
    others = whole_bytes(model) // FLOAT - experts
    slices, cards = _slices(model, machine), machine.cards
    rollout = 0 if is_swapped else _BYTES_GENERATING * (others + experts) // infer_slices
    for parts in divisors(cards):
        # Weights and gradients once per replica; moments, and rows of both for the optimizer, once in all; experts too.
        shared = 2 * others // cards if cards > parts else others // cards
        trained = 2 * FLOAT * (others // parts + shared + 2 * experts // cards)
        if model.lora is not None:  # weights alone
            trained = FLOAT * (others // parts + experts // cards)
        if machine.device == "Ascend" and trained + rollout > most:
            continue
        for size in reversed(slices):
            stages = parts // size
            if parts % size or (stages > 1 and size < slices[-1]):
                continue
            for saving in _savings(size):
                yield _train_plan(model, machine, size, stages) | saving


def _savings(slices: int) -> list[dict[str, Any]]:
    """Settings of a plan that save memory of activations."""
    split = [{"recompute": "full", "use_seq_parallel": True}] if slices > 1 else []
    return [{}, {"recompute": "full"}, *split]


def _train_plan(model: ModelSection, machine: Hardware, slices: int, stages: int) -> dict[str, Any]:
    replicas = machine.cards // slices // stages
    plan = _sizes(replicas, slices)
    if stages > 1:
        plan |= {"pipeline_stage": stages, "micro_batch_num": 2 * stages}
    if replicas > 1:
        plan["optimizer_shard"] = True
    if model.num_experts is not None and replicas * slices > 1:
        sizes = ParallelPlan(data_parallel=replicas, model_parallel=slices, expert_tensor_parallel=1)
        plan |= {"expert_parallel": legal_expert_parallel(sizes, model.num_experts)[-1], "expert_tensor_parallel": 1}
    return plan


def _sizes(replicas: int, slices: int) -> dict[str, Any]:
    """Tables are divided too, for whole ones would take gigabytes."""
    tables = {"vocab_emb_dp": False} if slices > 1 else {}
    sizes = {"data_parallel": replicas, "model_parallel": slices}
    return {key: size for key, size in sizes.items() if size > 1} | tables


def _infer_plan(model: ModelSection, machine: Hardware, slices: int) -> dict[str, Any]:
    plan = _sizes(machine.cards // slices, slices)
    if model.num_experts is not None and slices > 1 and model.num_experts % slices == 0:
        plan |= {"expert_parallel": slices, "expert_tensor_parallel": 1}
    return plan


def _refusal(source: str, base: Mapping[str, Any], machine: Hardware, refused: list[Fit]) -> str:
    smallest = min(refused, key=lambda fit: fit.memory.peak()[1], default=None)
    needs = ""
    if smallest is not None:
        needed, card = smallest.memory.peak()[1] / GIB, smallest.memory.capacity / GIB
        planned = f"{100 * SHARE:.0f} % of {card:.1f} may be planned"
        needs = f": the least that was found needs {needed:.1f} GiB, and {planned}"
    where = counted(machine.cards, "card") if machine.device == "Ascend" else "this machine"
    on_cards = merge(base, {"device": "Ascend", "model": {"dtype": "bfloat16"}})
    if machine.device == "CPU":  # whose memory is no card's
        on_cards.pop("memory", None)
    for cards in _OTHER_CARDS:
        is_more = machine.device == "CPU" or cards > machine.cards
        other = Hardware(device="Ascend", cards=cards)
        can_share = base["rollout"]["prompts_per_step"] % lcm(UPDATES, cards) == 0
        if is_more and can_share and any(True for _ in _fits_by_generation(source, on_cards, other, [])):
            return f"{source} does not fit on {where}{needs}; on {counted(cards, 'card')} it does: --cards {cards}"
    adapters = "" if "lora" in base["model"] else ", or train adapters: --lora"
    return f"{source} does not fit on {where}{needs}; take a smaller model, shorter responses or more cards{adapters}"


def _padded(source: str, base: Mapping[str, Any], machine: Hardware) -> tuple[dict[str, Any], str] | None:
    """The experiment with padded tables that can be split over more cards, and the reason; None if padding does not
    help."""
    model = load_mapping(source, merge(base, _smallest_batch(base, 1)), check_files=False).model
    rows = -(-model.vocab_size // _TABLE_ROWS) * _TABLE_ROWS
    slices, legal = _slices(model, machine), _slices(model.model_copy(update={"table_rows": rows}), machine)
    if not (uncut := [size for size in legal if size not in slices]):
        return None
    cuts = "only pipelines cut the model" if slices == [1] else f"matrices are cut into {either(slices)} parts alone"
    *others, last = map(str, uncut)
    sizes = f"{', '.join(others)} or {last}" if others else last
    return merge(base, {"model": {"table_rows": rows}}), (
        f"vocab_size {model.vocab_size} has no divisor {sizes}, so that {cuts} and it does not fit; with a table of "
        f"{rows} rows (model.table_rows) it fits, with the same results"
    )
