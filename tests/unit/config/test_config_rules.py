"""Rules that join fields: batches, lengths, data and evaluation sets, widths of heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import ModelSection, batch_table, dump_config, load_config, notes
from mindgspo.config.rules import data_sources
from mindgspo.errors import ConfigError

WARMUP = "warmup={max_steps: 5, batch_size: 4, lr: 1e-3, stop_at_accuracy: 0.5}"


@pytest.mark.parametrize(("overrides", "expected"), [
    (["trainer.prompts_per_mini_batch=5", "trainer.samples_per_micro_batch=4"],
     "trainer.prompts_per_mini_batch: 5 does not divide rollout.prompts_per_step 12; nearest legal: 4 or 6"),
    (["trainer.samples_per_micro_batch=7"],
     "trainer.samples_per_micro_batch: 7 does not divide the 6 x 4 = 24 samples of a mini-batch; nearest legal: 6 or "
     "8"),
    (["rollout.max_new_tokens=65"],
     "rollout.max_new_tokens: 65 + data.max_prompt_length 64 = 129 tokens exceed model.max_position_embeddings 128; "
     "nearest legal: rollout.max_new_tokens=64"),
    (["data.max_prompt_length=128"],
     "rollout.max_new_tokens: 32 + data.max_prompt_length 128 = 160 tokens exceed model.max_position_embeddings 128; "
     "nearest legal: data.max_prompt_length=64"),
    (["model.num_attention_heads=10"],
     "model.hidden_size: 96 / num_attention_heads 10 = 9.6 must be an even whole number (RoPE turns pairs); nearest "
     "legal heads: 8 or 12"),
    (["model.hidden_size=36"],
     "model.hidden_size: 36 / num_attention_heads 4 = 9 must be an even whole number (RoPE turns pairs); nearest "
     "legal heads: 3 or 6"),
    (["model.architecture=qwen3", "model.num_attention_heads=10"],
     "model.hidden_size: 96 / num_attention_heads 10 = 9.6 must be an even whole number (RoPE turns pairs); nearest "
     "legal heads: 8 or 12; or set model.head_dim"),
    (["model.head_dim=32"],
     "model.head_dim: 32 x 4 attention heads = 128 is not hidden_size 96, as it must be for qwen2; remove it, or set "
     "model.architecture=qwen3"),
    (["model.architecture=qwen3", "model.head_dim=33"],
     "model.head_dim: 33 must be even (RoPE turns pairs); nearest legal: 32 or 34"),
    (["model.num_key_value_heads=3"],
     "model.num_key_value_heads: 3 does not divide num_attention_heads 4; nearest legal: 2 or 4"),
    (["eval.pass_at_k=[1, 8]", "eval.num_samples=4"],
     "eval.pass_at_k: 8 needs as many samples, but eval.num_samples is 4; set eval.num_samples=8 or drop 8"),
    (["eval={do_sample: true, num_samples: 4}"],
     "eval.do_sample: with eval.num_samples 4 as many are drawn without it, beside a greedy one; leave it out"),
    (["reward.weights=[1, 2]"], "reward.weights: 2 weights for 1 reward.functions; give one weight per function"),
    (["data.eval.split=train"],
     "data.eval.split: train is already the split of data.train, so they share rows; nearest legal: dev or test"),
    (["data.train.path=rows.jsonl"],
     "data.train.path: arithmetic rows are generated; remove the path or change data.train.format"),
])  # fmt: skip
def test_one_violated_rule_gives_one_line_with_numbers_and_a_fix(problems, overrides, expected):
    lines = [line for line in problems(*overrides) if "does not exist" not in line]
    assert lines == [expected]


def test_limits_themselves_are_legal(load):
    load("rollout.max_new_tokens=64", "eval.num_samples=8", "eval.pass_at_k=[8]")
    load("trainer.prompts_per_mini_batch=12", "trainer.samples_per_micro_batch=48", "rollout.num_generations=4")


def test_all_violated_rules_are_reported_together(problems):
    lines = problems("trainer.prompts_per_mini_batch=5", "rollout.temperature=0", "rollout.num_generations=1")
    keys = [line.partition(":")[0] for line in lines]
    assert keys == ["trainer.prompts_per_mini_batch", "trainer.samples_per_micro_batch", "rollout.num_generations",
                    "rollout.temperature"]  # fmt: skip


def test_stopping_at_an_accuracy_needs_rows_of_its_own(problems, load):
    (line,) = problems(WARMUP)
    assert line.startswith("warmup.check: missing")
    (line,) = problems(WARMUP, "warmup.check={format: arithmetic, split: test}")
    assert line.startswith("warmup.check.split: test is already the split of data.eval")
    assert line.endswith("nearest legal: dev")
    assert load(WARMUP, "warmup.check={format: arithmetic, split: dev}")
    (line,) = problems(WARMUP, "warmup.check={format: arithmetic, split: dev}", "data.eval.split=train")
    assert line.endswith("nearest legal: test"), "one that no source uses"


def test_rows_of_a_file_need_a_path_of_the_right_kind_and_a_tokenizer(problems, tmp_path):
    keys = [line.partition(":")[0] for line in problems("data.train.format=gsm8k")]
    assert keys == ["data.train.path", "tokenizer.path"]
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


def test_what_evaluation_draws_is_cut_as_in_training_unless_said(load):
    assert notes(load("eval={do_sample: true, top_p: 0.7, temperature: 0.6}")) == []
    section = load("eval={do_sample: true, top_p: 0.7}", "rollout={top_k: 20, top_p: 0.9}").eval
    assert (section.top_p, section.top_k) == (0.7, 20)


@pytest.mark.parametrize(("overrides", "expected"), [
    (["rollout.top_p=0.9", "rollout.top_k=20"], "rollout: top_p 0.9 and top_k 20 cut the distribution"),
    (["rollout.top_k=20"], "rollout: top_k 20 cut"),
    (["eval={temperature: 0.6, top_p: 0.7}"],
     "eval.temperature, eval.top_p: not read, because the one answer is greedy; eval.do_sample=true draws it"),
    (["trainer.epochs=3"], "trainer.epochs: 3 is not read, because trainer.max_steps is set"),
    (["optimizer={warmup_ratio: 0.1, warmup_steps: 2}"],
     "optimizer.warmup_ratio: 0.1 is not read, because optimizer.warmup_steps is set"),
    (["trainer.dump_step=9", "trainer.max_steps=8"],
     "trainer.dump_step: 9 comes after the run's 8 steps, so no step is dumped"),
    (["optimizer.warmup_steps=9", "trainer.max_steps=8"],
     "optimizer.warmup_steps: 9 is more than the run's 8 steps, so optimizer.lr is never reached"),
])  # fmt: skip
def test_a_surprising_setting_is_noted(load, overrides, expected):
    (note,) = notes(load(*overrides))
    assert note.startswith(expected)


def test_evaluation_on_trained_rows_is_noted(load, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("")
    source = f"{{format: gsm8k, path: {rows}}}"
    config = load(f"data.train={source}", f"data.eval={source}", f"tokenizer.path={tmp_path}")
    assert notes(config) == ["data.eval.path: the same as data.train.path, so accuracy is measured on trained rows"]


@pytest.mark.parametrize(("override", "expected"), [
    ("profile.steps=[2,9]", "profile.steps: 9 comes after the run's 8 steps; largest legal: 8"),
    ("profile.steps=[0]", "profile.steps[0]: must be >= 1, got 0"),
    ("profile.ranks=[0,2]",
     "profile.ranks: 2 is not among the 1 rank of plans.train, which count from 0; largest legal: 0"),
    ("profile.ranks=[]", "profile.ranks: needs at least 1 entry, got []"),
    ("profile.phases=[gem]", "profile.phases[0]: expected 'step', 'gen', "),
    ("profile.limit_gb=0", "profile.limit_gb: must be > 0, got 0"),
    ("profile.step=[2]", "profile.step: unknown key; did you mean profile.steps?"),
])  # fmt: skip
def test_what_cannot_be_recorded_is_one_line(problems, load, override, expected):
    (line,) = problems("trainer.max_steps=8", override)
    assert line.startswith(expected), line
    assert load("trainer.max_steps=8", "profile={steps: [8], ranks: null, phases: [gen, testing]}")


# ----- Rules of a step's batches: one size of a micro-batch, a budget that holds a sample, what packing needs
BUDGET = ("trainer.samples_per_micro_batch=", "trainer.max_tokens_per_micro_batch=256")


@pytest.mark.parametrize(("overrides", "expected"), [
    (["trainer.samples_per_micro_batch="],
     "trainer.samples_per_micro_batch: missing; set it, the responses of one pass, or "
     "trainer.max_tokens_per_micro_batch, its token slots"),
    (["trainer.max_tokens_per_micro_batch=256"],
     "trainer.max_tokens_per_micro_batch: 256 and samples_per_micro_batch 8 both say how large a micro-batch is; "
     "leave one out (--set trainer.samples_per_micro_batch= takes an inherited one back)"),
    (["trainer.packing=true"],
     "trainer.packing: true needs trainer.max_tokens_per_micro_batch instead of samples_per_micro_batch, e.g. 192, "
     "two samples of full length"),
    ([*BUDGET, "trainer.max_tokens_per_micro_batch=100", "trainer.length_multiple=56"],
     "trainer.max_tokens_per_micro_batch: 100 slots do not hold the longest sample, data.max_prompt_length 64 + "
     "rollout.max_new_tokens 32, rounded up to a multiple of trainer.length_multiple 56: 112; nearest legal: 112"),
    # 64 + 32 = 96 is a multiple of 32 already, 112 is the next of 16 x 7.
    ([*BUDGET, "plans.train.data_parallel=32", "plans.infer.data_parallel=4", "plans.infer.model_parallel=8"],
     "trainer.prompts_per_mini_batch: 24 samples of a mini-batch do not fill the 32 micro-batches that data_parallel "
     "32 x micro_batch_num 1 of plans.train compute at once; smallest legal: 8"),
], ids=["neither", "both", "packing", "too small", "replicas"])  # fmt: skip
def test_joined_rules(problems, overrides, expected) -> None:
    assert expected in problems(*overrides)


def test_a_budget_needs_no_divisor_of_the_mini_batch(load) -> None:
    config = load(*BUDGET, "trainer.packing=true", "rollout.prompts_per_step=7", "trainer.prompts_per_mini_batch=7")
    line = dict(batch_table(config, None))["micro-batches per update"]
    assert line == "as lengths ask for, of up to 256 token slots, several samples per row"
    balanced = load(*BUDGET, "plans.train.data_parallel=2", "plans.infer.data_parallel=2")
    line = dict(batch_table(balanced, None))["micro-batches per update"]
    assert line == "as lengths ask for, of up to 256 token slots, one sample per row, balanced over 2 replicas"


def test_a_budget_that_leaves_nothing_to_pack_is_noted(load) -> None:
    assert notes(load(*BUDGET, "trainer.packing=true")) == []
    (line,) = notes(load(*BUDGET, "trainer.packing=true", "trainer.max_tokens_per_micro_batch=128"))
    assert line == ("trainer.max_tokens_per_micro_batch: 128 token slots leave little to pack beside a sample of up to "
                    "96; 192 or more pack better, where memory allows")  # fmt: skip


# ----- `data.eval` as one source and as sets with names: loading, dumping, overriding, and what is refused
QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
NONE = "data.eval=null"
FIRST = "data.eval.easy={format: arithmetic, split: test, max_rows: 8}"
SECOND = "data.eval.gsm8k={format: gsm8k, path: held_out.jsonl}"
OTHERS = ("warmup=null", "tokenizer.path=vocabulary")


def load(*overrides: str):
    return load_config(QUICKSTART, [*OTHERS, *overrides], check_files=False)


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_one_source_has_the_keys_of_a_source() -> None:
    config = load("data.eval.max_rows=3")
    assert config.data.eval.max_rows == 3 and not config.data.names_eval_sets
    assert list(config.data.eval_sets) == ["eval"]
    assert [key for key, _ in data_sources(config)] == ["data.train", "data.eval"]


def test_sets_with_names_load_back_as_they_were_dumped(tmp_path: Path) -> None:
    config = load(NONE, FIRST, SECOND, "data.eval.gsm8k.max_rows=5")
    assert config.data.names_eval_sets
    assert {name: source.max_rows for name, source in config.data.eval_sets.items()} == {"easy": 8, "gsm8k": 5}
    assert config.data.eval_sets["gsm8k"].path == Path.cwd() / "held_out.jsonl", (
        "relative paths are resolved at any depth"
    )
    assert [key for key, _ in data_sources(config)] == ["data.train", "data.eval.easy", "data.eval.gsm8k"]
    path = tmp_path / "dumped.yaml"
    path.write_text(dump_config(config))
    assert load_config(path, check_files=False) == config


@pytest.mark.parametrize(("overrides", "line"), [
    ([FIRST], "data.eval.easy: a set of held-out problems beside the keys of a single one; give that"),
    (["data.eval.pth=x"], "data.eval.pth: unknown key; did you mean data.eval.path"),
    ([NONE, "data.eval.a.format=gsm9k"], "data.eval.a.format: expected 'gsm8k', 'verl'"),
    ([NONE, FIRST, "data.eval.easy.pth=x"], "data.eval.easy.pth: unknown key; did you mean data.eval.easy.path"),
    ([NONE, "data.eval.a.split=test"], "data.eval.a.format: missing; gsm8k: rows {question"),
    ([NONE, "data.eval.a b={format: arithmetic}"], "data.eval.a b: must match ^[A-Za-z0-9]"),
    ([NONE, "data.eval.a=5"], "data.eval.a: expected a section with keys of its own, got 5"),
    ([NONE], "data.eval: expected a section with keys of its own, got null (nothing)"),
    (["data.eval=[1]"], "data.eval: expected a section with keys of its own, got [1]"),
    ([NONE, SECOND, "data.eval.gsm8k.path=null"], "data.eval.gsm8k.path: missing; gsm8k rows are read from a file"),
    ([NONE, "data.eval.easy={format: arithmetic}"], "data.eval.easy.split: train is already the split of"),
])  # fmt: skip
def test_what_is_refused_is_named_with_its_set(overrides: list[str], line: str) -> None:
    (found,) = problems(*overrides)
    assert found.startswith(line), found


# ----- The width of one head: given, or derived from the model's width
SHAPE = {"vocab_size": 64, "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip


def test_what_is_not_given_is_the_quotient_also_for_a_section_that_python_code_builds():
    assert ModelSection(**SHAPE).head_dim == 24
    assert ModelSection(**SHAPE, head_dim=24) == ModelSection(**SHAPE)
    assert ModelSection(**SHAPE, architecture="qwen3", head_dim=128).head_dim == 128
    assert ModelSection(**{**SHAPE, "num_attention_heads": 10}).head_dim is None, "not a whole number"


def test_an_override_of_the_heads_counts_before_the_quotient(load):
    assert load("model.num_attention_heads=8").model.head_dim == 12
    assert load("model.architecture=qwen3", "model.head_dim=64").model.head_dim == 64
    assert load("model.architecture=qwen3", "model.num_attention_heads=10", "model.head_dim=64").model.head_dim == 64
