"""What single pages of docs/ say against the code: tables, defaults, numbers, examples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from markdown_pages import code_blocks, options_of, shell_lines, tables
from pydantic import TypeAdapter

from math_answers.findings import AnswerMode
from mindgspo import faults
from mindgspo.config import load_config
from mindgspo.config.algorithm import POLICY_LOSSES, AggregationMode, EstimatorName
from mindgspo.config.algorithm_rules import LENGTH_FACTORS, READERS
from mindgspo.config.data import CHANGE, OVERALL, EvalSection, EvalSources, StopSection
from mindgspo.config.deployment_rules import backend_problems
from mindgspo.config.environment import EnvironmentSection, EnvironmentWorkersSection
from mindgspo.config.messages import known_keys
from mindgspo.config.reward import SHAPERS, VERIFIERS, RewardSection
from mindgspo.config.rules import evaluation_metrics
from mindgspo.config.schema import TrainerSection
from mindgspo.data.benchmarks import NAMES, NUM_GENERATED_ROWS, find_benchmark
from mindgspo.data.formats import PARSERS
from mindgspo.environments import End, Row, Turn
from mindgspo.environments.play import MAX_CONTENT_CHARS, MAX_MESSAGES, MAX_STATE_BYTES
from mindgspo.environments.tool_calls import MAX_CALL_BYTES, MAX_CALLS, STYLES, parse
from mindgspo.evaluation.estimates import change_estimate, wilson
from mindgspo.evaluation.inputs import MAX_NEW_TOKENS
from mindgspo.integrations.mindformers import WANTED
from mindgspo.metrics import verdict_lines
from mindgspo.metrics.run_folder import RunHistory
from mindgspo.models.names import mindformers_name
from mindgspo.rewards.registry import build_function
from mindgspo.rewards.verification import Candidate, Verification
from mindgspo.types import EpisodeEnd, Verdict
from mindgspo_migrate.convert import TABLES, convert, report_lines
from mindgspo_migrate.tables import Status

PROJECT = Path(__file__).resolve().parents[2]
SETTINGS = {path for path, _ in known_keys()}


def pages(name: str) -> tuple[Path, Path]:
    """A page of docs/ and its Chinese twin."""
    return PROJECT / "docs" / f"{name}.md", PROJECT / "docs" / f"{name}_cn.md"


def each_page(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages(name), ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def table_of(page: Path, first_names: set[str]) -> dict[str, list[str]]:
    """{name: other cells} of the table whose first column holds these names."""
    for table in tables(text_of(page)):
        rows = {row[0].strip("`"): row[1:] for row in table[1:]}
        if set(rows) == first_names:
            return rows
    raise AssertionError(f"{page.name}: no table of {sorted(first_names)}")


@each_page("algorithms")
def test_algorithms_losses_aggregations_and_estimators_are_those_of_the_code(page: Path) -> None:
    for name, (paper, _, aggregation, clip) in table_of(page, set(POLICY_LOSSES)).items():
        recipe = POLICY_LOSSES[name]
        assert aggregation == f"`{recipe.agg_mode}`"
        numbers = [float(number) for number in re.findall(r"\d[\d.e-]*", clip)]
        assert numbers == list(recipe.clip or ())
        arxiv = re.findall(r"\d{4}\.\d{5}", recipe.source)[0]
        assert arxiv in paper or name == "gspo_token", f"{name}: {paper}"
    rows = table_of(page, set(get_args(AggregationMode)))
    for mode, factor in LENGTH_FACTORS.items():
        shown = re.sub(r"abs\((.*?)\)", r"|\1|", rows[mode][1].strip("`")).replace("S", "L")
        assert shown == factor
    for name, cells in table_of(page, set(get_args(EstimatorName))).items():
        assert set(re.findall(r"`(\w+)`", cells[-1])) == {key for key, readers in READERS.items() if name in readers}


@each_page("checkpoints")
def test_checkpoints_options_and_names_are_the_programs(page: Path) -> None:
    rows = next(table for table in tables(text_of(page)) if any("--dtype" in row[0] for row in table))
    assert {row[0].strip("`") for row in rows[1:]} == {
        o for o in options_of("convert", "weights") if o.startswith("--")
    }
    (rows,) = (table for table in tables(text_of(page)) if table[0] == ["Hugging Face", "MindFormers"])
    for left, right in rows[1:]:
        ours, theirs = (re.findall(r"`([^`]+)`", cell) for cell in (left, right))
        for name, expected in zip(ours, theirs, strict=True):
            if name.endswith(".weight"):
                assert mindformers_name(name) == expected
            else:  # of the second on, the page gives the end alone
                room = ours[0].rsplit(".", 1)[0] + "." if "." in ours[0] and "." not in name else ""
                assert mindformers_name(f"model.layers.1.{room}{name}.weight").endswith(f"{expected}.weight")


@each_page("evaluation")
def test_evaluation_tables_and_numbers_are_those_of_the_code(page: Path, tmp_path: Path) -> None:
    text = text_of(page)
    benchmarks, formats, *_, settings = tables(text)
    assert [row[0].strip("`") for row in benchmarks[1:]] == list(NAMES)
    for name, files, ending, reward in benchmarks[1:]:
        name = name.strip("`")
        assert tuple(re.findall(r"`([^`]+)`", files)) == NAMES[name].files
        (tmp_path / f"{name}.jsonl").touch()
        found = find_benchmark(name, folder=tmp_path, format=None)
        assert reward == f"`{found.function}`"
        assert ending == found.instruction_suffix.strip() or "`math500`" in ending
    assert sorted(row[1].strip("`") for row in formats[1:]) == sorted(PARSERS)
    change = change_estimate([1] * 250 + [0] * 250, [1] * 270 + [0] * 230)
    numbers = (NUM_GENERATED_ROWS, MAX_NEW_TOKENS, f"{wilson(0, 30).high:.3f}")
    assert all(str(number) in text for number in (*numbers, f"+{change.low * 100:.1f} .. +{change.high * 100:.1f}"))
    for key, shown, _ in settings[1:]:
        *_, section, name = key.strip("`").split(".")
        default = (StopSection if section == "stop" else EvalSection).model_fields[name].default
        none = ("none", "\u65e0")
        assert shown.strip("`") in (none if default is None else (str(default), json.dumps(default))), key


@each_page("evaluation")
def test_evaluation_examples_are_legal_and_true(page: Path) -> None:
    (block,) = [content for language, content in code_blocks(text_of(page)) if language == "yaml"]
    shown = yaml.safe_load(block)
    evaluation = EvalSection(**shown["eval"])
    assert set(TypeAdapter(EvalSources).validate_python(shown["data"]["eval"])) == {"gsm8k", "aime"}
    part, figure = evaluation.best_metric.removeprefix("val-core/").split("/", 1)
    assert part == "aime" and figure in evaluation_metrics(evaluation)
    # The example's run, told to the rules.
    (block,) = [content for language, content in code_blocks(text_of(page)) if language == "text"]
    run = RunHistory("rollout:\n  max_new_tokens: 256\n")
    change = {CHANGE: 0.004, f"{CHANGE}/low": -0.019, f"{CHANGE}/high": 0.027}
    run.add(40, {OVERALL: 0.442, f"{OVERALL}/low": 0.415, f"{OVERALL}/high": 0.469, **change})
    shares = {"response_length/clip_ratio": 0.62, "reward/zero_signal_group_ratio": 0.91, "reward/correct_ratio": 0.02}
    run.add(40, shares)
    assert verdict_lines(run, step=40, best="best 44.6% at step 20") == block.splitlines()


@each_page("integrations")
def test_integrations_the_backend_and_its_versions(page: Path) -> None:
    (command,) = (line.split() for line in shell_lines(text_of(page)) if line.startswith("mf/bin/mindgspo run"))
    config = load_config(PROJECT / command[2], [command[-1]])
    assert config.model.backend == "mindformers" and list(backend_problems(config)) == []
    assert all(f"{name} {WANTED[name.lower()]}" in text_of(page) for name in ("MindFormers", "MindSpore"))
    extra = f'mindformers = ["mindformers=={WANTED["mindformers"]}"]'
    assert extra in text_of(PROJECT / "pyproject.toml").splitlines()


def block(page: Path, language: str) -> str:
    (found,) = (content for name, content in code_blocks(text_of(page)) if name == language)
    return found


def run_tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"tools/{name}.py", *map(str, arguments)]
    places = [PROJECT, *(path.parent for path in PROJECT.glob("tools/*/pyproject.toml"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)


def test_reference_every_setting_and_command_is_there_and_up_to_date() -> None:
    done = run_tool("write_reference", "--check")
    assert done.returncode == 0, done.stderr
    shown = {row[0].strip("`") for table in tables(text_of(PROJECT / "docs/reference/settings.md")) for row in table}
    # The tables of data.train and plans.train.
    shared = ("data.eval", "warmup.check", "plans.infer", "plans.reference", "algorithm.distillation.teachers.plan")
    missing = {key for key in SETTINGS - shown if not any(key.startswith(f"{section}.") for section in shared)}
    assert all(section in SETTINGS for section in shared)
    assert {key for key in missing if not any(other.startswith(f"{key}.") for other in SETTINGS)} == set()


def test_migrate_the_tables_are_those_of_the_code() -> None:
    done = run_tool("write_migration", "--check")
    assert done.returncode == 0, done.stderr


@each_page("migrate")
def test_migrate_example_keys_reports_and_commands(page: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(block(page, "sh"))
    found = convert([path])
    assert found.yaml == block(page, "yaml")
    lines = list(report_lines(found))
    shown = block(page, "text").splitlines()
    assert lines[: len(shown)] == shown and lines[len(shown)].startswith("mapped (")
    text = text_of(page)
    for table in TABLES.values():
        assert f"\n## {table.title}\n" in text
        section = text.partition(f"\n## {table.title}\n")[2].partition("\n## ")[0]
        assert [row.source for row in table.rows if f"`{row.source}`" not in section] == []
    explained = {row[0] for table in tables(text_of(page)) for row in table}
    assert {status.value for status in Status} | {"still to be set", "refused here"} <= explained


@each_page("reliability")
def test_reliability_tables_and_numbers_are_those_of_the_code(page: Path) -> None:
    keys, points, whats, _ = tables(text_of(page))
    for key, default, _ in keys[1:]:
        assert str(TrainerSection.model_fields[key.strip("`").removeprefix("trainer.")].default) == default
    assert [row[0].strip("`") for row in points[1:]] == list(faults.POINTS)
    assert [row[0].strip("`") for row in whats[1:]] == list(faults.WHATS)


@each_page("rewards")
def test_rewards_tables_settings_and_function_are_those_of_the_code(page: Path) -> None:
    shown = [[row[0].strip("`") for row in table[1:]] for table in tables(text_of(page))]
    workers = [path for path, _ in known_keys() if path.startswith("reward.workers.")]
    for expected in (VERIFIERS, SHAPERS, get_args(AnswerMode), [verdict.value for verdict in Verdict], workers):
        assert list(expected) in shown
    source, _ = (content for language, content in code_blocks(text_of(page)) if language == "python")
    names: dict[str, object] = {}
    exec(source, names)
    returned = names["compute_score"](
        data_source="x", solution_str="6 x 12.\nAnswer: 72", ground_truth="72", extra_info={}
    )
    assert returned == {"score": 1.0, "num_words": 5}


@each_page("environments")
def test_environments_code_ends_and_settings_are_those_of_the_code(page: Path) -> None:
    text = text_of(page)
    game, tools, _, _ = (content for language, content in code_blocks(text) if language == "python")
    assert game == text_of(PROJECT / "examples/environments/guess.py")
    names: dict[str, Any] = {}
    exec(tools, names)
    calculator = names["Calculator"]()
    said = calculator.step(turn_of('<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'))
    assert said == [{"role": "tool", "content": "42"}] and calculator.step(turn_of("42")) == End()
    ends, settings, styles, questions = tables(text)
    assert [row[0].strip("`") for row in questions[1:]] == ["hello", "reset", "step", "cut"]
    assert [row[0].strip("`") for row in ends[1:]] == [end.value for end in EpisodeEnd]
    assert {row[0].strip("`") for row in styles[1:]} == set(STYLES)
    fields = EnvironmentSection.model_fields
    of_workers = EnvironmentWorkersSection.model_fields
    for key, shown, _ in settings[1:]:
        *_, of, name = key.strip("`").split(".")
        default = (of_workers if of == "workers" else fields)[name].get_default()
        assert shown in (
            ("none", "\u65e0", "required", "\u5fc5\u586b") if default is None or name == "path" else (str(default),)
        )
    wanted = {f"environment.workers.{name}" for name in of_workers} | {f"environment.{name}" for name in fields}
    assert {row[0].strip("`") for row in settings[1:]} == wanted - {"environment.workers"}
    (row,) = (json.loads(content) for language, content in code_blocks(text) if language == "json")
    assert [one["role"] for one in row["solution"]] == ["assistant", "user", "assistant"]
    bounds = (MAX_CALLS, MAX_CALL_BYTES >> 10, MAX_STATE_BYTES >> 10, MAX_MESSAGES, MAX_CONTENT_CHARS)
    assert all(f"{bound:,}" in text for bound in bounds)


@each_page("environments")
def test_environments_the_program_of_the_page_plays(page: Path, tmp_path: Path) -> None:
    _, _, dice, program = (content for language, content in code_blocks(text_of(page)) if language == "python")
    names: dict[str, Any] = {}
    exec(dice, names)
    (tmp_path / "dice.py").write_text(program)
    names["Dice"].command = (sys.executable, str(tmp_path / "dice.py"))
    game = names["Dice"]()
    game.reset(Row(prompt="", answer=""), seed=5)
    assert game.step(turn_of("0")) == [{"role": "user", "content": "no"}] and game.state in range(1, 7)
    assert game.step(turn_of(str(game.state))) == End(reward=1.0)
    assert game.cut("max_turns") == End(reward=0.0)


def turn_of(text: str) -> Turn:
    found = parse(text, "hermes")
    return Turn(text=text, content=found.content, calls=found.calls, problems=found.errors, number=1, is_last=False)


@each_page("rewards")
def test_rewards_the_comparison_with_verl_is_true(page: Path) -> None:
    header, *rows = tables(text_of(page))[-1]
    functions = [build_function(cell.strip("`"), RewardSection()) for cell in header[1:]]
    assert len(rows) == 7 and len(functions) == 3
    for response, *verdicts in rows:
        spans = re.findall(r"`([^`]+)`", response)
        text = spans[0] + " " + "x" * 2000 if "2,000" in response else "\n".join(spans)
        for function, expected in zip(functions, verdicts, strict=True):
            candidate = Candidate(text=text, gold="72", data_source="openai/gsm8k", index=0)
            verification = function.verify(candidate)
            assert isinstance(verification, Verification)
            assert verification.verdict.value == expected, f"{response}: {function}"
