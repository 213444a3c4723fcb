"""Rows of any file by a mapping of columns: reading, dotted names, and columns that are not there."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from mindgspo.config.data import ColumnsSection, DataSourceSection
from mindgspo.config.load import load_columns
from mindgspo.data.formats import parse_columns
from mindgspo.data.sources import open_source
from mindgspo.errors import ConfigError, DataError

ROW = {"q": "2+2?", "gold": {"final": "4", "how": "2+2=4\n#### 4"}, "set": "mine", "meta": {"id": 7, "tags": ["a"]},
       "a.b": "dotted"}  # fmt: skip
COLUMNS = ColumnsSection(prompt="q", answer="gold.final", data_source_name="math")


def with_columns(**changes: object) -> ColumnsSection:
    return COLUMNS.model_copy(update=changes)


def test_every_key_of_the_mapping_and_the_smallest_one():
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "2+2?"}]
    for prompt, expected in (("2+2?", messages[1:]), (messages, messages)):
        row = parse_columns(COLUMNS, {**ROW, "q": prompt}, "f:1")
        assert row.messages == tuple(expected)
        assert (row.answer, row.data_source, row.solution, row.extra_info) == ("4", "math", "", {})
    keys = {"answer": "a.b", "solution": "gold.how", "data_source": "set", "extra_info": ("meta.id", "meta", "q")}
    row = parse_columns(ColumnsSection(prompt="q", **keys), ROW, "f:1")
    assert (row.answer, row.solution, row.data_source) == ("dotted", "2+2=4\n#### 4", "mine")
    assert row.extra_info == {"meta.id": 7, "meta": {"id": 7, "tags": ["a"]}, "q": "2+2?"}


@pytest.mark.parametrize(
    ("given", "answer"), [(4, "4"), (-4.0, "-4"), (0.5, "0.5"), (Decimal("1.50"), "1.50"), (" 4 ", " 4 ")]
)
def test_answers_may_be_numbers(given: object, answer: str):
    assert parse_columns(COLUMNS, {**ROW, "gold": {"final": given}}, "f:1").answer == answer


@pytest.mark.parametrize("given", [None, "", " ", True, [4], float("nan"), {"x": 1}])
def test_what_is_no_answer_is_refused(given: object):
    with pytest.raises(DataError, match="f:1: gold.final: the row has no gold answer"):
        parse_columns(COLUMNS, {**ROW, "gold": {"final": given}}, "f:1")


@pytest.mark.parametrize(("changes", "message"), [
    ({"prompt": "Q"}, r"f:1: columns.prompt: there is no column 'Q' .there are: q, gold, gold.final, gold.how, set"),
    ({"answer": "gold.finale"}, "columns.answer: .*'gold.finale'; did you mean 'gold.final'"),
    ({"answer": "q.final"}, "columns.answer: there is no column 'q.final'"),
    ({"solution": "how"}, "columns.solution: there is no column 'how'"),
    ({"extra_info": ("meta.idd",)}, "columns.extra_info: .* did you mean 'meta.id'"),
    ({"data_source_name": None, "data_source": "sett"}, "columns.data_source: .* did you mean 'set'"),
    ({"data_source_name": None, "data_source": "meta"}, "f:1: meta: expected a non-empty text, got dict"),
    ({"prompt": "meta"}, "f:1: meta: expected a list of {role, content} messages, got dict"),
    ({"solution": "meta"}, "f:1: meta: expected a non-empty text, got dict"),
])  # fmt: skip
def test_columns_that_a_row_lacks(changes: dict, message: str):
    with pytest.raises(DataError, match=message):
        parse_columns(with_columns(**changes), ROW, "f:1")


def section(path: Path, **changes: object) -> DataSourceSection:
    return DataSourceSection(format="columns", path=path, columns=with_columns(**changes))


def test_a_parquet_file_is_refused_by_its_schema_before_any_row(tmp_path: Path):
    path = tmp_path / "rows.parquet"
    rows = [{**ROW, "q": None}]  # the first row is bad, too: it must not be what is complained about
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with pytest.raises(DataError) as raised:
        open_source(section(path, prompt="questoin", answer="q"), seed=1)
    assert str(raised.value) == (f"{path}: columns.prompt: there is no column 'questoin' (there are: q, gold, "
                                 "gold.final, gold.how, set, meta, meta.id, meta.tags, a.b)")  # fmt: skip
    with pytest.raises(DataError, match="columns.answer: .* did you mean 'gold.final'"):
        open_source(section(path, answer="gold.fin"), seed=1)
    with pytest.raises(DataError, match="columns.extra_info: there is no column 'meta.tags.x'"):
        open_source(section(path, extra_info=("meta.tags.x",)), seed=1)
    with pytest.raises(DataError, match="rows.parquet row 1: q: expected a list of .* got nothing"):
        list(open_source(section(path), seed=1).parsed())


def test_what_is_no_parquet_file(tmp_path: Path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"a": 1}]), path)
    for content in (b"", b"PAR1", b"question,answer\n", path.read_bytes()[:-20]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="rows.parquet: not a readable parquet file"):
            open_source(section(path), seed=1)


def test_sections_that_do_not_fit_the_format(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    for source, message in (
        (DataSourceSection(format="math", path=path, columns=COLUMNS), "read with format columns only, .* is math"),
        (section(path, data_source_name=" "), "columns.data_source_name: expected a non-empty text, got str ' '"),
    ):
        with pytest.raises(DataError, match=message):
            open_source(source, seed=1)


def test_a_columns_file(tmp_path: Path):
    path = tmp_path / "columns.yaml"
    path.write_text("prompt: q\nanswer: gold.final\ndata_source_name: math\nextra_info: [meta.id]\n")
    assert load_columns(path) == with_columns(extra_info=("meta.id",))
    with pytest.raises(ConfigError, match=r"column.yaml: no such file; did you mean .*columns.yaml\?"):
        load_columns(tmp_path / "column.yaml")


@pytest.mark.parametrize(("text", "message"), [
    ("promt: q\nanswer: a\n", r"columns.yaml: wrong columns\n  promt: unknown key; did you mean prompt\?"),
    ("answer: a\n", r"columns.yaml: wrong columns\n  prompt: missing; Column of the question"),
    ("prompt: 3\nanswer: a\n", r"prompt: expected a text, got 3"),
    ("prompt: q\nanswer: a\nextra_info: x\n", r"extra_info: expected a list, e.g. \[a, b\], got 'x'"),
    ("columns:\n  prompt: q\n", r"columns: unknown key; keys at the top here: prompt, answer, "),
    ("rollout: q\nprompt: q\nanswer: a\n", r"rollout: unknown key; keys at the top here: prompt, answer, solution"),
    ("- q\n", "columns.yaml: expected `section: ...` lines, got list"),
    ("prompt: [\n", "columns.yaml: line "),
    ("prompt: !!python/name:os.system\n", "columns.yaml: line 1, column 9: could not determine a constructor"),
])  # fmt: skip
def test_bad_columns_files(tmp_path: Path, text: str, message: str):
    path = tmp_path / "columns.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_columns(path)
