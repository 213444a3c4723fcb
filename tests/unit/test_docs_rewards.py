"""The pages about the rewards: two languages with one content, and what they say is what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from markdown_pages import code_blocks, prose, tables

from mindgspo.config.messages import known_keys
from mindgspo.config.reward import JUDGES, SHAPERS, AnswerMode, RewardSection, file_function
from mindgspo.rewards.registry import build_function
from mindgspo.rewards.verification import Candidate, Verification
from mindgspo.types import Verdict

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "docs" / "rewards.md", PROJECT / "docs" / "rewards_cn.md"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def names_of(table: list[list[str]]) -> list[str]:
    return [row[0].strip("`") for row in table[1:]]


@each_page
def test_every_function_mode_verdict_and_worker_setting_has_its_row(page: Path) -> None:
    shown = [names_of(table) for table in tables(text_of(page))]
    workers = [path for path, _ in known_keys() if path.startswith("reward.workers.")]
    for expected in (JUDGES, SHAPERS, get_args(AnswerMode), [verdict.value for verdict in Verdict], workers):
        assert list(expected) in shown


@each_page
def test_settings_named_exist(page: Path) -> None:
    settings = {path for path, _ in known_keys()}
    named = set(re.findall(r"`((?:reward|rollout|algorithm|data)\.[a-z_.]+)", prose(text_of(page))))
    assert len(named) > 10 and named <= settings, named - settings


@each_page
def test_settings_shown_can_be_loaded(page: Path) -> None:
    shown = [
        yaml.safe_load(content)["reward"] for language, content in code_blocks(text_of(page)) if language == "yaml"
    ]
    assert len(shown) == 3
    for section in shown:
        reward = RewardSection.model_validate_json(json.dumps(section))
        assert reward.weights is None or len(reward.weights) == len(reward.functions)
        for name in reward.functions:
            assert name in JUDGES or name in SHAPERS or file_function(name) is not None


@each_page
def test_the_function_shown_does_what_the_page_says(page: Path) -> None:
    (source,) = (content for language, content in code_blocks(text_of(page)) if language == "python")
    names: dict[str, object] = {}
    exec(source, names)
    returned = names["compute_score"](
        data_source="x", solution_str="6 x 12.\nAnswer: 72", ground_truth="72", extra_info={}
    )
    assert returned == {"score": 1.0, "num_words": 5}


def cell_text(cell: str) -> str:
    """The response that a cell of the last table describes."""
    spans = re.findall(r"`([^`]+)`", cell)
    if "2,000" in cell:
        return spans[0] + " " + "x" * 2000
    return "\n".join(spans)


@each_page
def test_the_comparison_with_verl_is_true(page: Path) -> None:
    header, *rows = tables(text_of(page))[-1]
    functions = [build_function(cell.strip("`"), RewardSection()) for cell in header[1:]]
    assert len(rows) == 7 and len(functions) == 3
    for response, *verdicts in rows:
        for function, expected in zip(functions, verdicts, strict=True):
            candidate = Candidate(text=cell_text(response), gold="72", data_source="openai/gsm8k", index=0)
            verification = function.verify(candidate)
            assert isinstance(verification, Verification)
            assert verification.verdict.value == expected, f"{response}: {function}"
