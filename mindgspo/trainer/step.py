"""One training step, on one page.

    prompts -> engine.generate -> responses -> reward -> judged groups -> what is trained (`collect`)
            -> rows of each mini-batch -> log-probs of the old (and reference) policy -> advantages
            -> one update per mini-batch -> weights, with a new version, to the engine -> metrics

What enters: the parts of the experiment and the number of the step. What leaves: a `StepResult`. Called by `loop`, on
every rank at once: engine, judge, scorers and updater share their work out and give all ranks all results, so that this
page is the same on one process and on many.
"""

from __future__ import annotations

from collections.abc import Mapping

from mindgspo import faults
from mindgspo.algorithms import learning_rate
from mindgspo.algorithms.optim.backend import UpdateResult
from mindgspo.parallel import heartbeat
from mindgspo.parallel.swap.states import Phase
from mindgspo.trainer.advantages import with_group_advantages
from mindgspo.trainer.collect import collect
from mindgspo.trainer.guarded_update import guarded_update, reported
from mindgspo.trainer.mini_batches import MiniBatches, flattened, mini_batches_of, with_advantages, with_log_probs
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.self_checks import check_first_update, refuse_unjudged
from mindgspo.trainer.step_metrics import step_metrics
from mindgspo.types import StepResult


def run_step(parts: TrainingParts, step: int) -> StepResult:
    """Sample, judge, train. `step` counts from 1. Raises TrainingError on a failed self-check or a non-finite loss."""
    timers = parts.timers
    heartbeat.begin_step(step)
    with timers("step"):
        samples = collect(parts, step)
        refuse_unjudged(samples.groups, step)
        with timers("old_log_prob"), parts.swap.phase(Phase.SCORE):
            parts.let_reference_follow(step)
            mini_batches, entropy = with_log_probs(parts, mini_batches_of(parts, samples.groups, samples.selection))
            parts.swap.prefetch(Phase.UPDATE)
        with timers("adv"):
            judgement = with_group_advantages(parts, samples, flattened(mini_batches))
            mini_batches = with_advantages(parts, mini_batches, judgement.advantages)
        with timers("update_actor"), parts.swap.phase(Phase.UPDATE):
            results = update(parts, mini_batches, step)
        with timers("update_weights"):
            parts.bring_weights()
        faults.reach("weights.after")
    metrics = {
        **step_metrics(parts, samples=samples, judgement=judgement, mini_batches=mini_batches, results=results),
        **entropy,
        "actor/lr": step_learning_rate(parts, max(parts.updates_tried - 1, 0)),
        "training/global_step": step,
    }
    metrics = reported(metrics, num_skipped=results.count(None))
    steer_kl(parts, metrics)
    return StepResult(step=step, metrics=metrics, groups=judgement.groups)


def update(parts: TrainingParts, mini_batches: MiniBatches, step: int) -> list[UpdateResult | None]:
    """One optimizer update per mini-batch, as often as the rollout is gone through; None where it was skipped. With a
    look at the ratio where it must still be 1."""
    results: list[UpdateResult | None] = []
    kl_coef = parts.kl.coef if parts.config.algorithm.kl.placement == "loss" else 0.0
    faults.reach("update.before")
    for batches in [*mini_batches] * parts.config.trainer.epochs_per_rollout:
        if results:
            faults.reach("update.inside")
        name = f"step_{step:08d}_update_{len(results) + 1}"
        lr = step_learning_rate(parts, parts.updates_tried)
        result = guarded_update(parts, batches, name=name, lr=lr, kl_coef=kl_coef)
        if result is not None and all(earlier is None for earlier in results):
            check_first_update(parts, batches, result, step)
        results.append(result)
    faults.reach("update.after")
    return results


def steer_kl(parts: TrainingParts, metrics: Mapping[str, float]) -> None:
    """Let the coefficient of the next step answer to the KL of this one."""
    kl = metrics.get("critic/kl", metrics.get("actor/kl"))
    if kl is not None:
        parts.kl.update(kl, int(metrics["samples/trained"]))


def step_learning_rate(parts: TrainingParts, update_index: int) -> float:
    """Learning rate of the update number `update_index` (from 0) of the run."""
    total = parts.total_steps * parts.updates_per_rollout
    return learning_rate(update_index, total, parts.config.optimizer)
