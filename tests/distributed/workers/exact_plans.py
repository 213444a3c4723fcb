"""One worker of several plans: what is sampled under the generating plan is scored under the training plan.

usage: exact_plans.py FOLDER. FOLDER/job.json names the plans; rank 0 writes FOLDER/<name>.npz with the sampler's and
the trainer's log-probs of all tokens; of plans that split weights also the log-probs by one table of the vocabulary on
the trainer's hidden states, or the module that is first to compute something else than whole weights do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from joined_ranks import run_joined
from mindspore import Tensor
from plan_cases import MODELS
from plan_sampling import PlanSampler

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample, packed_tokens
from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.trace import TracedModule, trace_graph
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.collectives.host import GraphOfRanks
from mindgspo.parallel.ops.device import policy_inputs
from mindgspo.parallel.ops.kernels import LogProbKernel
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import runtime
from mindgspo.types import Batch

NUM_SAMPLES = 8


def compared(train: Mapping[str, object], infer: Mapping[str, object], model: Mapping[str, object]) -> dict:
    """The log-probs of a case, float32 [tokens] each; `one_table` if training splits weights; `parts_at` if one side
    splits weights."""
    section = ModelSection(**MODELS["dense"] | model)
    place = Placement(plan=ParallelPlan(**train), rank=runtime.rank())
    trained = build_model(section, place)
    initialize_weights(trained, section, seed=3)
    sampler = PlanSampler(ParallelPlan(**infer), section, trained, num_samples=NUM_SAMPLES)
    found = sampler.sample(1)
    samples = [
        TrainingSample(
            prompt_ids=sampler.prompts[number // NUM_SAMPLES].ids, response_ids=ids[ids >= 0],
            rollout_logp=logp[ids >= 0], number=number,
        )
        for number, (ids, logp) in enumerate(zip(found["ids"], found["logp"], strict=True))
    ]  # fmt: skip
    layout = BatchLayout(
        samples_per_micro_batch=4, length_multiple=8, pad_id=0, replicas=place.plan.data_parallel,
        in_rounds=place.plan.couples_replicas, round_size=place.plan.micro_batch_num,
    )  # fmt: skip
    batches = micro_batches(samples, layout)
    scores = PolicyScorer(trained, temperature=1.0).score(batches)
    arrays = {
        "sampler": np.concatenate([batch.rollout_logp_NK[batch.mask_NK] for batch in batches]),
        "trainer": np.concatenate([score.logp_NK[batch.mask_NK] for score, batch in zip(scores, batches, strict=True)]),
    }
    if place.model_parallel > 1:
        arrays["one_table"] = np.concatenate([one_table(trained, batch) for batch in batches])
    split = [plan for plan in (train, infer) if "model_parallel" in plan or "expert_parallel" in plan]
    if len(split) == 1:
        whole = {"data_parallel": runtime.world_size()}
        arrays["parts_at"] = parts_at(*(outputs_of(section, plan, batches[0]) for plan in (whole, split[0])))
    return arrays


def outputs_of(section: ModelSection, plan: Mapping[str, object], batch: Batch) -> dict[str, TracedModule]:
    """The modules of the training graph under a plan, for the tokens that it computes; of split weights, this rank's
    slices."""
    model = build_model(section, Placement(plan=ParallelPlan(**plan), rank=runtime.rank()))
    initialize_weights(model, section, seed=3)
    traced = trace_graph(PolicyLogProbs(model, temperature=1.0, with_entropy=False), batch)
    num_tokens = packed_tokens(batch).place_M.max() + 1
    del traced["log_probs"]
    return {name: TracedModule(operator, outputs[:num_tokens]) for name, (operator, outputs) in traced.items()}


def parts_at(whole: Mapping[str, TracedModule], split: Mapping[str, TracedModule]) -> str:
    """The first module whose outputs differ in a bit. Slices are of heads or features, the second axis."""
    for name, (_, found) in split.items():
        wanted, size = whole[name].outputs, found.shape[1]
        if size < wanted.shape[1]:
            wanted = wanted[:, runtime.rank() * size :][:, :size]
        if (found.view(np.int32) != np.ascontiguousarray(wanted).view(np.int32)).any():
            return name
    return ""


def one_table(model, batch: Batch) -> np.ndarray:
    """Log-probs by the kernel that one process has, of the hidden states that ranks make together. float32 [tokens]."""
    ids, positions, segments, predict_P, targets_P, place_NK = policy_inputs(batch, is_packed=True).arrays
    hidden_MH = GraphOfRanks(model, model.place.graph_ranks)(*map(Tensor, (ids, positions, segments)))
    head = LogProbKernel(temperature=1.0, with_entropy=False)
    logp_P, _ = head(hidden_MH, model.embed_tokens.weight, *map(Tensor, (predict_P, targets_P, segments)))
    return logp_P.asnumpy()[place_NK][batch.mask_NK]


def body(folder: Path) -> None:
    """Every case of the job, one after the other in one cluster."""
    for entry in json.loads((folder / "job.json").read_text()):
        arrays = compared(entry["train"], entry["infer"], entry["model"])
        if runtime.rank() == 0:
            np.savez(folder / f"{entry['name']}.npz", **arrays)


if __name__ == "__main__":
    run_joined(body)
