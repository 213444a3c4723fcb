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
from mindgspo.metrics.files import (
    PROFILE_FOLDER,
    REPORT_FILE,
    SAMPLES_PAGE,
    SUMMARY_FILE,
    VALIDATION_FILE,
    recorded_number,
)
from mindgspo.metrics.glossary import chinese_glossary, glossary
from mindgspo.metrics.pages import page, pictures, questions
from mindgspo.metrics.plot import panel_pictures, plot_run
from mindgspo.metrics.plot_style import DARK, LIGHT
from mindgspo.metrics.run_folder import (
    RunRecord,
    best_evaluation,
    exact_tokens,
    held_out_figures,
    latest,
    read_run,
    reward_text,
)
from mindgspo.metrics.samples_page import episode_turns, write_samples_page
from mindgspo.text import duration

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


def report_of_finished(run_dir: Path) -> Path:
    """report.html of a run that is finished; written if there is none newer than the summary."""
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
    traces = sorted(file.name for file in (Path(run_dir) / PROFILE_FOLDER).glob("step_*.json"))
    write_file(path, render(run, has_samples_page=samples is not None, traces=traces))
    return path


def render(run: RunRecord, *, has_samples_page: bool = False, traces: Sequence[str] = ()) -> bytes:
    """The page's HTML. has_samples_page: it links to the one beside it. traces: files of `PROFILE_FOLDER`."""
    chinese = chinese_glossary()
    return page(
        "report.jinja",
        run=run,
        headlines=headlines(run),
        pictures=pictures(*(panel_pictures(run, theme) for theme in (LIGHT, DARK))),
        findings=diagnose(run),
        held_out=held_out_table(run),
        samples_page=SAMPLES_PAGE if has_samples_page else None,
        traces=[f"{PROFILE_FOLDER}/{name}" for name in traces],
        starts=run.starts[-MAX_STARTS:],
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
    if (exact := exact_tokens(run)) is not None:
        tiles.append(Headline("Equal log-probs", f"{exact:,}", "tokens of sampler and trainer, bit for bit"))
    steps = summary.get("steps", max(row["step"] for row in run.metrics))
    tiles.append(Headline("Steps", f"{steps}", "stopped early" if summary.get("stopped_early") else ""))
    if (seconds := recorded_number(summary.get("seconds"))) is not None:
        tiles.append(Headline("Time", duration(seconds)))
    if (speed := recorded_number(summary.get("tokens_per_second"))) is not None:
        tiles.append(Headline("Speed", f"{speed:,.0f}", "tokens per second"))
    if (peak := recorded_number(summary.get("peak_rss_mb"))) is not None:
        tiles.append(Headline("Peak memory", f"{peak:,.0f} MB", "resident"))
    return tiles


def _own_reward(line: Mapping[str, object]) -> str:
    """The reward of an answer; "" if it is 1 for a correct answer and 0 otherwise."""
    score = recorded_number(line.get("score"))
    return "" if score is None or score == (line.get("verdict") == "correct") else reward_text(score)


# ----- held-out problems: the answers of the first and of the last evaluation


_Record = Mapping[str, object]
_GREEDY = "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutAnswer:
    """The one answer to a problem, and how many of its samples are correct. reward: "" if the verdict implies it."""

    verdict: str
    extracted: object
    reward: str
    length: object
    is_cut: bool
    said: tuple[tuple[str, bool], ...]
    """Texts, and whether the policy wrote each; of an episode its turns and what the environment answered."""
    num_correct: int
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutProblem:
    """A problem with its answers; first, last: None if that evaluation has none."""

    set_name: str
    question: str
    gold: str
    first: HeldOutAnswer | None
    last: HeldOutAnswer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutTable:
    """steps: of the evaluations that are shown, one or two. kind: of their answers, greedy or drawn."""

    steps: tuple[object, ...]
    kind: str
    problems: tuple[HeldOutProblem, ...]


def held_out_table(run: RunRecord) -> HeldOutTable | None:
    """Answers of the first and the last evaluation; None if none were logged."""
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
            problems.append(
                HeldOutProblem(
                    set_name=str(key[0]),
                    question=_cut_text(question),
                    gold=_cut_text(lines[0].get("answer")),
                    first=_answer(before),
                    last=_answer(lines),
                )
            )
    steps = tuple(lines[0].get("step") for lines in (run.first_validation, run.last_validation) if lines)
    is_greedy = any(line.get("sample") == _GREEDY for lines in evaluations[-1].values() for line in lines)
    return HeldOutTable(steps=steps, kind=_GREEDY if is_greedy else "drawn", problems=tuple(problems))


def _by_problem(lines: Sequence[_Record]) -> dict[tuple[object, object], list[_Record]]:
    found: dict[tuple[object, object], list[_Record]] = {}
    for line in lines:
        found.setdefault((line.get("set"), line.get("prompt_index")), []).append(line)
    return found


def _answer(lines: Sequence[_Record]) -> HeldOutAnswer | None:
    """A warm-up's two evaluations share a step: the later line of an answer counts."""
    if not lines:
        return None
    single = [line for line in lines if line.get("sample") == _GREEDY]
    samples = {line.get("sample"): line for line in lines if line.get("sample") != _GREEDY}
    if not single:  # eval.do_sample: the only answer is a drawn one
        single, samples = list(lines), {}
    return HeldOutAnswer(
        verdict=str(single[-1].get("verdict")),
        extracted=single[-1].get("extracted"),
        reward=_own_reward(single[-1]),
        length=single[-1].get("length"),
        is_cut=single[-1].get("finish_reason") == "length",
        said=_said(single[-1]),
        num_correct=sum(line.get("verdict") == "correct" for line in samples.values()),
        num_samples=len(samples),
    )


def _said(line: _Record) -> tuple[tuple[str, bool], ...]:
    turns = [text for turn in episode_turns(line) for text in ((turn["text"], True), (turn.get("observation"), False))]
    most = MAX_ANSWER_CHARS // max(len(turns), 1)
    cut = [(_cut_text(text, most), is_said) for text, is_said in turns or [(line.get("response"), True)]]
    return tuple((text, is_said) for text, is_said in cut if text)


def _cut_text(value: object, most: int = MAX_ANSWER_CHARS) -> str:
    text = "" if value is None else str(value)
    hidden = len(text) - most
    return text if hidden <= 0 else f"{text[:most]}\n[... {hidden:,} more characters in {VALIDATION_FILE}]"
