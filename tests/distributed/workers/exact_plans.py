"""One worker of several plans: what is sampled under the generating plan is scored under the training plan.

usage: exact_plans.py FOLDER. FOLDER/job.json names the plans; rank 0 writes FOLDER/<name>.npz with the sampler's and
the trainer's log-probs of all tokens, and those of one table of the vocabulary on the trainer's hidden states.
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
from mindgspo.batches.rows import TrainingSample
from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.policy import build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.collectives.host import GraphOfRanks
from mindgspo.parallel.ops.device import policy_inputs
from mindgspo.parallel.ops.kernels import LogProbKernel
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import runtime
from mindgspo.types import Batch

NUM_SAMPLES = 8


def compared(train: Mapping[str, object], infer: Mapping[str, object], model: Mapping[str, object]) -> dict:
    """The log-probs of a case, float32 [tokens] each; with model_parallel, `one_table`."""
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
    return arrays


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
