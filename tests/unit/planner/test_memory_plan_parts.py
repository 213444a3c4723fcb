"""Bytes of holdings and of CPU graphs, by hand and in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planned_experiments import experiment_of, qwen2, teacher_folder

from mindgspo.config import ExperimentConfig
from mindgspo.planner import Part, SwapLevel, expected_memory
from mindgspo.planner.cpu_memory import cpu_standing
from mindgspo.planner.rank_work import RankWork, held_bytes, reshard_bytes, whole_bytes
from mindgspo.planner.smallest_change import changed
from mindgspo.swap.states import NEEDS, Holding, Phase

# One layer on one of four slices: q 896 x 3584 + 896, k and v 128 x 3584 + 128 each, o 3584 x 896, gate and up
# 4736 x 3584 each, down 3584 x 4736, two norms of 3584.
LAYER = 3_212_160 + 2 * 458_880 + 3_211_264 + 3 * 16_973_824 + 2 * 3584
INPUT_TABLE = 152_064 * 3584
OUTPUT_ROWS = 38_016 * 3584
STAGE_0 = 14 * LAYER + INPUT_TABLE
STAGE_1 = 14 * LAYER + 3584 + OUTPUT_ROWS


@pytest.mark.parametrize(("rank", "elements"), [(0, STAGE_0), (3, STAGE_0), (4, STAGE_1), (7, STAGE_1)])
def test_seven_billion_weights_gradients_and_moments_by_hand(seven_billion: ExperimentConfig, rank: int, elements: int):
    assert (STAGE_0, STAGE_1) == (1_360_774_912, 952_030_464)
    held = held_bytes(RankWork.of(seven_billion, rank))
    assert held[Holding.ACTOR_WEIGHTS] == held[Holding.GRADIENTS] == 4 * elements
    assert held[Holding.MOMENTS] == 8 * elements
    assert held[Holding.REFERENCE_WEIGHTS] == 0


def test_seven_billion_rollout_weights_and_cache_by_hand(seven_billion: ExperimentConfig) -> None:
    held = held_bytes(RankWork.of(seven_billion, 5))
    # A model of its own, in bfloat16.
    assert held[Holding.ROLLOUT_WEIGHTS] == 2 * (28 * LAYER + INPUT_TABLE + 3584 + OUTPUT_ROWS) == 4_625_610_752
    # 64 slots of each of two replicas, 2048 + 8192 columns, and a block for padding; one key/value head of 128, keys
    # and values, bfloat16.
    assert held[Holding.KV_CACHE] == (64 * 10_240 + 128) * 128 * 2 * 28 * 2 == 9_397_075_968


def test_a_budget_bounds_the_cache(seven_billion: ExperimentConfig) -> None:
    def cache(budget: float) -> int:
        return held_bytes(RankWork.of(changed(seven_billion, {"rollout.cache_gb": budget}), 5))[Holding.KV_CACHE]

    block = 128 * 128 * 2 * 28 * 2
    assert cache(100.0) == 5121 * block, "more than all slots can use is not taken"
    assert cache(2.0) == 2 * 2**30 // block * block


def test_a_smaller_cache_makes_room_for_sequences_that_are_run_again(seven_billion: ExperimentConfig) -> None:
    tight = RankWork.of(changed(seven_billion, {"rollout.cache_gb": 2.0}), 5)
    whole = RankWork.of(seven_billion, 5)
    assert whole.prefills == ((whole.prompts, 2048),) and tight.prefills == (*whole.prefills, (1, 10_240))


def test_the_cache_has_a_type_of_its_own() -> None:
    # 16 slots of 128 columns, which are a block, and one for padding; four key/value heads of 32, keys and values of 8
    # layers.
    numbers = 17 * 128 * 4 * 32 * 2 * 8
    for device, bytes_each in (("CPU", 4), ("Ascend", 2)):
        config = experiment_of(qwen2(), device=device)
        assert held_bytes(RankWork.of(config, 0))[Holding.KV_CACHE] == numbers * bytes_each
    halves = changed(config, {"device": "CPU", "rollout.cache_dtype": "float16"})
    assert held_bytes(RankWork.of(halves, 0))[Holding.KV_CACHE] == numbers * 2


def test_reshard_of_seven_billion_is_bounded_by_its_bucket(seven_billion: ExperimentConfig) -> None:
    first, second = (reshard_bytes(RankWork.of(seven_billion, rank)) for rank in (0, 4))
    assert 0 < first.bucket <= 64 << 20 and 0 < second.bucket <= 64 << 20
    # The largest parameter of a step is the whole input table, on stage 0 on both sides, on stage 1 on the new one.
    assert first.step == (4 + 2) * INPUT_TABLE
    assert second.step == 2 * INPUT_TABLE


def test_one_process_and_equal_plans_hold_one_set_of_weights() -> None:
    alone = experiment_of(qwen2())
    equal = experiment_of(qwen2(), train={"model_parallel": 2}, infer={"model_parallel": 2})
    for config in (alone, equal):
        work = RankWork.of(config, 0)
        assert held_bytes(work)[Holding.ROLLOUT_WEIGHTS] == reshard_bytes(work).step == 0
        plan = expected_memory(config)
        for level in SwapLevel:
            rollout = plan.classes[0].at(level, Phase.ROLLOUT)
            assert rollout.parts[Part.WEIGHTS] == held_bytes(work)[Holding.ACTOR_WEIGHTS]
            assert Part.ROLLOUT_WEIGHTS not in rollout.parts


@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_more_model_parallel_never_needs_more_weights(device: str) -> None:
    for vocab_emb_dp in (True, False):
        found = []
        for size in (1, 2, 4, 8):
            plan = {"model_parallel": size, "vocab_emb_dp": vocab_emb_dp}
            config = experiment_of(qwen2(), train=plan, infer=plan, device=device)
            found.append([held_bytes(RankWork.of(config, rank))[Holding.ACTOR_WEIGHTS] for rank in range(size)])
        assert all(len(set(of_ranks)) == 1 for of_ranks in found)
        sizes = [of_ranks[0] for of_ranks in found]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]


def test_optimizer_shard_divides_moments_and_adds_rows() -> None:
    """Rows of this model divide by 4; a rank has its quarter of the weights and of their gradients beside the whole. On
    Ascend the whole matrices of layers are in the type that they compute in."""
    matrices = 8 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768)
    for device, dtype, narrower in (("CPU", "bfloat16", 0), ("Ascend", "float32", 0), ("Ascend", "bfloat16", 2)):
        model = qwen2(dtype=dtype)
        before, after = (
            held_bytes(RankWork.of(experiment_of(model, train=train, infer={"data_parallel": 4}, device=device), 0))
            for train in ({"data_parallel": 4}, {"data_parallel": 4, "optimizer_shard": True})
        )
        own = before[Holding.ACTOR_WEIGHTS]
        assert (before[Holding.GRADIENTS], before[Holding.MOMENTS]) == (own, 2 * own)
        assert after[Holding.ACTOR_WEIGHTS] == own - narrower * matrices + own // 4
        assert (after[Holding.GRADIENTS], after[Holding.MOMENTS]) == (own + own // 4, 2 * own // 4)


@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_ranks_of_a_class_are_alike(device: str) -> None:
    config = experiment_of(qwen2(),
                           train={"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2, "micro_batch_num": 2},
                           infer={"data_parallel": 4, "model_parallel": 2}, device=device)  # fmt: skip
    plan = expected_memory(config)
    assert sorted(rank for each in plan.classes for rank in each.ranks) == list(range(8))
    for each in plan.classes:
        works = [RankWork.of(config, rank) for rank in each.ranks]
        assert len({tuple(held_bytes(work).items()) for work in works}) == 1
        assert len({replace(work, rank=0) for work in works}) == 1


def test_levels_hold_what_the_swap_declares(seven_billion: ExperimentConfig) -> None:
    config = changed(seven_billion, {"algorithm.kl.placement": "loss"})
    part_of = {Holding.ACTOR_WEIGHTS: Part.WEIGHTS, Holding.GRADIENTS: Part.GRADIENTS, Holding.MOMENTS: Part.MOMENTS,
               Holding.REFERENCE_WEIGHTS: Part.REFERENCE_WEIGHTS, Holding.ROLLOUT_WEIGHTS: Part.ROLLOUT_WEIGHTS,
               Holding.KV_CACHE: Part.KV_CACHE}  # fmt: skip
    (first, _) = expected_memory(config).classes
    held = {part_of[holding]: size for holding, size in held_bytes(RankWork.of(config, 0)).items()}
    for phase in NEEDS:
        if phase is Phase.EVALUATE:
            continue
        everything, by_phase = first.at(SwapLevel.EVERYTHING, phase).parts, first.at(SwapLevel.BY_PHASE, phase).parts
        assert held.items() <= everything.items()
        resident = {part for part in by_phase if part in held}
        assert resident == {part_of[holding] for holding in NEEDS[phase]}
        assert first.at(SwapLevel.BY_STEP, phase).total <= first.at(SwapLevel.BY_PHASE, phase).total
        assert first.at(SwapLevel.BY_PHASE, phase).total <= first.at(SwapLevel.EVERYTHING, phase).total


# ----- The reference policy in the memory plan: its own plan's slices, its graphs, and what a run without scoring saves
KL = {"kl": {"placement": "loss"}}


def experiment(reference: dict[str, int] | None, *, device: str = "CPU", **algorithm: object) -> ExperimentConfig:
    plans = {"train": {"model_parallel": 4}, "infer": {"data_parallel": 4},
             **({} if reference is None else {"reference": reference})}  # fmt: skip
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
    sizes = [each.at(SwapLevel.BY_PHASE, Phase.SCORE).parts[Part.REFERENCE_WEIGHTS] for each in plan.classes]
    assert sizes[0] == sizes[1] != sizes[2]
    config = experiment({"model_parallel": 2, "pipeline_stage": 2}, **KL)
    assert sizes[2] == held_bytes(RankWork.of(config, 3))[Holding.REFERENCE_WEIGHTS]
    assert Part.REFERENCE_WEIGHTS not in plan.classes[0].at(SwapLevel.BY_PHASE, Phase.UPDATE).parts


@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_the_samplers_log_probs_need_no_graph(device: str) -> None:
    recomputed, sampled = (
        expected_memory(experiment(None, device=device, old_log_probs=value), phases=[Phase.SCORE])
        for value in ("recompute", "sampler")
    )
    parts = [plan.classes[0].at(SwapLevel.BY_PHASE, Phase.SCORE).parts for plan in (recomputed, sampled)]
    assert Part.ACTIVATIONS in parts[0] and Part.ACTIVATIONS not in parts[1]
    both = expected_memory(experiment(None, device=device, old_log_probs="sampler", **KL), phases=[Phase.SCORE])
    assert Part.ACTIVATIONS in both.classes[0].at(SwapLevel.BY_PHASE, Phase.SCORE).parts, "the reference still scores"


@pytest.mark.parametrize("device", ["CPU", "Ascend"])
def test_a_teacher_scores_with_a_graph_of_its_own_sizes_and_a_server_with_none(device: str, tmp_path: Path) -> None:
    """As a policy of those sizes does; the fullest graph counts."""
    wide = qwen2(hidden_size=512, intermediate_size=2048, num_key_value_heads=8)
    folder, plans = teacher_folder(tmp_path / "wide", wide), {"train": {"model_parallel": 4}}

    def parts(model: dict[str, Any], old_log_probs: str, *teachers: dict[str, Any]) -> dict[Part, int]:
        algorithm = {"old_log_probs": old_log_probs} | ({"distillation": {"teachers": teachers}} if teachers else {})
        config = experiment_of(model, device=device, plans=plans | {"infer": {"data_parallel": 4}}, algorithm=algorithm)
        return dict(expected_memory(config, phases=[Phase.SCORE]).classes[0].at(SwapLevel.BY_PHASE, Phase.SCORE).parts)

    of_policy, of_both = parts(wide, "recompute"), parts(qwen2(), "recompute", {"path": folder})
    alone = parts(qwen2(), "sampler", {"path": folder})
    for part in (Part.ACTIVATIONS, Part.LOGITS):
        assert of_policy.get(part) == alone.get(part) == of_both.get(part)
        assert part not in parts(qwen2(), "sampler", {"url": "http://10.0.0.2:8000"})
    assert of_policy[Part.ACTIVATIONS] > parts(qwen2(), "recompute")[Part.ACTIVATIONS]


def test_ranks_of_one_training_stage_are_told_apart_by_a_teachers_stages(tmp_path: Path) -> None:
    teacher = {"path": teacher_folder(tmp_path / "one", qwen2()), "plan": {"model_parallel": 2, "pipeline_stage": 2}}
    plan = expected_memory(experiment(None, distillation={"teachers": [teacher]}))
    assert [each.ranks for each in plan.classes] == [(0,), (1,), (2, 3)]


# ----- CPU graphs of kernels: by hand for a small model, and their order
# 4 rows of 64 + 64 tokens; 8 layers of width 256, 8 heads and 4 key/value heads of 32, inner 768, vocabulary 1024.
TOKENS = 4 * 128
KEPT = TOKENS * (4 * 256 + 2 * 256 + 2 * 128 + 3 * 768)
# One layer's own, panels of gate and up, and the packed input of down.
AT_WORK = KEPT + 2 * 256 * 768 + TOKENS * 768
TABLE, MATRICES = 1024 * 256, 256 * 256 * 2 + 2 * 128 * 256 + 3 * 256 * 768
WEIGHTS = 2 * TABLE + 8 * (MATRICES + (256 + 2 * 128) + 2 * 256) + 256


@pytest.mark.parametrize(("recompute", "activations", "gradients"), [
    ("none", 8 * KEPT, TABLE), ("selective", 8 * KEPT, TABLE), ("full", 0, WEIGHTS),
])  # fmt: skip
def test_an_update_by_hand(recompute: str, activations: int, gradients: int) -> None:
    parts = cpu_standing(RankWork.of(experiment_of(qwen2(), train={"recompute": recompute}), 0), [Phase.UPDATE])
    assert parts[Part.ACTIVATIONS] == 4 * (activations + AT_WORK)
    assert parts[Part.NEW_GRADIENTS] == 4 * gradients
    # States and their gradients of 256 predictions, logits and states, and the panels of all entries, twice.
    assert parts[Part.LOGITS] == 4 * (2 * 256 * 256 + 256 * (1024 + 256) + 2 * 1024 * 256)


def test_gradients_of_a_tied_table_stand_beside_their_sum() -> None:
    model = qwen2(vocab_size=65536, tie_word_embeddings=True)
    parts = cpu_standing(RankWork.of(experiment_of(model), 0), [Phase.UPDATE])
    assert parts[Part.NEW_GRADIENTS] == 4 * (WEIGHTS - 2 * TABLE + 3 * 64 * TABLE)


def test_a_rollout_by_hand() -> None:
    config = experiment_of(qwen2(), slots=16)
    parts = cpu_standing(RankWork.of(config, 0), [Phase.ROLLOUT])
    assert parts[Part.LOGITS] == 4 * 16 * 1024
    assert parts[Part.PACKED_WEIGHTS] == 4 * (8 * MATRICES + TABLE)
    (plan,) = expected_memory(config, phases=[Phase.UPDATE]).classes
    assert Part.PACKED_WEIGHTS not in plan.at(SwapLevel.BY_PHASE, Phase.UPDATE).parts


def test_what_an_update_took_is_there_in_every_phase() -> None:
    config = experiment_of(qwen2())
    (plan,) = expected_memory(config).classes
    for phase in (Phase.ROLLOUT, Phase.RESHARD, Phase.SAVE):
        parts = plan.at(SwapLevel.BY_PHASE, phase).parts
        assert parts[Part.ACTIVATIONS] == cpu_standing(RankWork.of(config, 0), [Phase.UPDATE])[Part.ACTIVATIONS]


def test_a_process_of_one_phase_has_no_other_holdings() -> None:
    config = experiment_of(qwen2())
    rollout = expected_memory(config, phases=[Phase.ROLLOUT]).classes[0].at(SwapLevel.EVERYTHING, Phase.ROLLOUT)
    whole = expected_memory(config).classes[0].at(SwapLevel.EVERYTHING, Phase.ROLLOUT)
    assert {Part.WEIGHTS, Part.KV_CACHE} <= set(rollout.parts)
    assert not {Part.GRADIENTS, Part.MOMENTS} & set(rollout.parts)
    assert rollout.total < whole.total


def test_rank_0_alone_copies_a_checkpoint() -> None:
    config = experiment_of(qwen2(), train={"model_parallel": 2}, infer={"data_parallel": 2})
    first, other = expected_memory(config).classes
    assert (first.ranks, other.ranks) == ((0,), (1,))
    tables, layer = 2 * 1024 * 256, 256 * 256 * 2 + 2 * 128 * 256 + 3 * 256 * 768 + (256 + 2 * 128) + 2 * 256
    assert first.at(SwapLevel.EVERYTHING, Phase.SAVE).parts[Part.COPIES] == 3 * 4 * (tables + 8 * layer + 256)
    assert Part.COPIES not in other.at(SwapLevel.EVERYTHING, Phase.SAVE).parts
    assert Part.COPIES not in first.at(SwapLevel.EVERYTHING, Phase.ROLLOUT).parts


def test_copies_that_are_written_in_the_background_stand_beside_the_next_phases() -> None:
    config = changed(experiment_of(qwen2()), {"trainer.save_in_background": True})
    (only,) = expected_memory(config).classes
    phases = (Phase.ROLLOUT, Phase.UPDATE, Phase.SAVE)
    copies = [only.at(SwapLevel.EVERYTHING, phase).parts[Part.COPIES] for phase in phases]
    assert copies[0] == copies[1] == copies[2] > 0


@pytest.mark.parametrize(("setting", "phase"), [
    ({"rows": 8}, Phase.UPDATE),
    ({"response": 256}, Phase.UPDATE),
    ({"response": 256}, Phase.SCORE),
    ({"slots": 64}, Phase.ROLLOUT),
])  # fmt: skip
def test_more_work_needs_more(setting: dict[str, int], phase: Phase) -> None:
    small, large = (
        expected_memory(experiment_of(qwen2(), **changes), phases=[phase]).peak()[1] for changes in ({}, setting)
    )
    assert small < large
