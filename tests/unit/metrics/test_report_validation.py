"""Evaluations in the report: the table of held-out problems, the curves of several sets, the best step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mindgspo.metrics import RunLog, write_report
from mindgspo.metrics.plot import draw
from mindgspo.metrics.plot_accuracy import draw_sampled, pushed_apart
from mindgspo.metrics.plot_style import LIGHT
from mindgspo.metrics.report_validation import MOST_PROBLEMS, held_out_table
from mindgspo.metrics.run_folder import read_run
from mindgspo.types import Group, ScoredGroup, Verdict

RIGHT, WRONG, NONE = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER
HOSTILE = "</td><script>alert(1)</script> $x$ {{ 7*7 }}"


@pytest.fixture
def scored(build_group: Callable[..., Group]) -> Callable[..., ScoredGroup]:
    """scored(index, verdicts, text=...): greedy where there is one verdict, samples otherwise."""

    def make(index: int, verdicts: list[Verdict], **text: str) -> ScoredGroup:
        group = build_group(index, verdicts, **text)
        temperature = 0.0 if len(verdicts) == 1 else 1.0
        responses = tuple(replace(response, temperature=temperature) for response in group.responses)
        return ScoredGroup(prompt=group.prompt, responses=responses, scores=group.scores)

    return make


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunLog]:
    with RunLog(tmp_path, tensorboard=False, progress=False, console=Console(quiet=True)) as opened:
        yield opened


def figures(part: str, *values: float) -> dict[str, float]:
    names = ("mean@1", "mean@8", "pass@2", "pass@8", "maj@8")
    return {f"val-core/{part}/acc/{name}": value for name, value in zip(names, values, strict=False)}


def test_the_table_lays_the_last_answers_beside_the_first(log: RunLog, scored, decode_ids, tmp_path: Path) -> None:
    for step, verdict in ((0, NONE), (2, WRONG), (4, RIGHT)):
        log.log_metrics(step, figures("eval", 0.5))
        log.log_validation(step, "eval", [scored(number, [verdict]) for number in range(8)], decode_ids)
        log.log_validation(step, "eval", [scored(0, [RIGHT, WRONG, RIGHT])], decode_ids)
    table = held_out_table(read_run(tmp_path))
    assert table.steps == (0, 4)
    assert len(table.problems) == MOST_PROBLEMS
    first = table.problems[0]
    assert (first.set_name, first.gold, first.first.verdict, first.last.verdict) == (
        "eval",
        "85",
        "no_answer",
        "correct",
    )
    assert (first.first.is_cut, first.last.is_cut, first.last.extracted) == (True, False, "85")
    assert (first.last.num_correct, first.last.num_samples) == (2, 3)
    assert table.problems[1].last.num_samples == 0
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Held-out problems" in page and "greedy, step 0" in page and "2 of 3 samples correct" in page


def test_one_evaluation_has_one_column_and_a_warm_ups_second_counts(log: RunLog, scored, decode_ids, tmp_path) -> None:
    log.log_metrics(0, figures("eval", 0.5))
    for verdict in (WRONG, RIGHT):
        log.log_validation(0, "eval", [scored(0, [verdict])], decode_ids)
    table = held_out_table(read_run(tmp_path))
    assert table.steps == (0,)
    assert (table.problems[0].first, table.problems[0].last.verdict) == (None, "correct")
    assert "greedy, step 0" in write_report(tmp_path).read_text(encoding="utf-8")


def test_nothing_written_down_is_no_table(run_folder: Path) -> None:
    assert held_out_table(read_run(run_folder)) is None
    assert "Held-out problems" not in write_report(run_folder).read_text(encoding="utf-8")


def test_names_and_answers_of_sets_are_shown_and_never_obeyed(log: RunLog, scored, tmp_path: Path) -> None:
    for step in (0, 1):
        log.log_metrics(step, figures(HOSTILE, 0.5, 0.5) | figures("other", 0.25) | {"val-core/acc/mean@1": 0.4})
        log.log_validation(step, HOSTILE, [scored(0, [WRONG], text=HOSTILE)], lambda ids: HOSTILE)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page and "{{ 7*7 }}" in page and "&lt;script&gt;alert(1)" in page


def test_sampled_figures_have_a_picture_and_greedy_ones_alone_have_none(log: RunLog, tmp_path: Path) -> None:
    log.log_metrics(0, figures("eval", 0.5))
    assert draw_sampled(read_run(tmp_path), LIGHT) is None
    for step, value in ((1, 0.25), (2, 0.5)):
        log.log_metrics(step, figures("eval", value, value, value, value, value))
    assert draw_sampled(read_run(tmp_path), LIGHT).startswith(b"\x89PNG")
    assert "Best evaluation" not in write_report(tmp_path).read_text(encoding="utf-8"), "no accuracy over all sets"


def test_intervals_and_the_best_step_change_the_picture(log: RunLog, tmp_path: Path) -> None:
    for step, value in ((0, 0.25), (2, 0.75), (4, 0.5)):
        log.log_metrics(step, figures("eval", value))
    plain = draw(read_run(tmp_path), LIGHT)
    for step, value in ((0, 0.25), (2, 0.75), (4, 0.5)):
        log.log_metrics(
            step, {f"val-core/eval/acc/mean@1/{end}": value + by for end, by in (("low", -0.1), ("high", 0.1))}
        )
    shaded = draw(read_run(tmp_path), LIGHT)
    for step, value in ((0, 0.25), (2, 0.75), (4, 0.5)):
        log.log_metrics(step, {"val-core/acc/mean@1": value})
    marked = draw(read_run(tmp_path), LIGHT)
    assert len({plain, shaded, marked}) == 3
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Best evaluation" in page and "75.0%" in page and "step 2" in page


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.2, 0.8], [0.2, 0.8]),
        ([0.5, 0.5], [0.4625, 0.5375]),
        ([0.0, 0.0], [0.0, 0.075]),
        ([1.0, 1.0], [0.925, 1.0]),
    ],
    ids=["apart already", "equal", "at the bottom", "at the top"],
)
def test_labels_are_pushed_apart(values: list[float], expected: list[float]) -> None:
    assert pushed_apart(values, 1.0) == pytest.approx(expected)


def test_many_labels_share_the_height() -> None:
    places = pushed_apart([0.5] * 20, 1.0)
    assert places == sorted(places) and places[0] >= 0 and places[-1] <= 1
