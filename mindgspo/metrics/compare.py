"""Compares runs, finished or not: settings that differ, results, and curves in one figure.

Curves are lines per variant: a run of its own, or the runs of one recipe with several seeds. The band of several runs
goes from the smallest to the largest of them; that of one run is its 95 % interval where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from mindgspo.config import config_mapping, dotted_items, load_config
from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.errors import ConfigError
from mindgspo.io import make_folder, write_file
from mindgspo.metrics.files import CONFIG_FILE, recorded_number
from mindgspo.metrics.pages import page, pictures
from mindgspo.metrics.plot_style import (
    DARK,
    LIGHT,
    Theme,
    add_legend,
    draw_alone,
    entitle,
    label_x,
    literal,
    new_figure,
    not_recorded,
    png_bytes,
    smooth,
    style,
    window_of,
)
from mindgspo.metrics.run_folder import (
    HELD_OUT_ACCURACY,
    HELD_OUT_REWARD,
    HeldOut,
    RunRecord,
    Series,
    held_out_figures,
    read_run,
)
from mindgspo.text import aligned, listed, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A run's name, folder and start do not affect what it computes.
_NOT_COMPARED = ("schema", "experiment", "run_dir", "resume", "restore", "logging.progress")
_ABSENT = "-"
_WIDTH = 40
MOST_CURVES = 12
"""Variants that are drawn, the first ones: so many colours and dashes there are."""
PICTURE, PAGE = "comparison.png", "comparison.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFigure:
    """Accuracy or reward of one evaluation, one answer per problem."""

    step: int
    value: float
    low: float | None
    high: float | None
    """Ends of the 95 % interval; None: not recorded."""
    text: str
    """E.g. "80.0% (70.0 .. 90.0)"."""

    def __str__(self) -> str:
        return f"{self.text} at {self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of one run; None: not recorded."""

    name: str
    folder: str
    variant: str
    """What it is compared under."""
    metric: float | None
    """Last value of the metric that sorts the runs."""
    is_finished: bool
    steps: int
    """Training steps done."""
    last: MeasuredFigure | None
    best: MeasuredFigure | None
    """Held-out accuracy."""
    last_reward: MeasuredFigure | None
    best_reward: MeasuredFigure | None
    """Held-out reward, if it differs from the accuracy."""
    seconds: float | None
    """Seconds of the whole run; of its steps alone while it is running."""
    tokens_per_second: float | None
    """Tokens per second of training steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """A setting, or a fact of the environment, and its value in each run as text."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Runs beside each other."""

    runs: tuple[ComparedRun, ...]
    outcomes: tuple[RunOutcome, ...]
    settings: tuple[SettingDifference, ...]
    environment: tuple[SettingDifference, ...]
    """Versions and machines that differ."""
    metric: str = ""
    """By whose last value the runs are sorted, the highest first; "": they are in the order of their folders."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(outcome.name for outcome in self.outcomes)


def compare_runs(folders: Sequence[Path], *, variants: Sequence[str] = (), metric: str = "") -> RunComparison:
    """Raises RunFolderError for a folder that holds no run with at least one step.

    variants: what each run is one of several seeds of; none: each is its own. metric: see `RunComparison`.
    """
    names, pairs = distinct_names(folders), []
    for name, folder, variant in zip(names, folders, variants or names, strict=True):
        run = read_run(folder, with_samples=False)
        series = HELD_OUT_ACCURACY.series(run) if metric == HELD_OUT_ACCURACY.key else run.series(metric)
        value = series.values[-1] if series else None
        pairs.append((_outcome(name, folder, run, variant, value), ComparedRun(variant=variant, run=run)))
    if metric:
        pairs.sort(key=lambda pair: -math.inf if pair[0].metric is None else pair[0].metric, reverse=True)
    outcomes, runs = zip(*pairs, strict=True)
    return RunComparison(
        metric=metric,
        runs=runs,
        outcomes=outcomes,
        settings=_differences([_settings(Path(one.folder) / CONFIG_FILE) for one in outcomes]),
        environment=_differences([_environment(one.run) for one in runs]),
    )


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the folders from each other."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]).lstrip("/") for one in parts]
        if len(set(names)) == len(names):
            return names
    raise AssertionError(f"a folder is compared with itself: {folders}")


def _outcome(name: str, folder: Path, run: RunRecord, variant: str, metric: float | None) -> RunOutcome:
    seconds, speed = recorded_number(run.summary.get("seconds")), recorded_number(run.summary.get("tokens_per_second"))
    times, tokens = run.series("perf/time_per_step").values, run.series("perf/total_num_tokens").values
    if seconds is None and times:
        seconds = sum(times)
    if speed is None and times and tokens and sum(times) > 0:
        speed = sum(tokens) / sum(times)
    last, best = _last_and_best(run, HELD_OUT_ACCURACY)
    last_reward, best_reward = _last_and_best(run, HELD_OUT_REWARD)
    return RunOutcome(
        name=name,
        folder=str(folder),
        variant=variant,
        metric=metric,
        is_finished=run.summary.get("finished") is True,
        steps=max((row["step"] for row in run.metrics), default=0),
        last=last,
        best=best,
        last_reward=last_reward,
        best_reward=best_reward,
        seconds=seconds,
        tokens_per_second=speed,
    )


def _last_and_best(run: RunRecord, figure: HeldOut) -> tuple[MeasuredFigure | None, MeasuredFigure | None]:
    """The last and the best evaluation; if there are several at one step, around a warm-up, the last counts."""
    if figure not in held_out_figures(run):
        return None, None
    all_three = (figure.series(run, end) for end in ("", "/low", "/high"))
    values, low, high = (dict(zip(one.steps, one.values, strict=True)) for one in all_three)
    found = []
    for step, value in values.items():
        least, most = low.get(step), high.get(step)
        text = figure.text(value)
        if least is not None and most is not None:
            text += f" ({' .. '.join(figure.text(end).removesuffix('%') for end in (least, most))})"
        found.append(MeasuredFigure(step=step, value=value, low=least, high=most, text=text))
    return (found[-1], max(found, key=lambda one: one.value)) if found else (None, None)


def _settings(path: Path) -> dict[str, object]:
    """Settings by dotted key, in the schema's order. A file that this version cannot load is compared as it is
    written."""
    if not path.is_file():
        return {}
    try:
        return dict(dotted_items(config_mapping(load_config(path, check_files=False))))
    except ConfigError:
        try:
            document = parse_document(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from None
        return dict(dotted_items(document if isinstance(document, Mapping) else {}))


def _environment(run: RunRecord) -> dict[str, object]:
    """Machine, versions and commit of the last start."""
    if not run.starts:
        return {}
    last = run.starts[-1]
    versions = last.get("versions")
    return {
        **({key: last[key] for key in ("host", "machine") if key in last}),
        **(versions if isinstance(versions, Mapping) else {}),
        **({"commit": git.get("commit")} if isinstance(git := last.get("git"), Mapping) else {}),
    }


def _differences(mappings: Sequence[Mapping[str, object]]) -> tuple[SettingDifference, ...]:
    """Keys with different values; a run without any entry is not compared."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping if key not in _NOT_COMPARED)
    found = []
    for key in keys:
        values = tuple(_text(mapping.get(key, _ABSENT)) if mapping else _ABSENT for mapping in mappings)
        known = {value for value, mapping in zip(values, mappings, strict=True) if mapping}
        if len(known) > 1:
            found.append(SettingDifference(key=key, values=values))
    return tuple(found)


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


# ----- what is printed and written


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure of the table. form: how its number is written."""

    heading: str
    value: Callable[[RunOutcome], MeasuredFigure | float | None]
    form: Callable[[float], str]

    def cell(self, run: RunOutcome) -> str:
        """The figure of one run."""
        value = self.value(run)
        return _ABSENT if value is None else self.form(value) if isinstance(value, (int, float)) else str(value)

    def spread(self, runs: Sequence[RunOutcome]) -> str:
        """Mean and standard deviation (ddof 1) over several runs, all of which must have the figure."""
        found = [value.value if isinstance(value, MeasuredFigure) else value for value in map(self.value, runs)]
        known = [value for value in found if value is not None]
        if len(known) < len(found):
            return _ABSENT
        return f"{self.form(fmean(known))} \N{PLUS-MINUS SIGN} {self.form(stdev(known)).removesuffix('%')}"


_ACCURACY = (
    _Column("accuracy, last (95 %), at step", lambda run: run.last, HELD_OUT_ACCURACY.text),
    _Column("best", lambda run: run.best, HELD_OUT_ACCURACY.text),
)
_REWARD = (
    _Column("reward, last", lambda run: run.last_reward, HELD_OUT_REWARD.text),
    _Column("best", lambda run: run.best_reward, HELD_OUT_REWARD.text),
)
_SPEED = (
    _Column("seconds", lambda run: run.seconds, "{:,.0f}".format),
    _Column("tokens/s", lambda run: run.tokens_per_second, "{:,.0f}".format),
)


def outcome_rows(comparison: RunComparison) -> list[list[str]]:
    """Header, one row per run, then one per variant that several runs have."""
    has_rewards = any(one.last_reward for one in comparison.outcomes)
    is_shown = comparison.metric in ("", HELD_OUT_ACCURACY.key, *([HELD_OUT_REWARD.key] if has_rewards else []))
    own = () if is_shown else (_Column(comparison.metric, lambda run: run.metric, "{:.4g}".format),)
    columns = (*own, *_ACCURACY, *(_REWARD if has_rewards else ()), *_SPEED)
    rows = [["run", "steps", *(one.heading for one in columns)]]
    for run in comparison.outcomes:
        steps = f"{run.steps}{'' if run.is_finished else ', unfinished'}"
        rows.append([shorten(run.name, _WIDTH), steps, *(one.cell(run) for one in columns)])
    for variant, runs in _by_variant(comparison.outcomes).items():
        if len(runs) > 1:
            name = f"{shorten(variant, _WIDTH)}, mean of {len(runs)}"
            rows.append([name, "", *(one.spread(runs) for one in columns)])
    return rows


def comparison_lines(comparison: RunComparison) -> list[str]:
    """Lines for a terminal: the table, then the first setting that differs and the others."""
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


def write_comparison(comparison: RunComparison, out: Path) -> tuple[Path, Path]:
    """comparison.png and comparison.html in the folder `out`; returns their paths. Raises WriteError."""
    make_folder(out)
    shown = list(_by_variant(comparison.runs))[:MOST_CURVES]
    runs, drawn = [one for one in comparison.runs if one.variant in shown], []
    has_rewards = any(one.last_reward for one in comparison.outcomes)
    is_routed = any(ROUTING.series(one.run) for one in runs)
    panels = (*PANELS, *([HELD_OUT] if has_rewards else []), *([ROUTING] if is_routed else []))
    for theme in (LIGHT, DARK):
        alone = (draw_alone(partial(draw_panel, runs=runs, theme=theme, panel=one), theme) for one in panels)
        drawn.append([one for one in alone if one is not None])
    html = page(
        "compare.jinja",
        title=listed(comparison.names, 4),
        names=comparison.names,
        table=outcome_rows(comparison),
        pictures=pictures(*drawn),
        differences=(*comparison.settings, *comparison.environment),
    )
    write_file(out / PICTURE, draw_curves(runs, LIGHT, panels, columns=3))
    write_file(out / PAGE, html)
    return out / PICTURE, out / PAGE


# ----- curves

SeriesOf = Callable[[RunRecord], Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run of the comparison; variant: what it is compared under, e.g. "gspo"."""

    variant: str
    run: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One metric of a comparison."""

    title: str
    unit: str
    """Unit of its axis."""
    series: SeriesOf
    interval: tuple[SeriesOf, SeriesOf] | None = None
    """Ends of the 95 % interval, drawn for a single run."""
    is_smooth: bool = True
    """Whether a moving mean is drawn."""
    is_logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class _Band:
    """Mean over a variant's runs and the band around it, by step."""

    steps: tuple[int, ...]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def metric(name: str) -> SeriesOf:
    """The series of a metric."""
    return lambda run: run.series(name)


REWARD = Panel(title="Reward", unit="mean reward", series=metric("critic/score/mean"))


def _held_out(figure: HeldOut, unit: str) -> Panel:
    return Panel(
        title=f"Held-out {figure.name}",
        unit=unit,
        series=figure.series,
        interval=(lambda run: figure.series(run, "/low"), lambda run: figure.series(run, "/high")),
        is_smooth=False,
    )


ACCURACY = _held_out(HELD_OUT_ACCURACY, "share solved")
HELD_OUT = _held_out(HELD_OUT_REWARD, "mean reward")
CLIP_FRACTION = Panel(
    title="Tokens clipped",
    unit="share, log scale",
    series=metric("actor/pg_clipfrac"),
    is_logarithmic=True,
)
ENTROPY = Panel(title="Entropy", unit="nats per token", series=metric("actor/entropy"))
LENGTH = Panel(title="Response length", unit="tokens, mean", series=metric("response_length/mean"))
GRADIENT = Panel(title="Gradient norm", unit="before clipping", series=metric("actor/grad_norm"))
ROUTING = Panel(title="Routing drift", unit="share of routers' choices", series=metric("router/drift"))
PANELS = (REWARD, ACCURACY, CLIP_FRACTION, ENTROPY, LENGTH, GRADIENT)


_Variant = TypeVar("_Variant", RunOutcome, ComparedRun)


def _by_variant(runs: Sequence[_Variant]) -> dict[str, list[_Variant]]:
    """The runs of each variant, in the order in which they are given."""
    found: dict[str, list[_Variant]] = {}
    for one in runs:
        found.setdefault(one.variant, []).append(one)
    return found


def display_name(variant: str) -> str:
    """GSPO for gspo; names that are not an algorithm's stay as they are."""
    return variant.upper().replace("_", "-") if variant in POLICY_LOSSES else variant


def band_text(runs: Sequence[ComparedRun]) -> str:
    """The meaning of the bands, after a semicolon; "" where every variant is one run."""
    seeds = max(len(siblings) for siblings in _by_variant(runs).values())
    return f"; mean and range of {seeds} seeds" if seeds > 1 else ""


def draw_curves(runs: Sequence[ComparedRun], theme: Theme, panels: Sequence[Panel], *, columns: int) -> bytes:
    """PNG with a panel per metric, so many in a row."""
    assert runs, "a comparison of no runs"
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(theme, 13 * columns / 3, 3.9 * rows)
    cells = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, panel in zip(cells, panels, strict=False):
        style(axes, theme)
        draw_panel(axes, runs, theme, panel)
        label_x(axes, theme, "training step")
    for axes in cells[len(panels) :]:
        axes.set_visible(False)
    drawn = cells[: len(panels)]
    add_legend(figure, max(drawn, key=lambda axes: len(axes.get_legend_handles_labels()[1])), theme)
    return png_bytes(figure, theme)


def draw_panel(axes: Axes, runs: Sequence[ComparedRun], theme: Theme, panel: Panel) -> None:
    """One metric of all runs."""
    subtitle = "smoothed" if panel.is_smooth else "greedy answers"
    shaded = band_text(runs) or ("; shaded: 95 % interval" if panel.interval else "")
    entitle(axes, theme, panel.title, f"{panel.unit}; {subtitle}{shaded}")
    bands = {variant: _band(panel, siblings) for variant, siblings in _by_variant(runs).items()}
    if not any(band.steps for band in bands.values()):
        return not_recorded(axes, theme)
    if panel.is_logarithmic:
        axes.set_yscale("symlog", linthresh=1e-4)  # runs without a clipped token have zeros
    for index, (variant, band) in enumerate(bands.items()):
        if not band.steps:
            continue
        colour, line = line_style(theme, index)
        marker = {"marker": "o", "markersize": 4} if not panel.is_smooth or len(band.steps) == 1 else {}
        axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.16, linewidth=0)
        label = literal(display_name(variant))
        axes.plot(band.steps, band.mean, color=colour, linestyle=line, linewidth=2.2, label=label, **marker)


def line_style(theme: Theme, index: int) -> tuple[str, str]:
    """Colour and dashes of the variant number `index`."""
    turn, place = divmod(index, len(theme.series))
    return theme.series[place], ("-", "--", ":")[turn % 3]


def _band(panel: Panel, siblings: Sequence[ComparedRun]) -> _Band:
    """Mean and range over the steps that all runs recorded; the 95 % interval of a single run that has one."""
    series = [panel.series(one.run) for one in siblings]
    shared = sorted(set.intersection(*(set(one.steps) for one in series)))
    rows = [_values(one, shared, is_smooth=panel.is_smooth) for one in series]
    table = np.array(rows, np.float64).reshape(len(series), len(shared))
    low, high = table.min(axis=0), table.max(axis=0)
    if panel.interval is not None and len(siblings) == 1:
        ends = [end(siblings[0].run) for end in panel.interval]
        if all(end.steps == series[0].steps for end in ends):
            low, high = (np.array(_values(end, shared, is_smooth=False)) for end in ends)
    return _Band(tuple(shared), table.mean(axis=0), low, high)


def _values(series: Series, steps: Sequence[int], *, is_smooth: bool) -> list[float]:
    values = smooth(series.values, window_of(len(series.values)))[0] if is_smooth else series.values
    by_step = dict(zip(series.steps, values, strict=True))
    return [by_step[step] for step in steps]
