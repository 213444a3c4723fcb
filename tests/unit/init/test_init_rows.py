"""Columns told by their names, four kinds of file, unusable rows, and prompts held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.errors import ConfigError, DataError
from mindgspo.init.columns import find_columns
from mindgspo.init.rewarding import choose_reward
from mindgspo.init.rows import RowAccount, account_for_rows, held_out_keys, read_table, rows_text, write_rows

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
    ({"messages": [{"role": "user", "content": "How many?"}], "meta": {"gold_label": 4, "level": 2}},
     ("messages", "meta.gold_label", None)),
    ({"aufgabe": "Wie viele?", "answer": "4"}, ("aufgabe", "answer", None)),
    ({"query": "How many?", "loesung": "4"}, ("query", "loesung", None)),
    ({"question_id": "q1", "text": "How many?", "answer": "4"}, ("text", "answer", None)),
    ({"problem": "algebra/17.json", "content": "How many?", "answer": "4"}, ("content", "answer", None)),
    ({"question": "How many?", "answer_source": "wiki", "answer_length": 1, "target": 4}, ("question", "target", None)),
    ({"question": "How many?", "model_answer": "5", "answer_idx": 0, "final_answer": "4", "gt_cot": "2 + 2"},
     ("question", "final_answer", "gt_cot")),
    ({"problem": "How many?", "question": "How many?", "answer": "4"}, ("problem", "answer", None)),  # equal values
    ({"question_text": "How many?", "answerKey": "A", "problem_type": "sum"}, ("question_text", "answerKey", None)),
    ({"system_prompt": "Be brief.", "题目内容": "How many?", "正确答案": "4", "答案类型": "数"},
     ("题目内容", "正确答案", None)),
    ({"question": "How many?", "difficulty_label": "easy", "gold": 4, "is_correct": 1}, ("question", "gold", None)),
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
    for answers in (
        {"gold": "4", "truth": "5"},
        {"answer_type": "int", "answer_length": 1},
        {"student_answer": "5", "wrong_answer": "6"},
        {"model_answer": "5"},
        {"answer1": "4", "answer2": "5", "sentiment_label": "good"},
    ):
        with pytest.raises(DataError, match="no column is clearly the answer to question"):
            found({"question": "How many?", **answers})
    with pytest.raises(DataError, match=r"--answer COLUMN \(final_answer holds lists: write their one item as text or"):
        found({"question": "How many?", "solution": ["2 + 2"], "final_answer": ["4"], "subfield": "sums"})
    assert found({"question": "How many?", "gold": "4", "truth": "5"}, answer="truth") == ("question", "truth", None)
    assert found({"one": "How?", "two": "4", "three": "5"}, question="one", answer="two") == ("one", "two", None)
    with pytest.raises(DataError, match=r"--answer golt: there is no such column; did you mean 'gold'\?"):
        found({"question": "How many?", "gold": "4"}, answer="golt")


def rows_of(path: Path) -> list[dict]:
    return [row for _, row in read_table(path)]


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
    ("a.json", '[{"ask": "x", "gold": 3}, {"ask" 1}]', "not JSON (column 34: Expecting ':' delimiter)"),
    ("a.json", "[" + "{}," * 99 + "{}]", "say --question COLUMN --answer COLUMN. The first row has: nothing"),
    ("a.json", '{"data": [' + "{}," * 6_000_000 + "{}]}", "no list, and of more than 16,777,216 bytes; write a list"),
    ("a.json", json.dumps([{f"c{i}": i for i in range(4097)}]), "has 4,097 columns, and at most 4,096 are looked at"),
    ("a.json", json.dumps([{"\ud800 question": "x", "answer": 1}]), "'\\ud800 question': the name of a column that is"),
    ("a.json", json.dumps([{"x" * 300 + " question": "x", "answer": 1}]), "at most 200 characters"),
    ("a.json", "[3]", "row 1: expected a JSON object, got int"),
    ("a.csv", "ask,gold\nx\n", "a.csv:2: has not the 2 fields that the first line names"),
    ("a.csv", "ask,gold\nx,y,z\n", "a.csv:2: has not the 2 fields"),
    ("a.csv", "ask,gold\n", "holds no rows"),
    ("a.csv", "ask;gold\nx;y\n", "a.csv:1: one field, 'ask;gold'; fields are parted by ',' here, not by ';'"),
    ("a.csv", "\ufeffask\tgold\nx\ty\n", "fields are parted by ',' here, not by '\\t'"),
    ("a.tsv", "ask|gold\nx|y\n", "fields are parted by '\\t' here, not by '|'"),
    ("a.tsv", "ask,gold\nx,y\n", "fields are parted by '\\t' here, not by ','"),
    ("a.json", '{"ask": "x", "gold": 1}\n{"ask": "y", "gold": 2}\n', "it is JSON Lines: name it a.jsonl"),
    ("a.csv", 'ask,gold\n"x"y,z\n', "line 2: not readable as CSV"),
    ("a.csv", "ask,gold\n\udc80,z\n", "line 2: not readable as CSV"),
    ("a.csv", "ask,答案\n".encode("gbk").decode(errors="surrogateescape"), "by `iconv -f GBK -t UTF-8`"),
    ("a.csv", "ask,gold\n".encode("utf-16").decode(errors="surrogateescape"), "by `iconv -f UTF-16 -t UTF-8`"),
])  # fmt: skip
def test_an_unusable_file_is_named(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        account_for_rows(tmp_path / name, question=None, answer=None, keeps_others=False)
    assert said in str(caught.value)


def account(path: Path, rows: list[dict], **options: object) -> RowAccount:
    """Of a JSON Lines file of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return account_for_rows(path, **{"question": None, "answer": None, "keeps_others": False, **options})


def test_published_formats_are_recognised_and_others_get_columns(tmp_path: Path) -> None:
    gsm8k = [{"question": f"{i} + {i}?", "answer": f"{i} + {i} = {2 * i}\n#### {2 * i}"} for i in range(9)]
    assert account(tmp_path / "gsm8k.jsonl", gsm8k).source.format == "gsm8k"
    rows = [{"ask": f"{i}?", "gold": i, "level": "hard"} for i in range(9)]
    for keeps_others, kept in ((False, ()), (True, ("level",))):
        own = account(tmp_path / "math.jsonl", rows, keeps_others=keeps_others).source
        columns = own.columns
        assert (own.format, columns.prompt, columns.data_source_name) == ("columns", "ask", "own_math")
        assert columns.extra_info == kept
    # MATH's columns without a box: its format would drop every row.
    plain = account(tmp_path / "y.jsonl", [{"problem": f"{i}?", "solution": str(i)} for i in range(9)])
    assert (plain.source.format, plain.source.columns.answer) == ("columns", "solution")


def test_a_few_unusable_rows_are_counted_and_many_refused(tmp_path: Path) -> None:
    rows = [{"ask": f"{i}?", "gold": i} for i in range(19)]
    found = account(tmp_path / "a.jsonl", [*rows, {"ask": "20?", "gold": None}])
    assert (found.num_rows, found.num_unusable) == (19, 1)
    assert "a.jsonl:20: gold: the row has no gold answer" in found.problem
    with pytest.raises(DataError, match="5 of 24 rows cannot be used, with ask as the question and gold as the answer"):
        account(tmp_path / "a.jsonl", [*rows, *[{"ask": "20?", "gold": None}] * 5])


@pytest.mark.parametrize(("extra", "named"), [
    (lambda i: {"choices": [str(i), str(i + 1), "none"]}, "choices"),
    (lambda i: {"options": None if i == 0 else {"A": f"{i} m", "B": f"{i} km"}}, "options"),
    (lambda i: {"options": f"A) {i} m B) {i} km"}, "options"),
    (lambda i: {"A": f"{i} m", "B": f"{i} km", "C": "none"}, "A, B, C"),
    (lambda i: {"Wrong Answer 1": f"{i} m", "Wrong Answer 2": f"{i} km"}, "Wrong Answer 1, Wrong Answer 2"),
    (lambda i: {"opa": f"{i} m", "opb": f"{i} km"}, "opa, opb"),
    (lambda i: {"Body": f"Tom has {i} pens."}, "Body"),
    (lambda i: {"passage": f"Tom has {i} pens.", "meta": {"level": 1, "context": "Ann has none."}},
     "passage, meta.context"),
    (lambda i: {"images": [{"bytes": "iVBOR", "path": None}]}, "images"),
    (lambda i: {"table": f"Pens\n{i}"}, "table"),
    (lambda i: {"system": "Be terse."}, "system"),
    (lambda i: {"system_prompt": "Be terse."}, "system_prompt"),
    (lambda i: {"systemMessage": "Be terse.", "系统提示词": "简短"}, "systemMessage, 系统提示词"),
])  # fmt: skip
def test_what_a_question_needs_is_not_left_out_silently(extra: object, named: str, tmp_path: Path) -> None:
    rows = [{"ask": f"How many are {i}?", "gold": i} | extra(i) for i in range(20)]
    with pytest.raises(DataError, match=rf"a.jsonl: {named}: not in the prompt, and (19|20) of 20 rows say something"):
        account(tmp_path / "a.jsonl", rows)
    said = account(tmp_path / "a.jsonl", rows, question="ask")
    assert f"; not in the prompt: {named} ({said.num_left_out} rows)" in rows_text(said)
    # A published format has its own columns, and may have others beside them.
    gsm8k = [{"question": "How many?", "answer": f"#### {i}"} | extra(i) for i in range(20)]
    with pytest.raises(DataError, match="not in the prompt"):
        account(tmp_path / "a.jsonl", gsm8k)


def test_what_stands_in_the_question_already_is_not_missed(tmp_path: Path) -> None:
    rows = [
        {"ask": f"How many? A. {i} m  B. {i} km", "options": [f"A) {i} m", f"B) {i}\nkm"], "gold": "A", "context": None,
         "text": f"Q: How many? A. {i} m B. {i} km A: B", "images": []}
        for i in range(20)
    ]  # fmt: skip
    found = account(tmp_path / "a.jsonl", rows)
    assert (found.num_left_out, found.left_out) == (0, ())
    verl = [
        {"prompt": [{"role": "system", "content": f"Tom has {i} pens."}, {"role": "user", "content": "How many?"}],
         "data_source": "own", "context": f"Tom has {i} pens.", "reward_model": {"ground_truth": str(i)},
         "extra_info": {"text": "of the reward's own"}}
        for i in range(20)
    ]  # fmt: skip
    assert account(tmp_path / "verl.jsonl", verl).num_left_out == 0
    # A few rows that need more are told, and no reason to refuse all.
    found = account(tmp_path / "a.jsonl", [*rows, {**rows[0], "options": ["9 m", "9 km"]}])
    assert "not in the prompt: options (1 row)" in rows_text(found)


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
    with pytest.raises(DataError) as caught:
        choose_reward(found, None)
    assert (
        "no reward function of this project reads enough answers (math reads 3 of 3; 3 answers of more than 60 "
        f"characters, which a model hardly writes again: {tmp_path}/a.jsonl:1: 'a long story " in str(caught.value)
    )
    assert str(caught.value).endswith("...); write one and give it with --reward FILE.py:function")


def test_a_few_answers_out_of_line_are_named_and_what_cannot_be_read_left_out(tmp_path: Path) -> None:
    terms = [{"ask": f"{i}?", "gold": f"x+{i}"} for i in range(40)]
    found = account(tmp_path / "a.jsonl", [*terms, {"ask": "40?", "gold": "x" + "+x" * 40}])
    chosen = choose_reward(found, None)
    assert chosen.function == "math" and chosen.why.startswith("math reads 41 of 41; 1 answer of more than 60 char")
    assert f"{tmp_path}/a.jsonl:41: 'x+x+x" in chosen.why
    # gsm8k reads all but one: that row is named, and left out only where nothing reads it.
    numbers = [{"ask": f"{i}?", "gold": i} for i in range(40)]
    chosen = choose_reward(account(tmp_path / "a.jsonl", [*numbers, {"ask": "40?", "gold": "half past one"}]), None)
    assert chosen.function == "math"
    first = f"{tmp_path}/a.jsonl:41: 'half past one'"
    assert chosen.why == f"math reads 41 of 41; gsm8k reads 40, the first it does not: {first}"
    found = account(tmp_path / "a.jsonl", [*numbers, {"ask": "40?", "gold": "???"}])
    chosen = choose_reward(found, None)
    assert chosen.function == "gsm8k" and "reads 40 of 41; the first it does not" in chosen.why
    kept = found.without(found.unread["gsm8k"])
    assert (kept.num_rows, kept.num_unusable, len(kept.prompts)) == (40, 1, 40)
    assert kept.problem == f"{tmp_path}/a.jsonl:41: '???' cannot be read"


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
    with pytest.raises(ConfigError, match=r"--reward gsm8k: takes a file of yours; .*reward.functions=\[gsm8k\]"):
        choose_reward(found, "gsm8k")
    with pytest.raises(ConfigError, match=r"--reward: .*rewart.py does not exist; did you mean reward.py\?"):
        choose_reward(found, str(tmp_path / "rewart.py"))


@pytest.mark.shared_data
@pytest.mark.parametrize(("name", "said"), [
    ("answer_type", "answer to question; say --question COLUMN --answer COLUMN (final_answer holds lists"),
    ("answer_index", "choices: not in the prompt, and 40 of 40 rows"),
    ("solution_type", "question = question, answer = answer; gsm8k"),
    ("question_id", "question = text, answer = answer; gsm8k"),
    ("long_answer", "math reads 41 of 41; 1 answer of more than 60 characters"),
    ("unit_in_brackets", "gsm8k reads 40, the first it does not"),
])  # fmt: skip
def test_files_that_were_read_wrongly(name: str, said: str, shared_data: Path) -> None:
    file = shared_data.parent / "cases" / "init" / f"init_{name}.jsonl"
    if not file.is_file():
        pytest.skip(f"needs the shared file {file}")
    try:
        found = account_for_rows(file, question=None, answer=None, keeps_others=False)
        chosen = choose_reward(found, None)
        text = f"{rows_text(found)}; {chosen.function} ({chosen.why})"
    except DataError as error:
        text = str(error)
    assert said in text
