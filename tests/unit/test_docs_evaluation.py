"""The pages about measuring a model: two languages with one content, and what they say is what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
import yaml
from markdown_pages import code_blocks, code_spans, prose, shell_lines, tables
from pydantic import TypeAdapter

from mindgspo.cli import app
from mindgspo.config.data import CHANGE, OVERALL, EvalSection, EvalSources
from mindgspo.config.messages import known_keys
from mindgspo.config.rules import measured_figures
from mindgspo.data.benchmarks import DATA_FOLDER, NAMES, NUM_GENERATED_ROWS, find_benchmark
from mindgspo.data.formats import PARSERS
from mindgspo.metrics import verdict_lines
from mindgspo.metrics.estimates import change_estimate, wilson
from mindgspo.metrics.run_folder import RunHistory
from mindgspo.trainer.measured_experiments import MAX_NEW_TOKENS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "evaluation.md", DOCS / "evaluation_cn.md"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@each_page
def test_names_files_and_rewards_are_those_of_the_code(page: Path, tmp_path: Path) -> None:
    rows = {row[0].strip("`"): row[1:] for row in tables(text_of(page))[0][1:]}
    assert list(rows) == list(NAMES)
    for name, (files, ending, reward) in rows.items():
        assert tuple(re.findall(r"`([^`]+)`", files)) == NAMES[name].files
        (tmp_path / f"{name}.jsonl").touch()
        found = find_benchmark(name, folder=tmp_path, format=None)
        assert reward == f"`{found.function}`"
        assert ending == found.instruction_suffix.strip() or "`math500`" in ending
    assert str(NUM_GENERATED_ROWS) in "".join(rows["arithmetic"]) and f"`{DATA_FOLDER}`" in text_of(page)


@each_page
def test_every_format_is_told_by_columns(page: Path) -> None:
    shown = [row[1].strip("`") for row in tables(text_of(page))[1][1:]]
    assert sorted(shown) == sorted(PARSERS)


@each_page
def test_options_and_settings_exist(page: Path) -> None:
    command = typer.main.get_command(app).commands["eval"]
    options = {option for parameter in command.params for option in parameter.opts}
    text = text_of(page)
    named = {word for place in [*shell_lines(text), *code_spans(text)] for word in re.findall(r"--[a-z-]+", place)}
    assert named <= options and len(named) > 10, named - options
    shown = {key.replace("data.eval.aime.", "data.eval.") for key in re.findall(r"--set ([a-z_.]+)=", prose(text))}
    assert shown <= {key for key, _ in known_keys()}


@each_page
def test_numbers_in_the_text(page: Path) -> None:
    text = text_of(page)
    assert f"{wilson(0, 30).high:.3f}" in text and str(MAX_NEW_TOKENS) in text
    change = change_estimate([1] * 250 + [0] * 250, [1] * 270 + [0] * 230)
    assert f"+{change.low * 100:.1f} .. +{change.high * 100:.1f}" in text and change.value == 0.04


@each_page
def test_settings_of_evaluations_in_training(page: Path) -> None:
    rows = {row[0].strip("`"): row[1].strip("`") for row in tables(text_of(page))[-1][1:]}
    assert rows.keys() == {key for key, _ in known_keys() if key.startswith("eval.")}
    for key, shown in rows.items():
        default = EvalSection.model_fields[key.partition(".")[2]].default
        assert shown in (("none", "\u65e0") if default is None else (str(default), json.dumps(default))), key


@each_page
def test_the_experiment_with_two_sets_is_legal(page: Path) -> None:
    (block,) = [content for language, content in code_blocks(text_of(page)) if language == "yaml"]
    shown = yaml.safe_load(block)
    evaluation = EvalSection(**shown["eval"])
    assert set(TypeAdapter(EvalSources).validate_python(shown["data"]["eval"])) == {"gsm8k", "aime"}
    part, figure = evaluation.best_metric.removeprefix("val-core/").split("/", 1)
    assert part == "aime" and figure in measured_figures(evaluation)


@each_page
def test_the_verdict_is_what_is_printed(page: Path) -> None:
    """The example's run, told to the rules."""
    (block,) = [content for language, content in code_blocks(text_of(page)) if language == "text"]
    run = RunHistory("rollout:\n  max_new_tokens: 256\n")
    change = {CHANGE: 0.004, f"{CHANGE}/low": -0.019, f"{CHANGE}/high": 0.027}
    run.add(40, {OVERALL: 0.442, f"{OVERALL}/low": 0.415, f"{OVERALL}/high": 0.469, **change})
    shares = {"response_length/clip_ratio": 0.62, "reward/zero_signal_group_ratio": 0.91, "reward/correct_ratio": 0.02}
    run.add(40, shares)
    assert verdict_lines(run, step=40, best="best 44.6% at step 20") == block.splitlines()
