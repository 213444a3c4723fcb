"""Seconds of a step by phase, tokens per second and card-hours, as `mindgspo plan` prints them.

The roofline alone is right to a factor of two. The folder of a run calibrates it: each phase is the run's own seconds,
times the roofline's ratio between this experiment and that of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, load_config, planned_steps
from mindgspo.errors import ConfigError, RunFolderError
from mindgspo.metrics.files import CONFIG_FILE, METRICS_FILE
from mindgspo.metrics.run_folder import read_run
from mindgspo.planner.time.roofline import (
    CARDS,
    GENERATION,
    OLD_LOG_PROBS,
    REFERENCE,
    REWARD,
    TEACHERS,
    UPDATE,
    WEIGHTS,
    phase_seconds,
)
from mindgspo.text import aligned, counted, listed

# As published for DAPO of Qwen3-32B: responses had 7,385 tokens on average and 20,480 at most, prompts 153.
_MEAN_SHARE, _PROMPT = 7385 / 20_480, 153
_STEP, _REST = "timing_s/step", "the rest"
_TIMERS: Mapping[str, Sequence[str]] = {
    GENERATION: ("timing_s/gen",),
    REWARD: ("timing_s/reward", "timing_s/adv"),
    OLD_LOG_PROBS: ("timing_s/old_log_prob",),
    UPDATE: ("timing_s/update_actor",),
    WEIGHTS: ("timing_s/update_weights",),
}
_NEEDED = (_STEP, "timing_s/gen", "timing_s/update_actor", "response_length/mean", "response_length/max",
           "prompt_length/mean")  # fmt: skip
_JUDGED = (
    "13 runs of verl. Never measured with this suite. A run that is left out of the fit is forecast 26 % off (median), "
    "at most 2.0 times (docs/planning.md); give --rates RUN for a measured one"
)
NO_RATES = "seconds of a step: nothing is known about this machine; give --rates RUN, the folder of a short run"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """The expected time of one step."""

    phases: Mapping[str, float]
    """Seconds by phase."""
    is_overlapped: bool
    """Whether responses of later steps are generated beside training."""
    where: str
    """The cards, e.g. "64 dies of Atlas A3 (910C)"."""
    cards: int
    """Ranks that train or generate."""
    tokens: float
    """Tokens of a step's prompts and responses."""
    response_tokens: float
    """Mean tokens of a response."""
    steps: int | None
    """Steps of the run; None if its epochs decide."""
    notes: tuple[str, ...]
    """The grounds of the estimate, one line each."""

    @property
    def seconds(self) -> float:
        """Seconds of a step: all phases, or the longer of generation and training where both run at once."""
        total, generation = sum(self.phases.values()), self.phases[GENERATION]
        weights = self.phases.get(WEIGHTS, 0.0)
        return max(generation, total - generation - weights) + weights if self.is_overlapped else total

    @property
    def tokens_per_card(self) -> float:
        """Tokens per second and card."""
        return self.tokens / self.seconds / self.cards

    def card_hours(self, steps: int) -> float:
        """Card-hours of so many steps."""
        return steps * self.seconds * self.cards / 3600


def estimate_step(experiment: ExperimentConfig, *, card: str = "A2", rates: Path | None = None) -> StepEstimate | None:
    """The estimate for a resolved configuration; None on CPU without a run.

    card: one of `CARDS`, for device Ascend. rates: folder of a run to calibrate by. Raises ConfigError, RunFolderError.
    """
    if experiment.device == "CPU" and rates is None:
        return None
    device = CARDS[card]
    if rates is None:
        lengths_N, prompt = assumed_lengths(experiment)
        limit = experiment.rollout.max_new_tokens
        note = f"lengths: assumed, as Qwen3-32B's on DAPO-Math-17k: at most {limit:,} tokens"
        phases = phase_seconds(experiment, device, lengths_N, prompt)
        notes = (note, f"rates: those published of a {device.unit} of {device.name}, and four fitted to "
                 + _JUDGED)  # fmt: skip
    else:
        run = _MeasuredRun.read(rates, experiment.device)
        prompt = run.prompt_tokens
        lengths_N, own_N = (
            response_lengths(each, run.response_tokens, run.longest_response) for each in (experiment, run.config)
        )
        here = _as_timed(phase_seconds(experiment, device, lengths_N, prompt))
        there = _as_timed(phase_seconds(run.config, device, own_N, prompt))
        phases = {
            name: seconds * (here.get(name, 0.0) / there[name] if there.get(name) else 1.0)
            for name, seconds in run.phases.items()
        }
        notes = (f"rates and lengths: {rates}, {counted(run.num_steps, 'step')}; scaled by the roofline",)
    distillation = experiment.algorithm.distillation
    if distillation is not None and any(teacher.url for teacher in distillation.teachers):
        notes += ("teachers behind servers: their time is not known, and not counted",)
    plans, servers = experiment.plans, experiment.has_own_servers
    cards = plans.train.world_size + (plans.infer.world_size if servers else 0)
    is_ascend = experiment.device == "Ascend"
    return StepEstimate(
        phases=phases,
        is_overlapped=experiment.trainer.schedule != "sync",
        where=f"{counted(cards, device.unit)} of {device.name}" if is_ascend else f"device CPU, processes: {cards}",
        cards=cards,
        tokens=float(lengths_N.sum()) + len(lengths_N) * prompt,
        response_tokens=float(lengths_N.mean()),
        steps=planned_steps(experiment, None),
        notes=notes,
    )


def _as_timed(phases: Mapping[str, float]) -> dict[str, float]:
    """Phases as a run measures them: one timer has everything that scores."""
    scoring = (OLD_LOG_PROBS, REFERENCE, TEACHERS)
    rest = {name: seconds for name, seconds in phases.items() if name not in scoring}
    return {OLD_LOG_PROBS: sum(phases.get(name, 0.0) for name in scoring), **rest}


def assumed_lengths(experiment: ExperimentConfig) -> tuple[NDArray[np.int64], int]:
    """Tokens of a step's responses, int64 [N], and of a prompt, if nothing is known but their limits."""
    limit = experiment.rollout.max_new_tokens
    return response_lengths(experiment, _MEAN_SHARE * limit, limit), min(_PROMPT, experiment.data.max_prompt_length)


def response_lengths(experiment: ExperimentConfig, mean: float, longest: float) -> NDArray[np.int64]:
    """Lengths of a step's responses with this mean and this longest one, int64 [N], in an order without a trend.

    They are quantiles of `longest * u ** power` for uniform u: a few responses are several times as long as the mean.
    """
    number = experiment.rollout.prompts_per_step * experiment.rollout.num_generations
    longest = min(longest, experiment.rollout.max_new_tokens)
    power = longest / min(mean, longest) - 1
    lengths = np.rint(longest * ((np.arange(number) + 0.5) / number) ** power).clip(1)
    return np.random.default_rng(0).permutation(lengths.astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredRun:
    """Medians over the steps of a run."""

    config: ExperimentConfig
    phases: Mapping[str, float]
    num_steps: int
    response_tokens: float
    longest_response: float
    prompt_tokens: int

    @classmethod
    def read(cls, folder: Path, device: str) -> _MeasuredRun:
        """Without the first step, which compiles, where there are others. Raises ConfigError, RunFolderError."""
        rows = [row for row in read_run(folder, with_samples=False).metrics if _STEP in row]
        config = load_config(folder / CONFIG_FILE, check_files=False)
        if config.device != device:
            raise ConfigError(f"--rates: {folder} ran on device {config.device}, this experiment has device {device}")
        if config.has_servers:
            raise RunFolderError(
                f"{folder}: its responses came from servers, whose time is not in its metrics; give a run with "
                "trainer.schedule=sync and no servers"
            )
        missing = [name for name in _NEEDED if not all(row.get(name, 0) > 0 for row in rows)]
        if missing or not rows:
            raise RunFolderError(
                f"{folder / METRICS_FILE}: not every step has {listed(missing or _NEEDED)}; give another run"
            )
        rows = rows[1:] or rows

        def middle(*names: str) -> float:
            return median(sum(row.get(name, 0.0) for name in names) for row in rows)

        phases = {phase: seconds for phase, names in _TIMERS.items() if (seconds := middle(*names))}
        phases[_REST] = max(0.0, middle(_STEP) - sum(phases.values()))
        return cls(
            config=config,
            phases=phases,
            num_steps=len(rows),
            response_tokens=middle("response_length/mean"),
            longest_response=middle("response_length/max"),
            prompt_tokens=round(middle("prompt_length/mean")),
        )


# ----- As text and JSON
def estimate_lines(experiment: ExperimentConfig, found: StepEstimate) -> Iterator[str]:
    """A table of phases, the cost of the run, and the grounds of the estimate."""
    rollout = experiment.rollout
    yield (
        f"seconds of a step on {found.where}: {rollout.prompts_per_step:,} prompts x {rollout.num_generations} "
        f"responses of {found.response_tokens:,.0f} tokens on average"
    )
    rows = [["  phase", "seconds"]]
    rows += [[f"  {name}", seconds_text(value)] for name, value in found.phases.items()]
    rows.append(["  step, generation beside training" if found.is_overlapped else "  together",
                 seconds_text(found.seconds)])  # fmt: skip
    yield from aligned(rows, left=1)
    yield f"tokens per second and card: {found.tokens_per_card:,.1f}"
    steps = found.steps or 100
    more = "" if found.steps else " (trainer.epochs and the data say how many there are)"
    yield (
        f"{counted(steps, 'step')}{more}: {steps * found.seconds / 3600:,.1f} hours, {found.card_hours(steps):,.1f} "
        "card-hours, without evaluation, saving and compiling"
    )
    yield from found.notes


def seconds_text(value: float) -> str:
    """Three digits, or whole seconds."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 or not value else f"{value:.3f}"


def estimate_json(found: StepEstimate) -> dict[str, Any]:
    """All of it."""
    return {
        "seconds": found.seconds,
        "phases": dict(found.phases),
        "where": found.where,
        "cards": found.cards,
        "tokens_per_second_and_card": found.tokens_per_card,
        "mean_response_tokens": found.response_tokens,
        "steps": found.steps,
        "card_hours": None if found.steps is None else found.card_hours(found.steps),
        "notes": list(found.notes),
    }
