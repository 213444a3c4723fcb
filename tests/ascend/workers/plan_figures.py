"""What plans make of one recorded rollout on emulated cards or CPU processes: scores, updates, weights, and tokens of
the infer plan before and after. On cards the trained weights, gradients and moments wait on the host whenever nothing
reads them.

usage: plan_figures.py FOLDER DEVICE, Ascend in the environment of emulated cards. FOLDER/job.json is a list of cases;
rank 0 writes FOLDER/<name>.npz. `figures` is also called by tests on CPU, for the plan of one process.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]

NUM_UPDATES = 3
LEARNING_RATE = 5e-4
# Adam's. With 1e-8 an entry whose gradient is rounding alone moves as far as any other: two right computations part.
EPS = 1e-5
NUM_SAMPLES = 4

# Heads are as wide as attention on Ascend takes them.
DENSE = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False, "initializer_range": 0.1,
}  # fmt: skip
MODELS = {
    "dense": DENSE,
    "tied": DENSE | {"tie_word_embeddings": True},
    "experts": DENSE | {
        "architecture": "qwen3_moe", "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "norm_topk_prob": True,
    },
    "deep": DENSE | {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "thirds": DENSE | {
        "vocab_size": 66, "hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 6,
        "num_key_value_heads": 3, "initializer_range": 0.08,  # logits as spread out as those of 64 features at 0.1
    },
}  # fmt: skip
MODELS["six experts"] = MODELS["experts"] | {"num_experts": 6}
MODELS["shared experts"] = MODELS["experts"] | {
    "architecture": "glm4_moe", "num_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
MODELS["latents"] = MODELS["shared experts"] | {
    "architecture": "deepseek_v3", "num_key_value_heads": 4, "head_dim": None, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "use_qk_norm": False,
    "partial_rotary_factor": 1.0,
}  # fmt: skip
MODELS["taught"] = DENSE
MODELS["glm4"] = DENSE | {"architecture": "glm4", "partial_rotary_factor": 0.5}
MODELS["adapters"] = DENSE | {"lora": {"rank": 4, "alpha": 6.0}}
MODELS["adapted experts"] = MODELS["experts"] | {
    "lora": {"rank": 4, "alpha": 6.0, "targets": ("all", "router"), "train_norms": True}
}


def figures(case: Mapping, device: str) -> Arrays:
    """Everything that is compared, whole, on rank 0.

    case: model (a name of MODELS, or a section), train and infer (plans; no infer: nothing is sampled), is_packed,
    dtype, max_grad_norm, replays (given experts; each process has those of its own replica), tells (what routers choose
    while scoring), merges (adapters into what the infer plan has).
    """
    from plan_cases import batches_of, definition, draw_adapters, routed, taught
    from plan_sampling import PlanSampler

    from mindgspo.algorithms.losses.registry import policy_loss_cell
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.batches.rows import gathered
    from mindgspo.config import ModelSection, OptimizerSection, ParallelPlan
    from mindgspo.config.schema import SwapSection
    from mindgspo.models.policy import PolicyLogProbs, build_model
    from mindgspo.models.scoring import PolicyScorer
    from mindgspo.models.weights import held_parameters, initialize_weights
    from mindgspo.parallel.plans.placement import Placement
    from mindgspo.parallel.platform import runtime
    from mindgspo.rollout.weight_transfer import weights_as_numpy
    from mindgspo.swap.states import Holding, Phase
    from mindgspo.swap.swap import OffloadedMemory, Swap
    from mindgspo.trainer.routing_transfer import RoutingTransfer

    model_of_case = MODELS[case["model"]] if isinstance(case["model"], str) else case["model"]
    section = ModelSection(**model_of_case, dtype=case.get("dtype", "float32"))
    plan = ParallelPlan(**case["train"])
    place = Placement(plan=plan, rank=runtime.rank())
    model = build_model(section, place)
    replays = bool(case.get("replays"))
    is_taught = case["model"] == "taught"
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False, replays_experts=replays, scores_ids=is_taught)
    optimizer = OptimizerSection(lr=LEARNING_RATE, eps=EPS, max_grad_norm=case.get("max_grad_norm", 1.0))
    updater = Updater(policy, policy_loss_cell(definition(is_taught=is_taught)), optimizer, place)
    packed_for = plan.data_parallel if case.get("is_packed") else None
    layout = {"in_one_row": device == "Ascend", "in_rounds": plan.couples_replicas, "round_size": plan.micro_batch_num}
    batches = batches_of(section, packed_for=packed_for, **layout if packed_for else {})
    if replays:
        batches = routed(batches, section, held=lambda number: number % plan.data_parallel == place.at.data)
    if is_taught:
        batches = taught(batches, section, place)
    initialize_weights(model, section, seed=3)
    draw_adapters(model, section)
    tells = bool(case.get("tells"))
    scorer = PolicyScorer(model, temperature=1.0, replays_experts=replays, returns_routing=tells)
    is_card = device == "Ascend"
    swap = Swap(SwapSection(enabled=is_card), OffloadedMemory() if is_card else None)
    swap.register(Holding.ACTOR_WEIGHTS, held_parameters(model))
    are_zero = lambda: updater.gradients_are_zero  # noqa: E731
    swap.register(Holding.GRADIENTS, updater.scratch, keeps_content=False, is_zero=are_zero)
    swap.register(Holding.MOMENTS, updater.moments)
    sampler = None
    if "infer" in case:
        infer, cache_dtype = ParallelPlan(**case["infer"]), "float16" if is_card else None
        kinds = {"cache_dtype": cache_dtype, "merges": bool(case.get("merges"))}
        sampler = PlanSampler(infer, section, model, num_samples=NUM_SAMPLES, **kinds)

    def sampled(version: int) -> Arrays:
        assert sampler
        found = sampler.sample(version)
        if place.plan.world_size == 1 and not is_card:
            found["margin"] = sampler.margins(found["ids"])
        return {f"sampled/{version}/{name}": array for name, array in found.items()}

    arrays: Arrays = {}
    if sampler:
        with swap.phase(Phase.RESHARD):
            arrays |= sampled(0)
    results = []
    for number in range(NUM_UPDATES):
        with swap.phase(Phase.SCORE):
            scores = scorer.score(batches)
        for name in ("logp_NK", "entropy_NK"):
            rows = gathered(batches, [getattr(found, name) for found in scores], 16)
            arrays[f"{name}/{number}"] = np.concatenate(rows)
        if tells:
            transfer = RoutingTransfer(place, section)
            found = [replace(batch, experts_RTX=one.experts_RTX) for batch, one in zip(batches, scores, strict=True)]
            for place_, batch in enumerate(transfer.shared([found])[0]):
                if batch.experts_RTX is not None:
                    arrays[f"told/{number}/{place_}"] = batch.experts_RTX
        with swap.phase(Phase.UPDATE):
            results.append(updater.step(batches, LEARNING_RATE))
    arrays["loss"] = np.array([result.loss for result in results])
    arrays["grad_norm"] = np.array([result.grad_norm for result in results])
    with swap.phase(Phase.RESHARD):
        arrays |= {f"weight/{name}": array for name, array in weights_as_numpy(model, section).items()}
        if sampler:
            arrays |= sampled(NUM_UPDATES)
    swap.close()
    return arrays


def body(folder: Path, device: str) -> int:
    """Every case of the job, one after the other."""
    from mindgspo.parallel.collectives import host as collectives
    from mindgspo.parallel.platform import runtime, worker_process
    from mindgspo.parallel.platform.cluster import join_other_ranks

    runtime.set_up_runtime(device)
    if worker_process.is_launched():
        join_other_ranks()
        collectives.open_shared_memory()
    for case in json.loads((folder / "job.json").read_text()):
        arrays = figures(case, device)
        if runtime.rank() == 0:
            np.savez(folder / f"{case['name']}.npz", **arrays)
            print(case["name"], "loss", arrays["loss"], "norm", arrays["grad_norm"], flush=True)
    if worker_process.is_launched():
        collectives.barrier()
    return 0


if __name__ == "__main__":
    import os

    from ascend_emulator.launcher import enter_emulated_cards
    from mindgspo.parallel.platform import worker_process

    sys.path[:0] = [str(Path(__file__).parents[2] / "distributed" / "workers")]
    folder, device = Path(sys.argv[1]), sys.argv[2]
    if device == "Ascend" and not worker_process.is_scheduler():
        enter_emulated_cards()
    if worker_process.is_launched():
        from mindgspo.launch.worker import run_worker

        run_worker(lambda: body(folder, device))
    code = body(folder, device)
    sys.stdout.flush()
    os._exit(code)
