"""docs/batches.md: both languages say the same, its settings exist, its example passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_pages import code_blocks, code_spans, headings, tables

from mindgspo.config import load_config
from mindgspo.config.messages import known_keys
from mindgspo.metrics.glossary import glossary_name

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "docs" / "batches.md", PROJECT / "docs" / "batches_cn.md"]
SETTINGS = {path for path, _ in known_keys()}


def test_both_pages_have_the_same_parts_and_figures() -> None:
    english, chinese = (page.read_text(encoding="utf-8") for page in PAGES)
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]
    assert code_blocks(english) == code_blocks(chinese)
    numbers = [[row[1:] for row in table[1:] if any(one[:1].isdigit() for one in row[1:])] for table in tables(english)]
    assert numbers == [
        [row[1:] for row in table[1:] if any(one[:1].isdigit() for one in row[1:])] for table in tables(chinese)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_metrics_exist(page: Path) -> None:
    spans = code_spans(page.read_text(encoding="utf-8"))
    keys = [span.split("=")[0] for span in spans if span.startswith(("trainer.", "rollout.", "plans."))]
    assert keys and set(keys) <= SETTINGS | {"plans.train"}
    metrics = [span for span in spans if span.startswith(("global_seqlen/", "training/"))]
    assert len(metrics) == 6 and all(glossary_name(metric) for metric in metrics)


def test_the_example_passes_the_rules() -> None:
    changes = ("trainer.samples_per_micro_batch=", "trainer.max_tokens_per_micro_batch=2048", "trainer.packing=true")
    config = load_config(PROJECT / "examples" / "gsm8k" / "smoke.yaml", changes, check_files=False)
    assert config.trainer.packing
