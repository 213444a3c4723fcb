"""Rules that join fields, and the notes about legal but surprising settings; those of `algorithm` have files of their
own."""

from __future__ import annotations

import pytest

from mindgspo.config import notes

WARMUP = "warmup={max_steps: 5, batch_size: 4, lr: 1e-3, stop_at_accuracy: 0.5}"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["trainer.prompts_per_mini_batch=5", "trainer.samples_per_micro_batch=4"],
            "trainer.prompts_per_mini_batch: 5 does not divide rollout.prompts_per_step 12; nearest legal: 4 or 6",
        ),
        (
            ["trainer.samples_per_micro_batch=7"],
            "trainer.samples_per_micro_batch: 7 does not divide the 6 x 4 = 24 samples of a mini-batch; "
            "nearest legal: 6 or 8",
        ),
        (
            ["rollout.max_new_tokens=65"],
            "rollout.max_new_tokens: 65 + data.max_prompt_length 64 = 129 tokens exceed "
            "model.max_position_embeddings 128; nearest legal: rollout.max_new_tokens=64",
        ),
        (
            ["data.max_prompt_length=128"],
            "rollout.max_new_tokens: 32 + data.max_prompt_length 128 = 160 tokens exceed "
            "model.max_position_embeddings 128; nearest legal: data.max_prompt_length=64",
        ),
        (
            ["model.num_attention_heads=10"],
            "model.hidden_size: 96 / num_attention_heads 10 = 9.6 must be an even whole number "
            "(RoPE turns pairs); nearest legal heads: 8 or 12",
        ),
        (
            ["model.hidden_size=36"],
            "model.hidden_size: 36 / num_attention_heads 4 = 9 must be an even whole number "
            "(RoPE turns pairs); nearest legal heads: 3 or 6",
        ),
        (
            ["model.architecture=qwen3", "model.num_attention_heads=10"],
            "model.hidden_size: 96 / num_attention_heads 10 = 9.6 must be an even whole number "
            "(RoPE turns pairs); nearest legal heads: 8 or 12; or set model.head_dim",
        ),
        (
            ["model.head_dim=32"],
            "model.head_dim: 32 x 4 attention heads = 128 is not hidden_size 96, as it must be for qwen2; remove it, "
            "or set model.architecture=qwen3",
        ),
        (
            ["model.architecture=qwen3", "model.head_dim=33"],
            "model.head_dim: 33 must be even (RoPE turns pairs); nearest legal: 32 or 34",
        ),
        (
            ["model.num_key_value_heads=3"],
            "model.num_key_value_heads: 3 does not divide num_attention_heads 4; nearest legal: 2 or 4",
        ),
        (
            ["model.dtype=bfloat16"],
            "model.dtype: bfloat16 has no CPU kernels; set model.dtype=float32 or device=Ascend",
        ),
        (
            ["eval.pass_at_k=[1, 8]", "eval.num_samples=4"],
            "eval.pass_at_k: 8 needs as many samples, but eval.num_samples is 4; set eval.num_samples=8 or drop 8",
        ),
        (
            ["reward.weights=[1, 2]"],
            "reward.weights: 2 weights for 1 reward.functions; give one weight per function",
        ),
        (
            ["data.eval.split=train"],
            "data.eval.split: train is already the split of data.train, so they share rows; nearest legal: dev or test",
        ),
        (
            ["data.train.path=rows.jsonl"],
            "data.train.path: arithmetic rows are generated; remove the path or change data.train.format",
        ),
    ],
)
def test_one_violated_rule_gives_one_line_with_numbers_and_a_fix(problems, overrides, expected):
    lines = [line for line in problems(*overrides) if "does not exist" not in line]
    assert lines == [expected]


def test_limits_themselves_are_legal(load):
    load("rollout.max_new_tokens=64", "eval.num_samples=8", "eval.pass_at_k=[8]")
    load("trainer.prompts_per_mini_batch=12", "trainer.samples_per_micro_batch=48", "rollout.num_generations=4")


def test_nearest_split_is_one_that_no_source_uses(problems):
    check = "warmup.check={format: arithmetic, split: dev}"
    (line,) = problems(WARMUP, check, "data.eval.split=train")
    assert line.endswith("nearest legal: test")


def test_all_violated_rules_are_reported_together(problems):
    lines = problems("trainer.prompts_per_mini_batch=5", "rollout.temperature=0", "rollout.num_generations=1")
    keys = [line.partition(":")[0] for line in lines]
    assert keys == [
        "trainer.prompts_per_mini_batch",
        "trainer.samples_per_micro_batch",
        "rollout.num_generations",
        "rollout.temperature",
    ]


def test_stopping_at_an_accuracy_needs_rows_of_its_own(problems, load):
    (line,) = problems(WARMUP)
    assert line.startswith("warmup.check: missing")
    (line,) = problems(WARMUP, "warmup.check={format: arithmetic, split: test}")
    assert line.startswith("warmup.check.split: test is already the split of data.eval")
    assert line.endswith("nearest legal: dev")
    assert load(WARMUP, "warmup.check={format: arithmetic, split: dev}")


def test_rows_of_a_file_need_a_path_and_a_tokenizer(problems):
    assert [line.partition(":")[0] for line in problems("data.train.format=gsm8k")] == [
        "data.train.path",
        "tokenizer.path",
    ]


def test_a_data_path_of_the_wrong_kind_is_refused(problems, tmp_path):
    (tmp_path / "rows.csv").write_text("")
    tokenizer = f"tokenizer.path={tmp_path}"
    (line,) = problems(f"data.train={{format: gsm8k, path: {tmp_path}/rows.csv}}", tokenizer)
    assert line.startswith("data.train.path: gsm8k rows are read from a .jsonl or .parquet file, got rows.csv")
    (line,) = problems(f"data.train={{format: prepared, path: {tmp_path}/rows.csv}}")
    assert "is a file; give the prepared folder" in line
    (line,) = problems(f"data.train={{format: verl, path: {tmp_path}/none.parquet}}", tokenizer)
    assert line.startswith(f"data.train.path: {tmp_path}/none.parquet does not exist")
    (line,) = problems(f"model.path={tmp_path}/rows.csv")
    assert line.startswith("model.path: ") and "give the folder" in line


def test_no_notes_about_the_papers_settings(load):
    assert notes(load()) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["rollout.top_p=0.9", "rollout.top_k=20"], "rollout: top_p 0.9 and top_k 20 cut the distribution"),
        (["rollout.top_k=20"], "rollout: top_k 20 cut"),
        (["trainer.epochs=3"], "trainer.epochs: 3 is not read, because trainer.max_steps is set"),
    ],
)
def test_a_surprising_setting_is_noted(load, overrides, expected):
    (note,) = notes(load(*overrides))
    assert note.startswith(expected)


def test_evaluation_on_trained_rows_is_noted(load, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("")
    source = f"{{format: gsm8k, path: {rows}}}"
    config = load(f"data.train={source}", f"data.eval={source}", f"tokenizer.path={tmp_path}")
    assert notes(config) == ["data.eval.path: the same as data.train.path, so accuracy is measured on trained rows"]
