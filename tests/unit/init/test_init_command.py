"""`mindgspo init`: what it writes passes `mindgspo check` and fits, for every family and number of cards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest
from huggingface_folders import KINDS, write_folder, write_reward, write_rows
from markdown_pages import tables

from mindgspo.cli import main
from mindgspo.config import ModelSection, load_config
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.config.load import read_layers
from mindgspo.config.lora import narrowest_target
from mindgspo.config.yaml_dialect import parse_document
from mindgspo.data.benchmarks import INSTRUCTIONS
from mindgspo.data.source_rows import SourceRow, asks
from mindgspo.errors import ConfigError
from mindgspo.init.columns import find_columns
from mindgspo.init.command import LEARNING_RATES, commented_document, usual_learning_rate
from mindgspo.init.lengths import Lengths, measure
from mindgspo.init.plans import Fit, Hardware, fitting, prompts_per_step
from mindgspo.planner import GIB, expected_memory

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pens.jsonl and reward.py."""
    folder = tmp_path_factory.mktemp("brought")
    write_reward(folder / "reward.py")
    write_rows(folder / "pens.jsonl")
    return folder


@pytest.fixture
def init(brought: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """init(*words): exit code and words of `mindgspo init` about new.yaml, for a model in the folder hf."""

    def run(*words: object, data: Path = brought / "pens.jsonl", kind: str = "Qwen2") -> tuple[int, str]:
        if not (tmp_path / "hf").exists():
            write_folder(tmp_path / "hf", kind, brought / "pens.jsonl")
        files = ["--model", tmp_path / "hf", "--data", data, "--out", tmp_path / "new.yaml"]
        code = main(["init", *map(str, [*files, *words])])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def lines_of(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_and_odd_columns_pass_the_check(kind: str, init, brought: Path, tmp_path: Path, capsys) -> None:
    own = ["--reward", brought / "reward.py"] if kind in ("Qwen2", "Qwen3Moe") else []
    code, text = init(*own, kind=kind)
    said = text.splitlines()
    assert (code, [line.split()[0] for line in said]) == (0, ["model", "data", "lengths", "plan", "next"])
    assert f"{kind} of 0.1" in said[0] and "responses end at <eos>" in said[0]
    assert "180 questions to train on, 20 held out" in said[1]
    assert "question = user_query, answer = expected_result" in said[1]
    assert ("reward.py:digits (yours)" if own else "gsm8k (it can read every answer)") in said[1]
    new = tmp_path / "new.yaml"
    assert said[4].endswith(f"mindgspo check {new} && mindgspo run {new}")
    assert main(["check", str(new)]) == 0
    assert capsys.readouterr().out.endswith("\nok\n")
    if own:  # the suffix that the file asks for has room
        suffix = "data.instruction_suffix=' Think step by step, and write the number of pens behind \"Answer:\".'"
        assert main(["check", str(new), "--set", suffix]) == 0
        assert "dropped" not in capsys.readouterr().out
    config = load_config(new)
    assert expected_memory(config).fits()
    assert config.tokenizer.path == tmp_path / "hf" and config.tokenizer.eos_tokens == ("<eos>",)
    code, text = init()
    assert code == 1 and "new.yaml: is there already; give --out another name" in text


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3Moe"])
def test_adapters_are_written_with_ten_times_the_learning_rate(kind: str, init, tmp_path: Path, capsys) -> None:
    code, said = init("--lora", kind=kind)
    assert code == 0 and "are trained" in said and "the rest is frozen" in said
    config = load_config(tmp_path / "new.yaml")
    lora = config.model.lora
    assert lora is not None and lora.targets == (("all",) if kind == "Qwen2" else ("attention",))
    assert (lora.rank, lora.scale) == (min(16, narrowest_target(config.model, lora)), 2.0)
    assert config.optimizer.lr == 5e-4 == usual_learning_rate(config.model)
    assert main(["check", str(tmp_path / "new.yaml")]) == 0
    assert capsys.readouterr().out.endswith("\nok\n")


def test_held_out_rows_may_be_a_file_of_their_own(init, brought: Path, tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text('user_query,expected_result\n"Tom has 3 pens.",3\n"Ann has 4 pens.",4\n')
    code, said = init("--eval", tmp_path / "few.csv", "--cards", "2", "--device", "CPU", kind="Llama")
    assert code == 0 and "200 questions to train on, 2 held out" in said
    config = load_config(tmp_path / "new.yaml")
    assert config.data.train.path == brought / "pens.jsonl"  # as it is
    assert config.data.eval.path == tmp_path / "new_data" / "eval.jsonl"  # a run reads no CSV
    assert config.plans.train.data_parallel == 2 and config.device == "CPU"


def test_a_tokenizer_may_lie_elsewhere_and_held_out_rows_be_shared(init, brought: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "Qwen3", brought / "pens.jsonl")
    (tmp_path / "bpe").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(tmp_path / "bpe" / name)
    write_rows(tmp_path / "more.jsonl", 210)
    tokenizer = ["--tokenizer", tmp_path / "bpe", "--eos-token", "<user>"]
    for words, code, said in (
        ([], 1, "holds no tokenizer"),
        ([*tokenizer, "--eval", brought / "pens.jsonl"], 1, "every question is in"),
        ([*tokenizer, "--eval", tmp_path / "more.jsonl"], 0, "200 questions to train on, 210 held out, 200 of them in"),
    ):
        ended, text = init(*words)
        assert ended == code and said in text
    tokenizer = load_config(tmp_path / "new.yaml").tokenizer
    assert (tokenizer.path, tokenizer.eos_tokens) == (tmp_path / "bpe", ("<user>",))


def test_repeated_questions_are_counted_and_trained_once(init, brought: Path, tmp_path: Path) -> None:
    rows = (brought / "pens.jsonl").read_text().splitlines(keepends=True)
    twice = tmp_path / "twice.jsonl"
    twice.write_text("".join(rows + rows[:7]))
    assert init("--eval", brought / "pens.jsonl", data=twice)[0] == 1, "nothing would be new to measure on"
    code, said = init("--eval", write_rows(tmp_path / "more.jsonl", 210), data=twice)
    assert code == 0
    assert "200 questions to train on, 210 held out, 200 of them in both, 7 repeated ones left out" in said
    assert load_config(tmp_path / "new.yaml").data.train.dedup


def test_any_number_of_cards_will_do(init) -> None:
    code, said = init("--cards", "3")
    assert code == 0 and "3 Ascend cards: train 3 x 1 x 1, infer 3 x 1 x 1" in said


@pytest.mark.parametrize(("words", "said"), [
    (["--memory-gb", "0.3"], "does not fit on this machine: the least that was found needs"),
    (["--cards", "256"], "180 questions to train on are too few, a step draws at least 256"),
])  # fmt: skip
def test_nothing_is_left_where_something_is_wrong(init, words: list[str], said: str, tmp_path: Path) -> None:
    code, text = init(*words)
    assert code == 1 and said in text
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    "name", ["\x1b[31mquestion", "big\nquestion", "x\x85question", "\u202equestion", "a: #question"]
)
def test_a_column_may_have_an_odd_name(name: str, init, tmp_path: Path) -> None:
    rows = [{name: f"What is {i} + {i}?", "answer": 2 * i} for i in range(40)]
    code, said = init(data=lines_of(tmp_path / "odd.jsonl", rows))
    assert code == 0 and "\x1b" not in said + (tmp_path / "new.yaml").read_text()
    assert load_config(tmp_path / "new.yaml").data.train.columns.prompt == name


def test_columns_for_the_reward_fit_into_a_file_that_a_run_reads(init, brought: Path, tmp_path: Path) -> None:
    more = {f"{'c' * 150}{i}": "x" for i in range(2000)}
    rows = [{"question": f"What is {i} + {i}?", "answer": 2 * i, **more} for i in range(20)]
    code, said = init("--reward", brought / "reward.py", data=lines_of(tmp_path / "wide.jsonl", rows))
    assert code == 1 and "the names of its columns make an experiment of more than 262,144 bytes" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "wide.jsonl"]


def test_thousands_of_columns_are_looked_at_once(brought: Path, tmp_path: Path) -> None:
    """Work is counted, not time: each of 50 rows is flattened once."""
    seen = 0

    class Row(dict):
        def items(self):
            nonlocal seen
            seen += 1
            return super().items()

    rows = [Row({f"c{i}": "x" for i in range(2000)} | {"question": "How?", "answer": 1}) for _ in range(50)]
    assert find_columns(tmp_path, rows, question=None, answer=None, name="x").answer == "answer"
    assert seen <= 2 * len(rows)


def test_the_learning_rates_of_docs_and_examples_are_those_that_are_written() -> None:
    """In tuning's table from the smallest to the largest, and in every shipped experiment, by the size of its model."""
    for page in ("tuning.md", "tuning_cn.md"):
        (table,) = (found for found in tables((PROJECT / "docs" / page).read_text()) if found[1][:2] == [
            "`optimizer.lr`", "5e-5"])  # fmt: skip
        assert [float(text) for text in table[1][1:]] == [lr for _, lr in reversed(LEARNING_RATES)], page
    for path in (PROJECT / "examples").glob("*/gspo*.yaml"):
        config = load_config(path, check_files=False)
        of_chatlearn = config.experiment == "math-lighteval-gspo"
        assert config.optimizer.lr == (2e-6 if of_chatlearn else usual_learning_rate(config.model)), path


def lengths_of(
    prompts: list[int], instruction: str | None = "Say.", solutions: Sequence[int] = (), positions: int = 40_000
) -> Lengths:
    """Of rows of so many characters, each a token, which the chat template leaves alone."""
    rows = [
        SourceRow(where="", messages=asks("x" * prompt), answer="1", data_source="", solution="y" * solution)
        for prompt, solution in zip_longest(prompts, solutions, fillvalue=0)
    ]
    return measure(rows, instruction, CharacterTokenizer(), device="CPU", positions=positions)


class CharacterTokenizer:
    """As much of a tokenizer as lengths need."""

    name = "characters"

    def render_chat(self, messages: list[dict], add_generation_prompt: bool, tools: tuple) -> str:
        return messages[-1]["content"]

    def encode(self, text: str) -> list[int]:
        return [0] * len(text)


def test_one_outlier_does_not_make_every_row_as_long() -> None:
    """Lengths that are rounded up to multiples of 32, with 4 tokens of an instruction."""
    assert lengths_of([60] * 10 + [20_041]).prompt == 64
    assert lengths_of([60] * 40 + [20_041]).prompt == 64
    assert lengths_of([60] * 400 + [100] * 8 + [20_041] * 2).prompt == 128
    assert lengths_of([20, 60, 90]).prompt == 96  # the longest is no outlier
    found = lengths_of([60] * 40, solutions=[50] * 39 + [5000])
    assert found.response == 224  # 4 x 50, rounded up


def test_a_suffix_that_the_user_is_to_write_has_room() -> None:
    longest = max(map(len, INSTRUCTIONS.values()))
    found = lengths_of([60] * 40, instruction=None)
    assert found.room == 2 * longest and found.prompt >= 60 + 2 * longest
    assert f"({2 * longest} of them for data.instruction_suffix)" in found.text
    assert lengths_of([60] * 40, instruction="").prompt == 64  # rows that say themselves how to answer
    small = lengths_of([60] * 40, instruction=None, positions=256)  # half of the model's
    assert (small.prompt, small.room) == (128, 68) and "(68 of them for data.instruction_suffix)" in small.text
    assert lengths_of([128] * 40, instruction=None, positions=256).room == 0


def test_a_vocabulary_that_cannot_be_divided_is_named_with_one_that_can(tmp_path: Path) -> None:
    """The widths of Qwen2.5-14B in 64 layers, with a table of 152,064 rows cut to the tokenizer's."""
    odd = ModelSection(
        vocab_size=151_665, hidden_size=5120, intermediate_size=13_824, num_hidden_layers=64, num_attention_heads=40,
        num_key_value_heads=8,
    )  # fmt: skip
    fit = planned(tmp_path, "odd", 8, odd)
    assert fit.padding.startswith("vocab_size 151665 has no divisor 2, 4 or 8, so that only pipelines cut the model")
    assert fit.config.model.table_rows == 152_064 and fit.config.model.vocab_size == 151_665
    assert fit.config.plans.train.model_parallel > 1


def planned(tmp_path: Path, name: str, cards: int, model: ModelSection | None = None) -> Fit:
    """Plans for a published model, of which only config.json is there."""
    if model is None:
        model = ModelSection(**read_layers(PROJECT / "model_configs" / f"{name}.yaml", ())["model"])
    (tmp_path / "config.json").write_text(json.dumps(huggingface_config(model, eos_ids=[1], pad_id=0)))
    machine = Hardware(device="Ascend", cards=cards)
    prompts = prompts_per_step(machine, 7473)
    source = {"format": "gsm8k", "path": str(tmp_path / "rows.jsonl")}
    base = {
        "experiment": "planned",
        "device": "Ascend",
        "model": {"path": str(tmp_path), "dtype": "bfloat16"},
        "tokenizer": {"path": str(tmp_path)},
        "data": {"train": source, "eval": source, "max_prompt_length": 256},
        "rollout": {"prompts_per_step": prompts, "num_generations": 8, "max_new_tokens": 1024},
        "trainer": {"prompts_per_mini_batch": prompts // 4, "packing": True, "length_multiple": 128},
    }
    return fitting(name, base, machine)


@pytest.mark.parametrize(("name", "cards", "train", "infer"), [
    ("qwen2_5_0_5b", 1, "1 x 1 x 1", "1 x 1 x 1"), ("qwen2_5_0_5b", 8, "8 x 1 x 1", "8 x 1 x 1"),
    ("qwen2_5_7b", 8, "2 x 4 x 1", "2 x 4 x 1"),
])  # fmt: skip
def test_a_model_is_divided_no_more_than_it_must_be(tmp_path: Path, name: str, cards: int, train: str, infer: str):
    fit = planned(tmp_path, name, cards)
    plans = fit.config.plans
    assert (str(plans.train), str(plans.infer)) == (train, infer)
    assert fit.memory.peak()[1] <= 0.9 * fit.memory.capacity == 0.9 * 15 / 16 * (64 - 3.3) * GIB
    assert fit.config.rollout.slots >= 8 * plans.infer.data_parallel
    # What is written as YAML is what was planned.
    assert parse_document(commented_document("A title.", fit.mapping, {"plans": "Why.\nAnd more."})) == fit.mapping


def test_too_few_cards_are_told_the_number_that_fits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="qwen2_5_7b does not fit on 1 card.*; on 4 cards it does: --cards 4"):
        planned(tmp_path, "qwen2_5_7b", 1)


@pytest.mark.parametrize(("cards", "rows", "prompts"), [(1, 7473, 32), (8, 7473, 256), (64, 7473, 512), (8, 90, 16),
                                                        (12, 7473, 384), (6, 20, 12)])  # fmt: skip
def test_prompts_of_a_step_can_be_shared_out(cards: int, rows: int, prompts: int) -> None:
    assert prompts_per_step(Hardware(device="Ascend", cards=cards), rows) == prompts
