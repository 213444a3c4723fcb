"""The reference policy in the memory plan: its own plan's slices, its graphs, and what a run without scoring saves."""

from __future__ import annotations

import pytest
from planned_experiments import experiment_of, qwen2

from mindgspo.config import ExperimentConfig
from mindgspo.parallel.swap.states import Holding, Phase
from mindgspo.planner import Level, Part, expected_memory
from mindgspo.planner.rank_work import RankWork, held_bytes, whole_bytes

KL = {"kl": {"placement": "loss"}}


def experiment(reference: dict[str, int] | None, *, device: str = "CPU", **algorithm: object) -> ExperimentConfig:
    plans = {
        "train": {"model_parallel": 4},
        "infer": {"data_parallel": 4},
        **({} if reference is None else {"reference": reference}),
    }
    return experiment_of(qwen2(), device=device, plans=plans, algorithm=algorithm)


@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_each_rank_holds_the_slices_of_the_references_plan(device: str) -> None:
    whole = whole_bytes(experiment(None).model)
    found = {}
    for name, reference in (("shared", None), ("whole", {"data_parallel": 4}), ("stages", {"pipeline_stage": 4})):
        held = [held_bytes(RankWork.of(experiment(reference, device=device, **KL), rank)) for rank in range(4)]
        found[name] = [each[Holding.REFERENCE_WEIGHTS] for each in held]
        assert found["shared"] == [each[Holding.ACTOR_WEIGHTS] for each in held]
    assert found["whole"] == [whole] * 4
    assert sum(found["stages"]) == whole and len(set(found["stages"])) > 1
    assert held_bytes(RankWork.of(experiment({"data_parallel": 4}), 0))[Holding.REFERENCE_WEIGHTS] == 0, "no penalty"


def test_ranks_of_one_training_stage_are_told_apart_by_the_references_stages() -> None:
    plan = expected_memory(experiment({"model_parallel": 2, "pipeline_stage": 2}, **KL))
    assert [each.ranks for each in plan.classes] == [(0,), (1,), (2, 3)]
    sizes = [each.at(Level.BY_PHASE, Phase.SCORE).parts[Part.REFERENCE_WEIGHTS] for each in plan.classes]
    assert sizes[0] == sizes[1] != sizes[2]
    config = experiment({"model_parallel": 2, "pipeline_stage": 2}, **KL)
    assert sizes[2] == held_bytes(RankWork.of(config, 3))[Holding.REFERENCE_WEIGHTS]
    assert Part.REFERENCE_WEIGHTS not in plan.classes[0].at(Level.BY_PHASE, Phase.UPDATE).parts


@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_the_samplers_log_probs_need_no_graph(device: str) -> None:
    recomputed, sampled = (
        expected_memory(experiment(None, device=device, old_log_probs=value)) for value in ("recompute", "sampler")
    )
    parts = [plan.classes[0].at(Level.BY_PHASE, Phase.SCORE).parts for plan in (recomputed, sampled)]
    assert Part.ACTIVATIONS in parts[0] and Part.ACTIVATIONS not in parts[1]
    both = expected_memory(experiment(None, device=device, old_log_probs="sampler", **KL))
    assert Part.ACTIVATIONS in both.classes[0].at(Level.BY_PHASE, Phase.SCORE).parts, "the reference still scores"
