"""`mindgspo check`: what it shows and what it refuses, before MindSpore is started."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from weight_files import write_safetensors

from mindgspo.cli.data import data_prepare
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.errors import ConfigError, DataError, RewardError, TokenizerError, WeightsError
from mindgspo.evaluation.datasets import open_checked_dataset
from mindgspo.models.names import weight_shapes
from mindgspo.rewards.scorer import Scorer
from mindgspo.trainer.check import check_experiment

ROWS = [{"question": f"Tom has {n} pens.", "answer": f"{n}+0={n}\n#### {n}"} for n in range(10, 15)]


@pytest.fixture
def check(load, tokenizer, tmp_path: Path):
    """check(rows, *overrides): the lines about the experiment with these gsm8k rows as training data."""
    tokenizer.save(tmp_path / "tokenizer")

    def lines(rows: list[dict], *overrides: str) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = "{format: gsm8k, path: " + str(path) + "}"
        settings = (f"data.train={source}", f"tokenizer.path={tmp_path / 'tokenizer'}", *overrides)
        return "\n".join(check_experiment(load(*settings)))

    return lines


def test_prompts_are_shown_as_the_model_will_see_them(check) -> None:
    settings = ("data.instruction_suffix=' End with ####.'", "data.system_prompt=Be brief.")
    shown = check(ROWS, *settings, "data.max_prompt_length=64")
    assert (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nTom has 10 pens. End with ####.<|im_end|>\n"
        "<|im_start|>assistant\n"
    ) in shown
    assert "data.train: 5 rows, the first 2:" in shown and "Tom has 12 pens" not in shown
    assert "--- reward: the row's own solution gets 1, found '10', gold '10'" in shown
    assert "data.eval: 16 rows, the first 2:" in shown and "3 (trainer.max_steps), 5 rows" in shown


def test_the_last_mark_is_the_answer(check) -> None:
    row = {**ROWS[0], "answer": "#### 10\n\nThat is \\boxed{11}. #### 11 #### 1"}
    assert "--- answer: 1\n" in check([row, *ROWS[1:]])


def test_rows_that_are_not_rendered_are_judged_too(check, monkeypatch) -> None:
    monkeypatch.setattr("mindgspo.trainer.check._MOST_RENDERED", 3)
    shown = check([*ROWS[:4], {**ROWS[4], "answer": "#### several"}])
    assert "data.train: 4 rows (1 more will be dropped: 1 gold answer cannot be read; lengths are those of" in shown


def test_rows_that_the_run_leaves_out_are_counted(check) -> None:
    shown = check([{**ROWS[0], "answer": "#### several"}, *ROWS[1:]])
    assert "data.train: 4 rows (1 more will be dropped: 1 gold answer cannot be read), the first 2:" in shown
    assert "several" not in shown
    with pytest.raises(DataError, match=r"all 1 rows are dropped \(1: gold answer cannot be read"):
        check([{**ROWS[0], "answer": "#### several"}])
    shown = check([{**ROWS[0], "answer": "10"}, *ROWS, {"question": "When?", "answer": "#### noon"}])
    why = "1 the answer has no final '#### <number>', 1 gold answer cannot be read"
    assert f"data.train: 5 rows (2 more will be dropped: {why}), the first 2:" in shown
    again = {**ROWS[0], "question": f" {ROWS[0]['question']}"}
    assert "data.train: 6 rows" in check([*ROWS, again])
    shown = check([*ROWS, again], "data.train.dedup=true")
    assert "data.train: 5 rows (1 more will be dropped: 1 prompt occurred before)" in shown


def test_long_prompts_are_counted_wherever_they_stand(check) -> None:
    rows = [*ROWS, {**ROWS[0], "question": "pens " * 40}, {**ROWS[0], "question": "pens " * 50}]
    shown = check(rows, "data.truncation=drop")
    assert "data.train: 5 rows (2 more will be dropped: 2 longer than max_prompt_length), the first 2:" in shown
    assert "data.train: 7 rows (2 cut to 32 tokens), the first 2:" in check(rows, "data.truncation=left")
    with pytest.raises(
        DataError, match="2 of 7 prompts are longer than data.max_prompt_length = 32, the first one .*:6 "
    ):
        check(rows)
    with pytest.raises(DataError, match=r"all 5 rows are dropped \(5: longer than max_prompt_length"):
        check(ROWS, "data.truncation=drop", "data.max_prompt_length=8")


def test_a_run_folder_must_be_writable_and_is_left_as_it_is(check, tmp_path: Path) -> None:
    """The user root has every permission in /proc; only trying tells."""
    with pytest.raises(ConfigError, match="run_dir: /proc/mine/runs: nothing can be written into /proc"):
        check(ROWS, "run_dir=/proc/mine/runs")
    (tmp_path / "mine").mkdir()
    check(ROWS, f"run_dir={tmp_path / 'mine'}")
    assert list((tmp_path / "mine").iterdir()) == []


def test_without_a_solution_or_a_function_that_judges(check, tmp_path) -> None:
    rows = tmp_path / "aime.jsonl"
    rows.write_text('{"problem": "How many?", "answer": "073"}\n')
    shown = check(ROWS, f"data.eval={{format: aime, path: {rows}}}", "data.max_prompt_length=64")
    assert "the row's gold answer, written in three usual forms, gets 1, found " in shown
    shown = check(ROWS, "reward.functions=[format, repetition]")
    assert "the row's own solution gets 0 (format 0 + repetition " in shown


def test_a_reward_file_is_loaded_and_tried_on_two_rows(check, tmp_path) -> None:
    def checked(value: str, before: str = "") -> str:
        code = f"{before}def score(data_source, solution_str, ground_truth, extra_info):\n    return {value}\n"
        (tmp_path / "mine.py").write_text(code)
        return check(ROWS, f"reward.functions=['{tmp_path}/mine.py:score']")

    shown = checked("{'score': 0.5, 'acc': False, 'pred': ground_truth}")
    assert shown.count("--- reward: the row's own solution gets 0.5, found '1") == 2
    assert "--- reward: the row's own solution gets 0.25, gold '10'\n" in checked("0.25"), (
        "which says nothing of an answer"
    )
    first_two = "None if ground_truth in ('10', '11') else 1.0"
    assert checked(first_two).count("gets no reward (abstained") == 2
    none = r"of the first 5 rows of data.train none gets a reward: .* \(abstained: [^)]*\), gold '10'\. A run would"
    for value, before, said in (
        ("float('nan')", "", "mine.score: returned .*nan"),
        ("'good'", "", "mine.score: returned 'good'"),
        ("None", "", none),
        ("1.0", "import nowhere_to_be_found\n", "nowhere_to_be_found"),
    ):
        with pytest.raises(RewardError, match=said):
            checked(value, before)


STRICT = ("reward.functions=[math_dapo]", "reward.answer=strict")


@pytest.mark.parametrize(("rows", "settings", "error", "said"), [
    ([{**ROWS[0], "question": "pens " * 40}, *ROWS[1:]], (), DataError,
     "data.train: .*: 1 of 5 prompts .* data.max_prompt_length = 32, the first one .*rows.jsonl:1 with 5. tokens"),
    ([*ROWS, {"question": "How many?"}], (), DataError, "rows.jsonl:6: answer: expected a non-empty text"),
    (ROWS, STRICT, DataError, "row 0: the reward functions call its own solution no_answer"),
    ([], (), DataError, "rows.jsonl"),
    (ROWS, ("model.vocab_size=100",), TokenizerError, "model.vocab_size = 100 is too small"),
    (ROWS, ("rollout.prompts_per_step=6", "trainer.prompts_per_mini_batch=6"), ConfigError,
     "rollout.prompts_per_step: 6 different prompts cannot be drawn from 5 rows of data.train; largest legal: 5"),
], ids=["long prompt", "broken row", "its own solution", "no rows", "a large vocabulary", "few rows"])  # fmt: skip
def test_what_is_refused(check, rows: list[dict], settings: tuple[str, ...], error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        check(rows, *settings)


def test_a_careless_teachers_solution_may_be_wrong_but_must_have_an_answer(load) -> None:
    shown = "\n".join(check_experiment(load("data.train.forgotten_carries=1.0", "data.train.max_rows=40")))
    assert "data.train: 40 rows" in shown
    with pytest.raises(DataError, match="its own solution no_answer"):
        list(check_experiment(load("data.train.forgotten_carries=1.0", *STRICT)))


def test_the_models_folder_must_fit_the_model_section(check, load, tmp_path: Path) -> None:
    model = load().model
    described = huggingface_config(model, eos_ids=[378], pad_id=376)
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(described))
    setting = f"model.path={tmp_path / 'model'}"
    with pytest.raises(WeightsError, match="neither model.safetensors nor"):
        check(ROWS, setting)
    weights = {name: np.zeros(shape, dtype=np.float32) for name, shape in weight_shapes(model).items()}
    write_safetensors(tmp_path / "model" / "model.safetensors", weights)
    assert "weights fit its config.json" in check(ROWS, setting)
    write_safetensors(tmp_path / "model" / "model.safetensors", dict(list(weights.items())[:-1]))
    with pytest.raises(WeightsError, match="the weights do not fit the configured model"):
        check(ROWS, setting)
    file.write_text(json.dumps({**described, "num_hidden_layers": 3}))
    with pytest.raises(ConfigError, match=r"model.num_hidden_layers: 2, but .*config.json says 3"):
        check(ROWS, setting)
    file.unlink()
    with pytest.raises(ConfigError, match="model has no config.json; give a Hugging Face folder"):
        check(ROWS, setting)


def test_the_gold_answer_of_every_row_is_read_by_the_functions_named(check) -> None:
    rows = [*ROWS, {"question": "When?", "answer": "#### 4:30"}]
    assert "data.train: 5 rows" in check(rows)  # by auto such a row is dropped, as the run does
    verl = {
        "data_source": "my/own",
        "prompt": [{"role": "user", "content": "When?"}],
        "reward_model": {"ground_truth": "4:30"},
    }
    with pytest.raises(
        DataError, match=r"data.train: 1 gold answers in 1 rows .*rows.jsonl:1 \(gsm8k\): answer '4:30'"
    ):
        check([verl], "data.train.format=verl", "reward.functions=[gsm8k]")
    with pytest.raises(DataError, match="rows.jsonl:1: no reward function for data_source 'my/own'"):
        check([verl], "data.train.format=verl")


def test_a_prepared_folder_must_fit_the_settings_and_be_whole(check, tmp_path: Path) -> None:
    check(ROWS)
    folder = tmp_path / "prepared"
    data_prepare(format="gsm8k", input=tmp_path / "rows.jsonl", output=folder, tokenizer=tmp_path / "tokenizer")
    settings = (f"data.train={{format: prepared, path: {folder}}}", "rollout.prompts_per_step=2")
    assert "data.train: 5 prepared rows" in check(ROWS, *settings)
    assert "data.train: 3 prepared rows" in check(ROWS, *settings, "data.train.max_rows=3")
    with pytest.raises(DataError, match="prepared: was made with another tokenizer"):
        check(ROWS, *settings, "tokenizer.eos_tokens=[<|endoftext|>]")
    with pytest.raises(DataError, match="was made with data.instruction_suffix"):
        check(ROWS, *settings, "data.instruction_suffix=' Think.'")
    (folder / "prompts.mindrecord").write_bytes(b"cut")
    with pytest.raises(DataError, match="3 bytes, dataset.json says"):
        check(ROWS, *settings)


def test_a_run_whose_function_reads_the_golds_does_not_say_that_nothing_does(load, tokenizer, tmp_path, caplog) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"q": f"{n}?", "a": str(n)}) + "\n" for n in range(3)))
    columns = "{prompt: q, answer: a, data_source_name: own}"
    source = f"data.train={{format: columns, path: {rows}, columns: {columns}}}"
    tokenizer.save(tmp_path / "tokenizer")
    config = load(source, f"tokenizer.path={tmp_path / 'tokenizer'}", "reward.functions=[gsm8k]")
    with Scorer(config.reward) as scorer:
        opened = open_checked_dataset(config, config.data.train, tokenizer, scorer, tmp_path / "data", seed=0)
    assert len(list(opened)) == 3 and caplog.messages == []


ADDER = """
from mindgspo.environments import Environment, Row

class Adder(Environment):
    tools = ("add",)

    def reset(self, row: Row, seed: int) -> None:
        self.number = int(row.answer)

    def add(self, a: int, b: int) -> int:
        \"\"\"Add two numbers.

        Args:
            a: one number
            b: the other
        \"\"\"
        return a + b
"""
# Presents tools, and forgets thoughts once somebody else speaks.
TEMPLATE = """{% if tools %}<|im_start|>system
{{ tools | tojson }}, called as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{% for one in messages %}<|im_start|>{{ one.role }}
{{ one.content.split("</think>")[-1].lstrip() if one.role == "assistant" else one.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture
def adder(tmp_path: Path) -> str:
    (tmp_path / "adder.py").write_text(ADDER)
    return f"environment.path={tmp_path / 'adder.py'}:Adder"


def test_an_environment_is_loaded_and_its_tools_are_shown_in_prompts(check, adder: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    shown = check(ROWS, adder, "data.max_prompt_length=2000", "model.max_position_embeddings=4096")
    assert (
        "adder.py:Adder: 1 tool, calls in the style hermes, at most 8 turns\n  add(a, b): Add two numbers.\n" in shown
    )
    assert '"description": "Add two numbers."' in shown
    assert shown.count("--- reward: of a whole episode; the environment begins one of this row") == 4
    notes = [line for line in shown.splitlines() if line.startswith("note: environment")]
    assert len(notes) == 1 and "as soon as a message of role 'tool' follows" in notes[0]


def test_a_template_without_tools_needs_a_style_and_is_noted(check, adder: str) -> None:
    with pytest.raises(RewardError, match=r"environment.tool_style: the chat template of .* does not say how tools"):
        check(ROWS, adder)
    shown = check(ROWS, adder, "environment.tool_style=hermes")
    assert "says nothing about tools, so prompts do not present them; describe them in data.system_prompt" in shown


def test_an_environment_that_fails_on_a_row_and_folders_without_its_tools_are_refused(
    check, adder: str, tmp_path: Path
) -> None:
    tools = (adder, "environment.tool_style=hermes")
    with pytest.raises(RewardError, match=r"environment.path: ValueError: invalid literal .* \(tried on row 0\)"):
        check([{**ROWS[0], "answer": "#### 1.5"}, *ROWS[1:]], *tools)
    check(ROWS)
    folder = tmp_path / "prepared"
    data_prepare(format="gsm8k", input=tmp_path / "rows.jsonl", output=folder, tokenizer=tmp_path / "tokenizer")
    settings = (f"data.train={{format: prepared, path: {folder}}}", "rollout.prompts_per_step=2")
    with pytest.raises(DataError, match="prepared: its prompts do not present the environment's tools"):
        check(ROWS, *settings, *tools)
