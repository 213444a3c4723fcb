"""What plans make of one recorded rollout on emulated cards: scores, updates, weights, and tokens of the infer plan
before and after. On cards the trained weights, gradients and moments wait on the host whenever nothing reads them.

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

    case: model (a name of MODELS, or a section), train and infer (plans; no infer: nothing is sampled), is_packed,
    dtype.
    """
    from plan_cases import batches_of, definition

    from mindgspo.algorithms.losses.gspo import GSPOLoss
    from mindgspo.algorithms.taking_part import updater_of
    from mindgspo.config import ModelSection, OptimizerSection, ParallelPlan
    from mindgspo.config.swap_section import SwapSection
    from mindgspo.data.rows import gathered
    from mindgspo.models.logical_scorer import scorer_of
    from mindgspo.models.policy import PolicyLogProbs, build_model
    from mindgspo.models.weights import held_parameters, initialize_weights, weights_as_numpy
    from mindgspo.parallel import runtime
    from mindgspo.parallel.placement import Placement, logical_placement
    from mindgspo.parallel.swap.offloaded_memory import OffloadedMemory
    from mindgspo.parallel.swap.states import Holding, Phase
    from mindgspo.parallel.swap.swap import Swap

    model_of_case = MODELS[case["model"]] if isinstance(case["model"], str) else case["model"]
    section = ModelSection(**model_of_case, dtype=case.get("dtype", "float32"))
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
    is_card = device == "Ascend"
    swap = Swap(SwapSection(enabled=is_card), OffloadedMemory() if is_card else None)
    swap.register(Holding.ACTOR_WEIGHTS, held_parameters(model))
    swap.register(Holding.GRADIENTS, updater.gradients, keeps_content=False)
    swap.register(Holding.MOMENTS, updater.moments)
    sampler = _Sampler(ParallelPlan(**case["infer"]), section, model, device) if "infer" in case else None
    arrays: Arrays = {}
    if sampler:
        with swap.phase(Phase.RESHARD):
            arrays |= sampler.sample(0)
    results = []
    for number in range(NUM_UPDATES):
        with swap.phase(Phase.SCORE):
            scores = scorer.score(batches)
        for name in ("logp_NK", "entropy_NK"):
            rows = gathered(batches, [getattr(found, name) for found in scores], 16)
            arrays[f"{name}/{number}"] = np.concatenate(rows)
        with swap.phase(Phase.UPDATE):
            results.append(updater.update(batches, LEARNING_RATE))
    arrays["loss"] = np.array([result.loss for result in results])
    arrays["grad_norm"] = np.array([result.grad_norm for result in results])
    with swap.phase(Phase.RESHARD):
        arrays |= {f"weight/{name}": array for name, array in weights_as_numpy(model, section).items()}
        if sampler:
            arrays |= sampler.sample(NUM_UPDATES)
    swap.close()
    return arrays


class _Sampler:
    """The infer plan's model and engine. sample(version) brings the trained weights, and generates."""

    def __init__(self, plan, section, trained, device: str) -> None:
        from plan_cases import prompts_of

        from mindgspo.config.reshard_section import ReshardSection
        from mindgspo.models.policy import build_model
        from mindgspo.parallel import runtime
        from mindgspo.parallel.placement import Placement
        from mindgspo.rollout.engine import NativeEngine
        from mindgspo.rollout.replicated import ReplicatedEngine
        from mindgspo.rollout.weight_transfer import WeightTransfer

        place = Placement(plan=plan, rank=runtime.rank())
        model = build_model(section, place) if plan.world_size > 1 else trained
        self.engine = NativeEngine(
            model,
            eos_ids=(1,),
            num_slots=8,
            prefill_width=4,
            max_prompt_length=8,
            max_new_tokens=MAX_NEW_TOKENS,
            length_multiple=8,
            cache_dtype="float16" if device == "Ascend" else None,
        )
        if plan.world_size > 1:
            transfer = WeightTransfer(trained, model, section, ReshardSection(bucket_mb=1, verify="full"))
            self.engine = ReplicatedEngine(self.engine, place, transfer.bring)
        self.prompts = prompts_of(section)
        self.model, self.measures_margins = model, device == "CPU"

    def sample(self, version: int) -> Arrays:
        """ids [sequences, MAX_NEW_TOKENS], -1 behind an end, and their log-probs; on CPU also `_margins`."""
        from mindgspo.rollout.protocol import SamplingSettings
        from mindgspo.rollout.random import Purpose, RandomStream

        self.engine.load_weights(version)
        stream = RandomStream(seed=7, purpose=Purpose.TRAINING, step=1)
        settings = SamplingSettings(
            num_samples=NUM_SAMPLES, temperature=1.0, max_new_tokens=MAX_NEW_TOKENS, stream=stream
        )
        rollout = self.engine.generate(self.prompts, settings, weight_version=version)
        responses = [response for group in rollout.responses for response in group]
        ids = np.full((len(responses), MAX_NEW_TOKENS), -1, np.int32)
        logprobs = np.zeros(ids.shape, np.float32)
        for row, response in enumerate(responses):
            ids[row, : response.length] = response.ids
            logprobs[row, : response.length] = response.logprobs
        arrays = {"ids": ids, "logp": logprobs}
        if self.measures_margins:
            arrays["margin"] = self._margins(ids, stream)
        return {f"sampled/{version}/{name}": array for name, array in arrays.items()}

    def _margins(self, ids_NT: np.ndarray, stream) -> np.ndarray:
        """float64 [sequences, MAX_NEW_TOKENS]: how far the uniform of each token lies from the nearer edge of that
        token's stretch of the cumulative distribution; at most rounding beyond it."""
        from mindspore import Tensor

        from mindgspo.parallel.device_ops import attention_segments

        prompts = [prompt for prompt in self.prompts for _ in range(NUM_SAMPLES)]
        width = max(prompt.ids.size for prompt in prompts) + MAX_NEW_TOKENS
        ids_RT, segments_RT = np.zeros((2, len(prompts), width), np.int32)
        for row, (prompt, ids_T) in enumerate(zip(prompts, ids_NT, strict=True)):
            whole = np.concatenate([prompt.ids, ids_T[ids_T >= 0]])
            ids_RT[row, : whole.size], segments_RT[row, : whole.size] = whole, 1
        positions_RT = np.tile(np.arange(width, dtype=np.int32), (len(prompts), 1))
        hidden = self.model(Tensor(ids_RT), Tensor(positions_RT), Tensor(attention_segments(segments_RT)))
        table_VH = self.model.output_weight().asnumpy().astype(np.float64)
        logits_RTV = hidden.asnumpy().reshape(len(prompts), width, -1) @ table_VH.T
        probs_RTV = np.exp(logits_RTV - logits_RTV.max(-1, keepdims=True))
        cdf_RTV = np.cumsum(probs_RTV / probs_RTV.sum(-1, keepdims=True), -1)
        margins_NT = np.full(ids_NT.shape, np.inf)
        for row, prompt in enumerate(prompts):
            uniforms = stream.uniforms(prompt.index, row % NUM_SAMPLES, MAX_NEW_TOKENS)
            for column in np.flatnonzero(ids_NT[row] >= 0):
                cdf_V, token = cdf_RTV[row, prompt.ids.size + column - 1], ids_NT[row, column]
                below = cdf_V[token - 1] if token > 0 else 0.0
                margins_NT[row, column] = min(uniforms[column] - below, cdf_V[token] - uniforms[column])
        return margins_NT


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
