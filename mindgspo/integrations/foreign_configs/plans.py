"""What follows from several sizes at once, for all suites: plans of equal cards, micro-batches that divide.

What enters: sizes as a foreign file gives them. What leaves: values of the sections `plans` and `trainer`, and remarks
on those that had to change without a change of the result. Called by the suites' modules.
"""

from __future__ import annotations

from mindgspo.integrations.foreign_configs.draft import Draft
from mindgspo.integrations.foreign_configs.table import Fate

TRAIN, INFER = "plans.train", "plans.infer"


def world_size(draft: Draft, plan: str) -> int:
    """Cards of a plan of the draft."""
    sizes = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel")
    product = 1
    for name in sizes:
        product *= _size(draft, f"{plan}.{name}")
    return product


def drop_what_has_no_effect(draft: Draft) -> None:
    """Takes out of the train plan what its own sizes make void; this project refuses such entries."""
    _drop(draft, "optimizer_shard", when="data_parallel", why="one replica keeps all moments")
    _drop(draft, "use_seq_parallel", when="model_parallel", why="nothing splits the sequence")
    if _size(draft, f"{TRAIN}.pipeline_stage") == 1:
        key = f"{TRAIN}.micro_batch_num"
        if draft.get(key, 1) != 1:
            why = "counts between pipeline stages, and there is one"
            draft.say(Fate.ADJUSTED, key, draft.get(key), f"left out: it {why}")
            del draft.values[key]


def _drop(draft: Draft, name: str, *, when: str, why: str) -> None:
    key = f"{TRAIN}.{name}"
    if draft.get(key) and _size(draft, f"{TRAIN}.{when}") == 1:
        draft.say(Fate.ADJUSTED, key, draft.get(key), f"left out: {when} is 1, so {why}")
        del draft.values[key]


def infer_plan_of_the_train_plan(draft: Draft) -> None:
    """Where no plan of generation is given: the same slices, the stages as replicas."""
    if any(key.startswith(f"{INFER}.") for key in draft.values):
        return
    slices = _size(draft, f"{TRAIN}.model_parallel")
    replicas = world_size(draft, TRAIN) // slices
    for name, value in (("data_parallel", replicas), ("model_parallel", slices)):
        draft.assume(f"{INFER}.{name}", value, "no plan of generation is given", "the cards of the train plan")


def spread_the_infer_plan(draft: Draft) -> None:
    """Replicas of generation fill the cards of the train plan, which both plans share."""
    cards, given = world_size(draft, TRAIN), world_size(draft, INFER)
    one_replica = given // _size(draft, f"{INFER}.data_parallel")
    if cards != given and cards % one_replica == 0:
        before, key = draft.get(f"{INFER}.data_parallel", 1), f"{INFER}.data_parallel"
        draft.place({key: cards // one_replica}, "the train plan's cards")
        why = f"both plans share the {cards} cards of the train plan; replicas work alike"
        draft.say(Fate.ADJUSTED, key, before, f"{cards // one_replica}: {why}")


def assume_pipeline_micro_batches(draft: Draft, why: str) -> None:
    """micro_batch_num of a plan with stages: the smallest that is legal and divides the work."""
    stages = _size(draft, f"{TRAIN}.pipeline_stage")
    if stages > 1:
        draft.assume(f"{TRAIN}.micro_batch_num", stages, why, "the smallest legal number; more idle less")


def _size(draft: Draft, key: str) -> int:
    value = draft.get(key, 1)
    return value if isinstance(value, int) and value > 0 else 1
