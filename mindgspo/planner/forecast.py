"""`mindgspo plan --timeline`: what a step of each schedule will take, on several splits of the same cards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import sequences_at_once
from mindgspo.planner.cache_budget import with_cache_budget
from mindgspo.planner.lengths import length_source
from mindgspo.planner.probe import Probe
from mindgspo.planner.rates import Speeds, replica_cards, speeds_of
from mindgspo.planner.roofline import card_of
from mindgspo.planner.timeline import Schedule, StepTimes, Timeline, simulate
from mindgspo.text import aligned, counted

_SHARES = (1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
_DEPTHS = (1, 2, 4)
"""max_staleness of bounded; the configured one is added, on its own split."""
_MOST_RESPONSES = 500_000
"""Simulated in all: some seconds."""
_MOST_RESPONSES_OF_ONE = 50_000
"""A second."""
_FEWEST_STEPS, _MOST_STEPS = 8, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A schedule on cards. infer_cards: those that generate alone. is_shared: the same cards train and generate, in
    turns; where that is not so and infer_cards is 0, servers elsewhere generate. is_configured: the experiment's own.
    is_planned: whether plans.train fits its cards without another division."""

    schedule: Schedule
    max_staleness: int
    train_cards: int
    infer_cards: int
    replicas: int
    is_shared: bool
    is_configured: bool
    is_planned: bool

    @property
    def name(self) -> str:
        return f"bounded, {self.max_staleness}" if self.schedule == "bounded" else self.schedule

    @property
    def cards(self) -> str:
        generate = "" if self.is_shared else f" + {self.infer_cards or 'servers'}"
        return f"{self.train_cards}{generate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds per step: median and mean; drawing, training, draining, push_weights: means that sum up to the mean.

    drawing: the trainer waits for responses; draining: for the end of what runs. trainer_idle, rollout_idle: shares of
    the time in which the trainer waits, and in which a replica has nothing to do, hand-over not counted.
    tokens_per_card: of prompts and responses, per second and card. staleness: of response tokens, in steps. first_step:
    that is counted.
    """

    layout: Layout
    median: float
    mean: float
    drawing: float
    training: float
    draining: float
    push_weights: float
    trainer_idle: float
    rollout_idle: float
    tokens_per_card: float
    staleness_mean: float
    staleness_max: int
    timeline: Timeline
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """rows: layout by layout, sync first. speeds: of the experiment's own plans. lengths_PG: of the responses drawn.
    notes: what they rest on."""

    rows: tuple[Forecast, ...]
    speeds: Speeds
    lengths_PG: NDArray[np.int64]
    prompts_per_step: int
    num_generations: int
    slots: int
    steps: int
    notes: tuple[str, ...]


def forecasts(
    experiment: ExperimentConfig,
    *,
    lengths: str | None = None,
    rates: Sequence[str] = (),
    card: str = "A2",
    probe: Probe | None = None,
    is_whole: bool = True,
    seed: int | None = None,
) -> Forecasts:
    """Of all schedules, or if not is_whole of the configured one alone, over fewer steps.

    lengths, rates: as `length_source` and `speeds_of` read them. card: of `roofline.CARDS`. probe: tells both
    where neither is given. seed: of the lengths; None: the experiment's. Raises ConfigError, DataError, RunFolderError.
    """
    source = probe.length_source if probe and lengths is None else length_source(lengths, experiment)
    layouts = [layout for layout in _layouts(experiment) if is_whole or layout.is_configured]
    rollout = experiment.rollout
    prompts, group = rollout.prompts_per_step, rollout.num_generations
    most = _MOST_RESPONSES if is_whole else _MOST_RESPONSES_OF_ONE
    steps = max(_FEWEST_STEPS, min(_MOST_STEPS, most // (len(layouts) * prompts * group)))
    most_staleness = max(layout.max_staleness for layout in layouts)
    rng = np.random.default_rng(experiment.seed if seed is None else seed)
    lengths_PG = source.draw(rng, prompts * (steps + 2 * most_staleness + 2), group)
    speeds = speeds_of(experiment, rates, lengths_PG=lengths_PG, card=card_of(card), probe=probe)
    slots = _slots(experiment, speeds.prompt_tokens + float(lengths_PG.mean()))
    return Forecasts(
        rows=tuple(_forecast(experiment, layout, speeds, lengths_PG, slots, steps) for layout in layouts),
        speeds=speeds,
        lengths_PG=lengths_PG,
        prompts_per_step=prompts,
        num_generations=group,
        slots=slots,
        steps=steps,
        notes=(f"lengths: {source.note}", *(f"rates: {note}" for note in speeds.notes), *_assumptions(experiment)),
    )


def _slots(experiment: ExperimentConfig, columns: float) -> int:
    """Sequences that a replica decodes at once, at the mean length. Servers have their cards for themselves."""
    bounded = experiment if experiment.has_servers else with_cache_budget(experiment)
    return max(1, sequences_at_once(bounded, math.ceil(columns)))


def _forecast(
    experiment: ExperimentConfig,
    layout: Layout,
    speeds: Speeds,
    lengths_PG: NDArray[np.int64],
    slots: int,
    steps: int,
) -> Forecast:
    first = layout.max_staleness + 2  # the queue has its length by then
    timeline = simulate(
        lengths_PG,
        speeds.on(layout.train_cards),
        schedule=layout.schedule,
        prompts_per_step=experiment.rollout.prompts_per_step,
        replicas=layout.replicas,
        slots=slots,
        steps=first + steps,
        max_staleness=layout.max_staleness,
        prompt_tokens=speeds.prompt_tokens,
        is_dealt=layout.is_shared,
        is_whole=False,
    )
    counted_steps = timeline.steps[first : first + steps]
    total = sum(step.seconds for step in counted_steps)
    push_weights = fmean(step.end - step.stopped for step in counted_steps)
    return Forecast(
        layout=layout,
        median=median(step.seconds for step in counted_steps),
        mean=total / steps,
        drawing=fmean(step.drawn - step.begin for step in counted_steps),
        training=fmean(step.trained - step.drawn for step in counted_steps),
        draining=fmean(step.stopped - step.trained for step in counted_steps),
        push_weights=push_weights,
        trainer_idle=sum(step.waiting for step in counted_steps) / total,
        rollout_idle=max(0.0, 1 - sum(step.busy + step.end - step.stopped for step in counted_steps) / total),
        tokens_per_card=_tokens(counted_steps) / total / (layout.train_cards + layout.infer_cards),
        staleness_mean=sum(step.staleness_mean * step.tokens for step in counted_steps) / _tokens(counted_steps),
        staleness_max=max(step.staleness_max for step in counted_steps),
        timeline=timeline,
        first_step=first + 1,
    )


def _tokens(steps: Sequence[StepTimes]) -> int:
    return sum(step.tokens for step in steps)


# ----- Which cards do what
def _layouts(experiment: ExperimentConfig) -> list[Layout]:
    """Sync on all cards, then one_step_off and bounded on each split; the configured layout is among them."""
    train, trainer = experiment.plans.train, experiment.trainer
    of_replica = replica_cards(experiment)
    unit = train.world_size // train.data_parallel
    urls = len(experiment.rollout.servers.urls)
    total = train.world_size + (experiment.plans.infer.world_size if experiment.has_own_servers else 0)

    def layout(schedule: Schedule, staleness: int, train_cards: int, infer_cards: int) -> Layout:
        own = infer_cards or total
        is_split = experiment.has_own_servers == bool(infer_cards) and train_cards == train.world_size
        return Layout(
            schedule=schedule,
            max_staleness=staleness,
            train_cards=train_cards,
            infer_cards=infer_cards,
            replicas=urls or max(1, own // of_replica),
            is_shared=not infer_cards and not urls,
            is_configured=is_split and schedule == trainer.schedule and staleness == experiment.staleness,
            is_planned=train_cards % unit == 0,
        )

    splits = [(total, 0)] if urls else [(total - infer, infer) for infer in _infer_cards(experiment, total, of_replica)]
    splits = splits or [(total, of_replica)]  # too few to be divided: those of a replica are added
    found = [layout("sync", 0, total, 0)]
    if experiment.has_own_servers and trainer.schedule == "sync":
        found.append(layout("sync", 0, train.world_size, total - train.world_size))
    found += [layout("one_step_off", 1, *split) for split in splits]
    found += [layout("bounded", depth, *split) for depth in _DEPTHS for split in splits]
    if trainer.schedule == "bounded" and trainer.max_staleness not in _DEPTHS:
        own = (train.world_size, 0 if urls else total - train.world_size)
        found.append(layout("bounded", trainer.max_staleness, *own))
    return found


def _infer_cards(experiment: ExperimentConfig, total: int, of_replica: int) -> list[int]:
    """Cards for generation: whole replicas, about the shares above, and the experiment's own."""
    most = (total - 1) // of_replica
    found = {min(most, max(1, round(share * total / of_replica))) * of_replica for share in _SHARES} if most else set()
    if experiment.has_own_servers:
        found.add(experiment.plans.infer.world_size)
    return sorted(found)


# ----- As text and JSON
def timeline_lines(found: Forecasts) -> Iterator[str]:
    """A table with a row per layout, and what it rests on."""
    yield (
        f"expected seconds per step: {found.prompts_per_step:,} prompts x {found.num_generations}, "
        f"{counted(found.slots, 'slot')} per replica, {found.steps} steps simulated"
    )
    sync = found.rows[0].mean
    rows = [
        ["schedule", "cards", "replicas", "median", "mean", "speed", "waits", "trains", "drains", "weights",
         "trainer idle", "rollout idle", "staleness", ""],
    ]  # fmt: skip
    for row in found.rows:
        mark = "configured" if row.layout.is_configured else ""
        rows.append(
            [
                row.layout.name,
                row.layout.cards + ("" if row.layout.is_planned else " *"),
                str(row.layout.replicas),
                *(seconds_text(value) for value in (row.median, row.mean)),
                f"{sync / row.mean:.2f}" if row.mean else "-",
                *(seconds_text(value) for value in (row.drawing, row.training, row.draining, row.push_weights)),
                f"{row.trainer_idle:.0%}",
                f"{row.rollout_idle:.0%}",
                f"{row.staleness_mean:.2f} (<= {row.staleness_max})",
                mark,
            ]
        )
    yield from aligned(rows, left=2)
    if not all(row.layout.is_planned for row in found.rows):
        yield "* plans.train must be divided otherwise for so many cards"
    yield ""
    yield from found.notes


def seconds_text(value: float) -> str:
    """Three digits, or whole seconds."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 or not value else f"{value:.3f}"


def timeline_json(found: Forecasts) -> dict[str, Any]:
    """All of it but what each replica did."""
    rows = []
    for row in found.rows:
        numbers = {
            name: getattr(row, name)
            for name in row.__dataclass_fields__
            if name not in ("layout", "timeline", "first_step")
        }
        rows.append({**asdict(row.layout), **numbers})
    return {
        "prompts_per_step": found.prompts_per_step,
        "num_generations": found.num_generations,
        "slots": found.slots,
        "steps": found.steps,
        "notes": list(found.notes),
        "rows": rows,
    }


def _assumptions(experiment: ExperimentConfig) -> Iterator[str]:
    yield (
        "assumed: seconds of training are inverse to its cards; a decode step is linear in its sequences; every prompt "
        "drawn is trained"
        + (" (algorithm.filter_groups leaves some out)" if experiment.algorithm.filter_groups.metric != "none" else "")
        + "; evaluation and saving are not counted"
    )
