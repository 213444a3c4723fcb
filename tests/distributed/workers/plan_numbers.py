"""One worker of several plans of one world size: five updates each on one recorded rollout, then sampling.

usage: plan_numbers.py FOLDER. FOLDER/job.json names the plans; rank 0 writes FOLDER/<plan>.npz with losses, log-probs,
gradients (of the first update), parameters and sampled tokens.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from mindgspo.parallel import runtime


def main(folder: Path) -> None:
    runtime.set_up_runtime("CPU")
    from mindgspo.parallel import collectives

    if runtime.is_worker():
        runtime.join_cluster()
        collectives.open_meeting()
    job = json.loads((folder / "job.json").read_text())
    for entry in job["plans"]:
        started = time.perf_counter()
        arrays = run_plan(job, entry)
        if runtime.rank() == 0:
            np.savez(folder / f"{entry['name']}.npz", **arrays)
            print(f"{entry['name']} {time.perf_counter() - started:.1f} s", flush=True)
    collectives.barrier()


def run_plan(job: dict, entry: dict) -> dict[str, np.ndarray]:
    from plan_cases import batches_of, definition

    from mindgspo.algorithms.losses.gspo import GSPOLoss
    from mindgspo.algorithms.update import PolicyUpdater
    from mindgspo.config import ModelSection, OptimizerSection, ParallelPlan
    from mindgspo.models.policy import PolicyLogProbs, PolicyScorer, build_model
    from mindgspo.models.weights import initialize_weights, parameter_shapes, weights_as_numpy
    from mindgspo.parallel.placement import Placement
    from mindgspo.parallel.training_layout import TrainingLayout

    section = ModelSection(**job["model"])
    plan = ParallelPlan(**entry["plan"])
    place = Placement(plan=plan, rank=runtime.rank())
    model = build_model(section, place)
    initialize_weights(model, section, seed=3)
    layout = TrainingLayout.of(parameter_shapes(section), section, place) if plan.world_size > 1 else None
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=bool(job.get("entropy_coef")))
    updater = PolicyUpdater(policy, GSPOLoss(definition()), OptimizerSection(lr=5e-5, max_grad_norm=1.0), layout)
    scorer = PolicyScorer(model, temperature=1.0)
    gradients = seen_gradients(updater, layout)
    arrays: dict[str, np.ndarray] = {}
    losses, norms = [], []
    scored = batches_of(section)
    for number in range(5):
        found = scorer.score(scored)
        arrays[f"logp/{number}"] = np.concatenate(
            [scores.logp_NK[batch.mask_NK] for scores, batch in zip(found, scored, strict=True)]
        )
        arrays[f"entropy/{number}"] = np.concatenate(
            [scores.entropy_NK[batch.mask_NK] for scores, batch in zip(found, scored, strict=True)]
        )
        result = updater.update(scored, 5e-5)
        losses.append(result.loss)
        norms.append(result.grad_norm)
    arrays |= {"loss": np.array(losses), "grad_norm": np.array(norms)}
    arrays |= {f"gradient/{name}": array for name, array in gradients.items()}
    arrays |= {f"parameter/{name}": array for name, array in weights_as_numpy(model, section).items()}
    arrays |= {f"moment/{name}": array for name, array in updater.state().items()}
    if "infer" in entry:
        arrays |= sampled(job, entry, section, model)
    return arrays


def seen_gradients(updater, layout) -> dict[str, np.ndarray]:
    """Filled with the whole gradients of the first update, on rank 0."""
    from mindgspo.parallel.resharder import gather_to_first_rank

    part, found = updater._part, {}
    step = part.step

    def looked_at(*scalars):
        if not updater.updates:
            views = {name.name: gradient.asnumpy() for name, gradient in zip(part.weights, part.gradients, strict=True)}
            whole = views if layout is None else gather_to_first_rank(layout.weights, views)
            found.update({name: array.copy() for name, array in whole.items()})
        return step(*scalars)

    part.step = looked_at
    return found


def sampled(job: dict, entry: dict, section, trained) -> dict[str, np.ndarray]:
    """Tokens and log-probs of responses sampled under the infer plan, with the trained weights."""
    from plan_cases import prompts_of

    from mindgspo.config import ParallelPlan
    from mindgspo.config.reshard_section import ReshardSection
    from mindgspo.models.policy import build_model
    from mindgspo.parallel.placement import Placement
    from mindgspo.rollout.engine import NativeEngine
    from mindgspo.rollout.protocol import SamplingSettings
    from mindgspo.rollout.random import Purpose, RandomStream
    from mindgspo.rollout.replicated import ReplicatedEngine
    from mindgspo.rollout.weight_transfer import WeightTransfer

    plan = ParallelPlan(**entry["infer"])
    place = Placement(plan=plan, rank=runtime.rank())
    model = build_model(section, place) if plan.world_size > 1 else trained
    native = NativeEngine(
        model, eos_ids=(1,), num_slots=8, prefill_width=4, max_prompt_length=8, max_new_tokens=12, length_multiple=8
    )
    engine = native
    if plan.world_size > 1:
        transfer = WeightTransfer(trained, model, section, ReshardSection(bucket_mb=1, verify="full"))
        engine = ReplicatedEngine(native, place, transfer.bring)
    engine.load_weights(5)
    stream = RandomStream(seed=7, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=4, temperature=1.0, max_new_tokens=12, stream=stream)
    rollout = engine.generate(prompts_of(section), settings, weight_version=5)
    responses = [response for group in rollout.responses for response in group]
    return {
        "sampled/ids": np.concatenate([response.ids for response in responses]),
        "sampled/lengths": np.array([response.length for response in responses]),
        "sampled/logp": np.concatenate([response.logprobs for response in responses]),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
