"""Data sets by name, by NAME=PATH and by path; formats recognised from columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.data.benchmarks import NAMES, find_benchmark, recognised_format
from mindgspo.errors import DataError

GSM8K = {"question": "1+1?", "answer": "1+1=2\n#### 2"}
MATH = {"problem": "1+1?", "solution": r"\boxed{2}", "answer": "2", "level": 1}


def write(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", [name for name, known in NAMES.items() if known.files])
def test_a_name_is_found_under_each_of_its_paths_and_the_first_wins(name: str, tmp_path: Path) -> None:
    for file in reversed(NAMES[name].files):
        write(tmp_path / file)
        found = find_benchmark(name, folder=tmp_path, format=None)
        assert (found.label, found.path, found.format) == (name, tmp_path / file, NAMES[name].format)


def test_generated_rows_need_no_folder() -> None:
    found = find_benchmark("arithmetic", folder=None, format=None)
    assert (found.path, found.function, found.instruction_suffix) == (None, "gsm8k", "")


@pytest.mark.parametrize(
    ("name", "function", "asks_for"),
    [("gsm8k", "gsm8k", '"####".'), ("math500", "math", r"\boxed{}."), ("aime24", "math", r"\boxed{}.")],
)
def test_a_name_may_be_given_a_file(name: str, function: str, asks_for: str, tmp_path: Path) -> None:
    """It keeps its prompt and its reward, which belong together."""
    path = write(tmp_path / "rows.jsonl", {"whatever": 1})
    found = find_benchmark(f"{name}={path}", folder=None, format=None)
    assert (found.label, found.path, found.function) == (name, path, function)
    assert found.instruction_suffix.endswith(asks_for)


def test_a_file_is_known_by_its_columns_or_by_its_format(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", GSM8K)
    found = find_benchmark(str(path), folder=None, format=None)
    assert (found.label, found.format, found.function) == ("own.jsonl", "gsm8k", "gsm8k")
    assert find_benchmark(str(path), folder=None, format="verl").function == "auto", "its rows name their source"


def test_a_prepared_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "rows" / "dataset.json", {})
    found = find_benchmark(str(tmp_path / "rows"), folder=None, format=None)
    assert (found.format, found.instruction_suffix, found.function) == ("prepared", "", "auto")


@pytest.mark.parametrize(("text", "said"), [
    ("gsm8k", "no folder to look in. Give --data gsm8k=/path/to/file.jsonl, or --data-dir DIR"),
    ("gsm9k", "did you mean gsm8k"),
    ("maht500=rows.jsonl", "did you mean math500"),
    ("nowhere.jsonl", "neither a name (gsm8k, math500, aime24, arithmetic) nor a file"),
    ("gsm8k=nowhere.jsonl", "nowhere.jsonl: no such file"),
])  # fmt: skip
def test_what_is_not_there_is_said_with_how_to_give_it(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        find_benchmark(text, folder=None, format=None)
    assert said in str(refused.value)


def test_a_missing_name_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        find_benchmark("math500", folder=tmp_path, format=None)
    assert str(tmp_path) in str(refused.value) and all(file in str(refused.value) for file in NAMES["math500"].files)


@pytest.mark.parametrize(("row", "format"), [
    (GSM8K, "gsm8k"),
    (MATH, "math"),
    ({"problem": "1+1?", "solution": r"\boxed{2}"}, "math"),
    ({"id": 1, "problem": "1+1?", "expected_answer": "073"}, "aime"),
    ({"Question": "1+1?", "Answer": 2}, "aime"),
    ({"instruction": "?", "output": "<answer></answer>"}, "dianjin"),
    ({"data_source": "math_dapo", "prompt": [], "reward_model": {}}, "dapo"),
    ({"data_source": "openai/gsm8k", "prompt": [], "reward_model": {}}, "verl"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_formats_by_columns(row: dict, format: str, tmp_path: Path) -> None:
    assert recognised_format(write(tmp_path / "rows.jsonl", row)) == format


@pytest.mark.parametrize("rows", [
    [{"question": "?", "answer": "3"}, {"question": "?", "answer": "1000"}],
    [{"question": "?", "answer": r"\frac{1}{2}"}],
    [{"text": "?"}],
    [],
], ids=["too large for AIME", "no integer", "unknown columns", "none"])  # fmt: skip
def test_other_columns_are_not_guessed(rows: list[dict], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--format columns --columns map.yaml" if rows else "holds no rows"):
        recognised_format(write(tmp_path / "rows.jsonl", *rows))
