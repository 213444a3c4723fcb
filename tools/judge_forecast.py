#!/usr/bin/env python3
"""Fit the four rates of mindgspo/planner/time/roofline.py to tools/published_runs.yaml, judge each run by a fit to the
others, and write the tables of docs/planning.md and docs/planning_cn.md.

    python tools/judge_forecast.py            rewrite both pages below their marker
    python tools/judge_forecast.py --check    change nothing; exit code 1 if a page is stale

The forecast of a run is what `mindgspo plan` would say of its settings, had it known the lengths, and what its engine
moves between host and card. The fit minimizes sqrt(r^2 + 0.1^2), r the log-ratio of forecast and published seconds,
over the step and the phases published apart; every run has the same weight.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from generated_pages import row, write_pages
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, load_mapping
from mindgspo.config.load import merge, read_layers
from mindgspo.planner.rank_work import moment_sizes, weight_sizes
from mindgspo.planner.time.estimate import assumed_lengths, response_lengths, seconds_text
from mindgspo.planner.time.roofline import (
    CARDS,
    OLD_LOG_PROBS,
    REFERENCE,
    UPDATE,
    WEIGHTS,
    FittedRates,
    Load,
    phase_loads,
)

PROJECT = Path(__file__).resolve().parents[1]
RUNS = PROJECT / "tools" / "published_runs.yaml"

MARKER = "<!-- Everything below is written by tools/judge_forecast.py from tools/published_runs.yaml. -->"

# Bounds of peak share, seconds of a layer (decode, training), bytes per second: beyond them a fit would be nonsense.
LOWEST, HIGHEST = (0.1, 1e-4, 5e-4, 5e8), (0.6, 5e-3, 3e-2, 2e10)
# Bytes of a parameter on a card: the weights, which every phase needs, and what only the update needs. FSDP has float32
# weights, Megatron bfloat16 ones and a float32 copy beside the moments; verl drops gradients instead of moving them.
STATE = {"fsdp": (4, 8), "megatron": (2, 12)}

Loads = Mapping[str, Sequence[Load]]
"""Work by phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A judged run. published: its entry in the file. loads: its work by phase. assumed: the same with the lengths that
    `mindgspo plan` assumes."""

    name: str
    published: Mapping[str, Any]
    experiment: ExperimentConfig
    loads: Loads
    assumed: Loads

    @property
    def mean_tokens(self) -> float:
        """Of a sample, from the throughput."""
        rollout, cards = self.experiment.rollout, self.experiment.plans.train.world_size
        of_step = self.published["tokens_per_s"] * cards * self.published["seconds"]
        return of_step / (rollout.prompts_per_step * rollout.num_generations)

    def seconds(self, fitted: FittedRates, *, is_assumed: bool = False) -> float:
        """The forecast of a step."""
        return sum(forecast(self.assumed if is_assumed else self.loads, fitted).values())

    def ratio(self, fitted: FittedRates, *, is_assumed: bool = False) -> float:
        """Of that to the published seconds."""
        return self.seconds(fitted, is_assumed=is_assumed) / self.published["seconds"]

    def phase_ratios(self, fitted: FittedRates) -> dict[str, float]:
        """The same of the phases that are published apart."""
        phases, found = self.published.get("phases", {}), forecast(self.loads, fitted)
        return {name: found[name] / seconds for name, seconds in phases.items()}


def forecast(loads: Loads, fitted: FittedRates) -> dict[str, float]:
    """Seconds by phase."""
    return {name: sum(load.seconds(fitted) for load in each) for name, each in loads.items()}


@cache
def read_runs() -> tuple[Run, ...]:
    """The runs that can be judged."""
    return tuple(_run(name, entry) for name, entry in published()["judged"].items())


@cache
def published() -> Mapping[str, Any]:
    """The file."""
    return yaml.safe_load(RUNS.read_text("utf-8"))


def _run(name: str, entry: Mapping[str, Any]) -> Run:
    source = {"format": "arithmetic"}
    common = {
        "experiment": name,
        "device": "Ascend",
        "model": read_layers(PROJECT / "model_configs" / f"{entry['model']}.yaml", ())["model"] | {"dtype": "bfloat16"},
        "data": {"train": source | {"split": "train"}, "eval": source | {"split": "test"}},
        "trainer": {"max_steps": 1, "packing": "samples_per_micro_batch" not in entry["settings"]["trainer"]},
    }
    experiment = load_mapping(f"{RUNS}: {name}", merge(common, entry["settings"]), check_files=False)
    mean = entry["mean_tokens"] - entry["prompt_tokens"]
    known_N = response_lengths(experiment, mean, experiment.rollout.max_new_tokens)

    def loads(lengths_N: NDArray[np.int64], prompt: int) -> Loads:
        found = phase_loads(experiment, CARDS[entry["card"]], lengths_N, prompt)
        moved = _moved_by_engine(experiment, entry["engine"]) if entry["offloads"] else {}
        return {each: [*found[each], Load(host_bytes=moved.get(each, 0.0))] for each in found}

    return Run(
        name=name,
        published=entry,
        experiment=experiment,
        loads=loads(known_N, entry["prompt_tokens"]),
        assumed=loads(*assumed_lengths(experiment)),
    )


def _moved_by_engine(experiment: ExperimentConfig, engine: str) -> dict[str, float]:
    """Bytes that a card copies from the host and back in each phase."""
    plan, model = experiment.plans.train, experiment.model
    rows = sum(moment_sizes(model, plan, 0).values())
    slices = rows if engine == "fsdp" else sum(weight_sizes(model, plan, 0).values())
    of_weight, of_optimizer = STATE[engine]
    weights, optimizer = of_weight * slices, of_optimizer * rows
    return dict.fromkeys((OLD_LOG_PROBS, REFERENCE, WEIGHTS), 2.0 * weights) | {UPDATE: 2.0 * (weights + optimizer)}


def fit(runs: Sequence[Run]) -> FittedRates:
    """The rates with the least loss: steps along axes and some other directions, from the middle of the bounds."""
    low, high = np.log(LOWEST), np.log(HIGHEST)
    here, step = (low + high) / 2, 1.0
    others = np.random.default_rng(0).normal(size=(12, 4))
    ways = np.concatenate([np.eye(4), others / np.linalg.norm(others, axis=1, keepdims=True)])
    value = _loss(runs, _rates(here))
    while step > 1e-3:
        tries = [np.clip(here + step * move, low, high) for move in (*ways, *-ways)]
        values = [_loss(runs, _rates(each)) for each in tries]
        best = int(np.argmin(values))
        if values[best] < value - 1e-9:
            here, value = tries[best], values[best]
        else:
            step /= 2
    return _rates(here)


def _rates(logs: NDArray[np.float64]) -> FittedRates:
    share, decode, train, host = np.exp(logs).tolist()
    return FittedRates(peak_share=share, decode_layer=decode, train_layer=train, host=host)


def _loss(runs: Sequence[Run], fitted: FittedRates) -> float:
    total = 0.0
    for run in runs:
        ratios = [run.ratio(fitted), *run.phase_ratios(fitted).values()]
        total += sum(math.hypot(math.log(ratio), 0.1) for ratio in ratios) / len(ratios)
    return total


@cache
def left_out() -> tuple[FittedRates, ...]:
    """For each run, the fit to all others."""
    runs = read_runs()
    return tuple(fit([other for other in runs if other is not run]) for run in runs)


# ----- The pages
PAGES = {"planning.md": "en", "planning_cn.md": "cn"}


def tables(language: str) -> str:
    """The end of a page: the runs that are judged, their phases, and the runs that are not."""
    file, runs, all_fitted = published(), read_runs(), fit(read_runs())
    words = file["words"][language]
    steps, phases, off = [], [], []
    for run, other in zip(runs, left_out(), strict=True):
        entry, plan = run.published, run.experiment.plans.train
        name = f"[{entry['title']}]({entry['source']})"
        cells = [f"{plan.world_size} {entry['card']}", words["yes"] if entry["offloads"] else ""]
        totals = (entry["seconds"], run.seconds(all_fitted), run.seconds(other))
        ratios = (run.ratio(other), run.ratio(other, is_assumed=True))
        steps.append([name, *cells, *map(seconds_text, totals), *map(_digits, ratios)])
        for phase, ratio in run.phase_ratios(other).items():
            seconds = entry["phases"][phase]
            phases.append([entry["title"], phase, *map(seconds_text, (seconds, ratio * seconds)), _digits(ratio)])
        if "why_off" in entry:
            off.append(words["item"].format(title=entry["title"], why=entry["why_off"][language]))
    rest = [[each["title"], each[language]] for each in file["not_judged"]]
    found = summary()
    parts = [words["summary"].format(**found)]
    parts += [_table(words, "run cards offload published all_fitted left_out ratio assumed", steps)]
    parts += [words["why_off"], "\n".join(off), words["phases"].format(**found)]
    parts += [_table(words, "run phase published left_out ratio", phases)]
    parts += [words["rest"], _table(words, "run why", rest)]
    return "\n\n".join(parts)


def summary() -> dict[str, float]:
    """Errors of the forecasts with the run left out: medians in percent, and the largest factors."""
    pairs = list(zip(read_runs(), left_out(), strict=True))
    known, assumed = ([run.ratio(other, is_assumed=each) for run, other in pairs] for each in (False, True))
    moved = [run.ratio(other) for run, other in pairs if run.published["offloads"]]
    resident = [run.ratio(other) for run, other in pairs if not run.published["offloads"]]
    phases = [ratio for run, other in pairs for ratio in run.phase_ratios(other).values()]
    return {
        "number": len(pairs),
        "others": len(pairs) - 1,
        "median": _median(known),
        "offload": _median(moved),
        "resident": _median(resident),
        "worst": largest(known),
        "assumed": _median(assumed),
        "worst_assumed": largest(assumed),
        "of_phases": _median(phases),
        "worst_phase": largest(phases),
    }


def _digits(ratio: float) -> str:
    return f"{ratio:.2f}"


def _median(ratios: Sequence[float]) -> float:
    return 100 * median(abs(ratio - 1) for ratio in ratios)


def largest(ratios: Sequence[float]) -> float:
    """How many times the worst forecast is off, in either direction."""
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def _table(words: Mapping[str, str], heads: str, rows: Sequence[Sequence[str]]) -> str:
    titles = [words[head.replace("_", " ")] for head in heads.split()]
    return "\n".join(map(row, (titles, ["---"] * len(titles), *rows)))


if __name__ == "__main__":
    assert __doc__ is not None
    sys.exit(write_pages(__doc__, MARKER, {page: partial(tables, language) for page, language in PAGES.items()}))
