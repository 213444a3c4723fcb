"""What RunLog leaves on disk and on the console."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mindgspo.errors import RunFolderError
from mindgspo.metrics import (
    RunLog,
    SilentLog,
    Timers,
    group_metrics,
    peak_rss_mb,
    read_summary,
    rss_gb,
    unknown_names,
    write_summary,
)
from mindgspo.metrics.files import read_records
from mindgspo.metrics.run_log import step_line
from mindgspo.types import Group, Int32Array, Score, Verdict

BuildGroup = Callable[..., Group]
Decode = Callable[[Int32Array], str]


def open_log(run_dir: Path, **options: object) -> RunLog:
    settings = {"progress": False, "console": Console(quiet=True)} | options
    return RunLog(run_dir, **settings)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_one_line_per_call_step_first_then_sorted_names(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.log_metrics(1, {"b/x": 0.1, "a/y": np.float32(0.5), "c/z": np.int64(3)})
        log.log_metrics(1, {"val-core/s/acc/mean@1": 1 / 3})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "a/y": 0.5, "b/x": 0.1, "c/z": 3}\n{"step": 1, "val-core/s/acc/mean@1": 0.3333333333333333}\n'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_a_value_that_is_not_finite_is_refused_by_name_and_nothing_is_written(tmp_path: Path, value: float) -> None:
    with open_log(tmp_path) as log, pytest.raises(AssertionError, match="actor/pg_loss"):
        log.log_metrics(1, {"a": 1.0, "actor/pg_loss": value})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_second_log_appends_and_truncation_forgets_later_steps(
    tmp_path: Path, build_group: BuildGroup, decode_ids: Decode
) -> None:
    group = build_group(0, [Verdict.CORRECT, Verdict.WRONG])
    for first in (0, 3):
        with open_log(tmp_path) as log:
            for step in range(first, first + 3):
                log.log_metrics(step, {"a": float(step)})
                log.log_samples(step, [group], decode_ids)
    with open_log(tmp_path) as log:
        log.truncate_after(2)
        log.log_metrics(3, {"a": 30.0})
    kept = [(row["step"], row["a"]) for row in lines(tmp_path / "metrics.jsonl")]
    assert kept == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]
    assert [row["step"] for row in lines(tmp_path / "samples.jsonl")] == [0, 0, 1, 1, 2, 2]


def test_truncation_drops_the_half_line_of_a_killed_run_and_needs_no_file(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.truncate_after(3)
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    assert list(read_records(path)) == [{"step": 1, "a": 1.0}]
    with open_log(tmp_path) as log:
        log.truncate_after(7)
        log.log_metrics(2, {"a": 2.0})
    assert path.read_text() == '{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n'
    assert list(tmp_path.iterdir()) == [path]  # no temporary file is left


@pytest.mark.parametrize(
    ("line", "message"), [("nonsense\n", "line 2: not JSON"), ("[1]\n", "line 2: expected an object, got list")]
)
def test_a_broken_line_is_named_and_the_file_stays(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line)
    with open_log(tmp_path) as log, pytest.raises(RunFolderError, match=message):
        log.truncate_after(1)
    assert path.read_text() == '{"step": 1}\n' + line


def test_a_sample_line_holds_the_whole_story(tmp_path: Path, build_group: BuildGroup, decode_ids: Decode) -> None:
    with open_log(tmp_path) as log:
        log.log_samples(4, [build_group(11, [Verdict.CORRECT, Verdict.NO_ANSWER])], decode_ids)
    correct, unanswered = lines(tmp_path / "samples.jsonl")
    assert list(correct) == [
        *("step", "prompt_index", "sample_index", "data_source", "prompt", "response", "extracted", "answer"),
        *("verdict", "score", "parts", "advantage", "length", "finish_reason"),
    ]
    assert correct["response"].endswith("#### 85")
    assert correct | {
        "step": 4, "prompt_index": 11, "sample_index": 0, "extracted": "85", "answer": "85", "verdict": "correct",
        "score": 1.0, "parts": {"gsm8k": 1.0}, "length": 10, "finish_reason": "stop",
        "advantage": pytest.approx(0.7071, abs=1e-4),  # (1 - 0.5) / (sqrt(0.5) + 1e-6), one of two siblings is right
    } == correct  # fmt: skip
    assert (unanswered["extracted"], unanswered["answer"], unanswered["finish_reason"]) == (None, "85", "length")


def test_any_text_survives_the_samples_file(tmp_path: Path, build_group: BuildGroup) -> None:
    text = "line\nbreak \u2028 \u7b54\u6848 \ud83d \x00 \U0001f600"
    with open_log(tmp_path) as log:
        log.log_samples(1, [build_group(0, [Verdict.WRONG], text=text)], lambda ids: text)
    content = (tmp_path / "samples.jsonl").read_bytes()
    assert content.count(b"\n") == 1
    assert "\u7b54\u6848" in content.decode("utf-8")  # readable without decoding escapes
    (row,) = read_records(tmp_path / "samples.jsonl")
    assert row["response"] == row["prompt"] == text


def test_the_console_shows_one_line_per_step(tmp_path: Path) -> None:
    screen = io.StringIO()
    with open_log(tmp_path, console=Console(file=screen, width=60), total_steps=12) as log:
        log.log_metrics(
            7,
            {
                "critic/score/mean": 0.52345, "response_length/mean": 41.25, "actor/pg_clipfrac_seq": 0.3312,
                "actor/pg_clipfrac": 0.9, "actor/grad_norm": 0.871, "perf/throughput": 10234.4, "timing_s/step": 3.414,
            },
        )  # fmt: skip
        log.log_metrics(7, {"val-core/[bold]odd/acc/mean@1": 0.75})
        log.log_metrics(8, {"training/epoch": 1.0})
    assert screen.getvalue() == (
        "step    7/12  score 0.523  length 41.2  clip 0.331  grad 0.871  tok/s 10,234  s 3.41\n"
        "step    7/12  val-core/[bold]odd/acc/mean@1 0.7500\n"
    )
    assert step_line(1, None, {"training/epoch": 1.0}) is None
    assert step_line(1, None, {"critic/score/mean": 1.0}) == "step       1  score 1.000"


def test_timers_and_memory_figures() -> None:
    ticks = iter([0.0, 10.0, 11.5, 20.0, 30.0, 32.0])
    timers = Timers(clock=lambda: next(ticks))
    with timers("step"), timers("gen"):  # step 0 to 20, gen 10 to 11.5
        pass
    with timers("gen"):  # 30 to 32
        pass
    assert timers.seconds("gen") == 3.5
    assert timers.collect() == {"timing_s/gen": 3.5, "timing_s/step": 20.0}
    assert timers.collect() == {} and timers.seconds("gen") == 0.0
    ticks = iter([1.0, 4.0])
    timers = Timers(clock=lambda: next(ticks))
    with pytest.raises(KeyError), timers("reward"):
        raise KeyError
    assert timers.collect() == {"timing_s/reward": 3.0}
    # A Python process with numpy needs more than 10 MB and, here, less than 100 GB.
    assert 0.01 < rss_gb() < 100
    assert rss_gb() * 1024 <= peak_rss_mb() * 1.05


def test_summaries(tmp_path: Path) -> None:
    assert read_summary(tmp_path) == {}
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"summary\.json: not JSON"):
        read_summary(tmp_path)
    path = write_summary(tmp_path, accuracy_before=0.5, accuracy_after=None, steps=3, device="CPU", finished=True)
    assert path == tmp_path / "summary.json"
    assert json.loads(path.read_text()) == {
        "accuracy_before": 0.5, "accuracy_after": None, "steps": 3, "device": "CPU", "finished": True,
    }  # fmt: skip
    write_summary(tmp_path, steps=4)
    assert read_summary(tmp_path) == {"steps": 4}
    assert list(tmp_path.iterdir()) == [path]
    write_summary(tmp_path, seconds=1.0)
    with pytest.raises(AssertionError, match="tokens_per_second"):
        write_summary(tmp_path, seconds=2.0, tokens_per_second=float("inf"))
    assert read_summary(tmp_path) == {"seconds": 1.0}


C, W, N = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER


def test_figures_of_groups_by_hand(build_group: BuildGroup) -> None:
    metrics = group_metrics([build_group(0, [C, W, N, W]), build_group(1, [C, C, C, C])])
    # The first group's rewards 1, 0, 0, 0 have mean 0.25 and deviation (ddof 1) 0.5; lengths are 10 to 13 in either.
    assert metrics | {
        "critic/score/mean": 5 / 8, "critic/score/max": 1.0, "critic/score/min": 0.0, "reward/correct_ratio": 5 / 8,
        "reward/wrong_ratio": 2 / 8, "reward/no_answer_ratio": 1 / 8, "reward/invalid_ratio": 0.0,
        "reward/zero_signal_group_ratio": 1 / 2, "reward/part/gsm8k/mean": 5 / 8, "response_length/mean": 11.5,
        "critic/advantages/max": pytest.approx(1.5, rel=1e-4), "critic/advantages/min": pytest.approx(-0.5, rel=1e-4),
        "response_length/max": 13.0, "response_length/min": 10.0, "response_length/clip_ratio": 1 / 8,
        "prompt_length/mean": 12.0,
    } == metrics  # fmt: skip
    assert unknown_names(metrics) == []
    group = build_group(0, [C, W])
    failed = Score(value=None, verdict=Verdict.ERROR)
    metrics = group_metrics([replace(group, scores=(group.scores[0], failed))])
    assert (metrics["critic/score/mean"], metrics["reward/invalid_ratio"]) == (1.0, 0.5)
    nothing = replace(
        group, scores=(failed, failed), advantages=tuple(np.zeros_like(each) for each in group.advantages)
    )
    metrics = group_metrics([nothing])
    assert "critic/score/mean" not in metrics
    assert metrics["reward/invalid_ratio"] == metrics["reward/zero_signal_group_ratio"] == 1.0
    counts = {C: 3, W: 2, N: 1, Verdict.UNPARSEABLE_GOLD: 2, Verdict.TIMEOUT: 1, Verdict.ERROR: 1}
    invalid = (Verdict.UNPARSEABLE_GOLD, Verdict.TIMEOUT, Verdict.ERROR)
    scores = [
        Score(value=None if verdict in invalid else 0.5, verdict=verdict)
        for verdict, count in counts.items()
        for _ in range(count)
    ]
    metrics = group_metrics([replace(build_group(0, [C] * 10), scores=tuple(scores))])
    shares = {verdict: metrics[f"reward/{verdict.value}_ratio"] for verdict in Verdict}
    assert shares == {verdict: count / 10 for verdict, count in counts.items()}
    assert metrics["reward/invalid_ratio"] == 4 / 10
    assert unknown_names(metrics) == []


def test_parts_and_extras_are_means_over_the_responses_that_have_them(build_group: BuildGroup) -> None:
    first = Score(
        value=1.0, verdict=C, parts={"gsm8k": 1.0, "mine.f": 0.25}, extras={"mine.f/acc": 1.0, "mine.f/steps": 7}
    )
    second = Score(value=0.0, verdict=W, parts={"gsm8k": 0.0, "mine.f": 0.75}, extras={"mine.f/acc": 0.0})
    third = Score(value=None, verdict=Verdict.TIMEOUT, parts={"gsm8k": 1.0}, message="mine.f: out of time")
    metrics = group_metrics([replace(build_group(0, [C, W, W]), scores=(first, second, third))])
    assert (metrics["reward/part/gsm8k/mean"], metrics["reward/part/mine.f/mean"]) == (pytest.approx(2 / 3), 0.5)
    assert (metrics["reward/extra/mine.f/acc/mean"], metrics["reward/extra/mine.f/steps/mean"]) == (0.5, 7.0)
    assert unknown_names(metrics) == []
    score = Score(value=1.0, verdict=C, extras={"m.f/a b": 1.0, "m.f/a+b": 2.0})
    metrics = group_metrics([replace(build_group(0, [C]), scores=(score,))])
    assert metrics["reward/extra/m.f/a_b/mean"] == 1.5


@pytest.mark.parametrize(("key", "name"), [
    ("acc", "acc"), ("two words", "two_words"), ("a/b//c", "a_b__c"), ("50%\n", "50__"), ("", "_"),
    ("<stat>", "_stat_"),
    ("\u683c\u5f0f", "\u683c\u5f0f"),  # letters of any language
    ("\ud800", "_"), ("v1.2-x_y", "v1.2-x_y"),
])  # fmt: skip
def test_names_from_a_users_dict_become_names_of_metrics(build_group: BuildGroup, key: str, name: str) -> None:
    score = Score(value=1.0, verdict=C, extras={f"my file.f/{key}": 3.0})
    metrics = group_metrics([replace(build_group(0, [C]), scores=(score,))])
    extras = {metric: value for metric, value in metrics.items() if metric.startswith("reward/extra/")}
    assert extras == {f"reward/extra/my_file.f/{name}/mean": 3.0}
    assert unknown_names(metrics) == []


def test_the_log_of_other_ranks_takes_every_call_and_ends_as_the_first_ones() -> None:
    kept = {"__init__", "__enter__", "__exit__", "_tell"}  # and these call what is silent
    own = {name for name, _ in inspect.getmembers(RunLog, inspect.isfunction)} - kept
    assert own <= vars(SilentLog).keys()
    with SilentLog() as log:
        log.note("x")
    with pytest.raises(ValueError, match="inside"), SilentLog():
        raise ValueError("inside")


def test_a_terminal_gets_a_progress_bar_and_other_outputs_do_not(tmp_path: Path) -> None:
    shown = {}
    for is_terminal in (True, False):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=is_terminal, width=100)
        with open_log(tmp_path, console=console, progress=True, total_steps=5) as log:
            log.log_metrics(3, {"critic/score/mean": 1.0})
        shown[is_terminal] = screen.getvalue()
    assert "training" in shown[True] and "3/5" in shown[True]
    assert shown[False] == "step     3/5  score 1.000\n"
