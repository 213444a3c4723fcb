"""From a source to a MindRecord folder and back, and every way in which that is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from running import tree

from mindgspo.config.data import ColumnsSection, DataSourceSection, TokenizerSection
from mindgspo.data.dataset import open_dataset
from mindgspo.errors import DataError, TokenizerError
from mindgspo.tokenization import Tokenizer, load_tokenizer


def test_round_trip(prepare, gsm8k, settings, tokenizer: Tokenizer, tmp_path: Path):
    out = tmp_path / "nested" / "out"
    info = prepare(gsm8k, out)
    dataset = open_dataset(out, tokenizer, settings())
    assert len(dataset) == info.counts.rows_out == 3
    assert [prompt.index for prompt in dataset] == [0, 1, 2]
    first = dataset[0]
    assert first.text == (
        "<|im_start|>user\nTom has 2 pens and buys 3 more. How many now?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert first.ids.dtype == np.int32 and first.ids.tolist() == tokenizer.encode(first.text)
    assert (first.answer, first.data_source, first.solution) == ("5", "openai/gsm8k", "2+3=5 pens\n#### 5")
    assert dataset[1].text == "<|im_start|>user\n小明有4个苹果。<|im_end|>\n<|im_start|>assistant\n"
    assert [prompt.answer for prompt in dataset] == ["5", "1000", "-7"]
    lengths = [prompt.ids.size for prompt in dataset]
    assert (info.lengths.min, info.lengths.max) == (min(lengths), max(lengths))
    assert info.lengths.mean == pytest.approx(sum(lengths) / 3)
    assert dataset.info == info
    assert not list(out.parent.glob(".*")), "a temporary folder was left behind"


def test_system_prompt_and_suffix(prepare, gsm8k, settings, tokenizer: Tokenizer, tmp_path: Path):
    data = settings(system_prompt="Be brief.", instruction_prefix="Solve: ", instruction_suffix="\nEnd with ####.")
    info = prepare(gsm8k, data=data)
    assert open_dataset(tmp_path / "out", tokenizer, data)[2].text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSolve: Short?\nEnd with ####.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert (info.prompt.system_prompt, info.prompt.instruction_suffix) == ("Be brief.", "\nEnd with ####.")


def test_tools_stand_in_the_prompt_and_in_dataset_json(prepare, gsm8k, tokenizer: Tokenizer, tmp_path: Path):
    """Other tools are other inputs; a folder from before there were any is one without."""
    tokenizer.save(tmp_path / "tok")
    (tmp_path / "tok" / "chat_template.jinja").write_text("{{ tools | tojson }} {{ messages[0].content }}")
    using = load_tokenizer(TokenizerSection(path=tmp_path / "tok"))
    add = {"type": "function", "function": {"name": "add", "parameters": {"required": ("x",)}}}
    info = prepare(gsm8k, tools=[add], using=using)
    read = json.loads(json.dumps(add))
    assert open_dataset(tmp_path / "out", using)[2].text == f"{json.dumps([read])} Short?"
    assert info.prompt.tools == (read,) and prepare(gsm8k, tools=[add], using=using) == info
    with pytest.raises(DataError, match="prompt.tools: was .*'add'.*, now ()"):
        prepare(gsm8k, using=using)
    with pytest.raises(TokenizerError, match="a tool's schema must be plain JSON"):
        prepare(gsm8k, tmp_path / "other", tools=[{"name": {1, 2}}], using=using)
    before = prepare(gsm8k, tmp_path / "before", using=using)
    path = tmp_path / "before" / "dataset.json"
    content = json.loads(path.read_text())
    assert content["prompt"].pop("tools") == []
    path.write_text(json.dumps(content))
    assert prepare(gsm8k, tmp_path / "before", using=using) == before


def test_verl_rows_use_their_own_messages(prepare, jsonl, settings, tokenizer: Tokenizer, tmp_path: Path, caplog):
    row = {"data_source": "math_dapo", "reward_model": {"ground_truth": "4"}, "extra_info": {"index": 7}}
    own_system = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "2+2?"}]
    path = jsonl({**row, "prompt": prompt} for prompt in (own_system, own_system[1:]))
    data = settings(system_prompt="Yours.", instruction_prefix="unused", instruction_suffix="unused")
    with caplog.at_level(logging.WARNING):
        info = prepare(DataSourceSection(format="verl", path=path), data=data)
    assert "instruction_prefix is not used" in caplog.text and "instruction_suffix is not used" in caplog.text
    assert (info.prompt.instruction_prefix, info.prompt.instruction_suffix) == ("", "")
    dataset = open_dataset(tmp_path / "out", tokenizer, data)
    assert dataset[0].text.startswith("<|im_start|>system\nMine.<|im_end|>") and len(dataset) == 2
    assert dataset[1].text.startswith("<|im_start|>system\nYours.<|im_end|>")
    assert "unused" not in dataset[0].text and dataset[0].extra_info == {"index": 7}


def test_long_prompts_stop_the_preparation_by_default(prepare, gsm8k, tokenizer: Tokenizer, tmp_path: Path):
    with pytest.raises(DataError) as raised:
        prepare(gsm8k, max_prompt_length=20)
    message = str(raised.value)
    first = len(tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": GSM8K_QUESTION}])))
    assert "2 of 3 prompts are longer than data.max_prompt_length = 20" in message
    assert f"gsm8k.jsonl:1 with {first} tokens" in message and "left, right, middle or drop" in message
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


GSM8K_QUESTION = "Tom has 2 pens and buys 3 more. How many now?"


@pytest.mark.parametrize("limit", [9, 10])
@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_truncation(prepare, gsm8k, settings, tokenizer: Tokenizer, tmp_path: Path, side: str, limit: int):
    whole = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": GSM8K_QUESTION}]))
    data = settings(max_prompt_length=limit, truncation=side)
    info = prepare(gsm8k, data=data)
    expected = {"left": whole[len(whole) - limit :], "right": whole[:limit],
                "middle": whole[: limit // 2] + whole[len(whole) - (limit - limit // 2) :]}[side]  # fmt: skip
    first = open_dataset(tmp_path / "out", tokenizer)[0]
    assert first.ids.tolist() == expected and first.text == tokenizer.decode(expected)
    assert info.counts.truncated == {side: 3} and info.counts.dropped == {}
    assert f"truncated  3 {'in' if side == 'middle' else 'on'} the {side}" in info.account()
    assert (info.lengths.max, info.prompt.truncation) == (limit, side)
    assert info.lengths.max_before_truncation >= len(whole)


def test_empty_data_sets_are_refused(prepare, gsm8k, tmp_path: Path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(DataError, match="empty.jsonl: no rows"):
        prepare(DataSourceSection(format="gsm8k", path=empty))
    said = r"all 3 rows are dropped \(3: longer than max_prompt_length; the longest prompt has \d+ tokens\)"
    with pytest.raises(DataError, match=said):
        prepare(gsm8k, max_prompt_length=2, truncation="drop")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.jsonl", "gsm8k.jsonl"]


def test_a_row_without_an_answer_field_or_too_large_stops_and_leaves_nothing(prepare, gsm8k, gsm8k_file, tmp_path):
    with gsm8k_file.open("a") as file:
        file.write('{"question": "q"}\n')
    with pytest.raises(DataError, match="gsm8k.jsonl:4: answer: expected a non-empty text"):
        prepare(gsm8k)
    row = {"data_source": "d", "prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "4"}}
    gsm8k_file.write_text(json.dumps({**row, "extra_info": {"faces": "\U0001f600" * 450_000}}))
    with pytest.raises(DataError, match="gsm8k.jsonl:1: the row takes 54.* bytes"):  # as it is written
        prepare(gsm8k.model_copy(update={"format": "verl"}))
    assert [path.name for path in tmp_path.iterdir()] == ["gsm8k.jsonl"]


def test_unknown_data_sources_are_told_once(prepare, jsonl, tmp_path: Path, caplog):
    path = jsonl({"q": f"{i}?", "a": i} for i in range(3))
    for name, told in (("gsmk", 1), ("gsm8k", 0)):
        caplog.clear()
        columns = ColumnsSection(prompt="q", answer="a", data_source_name=name)
        source = DataSourceSection(format="columns", path=path, columns=columns)
        prepare(source, tmp_path / name)
        message = "no reward function is known for data_source 'gsmk': gold answers were not checked"
        assert [record.getMessage() for record in caplog.records] == [message] * told


def test_output_paths_that_no_folder_can_take(prepare, gsm8k, gsm8k_file: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "to_empty").symlink_to(tmp_path / "empty")
    (tmp_path / "to_nothing").symlink_to(tmp_path / "absent")
    before = sorted(tmp_path.iterdir())
    for out, message in (
        (gsm8k_file / "x" / "y", f"gsm8k.jsonl/x/y: {gsm8k_file} is a file, not a folder"),
        (tmp_path / "to_empty", "to_empty: is a symbolic link to an empty folder"),
        (tmp_path / "to_nothing", "to_nothing: is a symbolic link to nothing"),
        (tmp_path / "to_nothing" / "x", "to_nothing: cannot be written: File exists"),
        (tmp_path / ("n" * 300), "nnn: cannot be written: File name too long"),
        (tmp_path / ("n" * 240), "n.partial-.*: cannot be written: File name too long"),
    ):
        with pytest.raises(DataError, match=message):
            prepare(gsm8k, out)
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_is_told_and_keeps_the_chunks(prepare, gsm8k, tmp_path: Path):
    def fill(data_source: str, gold: str) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DataError, match=f"^{tmp_path / 'out'}: cannot be written: the disk is full"):
        prepare(gsm8k, is_readable=fill)
    assert len(list(tmp_path.glob("out.partial-*/chunk-00000.jsonl"))) == 1


def test_what_is_damaged_is_made_anew_by_force(prepare, gsm8k, tmp_path: Path):
    out = tmp_path / "out"
    prepare(gsm8k, out)
    (out / "dataset.json").write_text("{}")
    with pytest.raises(DataError, match="prepare again with --force, which moves this one aside"):
        prepare(gsm8k, out)
    prepare(gsm8k, out, force=True)
    (out / "prompts.mindrecord").unlink()
    with pytest.raises(DataError, match="prompts.mindrecord: missing, .* prepare again with --force"):
        prepare(gsm8k, out)


def test_the_same_inputs_are_reused_untouched(prepare, gsm8k, gsm8k_file: Path, tmp_path: Path):
    out = tmp_path / "out"
    info = prepare(gsm8k, out)
    before = tree(out)
    # The same bytes elsewhere, another seed and other unrelated settings are the same inputs for a file.
    moved = gsm8k_file.rename(tmp_path / "moved.jsonl")
    again = prepare(DataSourceSection(format="gsm8k", path=moved), out, shuffle=False, seed=2)
    assert again == info and tree(out) == before


def test_other_inputs_never_overwrite(prepare, gsm8k, gsm8k_file: Path, tmp_path: Path):
    out = tmp_path / "out"
    prepare(gsm8k, out)
    before = tree(out)
    for fields, difference in (
        ({"system_prompt": "Hi"}, "prompt.system_prompt: was None, now 'Hi'"),
        ({"instruction_prefix": "?"}, "prompt.instruction_prefix: was '', now '?'"),
        ({"instruction_suffix": "!"}, "prompt.instruction_suffix: was '', now '!'"),
        ({"max_prompt_length": 100}, "prompt.max_prompt_length: was 200, now 100"),
        ({"truncation": "drop"}, "prompt.truncation: was 'error', now 'drop'"),
        ({"using": load_tokenizer(TokenizerSection(eos_tokens=("<|im_end|>",)))}, "tokenizer.fingerprint: was "),
    ):
        with pytest.raises(DataError) as raised:
            prepare(gsm8k, out, **fields)
        assert difference in str(raised.value) and "with --force" in str(raised.value)
        assert "using" in fields or str(raised.value).count("was ") == 2  # the headline has one
    with pytest.raises(DataError, match="source.max_rows: was None, now 2"):
        prepare(DataSourceSection(format="gsm8k", path=gsm8k_file, max_rows=2), out)
    gsm8k_file.write_text(gsm8k_file.read_text().replace("-7", "-8"))
    with pytest.raises(DataError, match="source.sha256: was "):
        prepare(gsm8k, out)
    assert tree(out) == before
    generated = DataSourceSection(format="arithmetic", max_rows=3)
    for _ in range(2):
        prepare(generated, tmp_path / "generated")
    with pytest.raises(DataError, match="source.seed: was 1, now 2"):
        prepare(generated, tmp_path / "generated", seed=2)


def test_a_folder_of_something_else_is_not_touched(prepare, gsm8k, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="holds no dataset.json, .* choose another folder, or prepare with --force"):
        prepare(gsm8k, out)
    assert tree(out) == {"thesis.txt": b"years of work"}


def test_force_moves_the_old_folder_aside_unless_the_source_is_bad(prepare, gsm8k, gsm8k_file, tokenizer, tmp_path):
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is filled
    prepare(gsm8k, out)
    before = tree(out)
    for number in (1, 2):
        info = prepare(gsm8k, out, system_prompt=f"{number}", force=True)
        assert info.prompt.system_prompt == f"{number}" and (tmp_path / f"out.old-{number}").is_dir()
    assert tree(tmp_path / "out.old-1") == before
    assert len(open_dataset(tmp_path / "out.old-2", tokenizer)) == 3
    before = tree(out)
    gsm8k_file.write_text("{broken\n")
    with pytest.raises(DataError, match="gsm8k.jsonl:1: not JSON"):
        prepare(gsm8k, out, force=True)
    assert tree(out) == before and len(list(tmp_path.glob("out.old*"))) == 2


def test_rendering_errors_name_the_template(prepare, gsm8k, tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tok")
    (tmp_path / "tok" / "chat_template.jinja").write_text(" ")
    blank = load_tokenizer(TokenizerSection(path=tmp_path / "tok"))
    info = prepare(gsm8k, tmp_path / "blank", using=blank)
    assert info.lengths.max == 1
    (tmp_path / "tok" / "chat_template.jinja").write_text("")
    empty = load_tokenizer(TokenizerSection(path=tmp_path / "tok"))
    with pytest.raises(DataError, match="gsm8k.jsonl:1: the chat template of .*tok made an empty prompt"):
        prepare(gsm8k, tmp_path / "empty", using=empty)


def test_losing_a_race_for_the_same_folder_is_harmless(prepare, gsm8k, tokenizer: Tokenizer, tmp_path: Path):
    out = tmp_path / "out"

    class OvertakenBackend:
        """Prepares the folder itself while the slower call is in the middle of its rows."""

        def encode(self, text: str, plain: tuple) -> list[int]:
            prepare(gsm8k, out, chunk_rows=7)
            return tokenizer.backend.encode(text, plain)

    slower = dataclasses.replace(tokenizer, backend=OvertakenBackend())
    info = prepare(gsm8k, out, using=slower)
    assert info.counts.rows_out == 3 and len(open_dataset(out, tokenizer)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gsm8k.jsonl", "out"]
