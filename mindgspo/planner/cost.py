"""What a step and a run cost: seconds by phase, tokens per second and card, utilization, card-hours.

The step is that of the configured schedule in `forecast`; training is told apart by the timers of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgspo.config import ExperimentConfig, planned_steps
from mindgspo.models.operations import Operations
from mindgspo.planner.forecast import Forecast, Forecasts, forecasts, seconds_text
from mindgspo.planner.probe import Probe
from mindgspo.planner.roofline import UPDATE, card_of
from mindgspo.text import aligned, counted

GENERATION, TRAINING, DRAINING, WEIGHTS = "generation", "training", "the rest that runs", "weights"
_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """phases: seconds of each, mean over steps, which sum up to a step; with servers, generation is what a step waits
    for them. where: what the cards are. cards: that train and generate. tokens_per_card: of prompts and responses, per
    second and card. mfu: share of the peak that updates reach, as metric perf/mfu/actor has it; None where no peak is
    known. prefill: seconds of a step in which a replica runs prompts, mean. busy: share of the time of generation in
    which its replicas work. mean_length: tokens of a response. steps: of the run, None where its epochs decide."""

    phases: Mapping[str, float]
    where: str
    cards: int
    tokens_per_card: float
    mfu: float | None
    prefill: float
    busy: float
    mean_length: float
    prompt_tokens: int
    prompts_per_step: int
    num_generations: int
    slots: int
    steps: int | None
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Of a step."""
        return sum(self.phases.values())

    def card_hours(self, steps: int) -> float:
        """Of so many steps."""
        return steps * self.seconds * self.cards / _HOUR


def step_cost(
    experiment: ExperimentConfig,
    *,
    lengths: str | None = None,
    rates: Sequence[str] = (),
    card: str = "A2",
    probe: Probe | None = None,
) -> StepCost:
    """Of the experiment as it is. Arguments and errors: those of `forecasts`."""
    found = forecasts(experiment, lengths=lengths, rates=rates, card=card, probe=probe, is_whole=False)
    (row,) = found.rows
    device = card_of(card) if experiment.device == "Ascend" else None
    peak = experiment.logging.peak_tflops
    cards = row.layout.train_cards + row.layout.infer_cards
    speeds = found.speeds
    phases = _phases(row, speeds.phases)
    prompts = found.prompts_per_step * speeds.prompt_tokens
    return StepCost(
        phases=phases,
        where=f"{counted(cards, device.unit)} of {device.name}" if device else f"device CPU, processes: {cards}",
        cards=cards,
        tokens_per_card=row.tokens_per_card,
        mfu=_utilization(
            experiment,
            found,
            phases.get(UPDATE),
            device.peak if device and peak is None else peak and 1e12 * peak,
        ),
        prefill=prompts * speeds.rates.prefill_token / row.layout.replicas,
        busy=_busy(row),
        mean_length=float(found.lengths_PG.mean()),
        prompt_tokens=speeds.prompt_tokens,
        prompts_per_step=found.prompts_per_step,
        num_generations=found.num_generations,
        slots=found.slots,
        steps=planned_steps(experiment, None),
        notes=found.notes,
    )


def _phases(row: Forecast, training: Mapping[str, float]) -> dict[str, float]:
    """Training in the shares of its phases, which are those of mean lengths."""
    whole = sum(training.values())
    parts = {name: row.training * value / whole for name, value in training.items()} if whole else {}
    phases = {
        GENERATION: row.drawing,
        **(parts or {TRAINING: row.training}),
        DRAINING: row.draining,
        WEIGHTS: row.push_weights,
    }
    return {name: value for name, value in phases.items() if value or name == GENERATION}


def _busy(row: Forecast) -> float:
    """Where the same cards train, what they do then is no idleness of generation."""
    working = 1 - row.rollout_idle - row.push_weights / row.mean
    return working * row.mean / row.drawing if row.layout.is_shared and row.drawing else working


def _utilization(
    experiment: ExperimentConfig, found: Forecasts, update: float | None, peak: float | None
) -> float | None:
    """As `trainer.metrics.Speed` counts operations."""
    if update is None or peak is None:
        return None
    operations, lengths_PG = Operations.of(experiment.model), found.lengths_PG + found.speeds.prompt_tokens
    tokens, squares = float(lengths_PG.mean()), float(np.square(lengths_PG, dtype=np.float64).mean())
    one = operations.trained_token * tokens + operations.trained_pair * squares
    responses = found.prompts_per_step * found.num_generations * experiment.trainer.epochs_per_rollout
    return one * responses / update / (peak * experiment.plans.train.world_size)


# ----- As text and JSON
def cost_lines(cost: StepCost) -> Iterator[str]:
    """A table of phases, what follows from it, and what it rests on."""
    yield (
        f"seconds of a step on {cost.where}: {cost.prompts_per_step:,} prompts x {cost.num_generations} responses of "
        f"{cost.mean_length:,.0f} tokens on average, {counted(cost.slots, 'slot')} per replica"
    )
    rows = [["  phase", "seconds", "share"]]
    rows += [[f"  {name}", seconds_text(value), f"{value / cost.seconds:.0%}"] for name, value in cost.phases.items()]
    rows.append(["  together", seconds_text(cost.seconds), ""])
    yield from aligned(rows, left=1)
    mfu = "" if cost.mfu is None else f"; updates reach {cost.mfu:.1%} of the peak (MFU)"
    yield (
        f"tokens per second and card: {cost.tokens_per_card:,.1f}; replicas work {cost.busy:.0%} of the time of "
        f"generation, {seconds_text(cost.prefill)} s of it on prompts{mfu}"
    )
    steps = cost.steps or 100
    more = "" if cost.steps else " (trainer.epochs and the data say how many there are)"
    yield (
        f"{counted(steps, 'step')}{more}: {_duration(steps * cost.seconds)}, {_digits(cost.card_hours(steps))} "
        "card-hours, without evaluation, saving and compiling"
    )
    yield from cost.notes


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _duration(seconds: float) -> str:
    return f"{seconds / _HOUR:,.1f} hours" if seconds >= _HOUR else f"{seconds / 60:.1f} minutes"


def cost_json(cost: StepCost) -> dict[str, Any]:
    """All of it."""
    return {
        "seconds": cost.seconds,
        "phases": dict(cost.phases),
        "where": cost.where,
        "cards": cost.cards,
        "tokens_per_second_and_card": cost.tokens_per_card,
        "mfu": cost.mfu,
        "prefill_seconds": cost.prefill,
        "replicas_busy": cost.busy,
        "mean_response_tokens": cost.mean_length,
        "prompt_tokens": cost.prompt_tokens,
        "slots_per_replica": cost.slots,
        "steps": cost.steps,
        "card_hours": None if cost.steps is None else cost.card_hours(cost.steps),
        "notes": list(cost.notes),
    }
