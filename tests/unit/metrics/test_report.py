"""Plot and report of a made-up run: complete, self-contained, and safe against what a model may write."""

from __future__ import annotations

import base64
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mindgspo.errors import RunFolderError
from mindgspo.metrics import RunLog, plot_run, write_report
from mindgspo.metrics.files import read_records
from mindgspo.metrics.plot import draw, panel_pictures
from mindgspo.metrics.plot_style import DARK, LIGHT, smooth
from mindgspo.metrics.report import MAX_PROBLEMS, held_out_table
from mindgspo.metrics.run_folder import RunRecord, read_run, run_settings
from mindgspo.text import duration
from mindgspo.types import Group, ScoredGroup, Verdict

ROOT = Path(__file__).resolve().parents[3]
PNG = b"\x89PNG\r\n\x1a\n"
VOID = {"meta", "img", "source", "br", "col", "wbr", "input"}


class Page(HTMLParser):
    """Tags with their attributes, and whether every opened tag was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(run_dir: Path) -> tuple[str, Page]:
    text = write_report(run_dir).read_text(encoding="utf-8")
    return text, Page(text)


def size(content: bytes) -> tuple[int, int]:
    assert content.startswith(PNG)
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def test_the_plot_is_a_png_of_decent_size(run_folder: Path) -> None:
    path = plot_run(run_folder)
    assert path == run_folder / "reward.png"
    content = path.read_bytes()
    width, height = size(content)
    assert width >= 1200 and height >= 700
    assert plot_run(run_folder).read_bytes() == content  # the same run gives the same picture


def test_means_durations_and_the_summarys_algorithm() -> None:
    mean, deviation = smooth((0.0, 3.0, 6.0, 0.0), 3)
    assert mean.tolist() == [1.5, 3.0, 3.0, 3.0]
    assert np.allclose(deviation, [1.5, np.sqrt(6), np.sqrt(6), 3.0])
    found = [duration(seconds) for seconds in (0.4, 59.6, 215, 7800)]
    assert found == ["0 s", "1 min 0 s", "3 min 35 s", "2 h 10 min"]
    run = RunRecord(name="run", metrics=({"step": 1},), summary={"algorithm": "grpo"})
    assert run_settings(run).clips_responses is False


def test_the_report_holds_every_section(run_folder: Path) -> None:
    text, parsed = page(run_folder)
    for words in (
        *("43.8% \u2192 87.3%", "+43.5 points", "3 min 35 s", "8,412", "2,310 MB"),
        *("Curves", "Diagnosis", "Samples", "Resolved configuration", "Glossary of metrics"),
        *("temperature: 1.0", "actor/pg_clipfrac_seq", "share of responses whose ratio is clipped"),
        *("prefers-color-scheme", "\u8bca\u65ad"),
    ):
        assert words in text, words
    assert parsed.open == []


def test_the_report_asks_nothing_of_the_network_and_runs_no_script(run_folder: Path) -> None:
    text, parsed = page(run_folder)
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "iframe", "object", "form"}
    assert [attributes for tag, attributes in parsed.tags if tag == "a"] == [{"href": "samples.html"}]
    addresses = [
        value for _, attributes in parsed.tags for key, value in attributes.items() if key in ("src", "srcset")
    ]
    assert len(addresses) == 16  # eight panels, each for light and dark pages
    for address in addresses:
        assert base64.b64decode(address.removeprefix("data:image/png;base64,")).startswith(PNG)
    assert not re.search(r"https?://|url\(", text)
    assert "default-src 'none'" in text


HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror='alert(2)'>\" onmouseover=\"x {{ 7*7 }} {% raw %}\ud83d"
    "\x1b[31m\u202e"
)
HOSTILE_METRIC = "val-core/<u>$x$ \\bad{\ud83d\x1b/acc/mean@1"


def test_hostile_text_is_shown_and_never_obeyed(tmp_path: Path, build_group: Callable[..., Group]) -> None:
    run_dir = tmp_path / "<em>run & co"
    run_dir.mkdir()
    with RunLog(run_dir, progress=False, console=Console(quiet=True)) as log:
        log.log_metrics(1, {"critic/score/mean": 0.5, HOSTILE_METRIC: 0.5, '"><script>': 1.0})
        group = build_group(0, [Verdict.CORRECT], text=HOSTILE)
        scored = ScoredGroup(prompt=group.prompt, responses=group.responses, scores=group.scores)
        log.log_validation(1, HOSTILE, [scored], lambda ids: HOSTILE)
    (run_dir / "config.yaml").write_text("a: </pre><script>alert(3)</script>\n")
    plot_run(run_dir)
    text, parsed = page(run_dir)
    tags = [tag for tag, _ in parsed.tags]
    assert not {"script", "em", "u"} & set(tags) and tags.count("img") == 2
    assert not any(key.startswith("on") for _, attributes in parsed.tags for key in attributes)
    assert parsed.open == []
    assert not set("\x1b\u202e") & set(text) and "\\x1b[31m\\u202e" in text
    assert "{{ 7*7 }}" in text and "&lt;script&gt;alert(1)" in text and "&lt;script&gt;alert(3)" in text


def test_a_run_of_one_step_without_samples_or_summary_can_be_drawn(tmp_path: Path) -> None:
    with RunLog(tmp_path, progress=False, console=Console(quiet=True)) as log:
        log.log_metrics(0, {"training/epoch": 0.0})
    assert plot_run(tmp_path).read_bytes().startswith(PNG)
    text, _ = page(tmp_path)
    assert "No samples were logged" in text and "No rule found" in text


def test_a_running_run_can_be_drawn(tmp_path: Path, build_run: Callable[..., Path]) -> None:
    run_dir = build_run(tmp_path / "run", steps=3, end=False)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "critic/sc')
    plot_run(run_dir)
    text, _ = page(run_dir)
    assert "Steps" in text and ">3<" in text


@pytest.mark.parametrize(("content", "message"), [
    (None, r"no metrics\.jsonl here"), ("", "no complete line yet"), ('{"step": 1', "no complete line yet"),
    ('{"a": 1}\n', "line 1: has no integer 'step'"), ('{"step": 1, "a": "x"}\n', "line 1: 'a' is not a number"),
])  # fmt: skip
def test_a_folder_without_a_run_is_refused_and_left_alone(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    before = sorted(tmp_path.iterdir())
    for write in (plot_run, write_report):
        with pytest.raises(RunFolderError, match=message):
            write(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/plot_run.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_tool_explains_a_wrong_folder_and_imports_are_light(tmp_path: Path) -> None:
    done = run_tool(str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "metrics.jsonl" in done.stderr
    program = (
        "import sys, mindgspo.metrics, mindgspo.rewards; "
        "print([m for m in ('mindspore', 'matplotlib', 'tensorboardX') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


def without(run: RunRecord, *prefixes: str) -> RunRecord:
    """The run as it would be had it never recorded metrics of these names."""
    rows = [{key: value for key, value in row.items() if not key.startswith(prefixes)} for row in run.metrics]
    return replace(run, metrics=tuple(rows))


NEW = ("actor/log_ratio_hist", "actor/grad_share")
OLD = ("actor/log_ratio_m", "actor/pg_clipfrac_")


CURVES = ["Reward", "Held-out accuracy", "Clip fraction", "Response length"]
POLICY = [
    "Clip fraction by sign", "Log of the importance ratio", "Where the log ratios lie", "Gradient by response length",
]  # fmt: skip


def titles(run: RunRecord) -> list[str]:
    return [panel.title for panel in panel_pictures(run, LIGHT)]


def test_each_panel_is_a_picture_and_one_without_its_metric_is_left_out(run_folder: Path) -> None:
    run = read_run(run_folder)
    panels = panel_pictures(run, LIGHT)
    assert [panel.title for panel in panels] == [*CURVES, *POLICY]
    assert len({size(panel.png) for panel in panels}) == 1
    assert titles(without(run, *NEW)) == [*CURVES, *POLICY[:2]]
    assert titles(without(run, *OLD, NEW[0])) == [*CURVES, POLICY[3]]
    assert titles(without(run, *NEW, *OLD, "critic/score", "response_length")) == ["Held-out accuracy", "Clip fraction"]
    assert panels == panel_pictures(run, LIGHT) != panel_pictures(run, DARK)
    mixed = replace(run, metrics=tuple({**row, "train-core/easy/reward/mean": 0.5} for row in run.metrics))
    assert titles(mixed) == [*CURVES, "Reward by source", *POLICY]
    still = [
        {key: 0.0 if "clipfrac" in key or key.startswith("actor/log_ratio_m") else value for key, value in row.items()}
        for row in run.metrics
    ]
    run = replace(run, metrics=tuple(still), config_text="algorithm: {name: grpo}\n")
    assert titles(run) == [*CURVES, *POLICY]
    size(draw(run, LIGHT))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_few_steps(tmp_path: Path, build_run: Callable[..., Path], steps: int) -> None:
    assert titles(read_run(build_run(tmp_path / "run", steps=steps, end=False))) == [*CURVES, *POLICY]


@pytest.mark.parametrize(("text", "algorithm", "clips_responses", "log_range"), [
    ("algorithm: {name: gspo, clip_low: 3e-4, clip_high: 4e-4}", "gspo", True, (-3.00045e-4, 3.9992e-4)),
    ("algorithm: {name: gspo_token, clip_low: 3e-4, clip_high: 4e-4}", "gspo_token", True, (-3.00045e-4, 3.9992e-4)),
    ("algorithm: {name: grpo, clip_low: 0.2, clip_high: 0.27}", "grpo", False, (math.log(0.8), math.log(1.27))),
    ("algorithm: {name: gmpo, clip_low: 0.4, clip_high: 0.4}", "gmpo", False, (-0.4, 0.4)),
    ("algorithm: {name: cispo, clip_low: 1.0, clip_high: 4.0}", "cispo", False, None),
    ("algorithm: {name: gpg, clip_low: null, clip_high: null}", "gpg", False, None),
    ("algorithm: {name: of_tomorrow}", "of_tomorrow", None, None),
    ("algorithm: {name: [gspo], clip_low: x}", None, None, None), ("algorithm: gspo", None, None, None),
    ("- algorithm", None, None, None), ("a: b: c: {", None, None, None), ("", None, None, None),
])  # fmt: skip
def test_settings_that_change_how_metrics_are_read(
    text: str, algorithm: str | None, clips_responses: bool | None, log_range: tuple[float, float] | None
) -> None:
    run = RunRecord(name="run", metrics=({"step": 1},), config_text=text)
    settings = run_settings(run)
    assert settings.algorithm == algorithm
    assert settings.clips_responses is clips_responses
    assert settings.log_clip_range == (None if log_range is None else pytest.approx(log_range, rel=1e-4))


RIGHT, WRONG, NONE = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER


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
    with RunLog(tmp_path, progress=False, console=Console(quiet=True)) as opened:
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
    assert len(table.problems) == MAX_PROBLEMS
    first = table.problems[0]
    assert (first.set_name, first.gold, first.last.extracted) == ("eval", "85", "85")
    assert (first.first.verdict, first.first.is_cut) == ("no_answer", True)
    assert (first.last.verdict, first.last.is_cut) == ("correct", False)
    assert (first.last.num_correct, first.last.num_samples, table.problems[1].last.num_samples) == (2, 3, 0)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Held-out problems" in page and "greedy, step 0" in page and "2 of 3 samples correct" in page


def test_one_evaluation_has_one_column_and_a_warm_ups_second_counts(log: RunLog, scored, decode_ids, tmp_path) -> None:
    log.log_metrics(0, figures("eval", 0.5))
    for verdict in (WRONG, RIGHT):
        log.log_validation(0, "eval", [scored(0, [verdict])], decode_ids)
    table = held_out_table(read_run(tmp_path))
    assert (table.steps, table.problems[0].first, table.problems[0].last.verdict) == ((0,), None, "correct")
    assert "greedy, step 0" in write_report(tmp_path).read_text(encoding="utf-8")


def test_one_drawn_answer_is_shown_as_such(log: RunLog, scored, decode_ids, tmp_path: Path) -> None:
    log.log_metrics(0, figures("eval", 0.5))
    group = scored(0, [RIGHT])
    drawn = replace(group, responses=tuple(replace(one, temperature=1.0) for one in group.responses))
    log.log_validation(0, "eval", [drawn], decode_ids)
    table = held_out_table(read_run(tmp_path))
    assert (table.kind, table.problems[0].last.verdict, table.problems[0].last.num_samples) == ("drawn", "correct", 0)
    assert "drawn, step 0" in write_report(tmp_path).read_text(encoding="utf-8")


def test_sampled_figures_have_a_picture_and_greedy_ones_alone_have_none(log: RunLog, tmp_path: Path) -> None:
    log.log_metrics(0, figures("eval", 0.5))
    assert titles(read_run(tmp_path)) == ["Held-out accuracy"]
    for step, value in ((1, 0.25), (2, 0.5)):
        log.log_metrics(step, figures("eval", value, value, value, value, value))
    assert titles(read_run(tmp_path)) == ["Held-out accuracy", "eval"]
    assert "Best evaluation" not in write_report(tmp_path).read_text(encoding="utf-8"), "no accuracy over all sets"


def test_an_episode_is_shown_by_turns(log: RunLog, scored, decode_ids, tmp_path: Path) -> None:
    log.log_metrics(0, figures("eval", 0.5))
    log.log_validation(0, "eval", [scored(0, [RIGHT])], decode_ids)
    path = tmp_path / "validation.jsonl"
    (line,) = read_records(path)
    turns = [{"text": "7", "observation": "<b>less"}, {"text": "2" * 5000, "observation": ""}]
    path.write_text(json.dumps({**line, "episode": {"turns": turns}}) + "\n")
    said = held_out_table(read_run(tmp_path)).problems[0].last.said
    assert said[:2] == (("7", True), ("<b>less", False)) and len(said) == 3
    assert said[2][0].startswith("2" * 500 + "\n[... 4,500 more characters") and said[2][1]
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert '<pre>7</pre><pre class="observed">&lt;b&gt;less</pre>' in page
