"""Columns told by their names, four kinds of file, unusable rows, and prompts held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.errors import ConfigError, DataError
from mindgspo.setup.columns import find_columns
from mindgspo.setup.rewarding import choose_reward
from mindgspo.setup.rows import RowAccount, held_out_keys, read_rows, take_account, write_rows

FILE = Path("rows.jsonl")


def found(row: dict, **given: str) -> tuple[str, str, str | None]:
    """(question, answer, solution) of a file of such rows."""
    options = {"question": None, "answer": None, **given}
    columns = find_columns(FILE, [row, row], name="rows", **options)
    return columns.prompt, columns.answer, columns.solution


@pytest.mark.parametrize(("row", "columns"), [
    ({"idx": 1, "user_query": "How many?", "topic": "pens", "expected_result": 4},
     ("user_query", "expected_result", None)),
    ({"Question": "How many?", "FinalAnswer": "4", "Explanation": "2 + 2"}, ("Question", "FinalAnswer", "Explanation")),
    ({"question": "How many?", "question_id": "a7", "answer": "4", "answer_type": "int"}, ("question", "answer", None)),
    ({"q": "How many?", "a": "4"}, ("q", "a", None)),
    ({"题目": "多少?", "难度": "易", "答案": "4"}, ("题目", "答案", None)),
    ({"messages": [{"role": "user", "content": "How many?"}], "meta": {"gold_label": 4, "level": 2}},
     ("messages", "meta.gold_label", None)),
    ({"aufgabe": "Wie viele?", "answer": "4"}, ("aufgabe", "answer", None)),
    ({"query": "How many?", "loesung": "4"}, ("query", "loesung", None)),
])  # fmt: skip
def test_names_tell_the_columns(row: dict, columns: tuple) -> None:
    assert found(row) == columns


def test_where_names_leave_a_choice_the_user_is_asked_with_a_sample() -> None:
    with pytest.raises(DataError) as caught:
        found({"one": "How many pens does Tom have now, after all of these years?", "two": "4", "three": "5"})
    assert str(caught.value) == (
        "rows.jsonl: no column is clearly the question; say --question COLUMN --answer COLUMN. The first row has: "
        "one = 'How many pens does Tom have now, aft..., two = '4', three = '5'"
    )
    with pytest.raises(DataError, match="no column is clearly the answer to question"):
        found({"question": "How many?", "gold": "4", "truth": "5"})
    assert found({"question": "How many?", "gold": "4", "truth": "5"}, answer="truth") == ("question", "truth", None)
    assert found({"one": "How?", "two": "4", "three": "5"}, question="one", answer="two") == ("one", "two", None)
    with pytest.raises(DataError, match=r"--answer golt: there is no such column; did you mean 'gold'\?"):
        found({"question": "How many?", "gold": "4"}, answer="golt")


def rows_of(path: Path) -> list[dict]:
    return [row for _, row in read_rows(path)]


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [{"ask": 'a, "quoted"\nline', "gold": "4"}, {"ask": "多少", "gold": "5"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.json").write_text(json.dumps({"version": 1, "data": rows}))
    (tmp_path / "a.csv").write_text('\ufeffask,gold\n"a, ""quoted""\nline",4\n多少,5\n')
    (tmp_path / "a.tsv").write_text('ask\tgold\n"a, ""quoted""\nline"\t4\n多少\t5\n')
    for name in ("a.jsonl", "a.json", "b.json", "a.csv", "a.tsv"):
        assert rows_of(tmp_path / name) == rows, name


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.txt", "x", "unknown kind of file; expected *.jsonl, *.parquet, *.json, *.csv, *.tsv"),
    ("a.json", "3", "expected a list of rows, got int"),
    ("a.json", "[3]", "row 1: expected a JSON object, got int"),
    ("a.csv", "ask,gold\nx\n", "a.csv:2: has not the 2 fields that the first line names"),
    ("a.csv", "ask,gold\nx,y,z\n", "a.csv:2: has not the 2 fields"),
    ("a.csv", "ask,gold\n", "holds no rows"),
    ("a.csv", 'ask,gold\n"x"y,z\n', "line 2: not readable as CSV"),
    ("a.csv", "ask,gold\n\udc80,z\n", "line 2: not readable as CSV"),
])  # fmt: skip
def test_an_unusable_file_is_named(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        take_account(tmp_path / name, question=None, answer=None, keeps_others=False)
    assert said in str(caught.value)


def account(path: Path, rows: list[dict], **options: object) -> RowAccount:
    """Of a JSON Lines file of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return take_account(path, **{"question": None, "answer": None, "keeps_others": False, **options})


def test_published_formats_are_recognised_and_others_get_columns(tmp_path: Path) -> None:
    gsm8k = [{"question": f"{i} + {i}?", "answer": f"{i} + {i} = {2 * i}\n#### {2 * i}"} for i in range(9)]
    assert account(tmp_path / "gsm8k.jsonl", gsm8k).source.format == "gsm8k"
    own = account(tmp_path / "math.jsonl", [{"ask": f"{i}?", "gold": i, "level": "hard"} for i in range(9)])
    assert own.source.format == "columns"
    assert (own.source.columns.prompt, own.source.columns.data_source_name) == ("ask", "own_math")
    assert own.source.columns.extra_info == ()
    kept = account(tmp_path / "x.jsonl", [{"ask": f"{i}?", "gold": i, "level": "hard"} for i in range(9)],
                   keeps_others=True)  # fmt: skip
    assert kept.source.columns.extra_info == ("level",)
    # MATH's columns without a box: its format would drop every row.
    plain = account(tmp_path / "y.jsonl", [{"problem": f"{i}?", "solution": str(i)} for i in range(9)])
    assert (plain.source.format, plain.source.columns.answer) == ("columns", "solution")


def test_a_few_unusable_rows_are_counted_and_many_refused(tmp_path: Path) -> None:
    rows = [{"ask": f"{i}?", "gold": i} for i in range(19)]
    found = account(tmp_path / "a.jsonl", [*rows, {"ask": "20?", "gold": None}])
    assert (found.num_rows, found.num_unusable) == (19, 1)
    assert "a.jsonl:20: gold: the row has no gold answer" in found.problem
    with pytest.raises(
        DataError, match=r"5 of 24 rows cannot be used, with ask as the question and gold as the answer"
    ):
        account(tmp_path / "a.jsonl", [*rows, *[{"ask": "20?", "gold": None}] * 5])


def test_equal_prompts_are_held_out_together(tmp_path: Path) -> None:
    rows = [{"ask": f"{i % 40}?", "gold": i % 40, "i": i} for i in range(80)]
    found = account(tmp_path / "a.jsonl", rows)
    assert (found.num_rows, len(found.prompts)) == (80, 40)
    held_out = held_out_keys(found)
    assert len(held_out) == 4 and held_out < found.prompts
    files = {tmp_path / "train.jsonl": found.prompts - held_out, tmp_path / "eval.jsonl": held_out}
    write_rows(found, files)
    train, held = (rows_of(path) for path in files)
    assert (len(train), len(held)) == (72, 8)
    assert not {row["ask"] for row in train} & {row["ask"] for row in held}
    assert set(train[0]) == {"ask", "gold"}  # what is read
    with pytest.raises(DataError, match="9 different questions are too few to hold some out"):
        held_out_keys(account(tmp_path / "b.jsonl", rows[:9]))


@pytest.mark.parametrize(("answers", "function"), [
    (["4", "5 pens", 6], "gsm8k"), (["A", "B, C"], "multiple_choice"), (["\\frac{1}{2}", "x + 1"], "math"),
])  # fmt: skip
def test_the_reward_is_the_one_that_reads_the_answers(answers: list, function: str, tmp_path: Path) -> None:
    rows = [{"ask": f"{i}?", "gold": answer} for i, answer in enumerate(answers)]
    chosen = choose_reward(account(tmp_path / "a.jsonl", rows), None)
    assert chosen.function == function and chosen.instruction


def test_answers_that_no_function_reads_want_one_of_the_users(tmp_path: Path) -> None:
    found = account(tmp_path / "a.jsonl", [{"ask": f"{i}?", "gold": "a long story " * 9} for i in range(3)])
    with pytest.raises(DataError, match=r"no reward function of this project reads all answers, e.g. 'a long story.*"
                                        r"--reward FILE.py:function"):  # fmt: skip
        choose_reward(found, None)


@pytest.mark.parametrize(("code", "given", "said"), [
    ("def score(*a): ...\ndef _help(): ...\n", "", "score"),
    ("def one(): ...\ndef compute_score(): ...\n", "", "compute_score"),
    ("def one(): ...\ndef two(): ...\n", ":two", "two"),
    ("def one(): ...\ndef two(): ...\n", "", r"which function scores .* give reward.py:NAME \(there are: one, two\)"),
    ("def one(): ...\n", ":two", r"there is no function 'two'; give reward.py:NAME \(there are: one\)"),
    ("def one(:\n", "", "cannot be read as Python"),
])  # fmt: skip
def test_the_users_function_is_found_without_running_the_file(code: str, given: str, said: str, tmp_path: Path) -> None:
    found = account(tmp_path / "a.jsonl", [{"ask": f"{i}?", "gold": i} for i in range(3)])
    file = tmp_path / "reward.py"
    file.write_text(code + "raise SystemExit('this must not run')\n")
    if said.isidentifier():
        assert choose_reward(found, f"{file}{given}").function == f"{file}:{said}"
    else:
        with pytest.raises(ConfigError, match=said):
            choose_reward(found, f"{file}{given}")
    with pytest.raises(ConfigError, match=r"--reward: .*rewart.py does not exist; did you mean reward.py\?"):
        choose_reward(found, str(tmp_path / "rewart.py"))
