"""Runs beside each other: which settings differ, what came out, curves over one another; also of unfinished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from mindgspo.config import config_mapping, flattened, load_config
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import ConfigError
from mindgspo.io import make_folder, write_file
from mindgspo.metrics.compare_plot import (
    ACCURACY,
    CLIP_FRACTION,
    ENTROPY,
    GRADIENT,
    HELD_OUT,
    LENGTH,
    REWARD,
    ComparedRun,
    draw_curves,
    draw_panel,
)
from mindgspo.metrics.files import CONFIG_FILE
from mindgspo.metrics.pages import page, pictures
from mindgspo.metrics.plot_style import DARK, LIGHT, draw_alone
from mindgspo.metrics.run_folder import (
    HELD_OUT_ACCURACY,
    HELD_OUT_REWARD,
    HeldOut,
    RunRecord,
    held_out_figures,
    read_run,
)
from mindgspo.text import aligned, shorten

PANELS = (REWARD, ACCURACY, CLIP_FRACTION, ENTROPY, LENGTH, GRADIENT)
# How a run is called, where it lies and how it begins says nothing about what it computes.
_NOT_COMPARED = ("schema", "experiment", "run_dir", "resume", "restore", "logging.progress")
_ABSENT = "-"
_WIDTH = 40
PICTURE, PAGE = "comparison.png", "comparison.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An evaluation: accuracy or reward of one answer to each problem, ends of its 95 % interval (None: not recorded).
    text: of them."""

    step: int
    value: float
    low: float | None
    high: float | None
    text: str

    def __str__(self) -> str:
        return f"{self.text} at {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run. last, best: accuracy; last_reward, best_reward: None where it says no more. steps: training steps done.
    seconds: of the whole run; of its steps alone while it goes on.
    tokens_per_second: of training steps. None: not recorded."""

    name: str
    folder: str
    is_finished: bool
    steps: int
    last: Measured | None
    best: Measured | None
    last_reward: Measured | None
    best_reward: Measured | None
    seconds: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting, or a fact of the environment, and its value in each run as text."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """runs, outcomes and the values of differences in the order of the folders. environment: the same of versions and
    machines."""

    runs: tuple[ComparedRun, ...]
    outcomes: tuple[Outcome, ...]
    settings: tuple[Difference, ...]
    environment: tuple[Difference, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(outcome.name for outcome in self.outcomes)


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Raises RunFolderError for a folder that holds no run with at least one step."""
    records = [read_run(folder, with_samples=False) for folder in folders]
    names = distinct_names(folders)
    return Comparison(
        runs=tuple(ComparedRun(variant=name, seed=0, run=run) for name, run in zip(names, records, strict=True)),
        outcomes=tuple(_outcome(name, *one) for name, *one in zip(names, folders, records, strict=True)),
        settings=_differences([_settings(folder / CONFIG_FILE) for folder in folders]),
        environment=_differences([_environment(run) for run in records]),
    )


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the folders from each other."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]).lstrip("/") for one in parts]
        if len(set(names)) == len(names):
            return names
    raise AssertionError(f"a folder is compared with itself: {folders}")


def _outcome(name: str, folder: Path, run: RunRecord) -> Outcome:
    seconds, speed = _number(run.summary.get("seconds")), _number(run.summary.get("tokens_per_second"))
    times, tokens = run.series("perf/time_per_step").values, run.series("perf/total_num_tokens").values
    if seconds is None and times:
        seconds = sum(times)
    if speed is None and times and tokens and sum(times) > 0:
        speed = sum(tokens) / sum(times)
    last, best = _last_and_best(run, HELD_OUT_ACCURACY)
    last_reward, best_reward = _last_and_best(run, HELD_OUT_REWARD)
    return Outcome(
        name=name,
        folder=str(folder),
        is_finished=run.summary.get("finished") is True,
        steps=max((row["step"] for row in run.metrics), default=0),
        last=last,
        best=best,
        last_reward=last_reward,
        best_reward=best_reward,
        seconds=seconds,
        tokens_per_second=speed,
    )


def _last_and_best(run: RunRecord, figure: HeldOut) -> tuple[Measured | None, Measured | None]:
    """Of several evaluations at one step, around a warm-up, the last counts."""
    if figure not in held_out_figures(run):
        return None, None
    all_three = (figure.series(run, end) for end in ("", "/low", "/high"))
    values, low, high = (dict(zip(one.steps, one.values, strict=True)) for one in all_three)
    found = []
    for step, value in values.items():
        ends = (low.get(step), high.get(step))
        text = figure.text(value)
        if None not in ends:
            text += f" ({' .. '.join(figure.text(end).removesuffix('%') for end in ends)})"
        found.append(Measured(step=step, value=value, low=ends[0], high=ends[1], text=text))
    return (found[-1], max(found, key=lambda one: one.value)) if found else (None, None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _settings(path: Path) -> dict[str, object]:
    """By dotted key, in the schema's order. What this version cannot read any more is taken as it stands there."""
    if not path.is_file():
        return {}
    try:
        return dict(flattened(config_mapping(load_config(path, check_files=False))))
    except ConfigError:
        try:
            document = parse_document(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from None
        return dict(flattened(document if isinstance(document, Mapping) else {}))


def _environment(run: RunRecord) -> dict[str, object]:
    """Of the last start."""
    if not run.starts:
        return {}
    last = run.starts[-1]
    versions = last.get("versions")
    return {
        **({key: last[key] for key in ("host", "machine") if key in last}),
        **(versions if isinstance(versions, Mapping) else {}),
        **({"commit": git.get("commit")} if isinstance(git := last.get("git"), Mapping) else {}),
    }


def _differences(mappings: Sequence[Mapping[str, object]]) -> tuple[Difference, ...]:
    """Where one of them has nothing at all to say, it is not compared."""
    mappings = [_folded(mapping, mappings) for mapping in mappings]
    keys = dict.fromkeys(key for mapping in mappings for key in mapping if key not in _NOT_COMPARED)
    found = []
    for key in keys:
        values = tuple(_text(mapping.get(key, _ABSENT)) if mapping else _ABSENT for mapping in mappings)
        known = {value for value, mapping in zip(values, mappings, strict=True) if mapping}
        if len(known) > 1:
            found.append(Difference(key=key, values=values))
    return tuple(found)


def _folded(mapping: Mapping[str, object], others: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """A section that is one value in another run, mostly null, is one value here, too."""
    found: dict[str, object] = {}
    for key, value in mapping.items():
        heads = [key[: place + 1].rpartition(".")[0] for place, letter in enumerate(key) if letter == "."]
        head = next((head for head in heads if any(head in other for other in others)), None)
        if head is None:
            found[key] = value
        else:
            text = str(found.get(head, "")).strip("{}")
            found[head] = f"{{{text}{', ' if text else ''}{key.removeprefix(head + '.')}: {_text(value)}}}"
    return found


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


# ----- what is printed and written


def outcome_rows(comparison: Comparison) -> list[list[str]]:
    """Header and one row per run."""
    has_rewards = any(one.last_reward for one in comparison.outcomes)
    figures = ["accuracy, last (95 %), at step", "best", *(["reward, last", "best"] if has_rewards else [])]
    rows = [["run", "steps", *figures, "seconds", "tokens/s"]]
    for one in comparison.outcomes:
        measured = (one.last, one.best, one.last_reward, one.best_reward)[: len(figures)]
        rows.append(
            [
                shorten(one.name, _WIDTH),
                f"{one.steps}{'' if one.is_finished else ', unfinished'}",
                *(_ABSENT if value is None else str(value) for value in measured),
                _ABSENT if one.seconds is None else f"{one.seconds:,.0f}",
                _ABSENT if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
            ]
        )
    return rows


def comparison_lines(comparison: Comparison) -> list[str]:
    """For a terminal: the table, then the first setting that differs and the others."""
    lines = aligned(outcome_rows(comparison), left=1)
    if not comparison.settings:
        lines += ["", "no setting differs"]
    for title, differences in (("first setting that differs", comparison.settings[:1]),
                               ("others", comparison.settings[1:]),
                               ("versions and machines", comparison.environment)):  # fmt: skip
        if differences:
            rows = [[f"  {one.key}", *(shorten(value, _WIDTH) for value in one.values)] for one in differences]
            lines += ["", f"{title}:", *aligned(rows)]
    return lines


def write_comparison(comparison: Comparison, out: Path) -> tuple[Path, Path]:
    """comparison.png and comparison.html in the folder `out`; returns their paths. Raises WriteError."""
    make_folder(out)
    panels = (*PANELS, HELD_OUT) if any(one.last_reward for one in comparison.outcomes) else PANELS
    runs, drawn = comparison.runs, []
    for theme in (LIGHT, DARK):
        alone = (draw_alone(partial(draw_panel, runs=runs, theme=theme, panel=one), theme) for one in panels)
        drawn.append([one for one in alone if one is not None])
    html = page(
        "compare.jinja",
        names=comparison.names,
        table=outcome_rows(comparison),
        pictures=pictures(*drawn),
        differences=(*comparison.settings, *comparison.environment),
    )
    write_file(out / PICTURE, draw_curves(runs, LIGHT, panels, columns=3))
    write_file(out / PAGE, html)
    return out / PICTURE, out / PAGE
