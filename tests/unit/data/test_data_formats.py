"""Rows of all formats of files, good and bad, in all the spellings they come in."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

from mindgspo.data.formats import (
    DAPO_PREFIX,
    DAPO_SUFFIX,
    PARSERS,
    last_box,
    parse_aime,
    parse_dapo,
    parse_dianjin,
    parse_gsm8k,
    parse_math,
    parse_verl,
)
from mindgspo.data.source_rows import DroppedRow, SourceRow
from mindgspo.errors import DataError

DAPO = {
    "data_source": "DAPO-17k",
    "prompt": [{"role": "user", "content": "2+2?"}],
    "ability": "math",
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "extra_info": {"index": 7, "answer": ""},
}


def test_a_bare_dapo_prompt_is_put_into_the_published_one():
    row = parse_dapo(DAPO, "f:1")
    assert row.messages == ({
        "role": "user",
        "content": ("Solve the following math problem step by step. The last line of your response should be of the "
                    "form " "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n2+2?\n\n"
                    'Remember to put your answer on its own line after "Answer:".'),
    },)  # fmt: skip
    assert (row.answer, row.data_source, row.solution) == ("4", "math_dapo", "")
    assert row.extra_info == {"ability": "math", "index": 7, "answer": ""}


@pytest.mark.parametrize(
    "content", [f"{DAPO_PREFIX}2+2?{DAPO_SUFFIX}", f" {DAPO_PREFIX}2+2?\n\nBe brief.", f"2+2?{DAPO_SUFFIX}\n"]
)
def test_a_dapo_prompt_with_its_instruction_stays_as_it_is(content: str):
    system = {"role": "system", "content": "Mine."}
    row = parse_dapo({**DAPO, "prompt": [system, {"role": "user", "content": content}]}, "f:1")
    assert row.messages == (system, {"role": "user", "content": content})


def test_dapo_prompts_may_be_text():
    assert parse_dapo({**DAPO, "prompt": "2+2?"}, "f:1").messages == parse_dapo(DAPO, "f:1").messages


@pytest.mark.parametrize(("change", "message"), [
    ({"prompt": " "}, "f:1: prompt: expected a non-empty text, got str ' '"),
    ({"prompt": None}, "f:1: prompt: expected a list of {role, content} messages, got nothing"),
    ({"reward_model": {}}, "f:1: reward_model.ground_truth: the row has no gold answer"),
])  # fmt: skip
def test_bad_dapo_rows(change: dict, message: str):
    with pytest.raises(DataError, match=message):
        parse_dapo({**DAPO, **change}, "f:1")


LIGHTEVAL = {"problem": "1/2+1/3?", "level": "Level 2", "type": "Algebra", "solution": r"So $\boxed{\frac{5}{6}}$."}


def test_math_lighteval_gold_is_the_last_box():
    row = parse_math(LIGHTEVAL, "f:1")
    assert row.messages == ({"role": "user", "content": "1/2+1/3?"},)
    assert (row.answer, row.data_source, row.solution) == (r"\frac{5}{6}", "math", LIGHTEVAL["solution"])
    assert row.extra_info == {"level": "Level 2", "type": "Algebra"}


def test_math_500_gold_is_its_answer():
    row = parse_math({
        "problem": "p",
        "solution": r"$\boxed{1}$",
        "answer": "p - q",
        "subject": "Algebra",
        "level": 5,
        "unique_id": "test/a/1.json",
    }, "f:1")  # fmt: skip
    assert (row.answer, row.data_source) == ("p - q", "math")
    assert row.extra_info == {"level": 5, "subject": "Algebra", "unique_id": "test/a/1.json"}
    assert parse_math({**LIGHTEVAL, "answer": None}, "f:1").answer == r"\frac{5}{6}"


@pytest.mark.parametrize(("solution", "gold"), [
    (r"$\boxed{1}$ or rather $\boxed{2}$", "2"),
    (r"\boxed{\text{(A)}\ \{1, 2\}}", r"\text{(A)}\ \{1, 2\}"),
    (r"\fbox{ 7 }", "7"),
    (r"\boxed{1} and \boxed{unclosed", "1"),
    (r"the answer is $\boxed 5$.", "5"),
    (r"$\boxed 5$ and in the end $\boxed{6}$", "6"),
    (r"$\boxed 5$, no, $\boxed -3 $", "-3"),
    (r"\boxed{}", None),
    (r"\boxed{ }", None),
    (r"\boxed 5 without an end", None),
    ("no box", None),
])  # fmt: skip
def test_last_box(solution: str, gold: str | None):
    assert last_box(solution) == gold


def test_a_million_characters_of_boxes_come_to_an_end():
    for text in (r"\boxed " * 150_000, r"\boxed{" * 150_000, r"\boxed 1" * 120_000):
        assert last_box(text) is None


def test_a_solution_without_a_box_is_a_dropped_row():
    row = parse_math({**LIGHTEVAL, "solution": "It is five sixths."}, "f:4")
    assert row == DroppedRow(where="f:4", reason=r"the solution has no \boxed{} answer", answer="")


@pytest.mark.parametrize(("row", "message"), [
    ({"solution": "s"}, "f:2: problem: expected a non-empty text, got only the fields solution"),
    ({"problem": "p"}, "f:2: solution: expected a non-empty text, got only the fields problem"),
    ({**LIGHTEVAL, "answer": ""}, r"f:2: answer: the row has no gold answer \(text or number\), got ''"),
    ({**LIGHTEVAL, "level": float("inf")}, "f:2: holds something that JSON cannot"),
])  # fmt: skip
def test_bad_math_rows(row: dict, message: str):
    with pytest.raises(DataError, match=message):
        parse_math(row, "f:2")


@pytest.mark.parametrize(("fields", "gold"), [
    ({"problem": "p", "answer": "073"}, "73"),
    ({"problem": "p", "answer": 73}, "73"),
    ({"problem": "p", "answer": 73.0}, "73"),
    ({"question": "p", "expected_answer": " 236 "}, "236"),
    ({"Question": "p", "Answer": "000"}, "0"),
    ({"problem": "p", "answer": "$025$"}, "25"),
    ({"problem": "p", "answer": 0}, "0"),
])  # fmt: skip
def test_aime_rows(fields: dict, gold: str):
    row = parse_aime(fields, "f:1")
    assert isinstance(row, SourceRow)
    assert (row.answer, row.data_source, row.messages) == (gold, "aime", ({"role": "user", "content": "p"},))


def test_aime_keeps_what_identifies_the_problem():
    row = parse_aime({"ID": "2024-I-1", "Year": 2024, "Problem": "p", "Answer": 5, "Solution": "long"}, "f:1")
    assert row.extra_info == {"id": "2024-I-1", "year": 2024} and row.solution == ""


@pytest.mark.parametrize("answer", ["1000", "-1", "1/2", "x", 2.5])
def test_what_cannot_be_an_aime_answer_is_dropped(answer: object):
    row = parse_aime({"problem": "p", "answer": answer}, "f:1")
    assert isinstance(row, DroppedRow) and (row.where, row.answer) == ("f:1", str(answer))
    assert "no integer from 0 to 999" in row.reason


@pytest.mark.parametrize(("row", "message"), [
    ({"problem": "p"}, "f:1: answer or expected_answer: missing; the row has only the fields problem"),
    ({"answer": 1}, "f:1: problem or question: missing; the row has only the fields answer"),
    ({"problem": "p", "answer": None}, r"f:1: answer: the row has no gold answer \(text or number\), got None"),
    ({"problem": "", "answer": 1}, "f:1: problem: expected a non-empty text, got str ''"),
])  # fmt: skip
def test_bad_aime_rows(row: dict, message: str):
    with pytest.raises(DataError, match=message):
        parse_aime(row, "f:1")


def dianjin(answer_block: str) -> dict[str, str]:
    return {
        "instruction": "\u4e0b\u5217\u8bf4\u6cd5\u6b63\u786e\u7684\u662f: A. x B. y",
        "output": rf"<think>maybe \boxed{{C}} <answer></answer></think><answer>{answer_block}</answer>",
    }


@pytest.mark.parametrize(("block", "gold", "source"), [
    ("\u7b54\u6848\u662f\\boxed{ABD}\u3002", "ABD", "dianjin"),
    (r"\boxed{A} then \boxed{B}", "B", "dianjin"),
    ("\\boxed{A, C\uff0cD}", "A, C\uff0cD", "dianjin"),
    (r"\boxed{12.5\%}", r"12.5\%", "dianjin_open"),
    (r"\boxed{GDP}", "GDP", "dianjin_open"),
    (r"\boxed{BAB}", "BAB", "dianjin_open"),
    (r"\boxed{\text{yes}}", r"\text{yes}", "dianjin_open"),
])  # fmt: skip
def test_dianjin_rows(block: str, gold: str, source: str):
    fields = dianjin(block)
    row = parse_dianjin(fields, "f:1")
    assert isinstance(row, SourceRow)
    assert (row.answer, row.data_source, row.solution) == (gold, source, fields["output"])
    assert row.messages == ({"role": "user", "content": fields["instruction"]},)


def test_a_dianjin_answer_without_a_box_is_dropped_however_the_thoughts_look():
    assert parse_dianjin(dianjin("ABD"), "f:3") == DroppedRow(
        where="f:3", reason=r"the answer block has no \boxed{} answer", answer=""
    )
    without_block = {"instruction": "q", "output": r"It is \boxed{A}."}
    assert parse_dianjin(without_block, "f:3").reason == "the output has no <answer> block"


def test_bad_dianjin_rows():
    with pytest.raises(DataError, match="f:1: output: expected a non-empty text, got only the fields instruction"):
        parse_dianjin({"instruction": "q"}, "f:1")
    with pytest.raises(DataError, match="f:1: instruction: expected a non-empty text, got nothing"):
        parse_dianjin({"instruction": None, "output": "o"}, "f:1")


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_format_names_the_place_of_an_empty_row(name: str):
    with pytest.raises(DataError, match=r"^f:5: "):
        PARSERS[name]({}, "f:5")


VERL = {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": "2+2?"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "extra_info": {"index": 7},
}


def test_gsm8k_row():
    answer = "She sold 48/2 = <<48/2=24>>24.\nIn all <<48+24=72>>72 < 80 << 90.\n#### 72"
    row = parse_gsm8k({"question": " How many? ", "answer": answer}, "f:1")
    assert row.messages == ({"role": "user", "content": " How many? "},)
    assert row.solution == "She sold 48/2 = 24.\nIn all 72 < 80 << 90.\n#### 72"
    assert (row.answer, row.data_source, row.where) == ("72", "openai/gsm8k", "f:1")


def test_gsm8k_gold_is_the_text_after_the_last_mark():
    assert parse_gsm8k({"question": "q", "answer": "#### 1\n####  1,234.5 \n"}, "f:1").answer == "1234.5"


@pytest.mark.parametrize(("row", "message"), [
    ({"question": "q", "answer": None}, "f:3: answer: expected a non-empty text, got nothing"),
    ({"question": "q"}, "f:3: answer: expected a non-empty text, got only the fields question"),
    ({"question": " ", "answer": "#### 5"}, "f:3: question: expected a non-empty text"),
    ({"question": 5, "answer": "#### 5"}, "f:3: question: expected a non-empty text, got int '5'"),
    ({}, r"f:3: question: .* got only the fields \(none\)"),
])  # fmt: skip
def test_bad_gsm8k_rows(row: dict, message: str):
    with pytest.raises(DataError, match=message):
        parse_gsm8k(row, "f:3")


@pytest.mark.parametrize("answer", ["It is 5.", "It is 5.\n####  "])
def test_a_gsm8k_solution_without_its_mark_is_a_dropped_row(answer: str):
    row = parse_gsm8k({"question": "q", "answer": answer}, "f:3")
    assert row == DroppedRow(where="f:3", reason="the answer has no final '#### <number>'", answer="")


@pytest.mark.parametrize("gold", [None, "", " \n"])
@pytest.mark.parametrize("parse", [parse_verl, parse_dapo])
def test_an_empty_ground_truth_is_a_dropped_row(parse: Callable, gold: str | None):
    row = parse({**VERL, "reward_model": {"ground_truth": gold}}, "f:3")
    assert row == DroppedRow(where="f:3", reason="reward_model.ground_truth is empty", answer="")


def test_all_known_roles_are_kept():
    messages = [{"role": role, "content": role} for role in ("system", "user", "assistant", "tool")]
    assert parse_verl({**VERL, "prompt": messages}, "f:1").messages == tuple(messages)


def test_verl_row():
    row = parse_verl(VERL, "f:1")
    assert row.messages == ({"role": "user", "content": "2+2?"},)
    assert (row.answer, row.data_source, row.solution) == ("4", "math_dapo", "")
    assert row.extra_info == {"index": 7, "ability": "MATH"}


def test_verl_numbers_are_answers_and_extra_info_may_be_absent():
    row = parse_verl({**VERL, "reward_model": {"ground_truth": -3}, "extra_info": None, "ability": None}, "f:1")
    assert (row.answer, row.extra_info) == ("-3", {})
    assert parse_verl({**VERL, "reward_model": {"ground_truth": 0}}, "f:1").answer == "0"
    assert parse_verl({**VERL, "reward_model": {"ground_truth": 10**400}}, "f:1").answer == "1" + "0" * 400


@pytest.mark.parametrize(("change", "message"), [
    ({"reward_model": {}}, "f:9: reward_model.ground_truth: the row has no gold answer"),
    ({"reward_model": {"ground_truth": ["4"]}}, "f:9: reward_model.ground_truth: .* got \\['4'\\]"),
    ({"reward_model": {"ground_truth": True}}, "f:9: reward_model.ground_truth: .* got True"),
    ({"reward_model": None}, "f:9: reward_model: expected {ground_truth, style}, got nothing"),
    ({"prompt": "2+2?"}, "f:9: prompt: expected a list of {role, content} messages, got str '2\\+2\\?'"),
    ({"prompt": []}, "f:9: prompt: expected a list"),
    ({"prompt": ["hi"]}, r"f:9: prompt\[0\]: expected {role, content}, got str 'hi'"),
    ({"prompt": [{"role": "user"}]}, r"f:9: prompt\[0\]: content: .* got only the fields role"),
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, r"prompt\[0\]: content: .* got list"),
    ({"prompt": [{"role": "human", "content": "?"}]}, r"prompt\[0\]: role: .* got 'human'; did you mean 'user'\?"),
    ({"prompt": [{"role": "User", "content": "?"}]}, r"role: .* got 'User'; did you mean 'user'\?"),
    ({"prompt": [{"role": "wizard", "content": "?"}]},
     r"f:9: prompt\[0\]: role: expected one of system, user, assistant, tool, got 'wizard'$"),
    ({"prompt": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]},
     r"f:9: prompt\[1\]: role: the last message must be of user or tool, got 'assistant'"),
    ({"data_source": None}, "f:9: data_source: expected a non-empty text, got nothing"),
    ({"extra_info": [1]}, "f:9: extra_info: expected an object, got list"),
    ({"extra_info": {"when": datetime.date(2024, 1, 1)}}, "f:9: extra_info: holds something that JSON cannot"),
    ({"extra_info": {"x": float("nan")}}, "f:9: extra_info: holds something that JSON cannot"),
    ({"reward_model": {"ground_truth": float("nan")}}, "f:9: reward_model.ground_truth: .* got nan"),
    ({"prompt": [{"role": "user", "content": "\ud800"}]}, "content: holds half a surrogate pair"),
])  # fmt: skip
def test_bad_verl_rows(change: dict, message: str):
    with pytest.raises(DataError, match=message):
        parse_verl({**VERL, **change}, "f:9")
