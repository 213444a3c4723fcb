"""The pages about dynamic sampling against the settings and metrics they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_pages import code_spans, tables

from mindgspo.config import FilterGroupsSection, load_config
from mindgspo.metrics.glossary import glossary_name

PROJECT = Path(__file__).resolve().parents[2]

each_page = pytest.mark.parametrize("page", ["sampling.md", "sampling_cn.md"])


@each_page
def test_every_setting_is_shown_with_its_default(page: str) -> None:
    table = tables((PROJECT / "docs" / page).read_text("utf-8"))[0]
    shown = {row[0].strip("`"): row[1] for row in table[1:]}
    defaults = {name: field.default for name, field in FilterGroupsSection.model_fields.items()}
    assert shown == {name: str(value).lower() for name, value in defaults.items()}


@each_page
def test_metrics_named_exist(page: str) -> None:
    spans = code_spans((PROJECT / "docs" / page).read_text("utf-8"))
    named = {span for span in spans if re.match(r"(?:sampling|samples)/\w", span)}
    assert len(named) >= 5
    assert [name for name in named if glossary_name(name) is None] == []


def test_the_example_draws_again() -> None:
    section = load_config(PROJECT / "examples/arithmetic/gspo_dynamic.yaml").algorithm.filter_groups
    assert (section.metric, section.refill) == ("reward", True)
