"""`mindgspo reward score`: rows in, the same rows with score and verdict out, and labels that judge the function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.cli import main
from mindgspo.errors import ConfigError, DataError, RewardError
from mindgspo.evaluation.score_file import RowKeys, score_with_function

ROWS = [
    {"response": "#### 72", "gold": "72", "correct": True, "id": 0},
    {"response": "#### 71", "gold": "72", "correct": False, "id": 1},
    {"response": "#### 5", "gold": "72", "correct": True, "id": 2},
    {"response": "The answer is 72.", "gold": "72", "correct": False, "id": 3},
    {"response": "", "gold": "72", "correct": False, "id": 4},
    {"response": "#### 1", "gold": "no number", "correct": False, "id": 5},
    {"response": "#### 1", "gold": "1", "id": 6},
]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def score_rows(folder: Path, rows: list[dict], function: str = "gsm8k", **options: object) -> list[dict]:
    rows_file, output = write(folder / "rows.jsonl", rows), folder / "scored.jsonl"
    score_with_function(**{"function": function, "input": rows_file, "output": output, "keys": RowKeys(), **options})
    return read(output)


def test_every_row_keeps_its_keys_and_its_place(tmp_path: Path) -> None:
    scored = score_rows(tmp_path, ROWS)
    assert [row["id"] for row in scored] == list(range(7))
    assert [row["score"] for row in scored] == [1.0, 0.0, 0.0, 1.0, 0.0, None, 1.0]
    assert [row["verdict"] for row in scored] == [
        *("correct", "wrong", "wrong", "correct", "no_answer", "unparseable_gold", "correct")
    ]
    assert scored[0] == {**ROWS[0], "score": 1.0, "verdict": "correct", "extracted": "72"}
    assert not list(tmp_path.glob(".scored*")), "a temporary file stayed behind"


def test_labels_make_a_confusion_table_with_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, scored = write(tmp_path / "rows.jsonl", ROWS), tmp_path / "scored.jsonl"
    assert main(["reward", "score", "--function", "gsm8k", "--input", str(rows), "--output", str(scored)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines[:4]] == [
        "correct wrong no_answer unparseable_gold total", "label true 1 1 0 0 2", "label false 1 1 1 1 4",
        "no label 1 0 0 0 1",
    ]  # fmt: skip
    assert lines[4] == "agreement 3 of 6 labelled rows (50.00%)"
    text = "\n".join(lines)
    assert f"false positives (called correct, label false), the first 1:\n  {rows}:4: gold '72', found '72'" in text
    assert f"false negatives (not called correct, label true), the first 1:\n  {rows}:3: gold '72', found '5'" in text


def test_keys_may_have_other_names_and_modes_be_chosen(tmp_path: Path) -> None:
    rows = [{"output": "She has 72.", "answer": 72, "label": 1}]
    keys = RowKeys(response="output", gold="answer", label="label")
    for answer, verdict in (("flexible", "correct"), ("strict", "no_answer")):
        assert score_rows(tmp_path, rows, keys=keys, answer=answer)[0]["verdict"] == verdict


def test_a_function_of_your_own_scores_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import time\n"
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    if solution_str == 'hang':\n"
        "        time.sleep(60)\n"
        "    return {'score': len(solution_str) / 10, 'acc': solution_str == ground_truth}\n"
    )
    responses = ["72", "hang", "1234567890"]
    monkeypatch.chdir(tmp_path)
    rows = [{"response": text, "gold": "72"} for text in responses]
    scored = score_rows(tmp_path, rows, "mine.py:score", timeout_s=0.5)
    assert [row["score"] for row in scored] == [0.2, None, 1.0]
    assert [row["verdict"] for row in scored] == ["correct", "timeout", "wrong"]
    assert "0.5" in scored[1]["message"]


def test_a_function_that_fails_on_every_row_ends_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("def score(**row):\n    return 1 / (len(row['solution_str']) - 2)\n")
    command = ["reward", "score", "--function", f"{tmp_path}/mine.py:score", "--output", str(tmp_path / "scored.jsonl")]
    failing, mixed = ([{"response": text, "gold": "1"} for text in texts] for texts in (["#1", "#2"], ["#1", "1"]))
    assert main([*command, "--input", str(write(tmp_path / "mixed.jsonl", mixed))]) == 0
    assert main([*command, "--input", str(write(tmp_path / "rows.jsonl", failing))]) == 1
    message = capsys.readouterr().err
    assert f"all 2 rows are without a score; the first, {tmp_path}/rows.jsonl:1: mine.score: ZeroDivis" in message
    assert [row["verdict"] for row in read(tmp_path / "scored.jsonl")] == ["error", "error"]


@pytest.mark.parametrize(("row", "message"), [
    ({"gold": "1"}, r"rows.jsonl:2: response: missing; keys there: gold. Another key: --response-key NAME"),
    ({"response": "1"}, r"rows.jsonl:2: gold: missing"),
    ({"response": ["1"], "gold": "1"}, r"rows.jsonl:2: response: holds list, expected text"),
    ({"response": "1", "gold": "1", "correct": "yes"}, r"rows.jsonl:2: correct: expected a label true or false"),
    ({"response": "1", "gold": "1", "extra_info": 3}, r"rows.jsonl:2: extra_info: expected an object, got int"),
])  # fmt: skip
def test_a_bad_row_is_named_and_no_file_is_left(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        score_rows(tmp_path, [{"response": "#### 1", "gold": "1"}, row])
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_row_without_a_function_is_named(tmp_path: Path) -> None:
    row = {"response": "#### 1", "gold": "1"}
    with pytest.raises(DataError, match=r"rows.jsonl:2: no reward function for data_source ''.*instead of auto"):
        score_rows(tmp_path, [{**row, "data_source": "openai/gsm8k"}, row], "auto")


@pytest.mark.parametrize(("function", "message"), [
    ("gsm8", r"--function: unknown function 'gsm8'; did you mean 'gsm8k'\?"),
    ("overlong", r"--function overlong: scores a length in tokens, and a file of texts has none"),
    ("missing.py:f", r"--function: .*missing.py does not exist"),
])  # fmt: skip
def test_an_impossible_function_is_refused(tmp_path: Path, function: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        score_rows(tmp_path, [], function)


def test_a_broken_file_and_an_impossible_output_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def scores(): pass\n")
    with pytest.raises(RewardError, match=r"mine.py.*score.*did you mean.*scores"):
        score_rows(tmp_path, [], f"{tmp_path}/mine.py:score")
    for output, message in (
        ("rows.jsonl", "is the input; choose another file"), ("", "is a folder; give the file to write"),
        ("no/scored.jsonl", "there is no folder"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            score_rows(tmp_path, ROWS, output=tmp_path / output)
