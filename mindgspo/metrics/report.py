"""The run as one HTML page that opens anywhere: plots inlined, no script, no network.

What enters: a run folder. What leaves: `report.html` in it. Called by the trainer at its end, `mindgspo
report` and tools/plot_run.py. Prompts, responses and configuration are untrusted: the template escapes all
of them, and the page's own content policy forbids scripts and requests.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from mindgspo.config.eval_section import CHANGE
from mindgspo.metrics.best_evaluation import best_evaluation
from mindgspo.metrics.diagnosis import accuracy_span, diagnose
from mindgspo.metrics.files import REPORT_FILE, replace_file
from mindgspo.metrics.glossary.chinese import TEXTS, TITLES
from mindgspo.metrics.names import METRICS, SECTIONS, MetricInfo, glossary_name
from mindgspo.metrics.plot import draw
from mindgspo.metrics.plot_accuracy import draw_sampled
from mindgspo.metrics.plot_policy import draw_policy
from mindgspo.metrics.plot_style import DARK, LIGHT
from mindgspo.metrics.recorded import latest
from mindgspo.metrics.report_validation import held_out_table
from mindgspo.metrics.run_folder import RunRecord, read_run

LAST_STEPS = 8
MAX_GROUPS = 6
MAX_TEXT_CHARS = 6_000
"""Longer prompts and responses are shown cut; samples.jsonl has them whole."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One number at the top: label (the template adds the Chinese one), the number as text, a remark."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG in base64 for light and for dark pages, and what it shows, for readers who cannot see it."""

    description: str
    light: str
    dark: str


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric over the last steps: name, glossary entry (None: unknown), one cell per step."""

    name: str
    info: MetricInfo | None
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """The logged responses of one prompt."""

    prompt_index: object
    prompt: str
    answer: str
    responses: tuple[Mapping[str, object], ...]
    num_correct: int


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run folder and return its path. RunFolderError if there are no metrics."""
    path = Path(run_dir) / REPORT_FILE
    replace_file(path, render(read_run(run_dir)).encode("utf-8", "replace"))
    return path


def render(run: RunRecord) -> str:
    """The page's HTML."""
    environment = Environment(
        loader=PackageLoader("mindgspo.metrics", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    steps, rows = last_steps_table(run)
    chinese = {name: TEXTS[name].meaning for name in METRICS}
    return environment.get_template("report.jinja").render(
        run=run,
        headlines=headlines(run),
        pictures=pictures(run),
        findings=diagnose(run),
        steps=steps,
        metric_rows=rows,
        sample_steps=[
            (samples[0].get("step"), group_samples(samples))
            for samples in (run.first_samples, run.last_samples)
            if samples
        ],
        held_out=held_out_table(run),
        glossary=SECTIONS,
        chinese=chinese,
        chinese_titles=TITLES,
    )


def pictures(run: RunRecord) -> list[Picture]:
    """The curves, the figures of sampled answers, and how the policy was updated where the run recorded that."""
    curves = Picture(
        "Reward, held-out accuracy, clip fraction and response length against the training step",
        _base64(draw(run, LIGHT)),
        _base64(draw(run, DARK)),
    )
    light, dark = draw_sampled(run, LIGHT), draw_sampled(run, DARK)
    sampled = []
    if light is not None and dark is not None:
        description = "Greedy accuracy, mean, majority and pass of the samples against the training step, set by set"
        sampled = [Picture(description, _base64(light), _base64(dark))]
    light, dark = draw_policy(run, LIGHT), draw_policy(run, DARK)
    if light is None or dark is None:
        return [curves, *sampled]
    description = "Clip fraction by sign, log ratio and its histogram over the steps, gradient by response length"
    return [curves, *sampled, Picture(description, _base64(light), _base64(dark))]


def headlines(run: RunRecord) -> list[Headline]:
    """The tiles at the top; a number that was not measured is left out."""
    summary = run.summary
    tiles = []
    before, after = accuracy_span(run)
    if before is not None and after is not None:
        change = f"{(after - before) * 100:+.1f} points"
        low, high = latest(run, f"{CHANGE}/low"), latest(run, f"{CHANGE}/high")
        if low is not None and high is not None:
            change += f" ({low * 100:+.1f} .. {high * 100:+.1f})"
        tiles.append(Headline("Held-out accuracy", f"{before:.1%} \u2192 {after:.1%}", change))
    best = best_evaluation(run)
    if best is not None and not best.is_only:
        value = f"{best.value:.1%}" if "/acc/" in best.metric else f"{best.value:.4g}"
        tiles.append(Headline("Best evaluation", value, f"step {best.step}"))
    if reward := run.series("critic/score/mean"):
        span = f"{reward.values[0]:.3f} \u2192 {reward.values[-1]:.3f}"
        tiles.append(Headline("Mean reward", span, "first and last step"))
    steps = summary.get("steps", max(row["step"] for row in run.metrics))
    tiles.append(Headline("Steps", f"{steps}"))
    if (seconds := _measured(summary, "seconds")) is not None:
        tiles.append(Headline("Time", duration(seconds)))
    if (speed := _measured(summary, "tokens_per_second")) is not None:
        tiles.append(Headline("Speed", f"{speed:,.0f}", "tokens per second"))
    if (peak := _measured(summary, "peak_rss_mb")) is not None:
        tiles.append(Headline("Peak memory", f"{peak:,.0f} MB", "resident"))
    return tiles


def _measured(summary: Mapping[str, object], key: str) -> float | None:
    value = summary.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


_DRAWN = ("actor/log_ratio_hist/", "actor/grad_share_length_decile/")


def last_steps_table(run: RunRecord) -> tuple[tuple[int, ...], list[MetricRow]]:
    """The last steps' numbers, one row per metric: an evaluation's line is merged into its step. Families of metrics
    that only a picture can show are left to the picture."""
    merged: dict[int, dict[str, object]] = {}
    for row in run.metrics:
        merged.setdefault(row["step"], {}).update(row)
    steps = tuple(sorted(merged)[-LAST_STEPS:])
    found = {name for step in steps for name in merged[step]} - {"step"}
    names = sorted(name for name in found if not name.startswith(_DRAWN))
    rows = []
    for name in names:
        known = glossary_name(name)
        cells = tuple(_cell(merged[step].get(name)) for step in steps)
        rows.append(MetricRow(name, METRICS[known] if known else None, cells))
    return steps, rows


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.2e}"


def group_samples(samples: Sequence[Mapping[str, object]]) -> list[SampleGroup]:
    """Samples of one step by prompt, in file order, at most MAX_GROUPS prompts, texts cut for display."""
    by_prompt: dict[object, list[Mapping[str, object]]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.get("prompt_index"), []).append(sample)
    return [
        SampleGroup(
            prompt_index=index,
            prompt=_shortened(group[0].get("prompt")),
            answer=_shortened(group[0].get("answer")),
            responses=tuple({**sample, "response": _shortened(sample.get("response"))} for sample in group),
            num_correct=sum(sample.get("verdict") == "correct" for sample in group),
        )
        for index, group in list(by_prompt.items())[:MAX_GROUPS]
    ]


def _shortened(text: object) -> str:
    text = "" if text is None else str(text)
    hidden = len(text) - MAX_TEXT_CHARS
    return text if hidden <= 0 else f"{text[:MAX_TEXT_CHARS]}\n[... {hidden:,} more characters in samples.jsonl]"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
