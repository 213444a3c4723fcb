"""What the configuration says about data sources before any file is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import load_config
from mindgspo.errors import ConfigError

EXPERIMENT = """
experiment: small
model:
  vocab_size: 512
  hidden_size: 96
  intermediate_size: 256
  num_hidden_layers: 1
  num_attention_heads: 4
  num_key_value_heads: 2
  max_position_embeddings: 128
tokenizer: {{path: tok}}
data:
  train: {train}
  eval: {{format: arithmetic, split: test, max_rows: 16}}
  max_prompt_length: 64
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 32}}
trainer: {{max_steps: 3, prompts_per_mini_batch: 4, samples_per_micro_batch: 8}}
"""
MAPPING = "{prompt: q, answer: a, data_source_name: math}"


def load(tmp_path: Path, train: str):
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT.format(train=train), encoding="utf-8")
    return load_config(path, check_files=False)


@pytest.mark.parametrize("format", ["gsm8k", "verl", "dapo", "math", "aime", "dianjin"])
def test_every_format_of_files_is_accepted(tmp_path: Path, format: str):
    source = load(tmp_path, f"{{format: {format}, path: rows.parquet, dedup: true}}").data.train
    assert (source.format, source.dedup, source.path) == (format, True, tmp_path / "rows.parquet")


def test_a_mapping_is_accepted(tmp_path: Path):
    source = load(tmp_path, f"{{format: columns, path: rows.jsonl, columns: {MAPPING}}}").data.train
    assert source.columns.prompt == "q" and source.columns.extra_info == ()


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("{format: columns, path: rows.jsonl}", "data.train.columns: missing; format columns needs to know"),
        (
            f"{{format: math, path: rows.jsonl, columns: {MAPPING}}}",
            "data.train.columns: read with format columns only, but the format is math",
        ),
        (
            "{format: columns, path: rows.jsonl, columns: {prompt: q, answer: a}}",
            "data.train.columns.data_source_name: missing; give one name for all rows",
        ),
        (
            "{format: columns, path: rows.jsonl, columns: {prompt: q, answer: a, data_source: s, data_source_name: n}}",
            "data.train.columns.data_source_name: data_source names a column with it already; remove one of the two",
        ),
        ("{format: dianjin, path: rows.json}", "data.train.path: dianjin rows are read from a .jsonl or .parquet file"),
        ("{format: aime}", "data.train.path: missing; aime rows are read from a file or folder"),
        (
            "{format: prepared, path: folder, dedup: true}",
            "data.train.dedup: a prepared folder is used as it is; prepare it with --dedup",
        ),
        ("{format: dapoo, path: rows.jsonl}", "did you mean 'dapo'"),
    ],
)
def test_what_does_not_fit_together(tmp_path: Path, train: str, problem: str):
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, train)
    assert problem in str(raised.value) and ": 1 problem" in str(raised.value)


def test_new_formats_need_a_tokenizer(tmp_path: Path):
    path = tmp_path / "small.yaml"
    text = EXPERIMENT.format(train="{format: math, path: rows.jsonl}").replace("tokenizer: {path: tok}\n", "")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="tokenizer.path: missing; .* data.train is math"):
        load_config(path, check_files=False)
