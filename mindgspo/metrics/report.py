"""The run as one HTML page that opens anywhere: plots inlined, no script, no network.

Prompts, responses and configuration are untrusted: the template escapes all of them, and the page's own content policy
forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.io import write_file
from mindgspo.metrics.diagnosis import diagnose
from mindgspo.metrics.files import REPORT_FILE, SAMPLES_FILE, SAMPLES_PAGE, SUMMARY_FILE, VALIDATION_FILE
from mindgspo.metrics.glossary import MetricInfo, chinese_glossary, glossary, glossary_name, metrics
from mindgspo.metrics.pages import page, pictures
from mindgspo.metrics.plot import panel_pictures, plot_run
from mindgspo.metrics.plot_style import DARK, LIGHT
from mindgspo.metrics.questions import questions
from mindgspo.metrics.run_folder import RunRecord, best_evaluation, held_out_figures, latest, read_run, reward_text
from mindgspo.metrics.samples_page import write_samples_page
from mindgspo.text import duration

LAST_STEPS = 8
MAX_GROUPS = 6
MAX_TEXT_CHARS = 6_000
"""Longer prompts and responses are shown cut; samples.jsonl has them whole."""
MAX_PROBLEMS = 6
"""Held-out problems per set; validation.jsonl has the others."""
MAX_ANSWER_CHARS = 2_000
MAX_STARTS = 20
"""Newest ones; environment.jsonl has all."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One number at the top: label, the number as text, a remark."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric over the last steps: name, glossary entry (None: unknown), one cell per step."""

    name: str
    info: MetricInfo | None
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartRow:
    """One start of the run, as environment.jsonl has it."""

    time: object
    step: object
    machine: str
    versions: str
    command: object


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """The logged responses of one prompt. question: what it asks, without the chat template. reward: their mean, ""
    where it is the share of correct ones."""

    prompt_index: object
    question: str
    prompt: str
    answer: str
    responses: tuple[Mapping[str, object], ...]
    num_correct: int
    reward: str


def report_of_finished(run_dir: Path) -> Path:
    """report.html of a run that is finished; made where there is none that is younger than its summary."""
    path, summary = run_dir / REPORT_FILE, run_dir / SUMMARY_FILE
    if not path.is_file() or path.stat().st_mtime_ns <= summary.stat().st_mtime_ns:
        plot_run(run_dir)
        write_report(run_dir)
    return path


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run folder, and `samples.html` beside it where samples were logged; returns the
    report's path. RunFolderError if there are no metrics."""
    path, run = Path(run_dir) / REPORT_FILE, read_run(run_dir)
    samples = write_samples_page(Path(run_dir), run.name)
    write_file(path, render(run, has_samples_page=samples is not None))
    return path


def render(run: RunRecord, *, has_samples_page: bool = False) -> bytes:
    """The page's HTML. has_samples_page: it links to the one beside it."""
    steps, rows = last_steps_table(run)
    chinese = chinese_glossary()
    return page(
        "report.jinja",
        run=run,
        headlines=headlines(run),
        pictures=pictures(*(panel_pictures(run, theme) for theme in (LIGHT, DARK))),
        findings=diagnose(run),
        steps=steps,
        metric_rows=rows,
        sample_steps=[
            (samples[0].get("step"), group_samples(samples))
            for samples in (run.first_samples, run.last_samples)
            if samples
        ],
        held_out=held_out_table(run),
        samples_page=SAMPLES_PAGE if has_samples_page else None,
        starts=[start_row(start) for start in run.starts[-MAX_STARTS:]],
        glossary=glossary(),
        glossary_cn={name: info for named in chinese.values() for name, info in named.items()},
        chinese_titles=dict(zip(glossary(), chinese, strict=True)),
    )


def headlines(run: RunRecord) -> list[Headline]:
    """The tiles at the top; a number that was not measured is left out."""
    summary = run.summary
    tiles = []
    for figure in held_out_figures(run):
        before, after = figure.span(run)
        if before is None or after is None:
            continue
        change = figure.difference(after - before)
        low, high = latest(run, f"{figure.change}/low"), latest(run, f"{figure.change}/high")
        if low is not None and high is not None:
            change += f" ({figure.difference(low, unit=False)} .. {figure.difference(high, unit=False)})"
        tiles.append(Headline(f"Held-out {figure.name}", f"{figure.text(before)} \u2192 {figure.text(after)}", change))
    best = best_evaluation(run)
    if best is not None and not best.is_only:
        value = f"{best.value:.1%}" if "/acc/" in best.metric else reward_text(best.value)
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


def start_row(start: Mapping[str, object]) -> StartRow:
    """One line of environment.jsonl in words."""
    versions, git = start.get("versions"), start.get("git")
    named = [f"{name} {version}" for name, version in versions.items()] if isinstance(versions, Mapping) else []
    if isinstance(git, Mapping):
        named.append(f"commit {str(git.get('commit'))[:12]}{', with changes' if git.get('dirty') else ''}")
    return StartRow(
        time=start.get("time"),
        step=start.get("step"),
        machine=f"{start.get('host')}: {start.get('machine')}, device {start.get('device')}",
        versions=", ".join(named),
        command=start.get("command"),
    )


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
        rows.append(MetricRow(name, metrics()[known] if known else None, cells))
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
    asked = questions([str(group[0].get("prompt") or "") for group in by_prompt.values()])
    return [
        SampleGroup(
            prompt_index=index,
            question=_shortened(question),
            prompt=_shortened(group[0].get("prompt")),
            answer=_shortened(group[0].get("answer")),
            responses=tuple({**sample, "response": _shortened(sample.get("response"))} for sample in group),
            num_correct=sum(sample.get("verdict") == "correct" for sample in group),
            reward=_mean_reward(group),
        )
        for (index, group), question in list(zip(by_prompt.items(), asked, strict=True))[:MAX_GROUPS]
    ]


def _mean_reward(group: Sequence[Mapping[str, object]]) -> str:
    """Empty where each reward is 1 for a correct response and 0 for another."""
    scored = [sample for sample in group if _is_number(sample.get("score"))]
    if all(sample["score"] == (sample.get("verdict") == "correct") for sample in scored):
        return ""
    return reward_text(sum(sample["score"] for sample in scored) / len(scored))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shortened(text: object, limit: int = MAX_TEXT_CHARS, file: str = SAMPLES_FILE) -> str:
    text = "" if text is None else str(text)
    hidden = len(text) - limit
    return text if hidden <= 0 else f"{text[:limit]}\n[... {hidden:,} more characters in {file}]"


# ----- held-out problems: the answers of the first and of the last evaluation


_Record = Mapping[str, object]
_GREEDY = "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The one answer to a problem, and how many of its samples are correct. reward: "" where the verdict says it."""

    verdict: str
    extracted: object
    reward: str
    length: object
    is_cut: bool
    response: str
    num_correct: int
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutProblem:
    """A problem with its answers; first, last: None where that evaluation has none."""

    set_name: str
    question: str
    gold: str
    first: Answer | None
    last: Answer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutTable:
    """steps: of the evaluations that are shown, one or two. kind: of their answers, greedy or drawn."""

    steps: tuple[object, ...]
    kind: str
    problems: tuple[HeldOutProblem, ...]


def held_out_table(run: RunRecord) -> HeldOutTable | None:
    """None where no answers were written down."""
    evaluations = [_by_problem(lines) for lines in (run.first_validation, run.last_validation) if lines]
    if not evaluations:
        return None
    problems: list[HeldOutProblem] = []
    shown: dict[object, int] = {}
    asked = questions([str(lines[0].get("prompt") or "") for lines in evaluations[-1].values()])
    for (key, lines), question in zip(evaluations[-1].items(), asked, strict=True):
        shown[key[0]] = shown.get(key[0], 0) + 1
        if shown[key[0]] <= MAX_PROBLEMS:
            before = evaluations[0].get(key, ()) if len(evaluations) > 1 else ()
            problems.append(_problem(question, lines, _answer(before), _answer(lines)))
    steps = tuple(lines[0].get("step") for lines in (run.first_validation, run.last_validation) if lines)
    is_greedy = any(line.get("sample") == _GREEDY for lines in evaluations[-1].values() for line in lines)
    return HeldOutTable(steps=steps, kind=_GREEDY if is_greedy else "drawn", problems=tuple(problems))


def _by_problem(lines: Sequence[_Record]) -> dict[tuple[object, object], list[_Record]]:
    found: dict[tuple[object, object], list[_Record]] = {}
    for line in lines:
        found.setdefault((line.get("set"), line.get("prompt_index")), []).append(line)
    return found


def _problem(question: str, lines: Sequence[_Record], first: Answer | None, last: Answer | None) -> HeldOutProblem:
    return HeldOutProblem(
        set_name=str(lines[0].get("set")),
        question=_cut_text(question),
        gold=_cut_text(lines[0].get("answer")),
        first=first,
        last=last,
    )


def _answer(lines: Sequence[_Record]) -> Answer | None:
    """A warm-up's two evaluations share a step: the later line of an answer counts."""
    if not lines:
        return None
    single = [line for line in lines if line.get("sample") == _GREEDY]
    samples = {line.get("sample"): line for line in lines if line.get("sample") != _GREEDY}
    if not single:  # eval.do_sample: the only answer is a drawn one
        single, samples = list(lines), {}
    return Answer(
        verdict=str(single[-1].get("verdict")),
        extracted=single[-1].get("extracted"),
        reward=_mean_reward(single[-1:]),
        length=single[-1].get("length"),
        is_cut=single[-1].get("finish_reason") == "length",
        response=_cut_text(single[-1].get("response")),
        num_correct=sum(line.get("verdict") == "correct" for line in samples.values()),
        num_samples=len(samples),
    )


def _cut_text(text: object) -> str:
    return _shortened(text, MAX_ANSWER_CHARS, VALIDATION_FILE)
