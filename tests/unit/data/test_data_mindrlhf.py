"""MindRLHF's MindRecord: read as its own tool writes it, written so that its trainer reads it, and back again."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from mindgspo.cli import main
from mindgspo.config.data import DataSourceSection
from mindgspo.data.dataset import open_dataset
from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.mindrlhf import SCHEMA, read_mindrlhf, write_mindrlhf
from mindgspo.data.record_index import num_records
from mindgspo.data.source_rows import DroppedRow, SourceRow, asks
from mindgspo.data.sources import open_source
from mindgspo.errors import DataError
from mindgspo.tokenization import Tokenizer

# The schema of write_mindrecord in MindRLHF's examples/grpo/qwen_grpo_tutorial/rlhf_data.py (e8a8fc1).
PUBLISHED = {
    "prompt_ids": {"type": "int64", "shape": [-1]},
    "pretrain_ids": {"type": "int64", "shape": [-1]},
    "loss_mask": {"type": "int64", "shape": [-1]},
}
QUESTIONS = (("1+1=", "2"), ("10-3=", "7"), ("25*4=", "100"))
SLOTS, ANSWER_SLOTS = 12, 6


def facts(**changed: object) -> PromptFacts:
    usual = {"system_prompt": None, "instruction_prefix": "", "instruction_suffix": "", "truncation": "error"}
    return PromptFacts(**{**usual, "max_prompt_length": SLOTS, **changed})


def row(question: str, answer: str) -> SourceRow:
    return SourceRow(where="here", messages=asks(question), answer=answer, data_source="x")


@pytest.fixture
def as_mindrlhf_does(tokenizer: Tokenizer, tmp_path: Path):
    """Write a file with MindRLHF's calls: padded on the right, its mask padded with the pad id too."""
    from mindspore.mindrecord import FileWriter

    def write(texts: list[tuple[str, str]], name: str = "train.mindrecord", pad: int = tokenizer.pad_id) -> Path:
        writer = FileWriter(file_name=str(tmp_path / name), shard_num=1, overwrite=True)
        writer.add_schema(PUBLISHED)
        for question, answer in texts:
            prompt, gold = np.array(tokenizer.encode(question)), np.array(tokenizer.encode(answer), dtype=np.int64)
            mask = np.pad(np.ones_like(gold), (0, 40 - gold.size), "constant", constant_values=(0, pad))
            mask[: prompt.size] = 0
            sample = {
                "prompt_ids": np.pad(prompt, (0, 40 - prompt.size), "constant", constant_values=(0, pad)),
                "pretrain_ids": np.pad(gold, (0, 40 - gold.size), "constant", constant_values=(0, pad)),
                "loss_mask": mask,
            }
            writer.write_raw_data([sample])
        writer.commit()
        return tmp_path / name

    return write


def test_the_schema_is_the_published_one() -> None:
    assert SCHEMA == PUBLISHED


def test_answers_that_repeat_their_question_are_taken_without_it(as_mindrlhf_does, tokenizer: Tokenizer) -> None:
    texts = [("1+1=", "1+1=1 and 1 #### 2"), ("2+2=", "2+2=4"), ("3+3=", "3+3=so \\boxed{6}"), ("4+4=", "")]
    rows = list(read_mindrlhf(as_mindrlhf_does(texts), tokenizer))
    assert [type(one) for one in rows] == [SourceRow, DroppedRow, SourceRow, DroppedRow]
    assert [(one.answer, getattr(one, "solution", "")) for one in rows] == [
        ("2", "1 and 1 #### 2"),
        ("", ""),
        ("6", "so \\boxed{6}"),
        ("", ""),
    ]
    assert rows[1].reason == "the solution has no '#### <answer>' and no box"


def test_what_is_written_is_what_mindrlhf_reads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """MindRLHF's trainer projects a MindDataset to prompt_ids and pretrain_ids, and cuts off the padding."""
    from mindspore.dataset import MindDataset

    path = tmp_path / "new" / "train.mindrecord"
    made = write_mindrlhf((row(*one) for one in QUESTIONS), path, tokenizer, facts(), seq_length=ANSWER_SLOTS)
    assert (made.rows, made.dropped) == (3, 0)
    assert sorted(one.name for one in path.parent.iterdir()) == ["train.mindrecord", "train.mindrecord.db"]
    read = MindDataset(str(path), shuffle=False).project(columns=["prompt_ids", "pretrain_ids"])
    records = read.create_tuple_iterator(output_numpy=True)
    for (question, answer), (prompt, gold) in zip(QUESTIONS, records, strict=True):
        assert (prompt.dtype, prompt.shape, gold.shape) == (np.int64, (SLOTS,), (ANSWER_SLOTS,))
        for ids, text in ((prompt, question), (gold, answer)):
            used = ids[ids != tokenizer.pad_id]
            assert tokenizer.decode(used) == text and np.all(ids[used.size :] == tokenizer.pad_id)
    (record,) = list(MindDataset(str(path), shuffle=False).create_dict_iterator(output_numpy=True))[:1]
    assert record["loss_mask"].tolist() == [1] + [0] * (ANSWER_SLOTS - 1)


def test_a_round_trip_keeps_every_row(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, second = tmp_path / "a.mindrecord", tmp_path / "b.mindrecord"
    write_mindrlhf((row(*one) for one in QUESTIONS), first, tokenizer, facts(), seq_length=ANSWER_SLOTS)
    source = open_source(DataSourceSection(format="mindrlhf", path=first), 1, tokenizer)
    assert source.count() == 3
    write_mindrlhf(source.parsed(), second, tokenizer, facts(), seq_length=ANSWER_SLOTS)
    texts = [[(one.messages, one.answer) for one in read_mindrlhf(path, tokenizer)] for path in (first, second)]
    assert texts[0] == texts[1] == [(asks(question), answer) for question, answer in QUESTIONS]


def test_it_is_prepared_as_any_other_file(as_mindrlhf_does, prepare, tokenizer: Tokenizer, tmp_path: Path) -> None:
    info = prepare(DataSourceSection(format="mindrlhf", path=as_mindrlhf_does(list(QUESTIONS)), max_rows=2))
    assert (info.source.format, info.counts.rows_out) == ("mindrlhf", 2)
    prompts = list(open_dataset(tmp_path / "out", tokenizer))
    assert [(one.answer, one.solution, one.data_source) for one in prompts] == [("2", "", "math"), ("7", "", "math")]
    assert [question in one.text for (question, _), one in zip(QUESTIONS, prompts, strict=False)] == [True, True]


def test_the_command_reads_and_writes_it(gsm8k_file: Path, tokenizer, tmp_path: Path, capsys) -> None:
    gsm8k_file.write_text("".join(json.dumps({"question": q, "answer": f"#### {a}"}) + "\n" for q, a in QUESTIONS))
    tokenizer.save(tmp_path / "tok")
    path = tmp_path / "train.mindrecord"
    words = ["data", "prepare", "--tokenizer", str(tmp_path / "tok"), "--max_prompt_length", "64"]
    to_mindrlhf = ["--format", "gsm8k", "--file_path", str(gsm8k_file), "--output_path", str(path), "--seq_length", "8"]
    assert main([*words, *to_mindrlhf]) == 0
    assert "3 written, 0 left out" in capsys.readouterr().out
    assert main([*words, *to_mindrlhf]) == 1, "never overwritten"
    assert main([*words, "--format", "mindrlhf", "--input", str(path), "--output", str(tmp_path / "folder")]) == 0
    assert [one.answer for one in open_dataset(tmp_path / "folder", tokenizer)] == ["2", "7", "100"]


@pytest.mark.parametrize(("changed", "rows", "message"), [
    ({"max_prompt_length": 3}, QUESTIONS, "the question has 4 tokens, --max-prompt-length is 3"),
    ({"system_prompt": "S"}, QUESTIONS, "leave --system-prompt out"),
    ({}, (("1+1=", "2345678"),), "the answer has 7 tokens, --seq-length is 6"),
    ({}, (("1+1=<|endoftext|>", "2"),), "ends in the pad token"),
    ({}, (), "no row is left to write; 0 were left out"),
])  # fmt: skip
def test_what_cannot_be_written_leaves_nothing(tokenizer, tmp_path, changed, rows, message) -> None:
    path = tmp_path / "out" / "train.mindrecord"
    with pytest.raises(DataError, match=message):
        write_mindrlhf((row(*one) for one in rows), path, tokenizer, facts(**changed), seq_length=ANSWER_SLOTS)
    assert list(path.parent.glob("*")) == []


def test_long_questions_are_cut_or_dropped(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for truncation, kept in (("drop", []), ("left", ["+1="]), ("right", ["1+1"])):
        path = tmp_path / f"{truncation}.mindrecord"
        settings = facts(max_prompt_length=3, truncation=truncation)
        rows = (row(*one) for one in (("1+1=", "2"), ("2=", "2")))
        made = write_mindrlhf(rows, path, tokenizer, settings, seq_length=ANSWER_SLOTS)
        assert [one.messages[0]["content"] for one in read_mindrlhf(path, tokenizer)] == [*kept, "2="]
        assert made.dropped == (truncation == "drop")


def test_files_of_another_tokenizer_or_padding_are_refused(as_mindrlhf_does, tokenizer: Tokenizer) -> None:
    for name, pad, message in (("a.mindrecord", tokenizer.vocab_size + 5, "is none of the"),
                               ("b.mindrecord", tokenizer.eos_ids[0], "give --pad-token '<|im_end|>'")):  # fmt: skip
        with pytest.raises(DataError, match=message.replace("|", r"\|")):
            list(read_mindrlhf(as_mindrlhf_does([("1+1=", "2")], name, pad), tokenizer))


def test_damaged_and_other_files_are_refused(as_mindrlhf_does, prepare, tokenizer, gsm8k, tmp_path: Path) -> None:
    prepare(gsm8k)
    (own,) = (tmp_path / "out").glob("*.mindrecord")
    for path in (own, tmp_path / "none.mindrecord"):
        with pytest.raises(DataError, match="cannot be read as MindRLHF's|no such file"):
            list(read_mindrlhf(path, tokenizer))
    path = as_mindrlhf_does(list(QUESTIONS))
    with sqlite3.connect(f"{path}.db") as index:
        index.execute("UPDATE INDEXES SET PAGE_OFFSET_BLOB_END = 99999999")
    with pytest.raises(DataError, match="damaged"):
        list(read_mindrlhf(path, tokenizer))
    with sqlite3.connect(f"{path}.db") as index:
        index.execute("DROP TABLE INDEXES")
    with pytest.raises(DataError, match=r"damaged \(no such table.*copy it and"):
        num_records(path)
