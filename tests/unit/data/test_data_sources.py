"""Data sources: files intact and damaged, and what the configuration says about them before any is opened."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from small_experiment import WITH_MODEL

from mindgspo.config import load_config
from mindgspo.config.data import DataSourceSection
from mindgspo.data.sources import open_source, read_file
from mindgspo.errors import ConfigError, DataError


def test_jsonl_rows_with_their_lines(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('\ufeff{"a": 1}\n\n{"a": "\u2028é"}\r\n'.encode())
    assert list(read_file(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": "\u2028é"})]


@pytest.mark.parametrize(("line", "message"), [
    (b'{"a": 1', "rows.jsonl:2: not JSON .column 8: Expecting"),
    (b"{'a': 1}", "rows.jsonl:2: not JSON"),
    (b'{"a": "\xff"}', "rows.jsonl:2: not UTF-8 text .*; convert the file, e.g. by `iconv -f GBK -t UTF-8`"),
    ('{"a": "\u6570"}'.encode("gbk"), "rows.jsonl:2: not UTF-8 text"),
    (b"[1, 2]", "rows.jsonl:2: expected a JSON object, got list .a JSON list becomes .* `jq -c"),
    (b"[", "rows.jsonl:2: not JSON .column 2: .* `jq -c"),
    (b'{"a": ' + b"7" * 5000 + b"}", "rows.jsonl:2: holds an integer of more than 4,300 digits"),
    (b"[" * 100_000, "rows.jsonl:2: not JSON"),
])  # fmt: skip
def test_corrupt_line_is_named(tmp_path: Path, line: bytes, message: str):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 0}\n' + line + b'\n{"a": 2}\n')
    rows = read_file(path)
    assert next(rows)[1] == {"a": 0}
    with pytest.raises(DataError, match=message):
        next(rows)


def test_parquet_equals_jsonl(tmp_path: Path):
    rows = [{"question": f"q{i}", "prompt": [{"role": "user", "content": "é"}], "n": i} for i in range(3000)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    from_parquet = list(read_file(tmp_path / "rows.parquet"))
    assert [row for _, row in from_parquet] == [row for _, row in read_file(tmp_path / "rows.jsonl")] == rows
    assert from_parquet[-1][0] == f"{tmp_path / 'rows.parquet'} row 3000"


@pytest.mark.parametrize(("column", "message"), [
    # Bytes under the name of a text, as a careless writer makes them.
    (pyarrow.Array.from_buffers(pyarrow.string(), 2, pyarrow.array([b"a", b"\xff"]).buffers()), "utf-8"),
    (pyarrow.array([0, 1], pyarrow.duration("ns")), "microseconds"),
])  # fmt: skip
def test_parquet_values_that_python_has_nothing_for(tmp_path: Path, column: pyarrow.Array, message: str):
    first = pyarrow.array([column[0].as_py()] * 1024, column.type)
    table = pyarrow.table({"good": list(range(1026)), "bad": pyarrow.chunked_array([first, column])})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    rows = read_file(tmp_path / "rows.parquet")
    assert [next(rows)[1]["good"] for _ in range(1024)] == list(range(1024))
    with pytest.raises(DataError, match=rf"rows.parquet rows 1025 to 1026: a value that cannot be read .*{message}"):
        next(rows)


FLOATS = pyarrow.array([0.1, 3.14, None, 72.0], pyarrow.float32())
SHORT = [0.1, 3.14, None, 72.0]


@pytest.mark.parametrize(("column", "expected"), [
    (FLOATS, SHORT),
    (FLOATS.dictionary_encode(), SHORT),
    (pyarrow.array([16777216.0, 1e10, 3e10, 1 / 3], pyarrow.float32()), [16777216.0, 1e10, 3e10, 0.33333334]),
    (pyarrow.StructArray.from_arrays([FLOATS], ["ground_truth"]), [{"ground_truth": value} for value in SHORT]),
    (pyarrow.array([[0.1], None, [], [None, 3.14]], pyarrow.list_(pyarrow.float32())), [[0.1], None, [], [None, 3.14]]),
    (pyarrow.array([[{"x": [0.1]}]], pyarrow.large_list(pyarrow.struct({"x": pyarrow.list_(pyarrow.float32())}))),
     [[{"x": [0.1]}]]),
    (pyarrow.array([[("a", 0.1)], None], pyarrow.map_(pyarrow.string(), pyarrow.float32())), [[("a", 0.1)], None]),
    (pyarrow.array([0.1, 0.10000000149011612, 1 / 3]), [0.1, 0.10000000149011612, 1 / 3]),
    (pyarrow.array([0, 10**9 + 1], pyarrow.timestamp("ns")),
     ["1970-01-01 00:00:00.000000000", "1970-01-01 00:00:01.000000001"]),
    (pyarrow.array([19000, 2**30], pyarrow.int32()).cast(pyarrow.date32()),
     ["2022-01-08", "<value out of range: 1073741824>"]),
    (pyarrow.array([[{"t": datetime.time(9, 30)}]]), [[{"t": "09:30:00.000000"}]]),
])  # fmt: skip
def test_floats_are_their_shortest_decimals_and_times_are_text(tmp_path: Path, column: pyarrow.Array, expected: list):
    pyarrow.parquet.write_table(pyarrow.table({"x": column}), tmp_path / "rows.parquet")
    read = [row["x"] for _, row in read_file(tmp_path / "rows.parquet")]
    assert repr(read) == repr(expected)


@pytest.mark.parametrize(("format", "path", "message"), [
    ("gsm8k", "absent.jsonl", "absent.jsonl: no such file"),
    ("gsm8k", "rows.csv", r"rows.csv: unknown kind of file; .* \(`mindgspo init --data FILE`"),
    ("gsm8k", "lfs.jsonl", r"lfs.jsonl: a Git LFS pointer, not the file; fetch it"),
    ("gsm8k", "lfs.parquet", r"lfs.parquet: a Git LFS pointer, not the file; fetch it"),
    ("gsm8k", "openai/gsm8k",
     "no such file; if openai/gsm8k is a name on a hub, .*`hf download --repo-type dataset openai/gsm8k "),
    ("verl", "", "is a folder, expected a file"),
    ("gsm8k", None, "format 'gsm8k' needs a path"),
    ("arithmetic", "", "'arithmetic' is generated and takes no path"),
    ("prepared", "", "'prepared' is ready for use"),
])  # fmt: skip
def test_what_is_no_source(tmp_path: Path, format: str, path: str | None, message: str):
    (tmp_path / "rows.csv").write_text("a,b\n")
    for name in ("lfs.jsonl", "lfs.parquet"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(DataError, match=message):
        open_source(DataSourceSection(format=format, path=None if path is None else tmp_path / path), seed=1)


def test_max_rows_stops_before_a_later_bad_row(gsm8k_file: Path):
    with gsm8k_file.open("a") as file:
        file.write('{"question": "no answer"}\n')
    few = open_source(DataSourceSection(format="gsm8k", path=gsm8k_file, max_rows=3), seed=1)
    assert [row.answer for row in few.parsed()] == ["5", "1000", "-7"]
    everything = open_source(DataSourceSection(format="gsm8k", path=gsm8k_file), seed=1)
    with pytest.raises(DataError, match="gsm8k.jsonl:4: answer"):
        list(everything.parsed())


def test_only_generated_sources_depend_on_the_seed(gsm8k: DataSourceSection):
    generated = DataSourceSection(format="arithmetic", max_rows=5)
    assert open_source(generated, seed=1).sha256 != open_source(generated, seed=2).sha256
    assert open_source(gsm8k, seed=1) == open_source(gsm8k, seed=2)


MAPPING = "{prompt: q, answer: a, data_source_name: math}"


def load(tmp_path: Path, train: str, tokenizer: str = "tokenizer: {path: tok}"):
    text = WITH_MODEL.replace("{format: arithmetic, split: train}", train)
    (tmp_path / "small.yaml").write_text(f"{text}{tokenizer}\n", encoding="utf-8")
    return load_config(tmp_path / "small.yaml", check_files=False)


@pytest.mark.parametrize("format", ["gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns"])
def test_every_format_of_files_is_accepted_with_a_tokenizer(tmp_path: Path, format: str):
    mapping = f", columns: {MAPPING}" if format == "columns" else ""
    train = f"{{format: {format}, path: rows.parquet, dedup: true{mapping}}}"
    source = load(tmp_path, train).data.train
    assert (source.format, source.dedup, source.path) == (format, True, tmp_path / "rows.parquet")
    assert not mapping or (source.columns.prompt, source.columns.extra_info) == ("q", ())
    with pytest.raises(ConfigError, match=f"tokenizer.path: missing; .* data.train is {format}"):
        load(tmp_path, train, tokenizer="")


@pytest.mark.parametrize(("train", "problem"), [
    ("{format: columns, path: rows.jsonl}", "data.train.columns: missing; format columns needs to know"),
    (f"{{format: math, path: rows.jsonl, columns: {MAPPING}}}",
     "data.train.columns: read with format columns only, but the format is math"),
    ("{format: columns, path: rows.jsonl, columns: {prompt: q, answer: a}}",
     "data.train.columns.data_source_name: missing; give one name for all rows"),
    ("{format: columns, path: rows.jsonl, columns: {prompt: q, answer: a, data_source: s, data_source_name: n}}",
     "data.train.columns.data_source_name: data_source names a column with it already; remove one of the two"),
    ("{format: dianjin, path: rows.json}", "data.train.path: dianjin rows are read from a .jsonl or .parquet file"),
    ("{format: aime}", "data.train.path: missing; aime rows are read from a file or folder"),
    ("{format: prepared, path: folder, dedup: true}",
     "data.train.dedup: a prepared folder is used as it is; prepare it with --dedup"),
    ("{format: dapoo, path: rows.jsonl}", "did you mean 'dapo'"),
])  # fmt: skip
def test_what_does_not_fit_together(tmp_path: Path, train: str, problem: str):
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, train)
    assert problem in str(raised.value) and ": 1 problem" in str(raised.value)


def test_a_small_file_of_endless_rows_is_refused(tmp_path: Path):
    """One text of 5 MiB that all rows share: 5 KB on the disk."""
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1024, pyarrow.int32()), ["a" * (5 << 20)])
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": column}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"rows.parquet rows 1 to 64: more than 268,435,456 bytes; remove the longest"):
        next(read_file(path))


def test_a_line_that_is_too_long_is_named(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "' + b"x" * (16 << 20) + b'"}\n')
    with pytest.raises(DataError, match="rows.jsonl, line 2: more than 16,777,216 bytes; split the line, or remove it"):
        list(read_file(path))
