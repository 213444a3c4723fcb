"""The pages about the algorithms: two languages with one content, and numbers that are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from markdown_pages import prose, tables

from mindgspo.config.algorithm import POLICY_LOSSES, AggregationMode, EstimatorName
from mindgspo.config.algorithm_rules import LENGTH_FACTORS, READERS
from mindgspo.config.messages import known_keys

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "docs" / "algorithms.md", PROJECT / "docs" / "algorithms_cn.md"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def table_of(page: Path, first_names: set[str]) -> dict[str, list[str]]:
    """{name: other cells} of the table whose first column holds these names."""
    for table in tables(text_of(page)):
        rows = {row[0].strip("`"): row[1:] for row in table[1:]}
        if set(rows) == first_names:
            return rows
    raise AssertionError(f"{page.name}: no table of {sorted(first_names)}")


@each_page
def test_every_loss_is_shown_with_its_defaults(page: Path) -> None:
    for name, (paper, _, aggregation, clip) in table_of(page, set(POLICY_LOSSES)).items():
        recipe = POLICY_LOSSES[name]
        assert aggregation == f"`{recipe.agg_mode}`"
        numbers = [float(number) for number in re.findall(r"\d[\d.e-]*", clip)]
        assert numbers == list(recipe.clip or ())
        arxiv = re.findall(r"\d{4}\.\d{5}", recipe.source)[0]
        assert arxiv in paper or name == "gspo_token", f"{name}: {paper}"


@each_page
def test_every_aggregation_is_shown_with_its_weight(page: Path) -> None:
    rows = table_of(page, set(get_args(AggregationMode)))
    for mode, factor in LENGTH_FACTORS.items():
        shown = re.sub(r"abs\((.*?)\)", r"|\1|", rows[mode][1].strip("`")).replace("S", "L")
        assert shown == factor


@each_page
def test_every_estimator_is_shown_with_the_keys_it_reads(page: Path) -> None:
    for name, cells in table_of(page, set(get_args(EstimatorName))).items():
        assert set(re.findall(r"`(\w+)`", cells[-1])) == {key for key, readers in READERS.items() if name in readers}


@each_page
def test_settings_named_exist(page: Path) -> None:
    settings = {path for path, _ in known_keys()}
    named = set(re.findall(r"`((?:algorithm|rollout|trainer)\.[a-z_.]+)", prose(text_of(page))))
    assert len(named) > 15 and named <= settings, named - settings
