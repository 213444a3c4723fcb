"""Real GSM8K and DAPO-Math rows with the real Qwen2.5 tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.config.schema import DataSourceSection, TokenizerSection
from mindgspo.data import open_dataset, prepare_dataset
from mindgspo.tokenization import Tokenizer, load_tokenizer

pytestmark = pytest.mark.shared_data


@pytest.fixture(scope="module")
def qwen(shared_data: Path) -> Tokenizer:
    return load_tokenizer(TokenizerSection(path=shared_data / "qwen2.5-tokenizer"), vocab_size=151936)


def test_gsm8k_test_split(shared_data: Path, qwen: Tokenizer, settings, tmp_path: Path):
    path = shared_data / "gsm8k" / "test.jsonl"
    data = settings(max_prompt_length=256, instruction_suffix="\nWrite the answer after ####.")
    info = prepare_dataset(DataSourceSection(format="gsm8k", path=path), data, qwen, tmp_path / "out", seed=1)
    assert (info.counts.rows_in, info.counts.rows_out) == (1319, 1319)
    prompts = list(open_dataset(tmp_path / "out", qwen, data))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    for prompt, row in zip(prompts, rows, strict=True):
        assert f"user\n{row['question']}\nWrite the answer after ####.<|im_end|>" in prompt.text
        assert prompt.ids.tolist() == qwen.encode(prompt.text)
        assert row["answer"].endswith(f"#### {prompt.answer}") and "<<" not in prompt.solution


def test_dapo_rows_in_verls_schema(shared_data: Path, qwen: Tokenizer, settings, tmp_path: Path):
    path = shared_data / "dapo-math-17k" / "dapo_math_512.jsonl"
    source = DataSourceSection(format="verl", path=path)
    info = prepare_dataset(source, settings(max_prompt_length=512, truncation="drop"), qwen, tmp_path / "a", seed=1)
    assert info.counts.rows_in == 512 == info.counts.rows_out + sum(info.counts.dropped.values())
    prompt = open_dataset(tmp_path / "a", qwen)[0]
    row = json.loads(path.open(encoding="utf-8").readline())
    assert (prompt.answer, prompt.data_source) == ("34", "math_dapo")
    assert row["prompt"][0]["content"] in prompt.text
    assert prompt.extra_info == {"ability": "MATH", "index": "0"}


def test_dapo_parquet(shared_data: Path, qwen: Tokenizer, settings, tmp_path: Path):
    path = shared_data / "dapo-math-17k" / "dapo_math_17k.svs.parquet"
    source = DataSourceSection(format="verl", path=path, max_rows=300)
    info = prepare_dataset(source, settings(max_prompt_length=2048), qwen, tmp_path / "out", seed=1)
    assert info.counts.rows_out == 300
    assert open_dataset(tmp_path / "out", qwen)[0].answer == "34"
