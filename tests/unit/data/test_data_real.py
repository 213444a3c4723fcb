"""Real GSM8K, DAPO-Math, MATH and AIME rows with the real Qwen2.5 tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.config.data import DataSourceSection, TokenizerSection
from mindgspo.data.account import PromptIndex
from mindgspo.data.dataset import open_dataset
from mindgspo.data.formats import last_box
from mindgspo.data.sources import open_source
from mindgspo.tokenization import Tokenizer, load_tokenizer

pytestmark = pytest.mark.shared_data


@pytest.fixture(scope="module")
def qwen(shared_data: Path) -> Tokenizer:
    return load_tokenizer(TokenizerSection(path=shared_data / "qwen2.5-tokenizer"), vocab_size=151936)


def test_gsm8k_test_split(prepare, shared_data: Path, qwen: Tokenizer, settings, tmp_path: Path):
    path = shared_data / "gsm8k" / "test.jsonl"
    data = settings(max_prompt_length=256, instruction_suffix="\nWrite the answer after ####.")
    info = prepare(DataSourceSection(format="gsm8k", path=path), data=data, using=qwen)
    assert (info.counts.rows_in, info.counts.rows_out) == (1319, 1319)
    prompts = list(open_dataset(tmp_path / "out", qwen, data))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    for prompt, row in zip(prompts, rows, strict=True):
        assert f"user\n{row['question']}\nWrite the answer after ####.<|im_end|>" in prompt.text
        assert prompt.ids.tolist() == qwen.encode(prompt.text)
        assert row["answer"].replace(",", "").endswith(f"#### {prompt.answer}") and "<<" not in prompt.solution


def test_the_17917_dapo_rows(shared_data: Path):
    """11 prompts conflict as they stand; rows 2130 and 7415 differ in nothing but a leading blank."""
    path = shared_data / "dapo-math-17k" / "dapo_math_17k.svs.parquet"
    published = lines(shared_data / "dapo-math-17k" / "dapo_math_512.jsonl")
    answers = {row["prompt"][-1]["content"]: row["reward_model"]["ground_truth"] for row in published}
    index, exact = PromptIndex(), {}
    num_rows = 0
    for number, row in enumerate(open_source(DataSourceSection(format="dapo", path=path), seed=1).parsed()):
        text = row.messages[-1]["content"]
        index.add(row.prompt_key, number=number, where=row.where, answer=row.answer, text=text)
        exact.setdefault(row.messages[-1]["content"], set()).add(row.answer)
        num_rows += 1
    facts = index.facts()
    assert (num_rows, sum(len(found) > 1 for found in exact.values())) == (17917, 11)
    assert (facts.repeated_rows, facts.conflicting_prompts, facts.conflicting_letter_by_letter) == (729, 12, 11)
    assert len(answers) == 512 and all(answer in exact[prompt] for prompt, answer in answers.items())


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@pytest.mark.parametrize(("format", "name", "num_rows", "first"), [
    ("math", "math500/math500.jsonl", 500, r"\left( 3, \frac{\pi}{2} \right)"),
    ("aime", "aime2024/aime24.jsonl", 30, "73"),
    ("dapo", "dapo-math-17k/dapo_math_512.jsonl", 512, "34"),
])  # fmt: skip
def test_every_row_of_a_public_set_is_kept(prepare, shared_data, qwen, tmp_path, format, name, num_rows, first):
    source = DataSourceSection(format=format, path=shared_data / name)
    info = prepare(source, max_prompt_length=2048, using=qwen)
    assert (info.counts.rows_in, info.counts.rows_out) == (num_rows, num_rows)
    assert open_dataset(tmp_path / "out", qwen)[0].answer == first


def test_the_box_of_a_math_solution_is_its_answer(shared_data: Path):
    for row in lines(shared_data / "math500" / "math500.jsonl"):
        assert last_box(row["solution"]) == row["answer"], row["unique_id"]
