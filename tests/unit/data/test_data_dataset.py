"""Opening and showing a prepared folder, whole and damaged."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from mindgspo.config.data import ColumnsSection, DataSourceSection, TokenizerSection
from mindgspo.data.dataset import HEADER_SIZE, PAGE_SIZE, inspect_dataset, open_dataset, write_prompt_records
from mindgspo.data.record_index import check_record_file
from mindgspo.errors import DataError
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.types import Prompt


@pytest.fixture
def folder(prepare, gsm8k, tmp_path: Path) -> Path:
    prepare(gsm8k, system_prompt="Be brief.")
    return tmp_path / "out"


def test_another_tokenizer_is_refused_by_name(folder: Path, tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "copy")
    same_files = load_tokenizer(TokenizerSection(path=tmp_path / "copy"))
    assert len(open_dataset(folder, same_files)) == 3
    (tmp_path / "copy" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    other = load_tokenizer(TokenizerSection(path=tmp_path / "copy"))
    with pytest.raises(DataError, match="another tokenizer") as raised:
        open_dataset(folder, other)
    for part in (str(folder), tokenizer.name, tokenizer.fingerprint[:12], other.name, other.fingerprint[:12]):
        assert part in str(raised.value)


def test_a_folder_of_an_earlier_rendering_is_read_with_a_warning(prepare, gsm8k, tokenizer, tmp_path: Path, caplog):
    assert prepare(gsm8k).tokenizer.rendering == 2 and not caplog.text
    facts = json.loads((tmp_path / "out" / "dataset.json").read_text())
    del facts["tokenizer"]["rendering"]
    (tmp_path / "out" / "dataset.json").write_text(json.dumps(facts))
    assert len(open_dataset(tmp_path / "out", tokenizer)) == 3
    assert "made by an earlier release" in caplog.text and "--force" in caplog.text
    assert prepare(gsm8k).tokenizer.rendering == 1, "a run goes on with what it has"


def test_what_json_has_not_is_counted_and_an_older_folder_without_the_count_is_read(prepare, tokenizer, tmp_path: Path):
    rows = [{"q": f"Q{i}", "a": 0.1 * i, "x": [float("nan"), 1.5] if i == 2 else [i]} for i in (1, 2, 3)]
    table = pyarrow.table({name: [row[name] for row in rows] for name in ("q", "x")})
    answers = pyarrow.array([row["a"] for row in rows], pyarrow.float32())
    pyarrow.parquet.write_table(table.append_column("a", answers), tmp_path / "rows.parquet")
    columns = ColumnsSection(prompt="q", answer="a", data_source_name="math", extra_info=("x", "a"))
    source = DataSourceSection(format="columns", path=tmp_path / "rows.parquet", columns=columns)
    info = prepare(source)
    assert info.counts.nulled == {"NaN or infinity": 1} and "nulled     1 x NaN or infinity" in info.account()
    read = list(open_dataset(tmp_path / "out", tokenizer))
    assert [row.answer for row in read] == ["0.1", "0.2", "0.3"]
    assert [row.extra_info for row in read] == [
        {"x": [1.0], "a": 0.1},
        {"x": [None, 1.5], "a": 0.2},
        {"x": [3.0], "a": 0.3},
    ]
    path = tmp_path / "out" / "dataset.json"
    facts = json.loads(path.read_text())
    del facts["counts"]["nulled"]
    path.write_text(json.dumps(facts))
    assert len(open_dataset(tmp_path / "out", tokenizer)) == 3


def test_missing_folder_and_files(folder: Path, tokenizer: Tokenizer, tmp_path: Path):
    with pytest.raises(DataError, match="nowhere: no such prepared data set"):
        open_dataset(tmp_path / "nowhere", tokenizer)
    with pytest.raises(DataError, match="is a file, not a prepared data set"):
        open_dataset(folder / "dataset.json", tokenizer)
    (folder / "prompts.mindrecord.db").unlink()
    with pytest.raises(DataError, match="prompts.mindrecord.db: missing"):
        open_dataset(folder, tokenizer)
    (folder / "dataset.json").unlink()
    with pytest.raises(DataError, match="holds no dataset.json"):
        open_dataset(folder, tokenizer)


def test_damaged_files(folder: Path, tokenizer: Tokenizer):
    record = folder / "prompts.mindrecord"
    content = record.read_bytes()
    record.write_bytes(content[:-100])
    with pytest.raises(DataError, match="prompts.mindrecord: .* bytes, dataset.json says"):
        open_dataset(folder, tokenizer)
    record.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="prompts.mindrecord: sha256 differs"):
        inspect_dataset(folder)


@pytest.mark.parametrize(("change", "message"), [
    ({"schema_version": 1}, "dataset.json: schema_version is 1, this release reads 2. Prepare .* with --force"),
    ({"schema_version": 1, "duplicates": None}, "dataset.json: schema_version is 1, this release reads 2"),
    ({"duplicates": None}, "dataset.json: duplicates"),
    ({"counts": {}}, "dataset.json: counts.rows_in"),
    ({"surprise": 1}, "dataset.json: surprise"),
])  # fmt: skip
def test_damaged_dataset_json(folder: Path, tokenizer: Tokenizer, change: dict, message: str):
    path = folder / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        open_dataset(folder, tokenizer)


def test_settings_that_contradict_the_folder(folder: Path, settings, tokenizer: Tokenizer, tmp_path: Path):
    folder = folder.rename(tmp_path / "elsewhere")
    assert [prompt.answer for prompt in open_dataset(folder, tokenizer, settings())] == ["5", "1000", "-7"]
    prompts = open_dataset(folder, tokenizer, settings(system_prompt="Be brief."))
    with pytest.raises(ValueError, match="read-only"):
        prompts[0].ids[0] = 1
    for fields, message in (
        ({"max_prompt_length": 10}, "longest prompt has .* tokens, data.max_prompt_length is 10: raise it to"),
        ({"system_prompt": "Shout."}, "made with data.system_prompt 'Be brief.', the configuration says 'Shout.'"),
        ({"instruction_suffix": "!"}, "made with data.instruction_suffix None, the configuration says '!'"),
    ):
        with pytest.raises(DataError, match=message):
            open_dataset(folder, tokenizer, settings(**fields))


def test_a_file_of_many_pages_is_whole(tmp_path: Path):
    """Arrays and texts fill pages at their own pace, and MindSpore numbers groups of rows by the pages of arrays."""
    for name, num_rows, num_ids, num_characters in (
        ("arrays", 40, 300_000, 10),
        ("texts", 40, 10, 400_000),
        ("both", 40, 200_000, 400_000),
        ("growing", 3000, 1_000, 500),
    ):
        (tmp_path / name).mkdir()
        ids = np.arange(num_ids, dtype=np.int32)
        prompts = (
            Prompt(index=i, ids=ids[: num_ids - i % 7], text="x" * num_characters, answer="4", data_source="gsm8k")
            for i in range(num_rows)
        )
        write_prompt_records(prompts, tmp_path / name)
        check_record_file(tmp_path / name / RECORD, num_rows)
        set_index("UPDATE INDEXES SET ROW_GROUP_ID = ROW_GROUP_ID + 1 WHERE ROW_ID = 0")(tmp_path / name)
        with pytest.raises(DataError, match="groups that its header does not name"):
            check_record_file(tmp_path / name / RECORD, num_rows)


def test_inspect_shows_facts_and_exact_text(folder: Path, tokenizer: Tokenizer):
    shown = inspect_dataset(folder, num_rows=2)
    prompts = open_dataset(folder, tokenizer)
    assert prompts[0].text in shown and prompts[1].text in shown and prompts[2].text not in shown
    assert f"row 0: {prompts[0].ids.size} tokens, data_source openai/gsm8k" in shown
    assert "answer: 1000" in shown and "system_prompt 'Be brief.'" in shown and "3 in, 3 out" in shown


def test_inspect_does_not_let_data_steer_the_terminal(prepare, jsonl, tmp_path: Path):
    path = jsonl([{"q": "red \x1b[31m and \u202e back", "a": 4, "x": "\u6570\u202e"}])
    columns = ColumnsSection(prompt="q", answer="a", data_source_name="gsm8k", extra_info=("x",))
    prepare(DataSourceSection(format="columns", path=path, columns=columns))
    shown = inspect_dataset(tmp_path / "out")
    assert "\x1b" not in shown and "\u202e" not in shown and "red \\x1b[31m and \\u202e back" in shown
    assert '--- extra_info: {"x": "\u6570\\u202e"}' in shown


def set_index(command: str):
    def change(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "prompts.mindrecord.db")) as index, index:
            index.execute(command)

    return change


def set_bytes(content: bytes, offset: int, piece: bytes) -> bytes:
    """Of the arrays of row 0, from the length in front of them on."""
    start = HEADER_SIZE + offset
    return content[:start] + piece + content[start + len(piece) :]


def set_values(content: bytes, piece: bytes) -> bytes:
    """Of the texts and numbers of row 0, behind the length in front of them."""
    return set_bytes(content, PAGE_SIZE + 8, piece)


def replace_bytes(name: str, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


RECORD, INDEX = "prompts.mindrecord", "prompts.mindrecord.db"
TAMPERED = (
    ("its index holds 0 rows, dataset.json says 3", set_index("DELETE FROM INDEXES")),
    ("its index holds 2 rows, dataset.json says 3", set_index("DELETE FROM INDEXES WHERE ROW_ID = 1")),
    ("no such table", set_index("DROP TABLE INDEXES")),
    ("no such table", replace_bytes(INDEX, lambda content: b"")),
    ("not a database", replace_bytes(INDEX, lambda content: bytes(len(content)))),
    ("its index: ", replace_bytes(INDEX, lambda content: content[:4096] + b"\x55" * (len(content) - 4096))),
    ("its index is another file's", set_index("UPDATE SHARD_NAME SET NAME = '../../other'")),
    ("places rows outside", set_index("UPDATE INDEXES SET PAGE_OFFSET_BLOB_END = 1000000000000")),
    ("places rows outside", set_index("UPDATE INDEXES SET PAGE_OFFSET_RAW = -5")),
    ("places rows outside", set_index("UPDATE INDEXES SET PAGE_OFFSET_RAW_END = 0")),
    ("places rows outside", set_index("UPDATE INDEXES SET PAGE_ID_RAW = 99")),
    ("groups that its header does not name", set_index("UPDATE INDEXES SET ROW_GROUP_ID = 7")),
    ("places rows outside", set_index("UPDATE INDEXES SET PAGE_OFFSET_BLOB = 'x'")),
    ("its header would have 0 bytes", replace_bytes(RECORD, lambda content: bytes(len(content)))),
    ("its header would have", replace_bytes(RECORD, lambda content: b"\xff" * 8 + content[8:])),
    ("ends beyond the file", replace_bytes(RECORD, lambda content: content[: 3 << 20])),
    ("not JSON", replace_bytes(RECORD, lambda content: content[:8] + b"x" + content[9:])),
    (
        "row 0 has another length than its index says",
        replace_bytes(RECORD, lambda content: set_bytes(content, 0, b"9")),
    ),
    ("row 0 is not what the header says", replace_bytes(RECORD, lambda content: set_bytes(content, 8, b"\x7f"))),
    ("row 0 is not what the header says", replace_bytes(RECORD, lambda content: set_bytes(content, 12, b"\xff"))),
    ("row 0 is not what the header says", replace_bytes(RECORD, lambda content: set_values(content, b"\xc1"))),
    ("a text ends beyond its row", replace_bytes(RECORD, lambda content: set_values(content, b"\x86\xdb\xff"))),
    ("not all of texts", replace_bytes(RECORD, lambda content: content.replace(b'"string"', b'"floats"'))),
    ("arrays of something else", replace_bytes(RECORD, lambda content: content.replace(b'"int32"', b'"int16"'))),
)


def seal_again(folder: Path) -> None:
    """dataset.json as if the files had always been so."""
    info = json.loads((folder / "dataset.json").read_text())
    for one in info["files"]:
        content = (folder / one["name"]).read_bytes()
        one["size"], one["sha256"] = len(content), hashlib.sha256(content).hexdigest()
    (folder / "dataset.json").write_text(json.dumps(info))


def test_tampered_records_never_reach_mindspore(folder: Path, tokenizer: Tokenizer, tmp_path: Path):
    """Its reader follows index and header blindly: an index without rows is a crash of the process."""
    for number, (said, change) in enumerate(TAMPERED):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        change(copy)
        info = json.loads((copy / "dataset.json").read_text())
        is_same_size = all((copy / one["name"]).stat().st_size == one["size"] for one in info["files"])
        with pytest.raises(DataError, match="sha256 differs" if is_same_size else "bytes, dataset.json says"):
            open_dataset(copy, tokenizer)
        seal_again(copy)
        with pytest.raises(DataError, match=f"{copy}/prompts.mindrecord: damaged .*{said}"):
            open_dataset(copy, tokenizer)
        with pytest.raises(DataError, match="prompts.mindrecord: damaged"):
            check_record_file(copy / "prompts.mindrecord")  # as of a file whose number of rows nothing tells


@pytest.mark.parametrize(("old", "new", "said"), [
    (b"\xa2{}", b"\xa2[}", "prompts.mindrecord: extra_info: not JSON"),
    (b"\xa2{}", b"\xa211", "prompts.mindrecord: extra_info: "),
    (b"\x79\x01", b"\xff\x7f", "row 0 has no ids, or others than the 379 of the tokenizer"),
])  # fmt: skip
def test_tampered_values_of_rows_are_refused(folder: Path, tokenizer: Tokenizer, old: bytes, new: bytes, said: str):
    content = (folder / RECORD).read_bytes()
    assert old in content[HEADER_SIZE:]
    (folder / RECORD).write_bytes(content[:HEADER_SIZE] + content[HEADER_SIZE:].replace(old, new, 1))
    seal_again(folder)
    with pytest.raises(DataError, match=said):
        open_dataset(folder, tokenizer)
