"""What one plan makes of the common case: five updates, then sampling under the infer plan.

Called by every rank of a worker script, and in the test's own process for the plan of one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn
from plan_cases import MODELS, batches_of, definition, draw_adapters, routed, taught
from plan_sampling import PlanSampler

from mindgspo.algorithms.kl_control import reward_penalty
from mindgspo.algorithms.losses.registry import policy_loss_cell
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import gathered
from mindgspo.config import ModelSection, OptimizerSection, ParallelPlan
from mindgspo.config.algorithm import KLSection, ReferenceSection
from mindgspo.config.schema import ReshardSection
from mindgspo.errors import NonFiniteError
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer, TokenScores
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import runtime, worker_process
from mindgspo.reshard.resharder import gather_to_first_rank
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.trainer.policies import ReferencePolicy
from mindgspo.types import Batch

Arrays = dict[str, np.ndarray]

NUM_UPDATES = 5
REFUSED_BEFORE = 2
"""The update before which, where there are ranks, another one is refused: nothing may show of it."""
LEARNING_RATE = 5e-5
NUM_SAMPLES = 16


def results_of_plan(
    train: Mapping[str, object],
    infer: Mapping[str, object],
    model: str = "dense",
    reference: Mapping[str, object] | None = None,
    *,
    is_packed: bool = False,
) -> Arrays:
    """Everything that is compared, whole, on rank 0; on the other ranks what they need not know may be missing.

    reference: plan of a reference policy that is a moving average of the policy; None: there is none. is_packed: the
    same samples in packed rows; nothing is sampled then.
    """
    section = ModelSection(**MODELS[model])
    if not train:  # one process needs no padding
        section = section.model_copy(update={"table_rows": None})
    place = Placement(plan=ParallelPlan(**train), rank=runtime.rank())
    policy_model = build_model(section, place)
    initialize_weights(policy_model, section, seed=3)
    draw_adapters(policy_model, section)
    is_taught = model == "taught"
    kinds = {"scores_ids": is_taught, "returns_routing": model == "shared experts"}
    policy = PolicyLogProbs(policy_model, temperature=1.0, with_entropy=False, **kinds)
    # Read where the policy returns routing: biases are parameters of which every rank has its own copy.
    optimizer = OptimizerSection(lr=LEARNING_RATE, router_bias_update_rate=1e-3)
    updater = Updater(policy, policy_loss_cell(definition(is_taught=is_taught)), optimizer, place)
    scorer = PolicyScorer(policy_model, temperature=1.0)
    gradients = _first_gradients(updater)
    batches = batches_of(section, packed_for=place.plan.data_parallel if is_packed else None)
    arrays: Arrays = {} if section.num_experts is None else _replayed(policy_model, section, batches)
    if is_taught:
        batches = taught(batches, section, place)
        arrays["choices/top"] = np.concatenate(gathered(batches, [one.teacher_ids_NKA for one in batches], 16))
        arrays["logp/top"] = np.concatenate(gathered(batches, [one.teacher_logp_NKA for one in batches], 16))
    results = []
    averaged = None if reference is None else _frozen(policy_model, section, ParallelPlan(**reference))
    for number in range(NUM_UPDATES):
        scores = scorer.score(batches)
        if averaged is not None:
            averaged.follow(policy_model, steps_done=number, version=number)
            arrays[f"kl/{number}"] = _mean_kl(scores, averaged.scorer.score(batches), batches)
        for name in ("logp_NK", "entropy_NK"):
            rows = gathered(batches, [getattr(found, name) for found in scores], 16)
            arrays[f"logp/{name}/{number}"] = np.concatenate(rows)
        if place.plan.world_size > 1 and number == REFUSED_BEFORE:
            _refused(updater, batches)
        results.append(updater.step(batches, LEARNING_RATE))
    arrays |= {
        "loss/loss": np.array([result.loss for result in results]),
        "loss/grad_norm": np.array([result.grad_norm for result in results]),
        "loss/log_ratio_max": np.array([result.metrics["log_ratio_max"] for result in results]),
    }
    if is_taught:
        arrays["loss/distillation_kl"] = np.array([result.metrics["distillation_kl"] for result in results])
    arrays |= {f"gradient/{name}": array for name, array in gradients.items()}
    arrays |= {f"parameter/{name}": array for name, array in weights_as_numpy(policy_model, section).items()}
    arrays |= {f"moment/{name}": array for name, array in updater.state().items()}
    if averaged is not None:
        arrays |= {f"reference/{name}": array for name, array in averaged.arrays().items()}
    if section.table_rows is not None:
        tables = {name: array for name, array in arrays.items() if array.shape[:1] == (section.rows,)}
        assert not any(array[section.vocab_size :].any() for array in tables.values())
        arrays |= {name: array[: section.vocab_size] for name, array in tables.items()}
    return arrays if is_packed else arrays | _sampled(infer, section, policy_model)


def _replayed(model: nn.Cell, section: ModelSection, batches: Sequence[Batch]) -> Arrays:
    """Log-probs with experts that are given, and how many of the routers' own choices are others, by layer."""
    scorer = PolicyScorer(model, temperature=1.0, replays_experts=True, returns_routing=True)
    given = routed(list(batches), section)
    scores = scorer.score(given)
    if model.place.is_replica_leader:
        own = [score.experts_RTX for score in scores[model.place.at.data :: model.place.plan.data_parallel]]
        assert all(chosen.shape[2] == given[0].experts_RTX.shape[2] and chosen.any() for chosen in own)
    return {
        "logp/replayed": np.concatenate(gathered(given, [score.logp_NK for score in scores], 16)),
        "choices/differing": np.sum([score.mismatch.array for score in scores], axis=0),
    }


def _refused(updater: Updater, batches: Sequence[Batch]) -> None:
    """An update with a NaN in its last micro-batch, which one replica has: every rank must refuse it and change
    nothing."""
    last = batches[-1]
    broken = replace(last, advantages_NK=np.where(last.mask_NK, np.float32(np.nan), last.advantages_NK))
    try:
        updater.step([*batches[:-1], broken], LEARNING_RATE)
    except NonFiniteError:
        assert updater.updates == REFUSED_BEFORE and updater.gradients_are_zero
        assert not any(gradient.asnumpy().any() for gradient in updater.gradients)
    else:
        raise AssertionError(f"rank {runtime.rank()} applied an update that is not finite")


def _frozen(policy: nn.Cell, section: ModelSection, plan: ParallelPlan) -> ReferencePolicy:
    changes = ReferenceSection(mode="ema", every=2, decay=0.75)
    place, reshard = Placement(plan=plan, rank=runtime.rank()), ReshardSection(bucket_mb=1, verify="full")
    reference = ReferencePolicy(section, place, temperature=1.0, changes=changes, reshard=reshard)
    reference.freeze(policy, Path("unused"), version=0)
    return reference


def _mean_kl(policy: list[TokenScores], reference: list[TokenScores], batches: list[Batch]) -> np.ndarray:
    """Estimates k1 and k3, mean over the response tokens."""

    def mean(section: KLSection) -> np.float32:
        scored = zip(policy, reference, batches, strict=True)
        kl = [reward_penalty(section, a.logp_NK, b.logp_NK, it.mask_NK)[it.mask_NK] for a, b, it in scored]
        return np.concatenate(kl).mean()

    return np.array([mean(KLSection(placement="reward", estimator=name)) for name in ("k1", "k3")])


def _first_gradients(updater: Updater) -> Arrays:
    """Filled, at the first update, with the gradients as the optimizer sees them."""
    over_ranks, found = updater.over_ranks, {}
    apply = over_ranks.apply

    def looked_at(*scalars: Tensor) -> Tensor:
        if not updater.updates:
            own = {
                weight.name: gradient.asnumpy()
                for weight, gradient in zip(updater.weights, over_ranks.gradients, strict=True)
            }
            whole = gather_to_first_rank(over_ranks.moments, own) if over_ranks.moments else own
            found.update({name: array.copy() for name, array in whole.items()})
        return apply(*scalars)

    over_ranks.apply = looked_at
    return found


def _sampled(infer: Mapping[str, object], section: ModelSection, trained: nn.Cell) -> Arrays:
    sampler = PlanSampler(ParallelPlan(**infer), section, trained, num_samples=NUM_SAMPLES)
    found = sampler.sample(NUM_UPDATES)
    arrays = {f"sampled/{name}": array for name, array in found.items()}
    return arrays if worker_process.is_launched() else arrays | {"margin": sampler.margins(found["ids"])}
