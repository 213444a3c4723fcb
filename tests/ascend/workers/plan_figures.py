"""What plans make of one recorded rollout on emulated cards: scores, updates, weights, then tokens of the infer plan.

usage: plan_figures.py FOLDER, in the environment of emulated cards. FOLDER/job.json is a list of cases; rank 0 writes
FOLDER/<name>.npz. `figures` is also called by tests on CPU, for the plan of one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]

NUM_UPDATES = 3
LEARNING_RATE = 5e-4
NUM_SAMPLES, MAX_NEW_TOKENS = 4, 12

# Heads are as wide as attention on Ascend takes them.
DENSE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
}
MODELS = {
    "dense": DENSE,
    "tied": DENSE | {"tie_word_embeddings": True},
    "experts": DENSE
    | {
        "architecture": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}


def figures(case: Mapping, device: str) -> Arrays:
    """Everything that is compared, whole, on rank 0.

    case: model, train and infer (plans; no infer: nothing is sampled), is_packed, dtype.
    """
    from plan_cases import batches_of, definition

    from mindgspo.algorithms.losses.gspo import GSPOLoss
    from mindgspo.algorithms.taking_part import updater_of
    from mindgspo.config import ModelSection, OptimizerSection, ParallelPlan
    from mindgspo.data.rows import gathered
    from mindgspo.models.logical_scorer import scorer_of
    from mindgspo.models.policy import PolicyLogProbs, build_model
    from mindgspo.models.weights import initialize_weights, weights_as_numpy
    from mindgspo.parallel import runtime
    from mindgspo.parallel.placement import Placement, logical_placement

    section = ModelSection(**MODELS[case["model"]], dtype=case.get("dtype", "float32"))
    plan = ParallelPlan(**case["train"])
    place = Placement(plan=plan, rank=runtime.rank())
    if device == "Ascend" and plan.world_size > 1:
        place = logical_placement(plan, section.num_key_value_heads, rank=runtime.rank())
    model = build_model(section, place)
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False)
    updater = updater_of(policy, GSPOLoss(definition()), OptimizerSection(lr=LEARNING_RATE))
    packed_for = plan.data_parallel if case.get("is_packed") else None
    layout = {"in_one_row": device == "Ascend", "in_rounds": place.is_divided, "round_size": plan.micro_batch_num}
    batches = batches_of(section, packed_for=packed_for, **layout if packed_for else {})
    if place.is_divided:
        updater.compile(batches[0])
    initialize_weights(model, section, seed=3)
    scorer = scorer_of(model, temperature=1.0)
    arrays: Arrays = {}
    results = []
    for number in range(NUM_UPDATES):
        scores = scorer.score(batches)
        for name in ("logp_NK", "entropy_NK"):
            rows = gathered(batches, [getattr(found, name) for found in scores], 16)
            arrays[f"{name}/{number}"] = np.concatenate(rows)
        results.append(updater.update(batches, LEARNING_RATE))
    arrays["loss"] = np.array([result.loss for result in results])
    arrays["grad_norm"] = np.array([result.grad_norm for result in results])
    arrays |= {f"weight/{name}": array for name, array in weights_as_numpy(model, section).items()}
    if case.get("infer") is not None:
        arrays |= _sampled(ParallelPlan(**case["infer"]), section, model, device)
    return arrays


def _sampled(plan, section, trained, device: str) -> Arrays:
    from plan_cases import prompts_of

    from mindgspo.config.reshard_section import ReshardSection
    from mindgspo.models.policy import build_model
    from mindgspo.parallel import runtime
    from mindgspo.parallel.placement import Placement
    from mindgspo.rollout.engine import NativeEngine
    from mindgspo.rollout.protocol import SamplingSettings
    from mindgspo.rollout.random import Purpose, RandomStream
    from mindgspo.rollout.replicated import ReplicatedEngine
    from mindgspo.rollout.weight_transfer import WeightTransfer

    place = Placement(plan=plan, rank=runtime.rank())
    model = build_model(section, place) if plan.world_size > 1 else trained
    native = NativeEngine(
        model,
        eos_ids=(1,),
        num_slots=8,
        prefill_width=4,
        max_prompt_length=8,
        max_new_tokens=MAX_NEW_TOKENS,
        length_multiple=8,
        cache_dtype="float16" if device == "Ascend" else None,
    )
    engine = native
    if plan.world_size > 1:
        transfer = WeightTransfer(trained, model, section, ReshardSection(bucket_mb=1, verify="full"))
        engine = ReplicatedEngine(native, place, transfer.bring)
    engine.load_weights(NUM_UPDATES)
    stream = RandomStream(seed=7, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=NUM_SAMPLES, temperature=1.0, max_new_tokens=MAX_NEW_TOKENS, stream=stream)
    rollout = engine.generate(prompts_of(section), settings, weight_version=NUM_UPDATES)
    responses = [response for group in rollout.responses for response in group]
    ids = np.full((len(responses), MAX_NEW_TOKENS), -1, np.int32)
    logprobs = np.zeros(ids.shape, np.float32)
    for row, response in enumerate(responses):
        ids[row, : response.length] = response.ids
        logprobs[row, : response.length] = response.logprobs
    return {"sampled/ids": ids, "sampled/logp": logprobs}


def body(folder: Path) -> int:
    """Every case of the job, one after the other."""
    from mindgspo.parallel import collectives, runtime
    from mindgspo.parallel.launch.worker import meet_others

    runtime.set_up_runtime("Ascend")
    if runtime.is_launched():
        meet_others()
        collectives.open_meeting()
    for case in json.loads((folder / "job.json").read_text()):
        arrays = figures(case, "Ascend")
        if runtime.rank() == 0:
            np.savez(folder / f"{case['name']}.npz", **arrays)
            print(case["name"], "loss", arrays["loss"], "norm", arrays["grad_norm"], flush=True)
    if runtime.is_launched():
        collectives.barrier()
    return 0


if __name__ == "__main__":
    import os

    from mindgspo.ascend.emulator.launcher import enter_emulated_cards
    from mindgspo.parallel import runtime

    sys.path[:0] = [str(Path(__file__).parents[2] / "distributed" / "workers")]
    if not runtime.is_scheduler():
        enter_emulated_cards()
    if runtime.is_launched():
        from mindgspo.parallel.launch.worker import run_worker

        run_worker(lambda: body(Path(sys.argv[1])))
    code = body(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)
