"""How fast an experiment generates and trains, for a forecast: from a run, from what a card can do, or as said.

All of it is for the experiment's own plans: replicas of plans.infer, training on the cards of plans.train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import yaml
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import ConfigError, RunFolderError
from mindgspo.io import read_bytes
from mindgspo.metrics.files import CONFIG_FILE, METRICS_FILE
from mindgspo.metrics.run_folder import read_run
from mindgspo.planner.probe import Probe
from mindgspo.planner.roofline import Card, decode_rates, training_seconds
from mindgspo.planner.simulated_replicas import Rates
from mindgspo.text import counted, did_you_mean, listed, shorten

_MOST_SECONDS = 1e6
_MOST_BYTES = 1 << 20
_NAMES = tuple(field.name for field in fields(Rates))
_PROMPT = "prompt_tokens"
_KEYS = (*_NAMES, _PROMPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """rates: with training on train_cards. prompt_tokens: of a prompt. phases: seconds of training in a step by phase,
    which tell its parts; empty where they are not known. notes: one line each, what they rest on."""

    rates: Rates
    train_cards: int
    prompt_tokens: int
    phases: Mapping[str, float]
    notes: tuple[str, ...]

    def on(self, train_cards: int) -> Rates:
        """With training on so many cards: its seconds are taken to be inverse to them."""
        factor = self.train_cards / train_cards
        return replace(
            self.rates, train_step=self.rates.train_step * factor, train_token=self.rates.train_token * factor
        )


def speeds_of(
    experiment: ExperimentConfig,
    given: Sequence[str],
    *,
    lengths_PG: NDArray[np.int64],
    card: Card,
    probe: Probe | None = None,
) -> Speeds:
    """given: run folders, files of rates, and "name=seconds"; later ones win. lengths_PG: tokens of responses, in the
    order in which their prompts are drawn. card: what device Ascend is. probe: of this experiment, on this machine.
    Raises ConfigError, RunFolderError.

    Where a name that begins with decode_ or train_ is given, the others that begin so are 0 unless they are given too.
    """
    runs = [text for text in given if "=" not in text and Path(text).is_dir()]
    if runs:
        speeds = _of_run(Path(runs[-1]), experiment)
    elif probe is not None:
        speeds = _of_steps("measured here", probe.steps, experiment, experiment, alone=probe.alone)
    elif experiment.device == "Ascend":
        speeds = _of_card(experiment, card, lengths_PG)
    else:
        speeds = None
    said: dict[str, float] = {}
    for text in given:
        if "=" in text:
            name, _, value = text.partition("=")
            said |= _checked("--rates", {name.strip(): _number(value)})
        elif not Path(text).is_dir():
            said |= _of_file(Path(text))
    if speeds is None:
        _check_complete(said)
        speeds = Speeds(
            rates=Rates(decode_step=0.0),
            train_cards=experiment.plans.train.world_size,
            prompt_tokens=0,
            phases={},
            notes=(),
        )
    speeds = _with_said(speeds, said) if said else speeds
    if speeds.rates.decode_step + speeds.rates.decode_sequence == 0:
        raise ConfigError("--rates: a decode step takes no time; set decode_step or decode_sequence above 0")
    return speeds


def replica_cards(experiment: ExperimentConfig) -> int:
    """Cards of one replica of the infer plan."""
    infer = experiment.plans.infer
    return infer.world_size // infer.data_parallel


# ----- What was said
def _with_said(speeds: Speeds, said: Mapping[str, float]) -> Speeds:
    rates = {name: value for name, value in said.items() if name != _PROMPT}
    families = {name.split("_")[0] for name in rates} & {"decode", "train"}
    others = {name: 0.0 for name in _NAMES if name.split("_")[0] in families}
    note = "as said: " + ", ".join(f"{name}={value:g}" for name, value in said.items())
    return replace(
        speeds,
        rates=Rates(**{**asdict(speeds.rates), **others, **rates}),
        prompt_tokens=int(said.get(_PROMPT, speeds.prompt_tokens)),
        phases={} if "train" in families else speeds.phases,
        notes=(*speeds.notes, note),
    )


def _check_complete(said: Mapping[str, float]) -> None:
    missing = [family for family in ("decode", "train") if not any(name.startswith(family) for name in said)]
    if missing:
        example = " ".join(f"--rates {family}_step={2 if family == 'train' else 0.01}" for family in missing)
        raise ConfigError(
            f"--rates: nothing is known about this machine; give a folder of a run, --probe, or seconds: {example}"
        )


def _of_file(path: Path) -> dict[str, float]:
    if not path.exists():
        raise ConfigError(f"--rates: {shorten(path)} is no run folder, no file and no name=seconds ({listed(_KEYS)})")
    try:
        content = parse_document(read_bytes(path, _MOST_BYTES).decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML or JSON ({shorten(str(error).splitlines()[0], 120)})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds no names and seconds; write e.g. decode_step: 0.04 (known: {listed(_KEYS)})")
    return _checked(str(path), content)


def _checked(where: str, content: Mapping[object, object]) -> dict[str, float]:
    for name, value in content.items():
        if name not in _KEYS:
            raise ConfigError(
                f"{where}: unknown rate {shorten(repr(name))}{did_you_mean(name, _KEYS)} ({listed(_KEYS)})"
            )
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= _MOST_SECONDS:
            unit = "tokens" if name == _PROMPT else "seconds"
            raise ConfigError(
                f"{where}: {name}={shorten(value)} are no {unit}; write a number from 0 to {_MOST_SECONDS:,.0f}"
            )
    return {str(name): float(value) for name, value in content.items()}


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text.strip()


# ----- What a card can do
_PUBLISHED_PROMPT = 153
"""Tokens of DAPO-Math-17k's prompts in the fitted step."""


def _of_card(experiment: ExperimentConfig, card: Card, lengths_PG: NDArray[np.int64]) -> Speeds:
    """By `roofline`, for a step of these lengths."""
    prompt = min(_PUBLISHED_PROMPT, experiment.data.max_prompt_length)
    prompts = experiment.rollout.prompts_per_step
    steps = [lengths_PG[start : start + prompts].ravel() for start in range(0, len(lengths_PG), prompts)]
    seconds = [training_seconds(experiment, card, lengths_N, prompt) for lengths_N in steps if lengths_N.size]
    phases = {name: fmean(each[name] for each in seconds) for name in seconds[0]}
    tokens = fmean(float((lengths_N + prompt).sum()) for lengths_N in steps)
    rates = replace(decode_rates(experiment, card), train_token=sum(phases.values()) / tokens)
    note = (
        f"a {card.unit} of {card.name}: {card.peak / 1e12:.0f} Tflop/s, memory {card.memory / 1e12:.2f} TB/s, links "
        f"{card.link / 1e9:.0f} and {card.outer / 1e9:.0f} GB/s; the shares of them that are reached are fitted to one "
        "step of Qwen3-32B in verl on 64 dies of Atlas A3; not measured on this model or suite: give --rates for yours"
    )
    return Speeds(
        rates=rates, train_cards=experiment.plans.train.world_size, prompt_tokens=prompt, phases=phases, notes=(note,)
    )


# ----- What a run measured
_GEN, _STEP, _WEIGHTS = "timing_s/gen", "timing_s/step", "timing_s/update_weights"
_DECODE_STEPS, _SPEED, _TOKENS = "rollout/decode_steps", "perf/gen_tokens_per_second", "perf/total_num_tokens"
_TIMERS = {
    "reward, advantages": ("timing_s/reward", "timing_s/adv"),
    "old log-probs": ("timing_s/old_log_prob",),
    "update": ("timing_s/update_actor",),
}
_NEEDED = (_GEN, _STEP, _DECODE_STEPS, _SPEED, _TOKENS)


def _of_run(folder: Path, experiment: ExperimentConfig) -> Speeds:
    """The first step, which compiles, is left out where there are others."""
    rows = [row for row in read_run(folder).metrics if _STEP in row]
    config = load_config(folder / CONFIG_FILE, check_files=False)
    if config.has_servers:
        raise RunFolderError(
            f"{folder}: its responses came from servers, whose time is not in its metrics; give a run with "
            "trainer.schedule=sync and no servers, or rates as name=seconds"
        )
    missing = [name for name in _NEEDED if not all(row.get(name, 0) > 0 for row in rows)]
    if missing or not rows:
        raise RunFolderError(
            f"{folder / METRICS_FILE}: not every step has {listed(missing or _NEEDED)}; give another run, or rates"
        )
    return _of_steps(str(folder), rows[1:] or rows, config, experiment, alone=())


def _of_steps(
    where: str,
    rows: Sequence[Mapping[str, float]],
    config: ExperimentConfig,
    experiment: ExperimentConfig,
    *,
    alone: Sequence[Mapping[str, float]],
) -> Speeds:
    """rows: metrics of steps of `config`. alone: see `Probe`; with it medians are taken, for there are few steps."""
    middle = median if alone else fmean
    column = {name: np.array([row.get(name, 0.0) for row in rows], np.float64) for name in {*_NEEDED, _WEIGHTS}}
    replicas, tokens = config.plans.infer.data_parallel, float(column[_TOKENS].sum())
    forward = sum(row.get("timing_s/update_actor", 0.0) for row in rows) / 3 / tokens  # twice as much goes backwards
    steps, generated = column[_DECODE_STEPS] / replicas, column[_SPEED] * column[_GEN] / replicas
    step, sequence = _told_apart(column, alone, forward) if alone else _fitted(steps, generated, column[_GEN])
    cards, size = config.plans.train.world_size, replica_cards(config)
    scale = size / replica_cards(experiment)
    training = (column[_STEP] - column[_GEN] - column[_WEIGHTS]).clip(0)
    rates = Rates(
        decode_step=step * scale,
        decode_sequence=sequence * scale,
        prefill_token=forward * cards / size * scale,
        train_token=middle(training.tolist()) / tokens * len(rows),
        push_weights=median(column[_WEIGHTS].tolist()),
    )
    note = (
        f"{where}: {counted(len(rows), 'step')}, generation {median(column[_GEN].tolist()):.3g} s, training "
        f"{rates.train_token * tokens / len(rows):.3g} s on {counted(cards, 'card')}, weights "
        f"{rates.push_weights:.3g} s"
        + ("" if scale == 1 else f"; scaled from {size} to {replica_cards(experiment)} cards of a replica")
    )
    phases = {
        phase: middle([sum(row.get(name, 0.0) for name in names) for row in rows]) for phase, names in _TIMERS.items()
    }
    phases["the rest"] = max(0.0, middle(training.tolist()) - sum(phases.values()))
    prompt = round(median([row.get("prompt_length/mean", 0.0) for row in rows]))
    return Speeds(rates=rates, train_cards=cards, prompt_tokens=prompt, phases=phases, notes=(note,))


def _told_apart(
    column: Mapping[str, NDArray[np.float64]], alone: Sequence[Mapping[str, float]], prefill_token: float
) -> tuple[float, float]:
    """Seconds per decode step and per sequence in it, from medians of whole steps and of few sequences."""
    prompts = np.array([one["prompt_tokens"] for one in alone])
    whole = np.stack([column[_DECODE_STEPS], column[_SPEED] * column[_GEN], column[_GEN]], axis=1)
    few = np.array([[one["steps"], one["tokens"], one["seconds"]] for one in alone])
    few[:, 2] -= prompts * prefill_token
    found = np.stack([np.median(whole, axis=0), np.median(few, axis=0)])
    return _not_negative(np.linalg.solve(found[:, :2], found[:, 2]), *found.T)


def _fitted(steps: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Seconds per decode step and per token decoded, both at least 0, by least squares; all per decode step where the
    runs' steps are too much alike to tell them apart."""
    matrix = np.stack([steps, tokens], axis=1)
    if len(seconds) < 4 or np.linalg.cond(matrix / matrix.max(axis=0)) > 100:
        return float(steps @ seconds / (steps @ steps)), 0.0
    return _not_negative(np.linalg.lstsq(matrix, seconds, rcond=None)[0], steps, tokens, seconds)


def _not_negative(found: np.ndarray, steps: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """All per token, or per step, where the other of the two is below 0."""
    step, token = found.tolist()
    if step < 0:
        return 0.0, float(tokens @ seconds / (tokens @ tokens))
    return (step, token) if token >= 0 else (float(steps @ seconds / (steps @ steps)), 0.0)
