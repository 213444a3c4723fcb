"""Rows of all formats of files, good and bad, in all the spellings they come in."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal

import numpy as np
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

DAPO = {"data_source": "DAPO-17k", "prompt": [{"role": "user", "content": "2+2?"}], "ability": "math",
        "reward_model": {"ground_truth": "4", "style": "rule"}, "extra_info": {"index": 7, "answer": ""}}  # fmt: skip


def test_a_bare_dapo_prompt_is_put_into_the_published_one():
    row = parse_dapo(DAPO, "f:1")
    content = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n2+2?\n\nRemember to put your answer "
        'on its own line after "Answer:".'
    )
    assert row.messages == ({"role": "user", "content": content},)
    assert (row.answer, row.data_source, row.solution) == ("4", "math_dapo", "")
    assert row.extra_info == {"ability": "math", "index": 7, "answer": ""}
    assert parse_dapo({**DAPO, "prompt": "2+2?"}, "f:1").messages == row.messages


@pytest.mark.parametrize(
    "content", [f"{DAPO_PREFIX}2+2?{DAPO_SUFFIX}", f" {DAPO_PREFIX}2+2?\n\nBe brief.", f"2+2?{DAPO_SUFFIX}\n"]
)
def test_a_dapo_prompt_with_its_instruction_stays_as_it_is(content: str):
    system = {"role": "system", "content": "Mine."}
    row = parse_dapo({**DAPO, "prompt": [system, {"role": "user", "content": content}]}, "f:1")
    assert row.messages == (system, {"role": "user", "content": content})


LIGHTEVAL = {"problem": "1/2+1/3?", "level": "Level 2", "type": "Algebra", "solution": r"So $\boxed{\frac{5}{6}}$."}


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


def test_math_gold_is_the_answer_or_the_last_box():
    row = parse_math(LIGHTEVAL, "f:1")
    assert row.messages == ({"role": "user", "content": "1/2+1/3?"},)
    assert (row.answer, row.data_source, row.solution) == (r"\frac{5}{6}", "math", LIGHTEVAL["solution"])
    assert row.extra_info == {"level": "Level 2", "type": "Algebra"}
    assert parse_math({**LIGHTEVAL, "answer": None}, "f:1").answer == r"\frac{5}{6}"
    known = {"subject": "Algebra", "level": 5, "unique_id": "test/a/1.json"}
    row = parse_math({"problem": "p", "solution": r"$\boxed{1}$", "answer": "p - q", **known}, "f:1")
    assert (row.answer, row.data_source, row.extra_info) == ("p - q", "math", known)


@pytest.mark.parametrize(("fields", "gold"), [
    ({"problem": "p", "answer": "073"}, "73"),
    ({"problem": "p", "answer": 73.0}, "73"),
    ({"question": "p", "expected_answer": " 236 "}, "236"),
    ({"Question": "p", "Answer": "000"}, "0"),
    ({"problem": "p", "answer": "$025$"}, "25"),
    ({"problem": "p", "answer": 0}, "0"),
    ({"ID": "2024-I-1", "Year": 2024, "Problem": "p", "Answer": 5, "Solution": "long"}, "5"),
])  # fmt: skip
def test_aime_rows(fields: dict, gold: str):
    row = parse_aime(fields, "f:1")
    assert isinstance(row, SourceRow)
    assert (row.answer, row.data_source, row.messages) == (gold, "aime", ({"role": "user", "content": "p"},))
    assert row.solution == "" and row.extra_info == ({"id": "2024-I-1", "year": 2024} if "ID" in fields else {})


@pytest.mark.parametrize("answer", ["1000", "-1", "1/2", "x", 2.5])
def test_what_cannot_be_an_aime_answer_is_dropped(answer: object):
    row = parse_aime({"problem": "p", "answer": answer}, "f:1")
    assert isinstance(row, DroppedRow) and (row.where, row.answer) == ("f:1", str(answer))
    assert "no integer from 0 to 999" in row.reason


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


VERL = {"data_source": "math_dapo", "prompt": [{"role": "user", "content": "2+2?"}], "ability": "MATH",
        "reward_model": {"ground_truth": "4", "style": "rule"}, "extra_info": {"index": 7}}  # fmt: skip


def test_gsm8k_row():
    answer = "#### 1\nShe sold 48/2 = <<48/2=24>>24.\nIn all <<48+24=72>>72 < 80 << 90.\n####  1,072.5 \n"
    row = parse_gsm8k({"question": " How many? ", "answer": answer}, "f:1")
    assert row.messages == ({"role": "user", "content": " How many? "},)
    assert row.solution.startswith("#### 1\nShe sold 48/2 = 24.\nIn all 72 < 80 << 90.\n####")
    assert (row.answer, row.data_source, row.where) == ("1072.5", "openai/gsm8k", "f:1")


@pytest.mark.parametrize(("gold", "answer"), [
    ("1,010", "1010"), ("$1,234,567.50", "$1234567.50"), ("-12,000 dollars", "-12000 dollars"), ("3.5", "3.5"),
    *((gold, None) for gold in ("3,5", "1,2,3", "1.234,5", "12,34", "1, 2", "red, blue", "1,000, 2,000")),
])  # fmt: skip
def test_only_thousands_separators_are_taken_out_of_a_gsm8k_gold(gold: str, answer: str | None):
    row = parse_gsm8k({"question": "q", "answer": f"So\n#### {gold}"}, "f:1")
    if answer is None:
        reason = "the answer has a comma that separates no thousands"
        assert row == DroppedRow(where="f:1", reason=reason, answer=gold)
    else:
        assert isinstance(row, SourceRow) and row.answer == answer


@pytest.mark.parametrize(("solution", "answer"), [
    (r"The roots are $x=\boxed{\frac{1}{2}}$ and $x=\boxed{-2}$.", r"\frac{1}{2} , -2"),
    (r"$\boxed{\sqrt{2}}, \boxed{-\sqrt{2}}$", r"\sqrt{2} , -\sqrt{2}"),
    (r"$\boxed{f(x)=\{x\}}$ or $\boxed{2}$", r"f(x)=\{x\} , 2"),
    (r"\boxed{2^{3^{4}}}, \boxed{\text{no}}, and \boxed{\frac{1}{x_{1}}}", r"2^{3^{4}} , \text{no} , \frac{1}{x_{1}}"),
])  # fmt: skip
def test_a_list_of_boxes_is_a_list_of_their_contents(solution: str, answer: str):
    row = parse_math({**LIGHTEVAL, "solution": solution}, "f:1")
    assert isinstance(row, SourceRow) and row.answer == answer


NO_BOX, EMPTY = r"has no \boxed{} answer", {"ground_truth": None}


@pytest.mark.parametrize(("parse", "row", "reason"), [
    (parse_math, {**LIGHTEVAL, "solution": "It is five sixths."}, f"the solution {NO_BOX}"),
    (parse_dianjin, dianjin("ABD"), f"the answer block {NO_BOX}"),
    (parse_dianjin, {"instruction": "q", "output": r"It is \boxed{A}."}, "the output has no <answer> block"),
    (parse_gsm8k, {"question": "q", "answer": "It is 5."}, "the answer has no final '#### <number>'"),
    (parse_gsm8k, {"question": "q", "answer": "It is 5.\n####  "}, "the answer has no final '#### <number>'"),
    *((parse, {**VERL, "reward_model": {"ground_truth": gold}}, "reward_model.ground_truth is empty")
      for gold in (None, "", " \n") for parse in (parse_verl, parse_dapo)),
])  # fmt: skip
def test_a_row_whose_answer_is_not_found_is_dropped(parse: Callable, row: dict, reason: str):
    assert parse(row, "f:3") == DroppedRow(where="f:3", reason=reason, answer="")


def test_verl_rows():
    messages = [{"role": role, "content": role} for role in ("system", "assistant", "tool", "user")]
    row = parse_verl({**VERL, "prompt": messages}, "f:1")
    assert row.messages == tuple(messages), "all known roles are kept"
    assert (row.answer, row.data_source, row.solution) == ("4", "math_dapo", "")
    assert row.extra_info == {"index": 7, "ability": "MATH"}
    row = parse_verl({**VERL, "reward_model": {"ground_truth": -3}, "extra_info": None, "ability": None}, "f:1")
    assert (row.answer, row.extra_info) == ("-3", {})
    assert parse_verl({**VERL, "reward_model": {"ground_truth": 0}}, "f:1").answer == "0"
    assert parse_verl({**VERL, "reward_model": {"ground_truth": 10**400}}, "f:1").answer == "1" + "0" * 400


def said(role: object, content: object = "?") -> dict:
    return {"role": role, "content": content}


BAD = {
    parse_dapo: [({**DAPO, "prompt": " "}, "prompt: expected a non-empty text, got str ' '"),
                 ({**DAPO, "prompt": None}, "prompt: expected a list of {role, content} messages, got nothing"),
                 ({**DAPO, "reward_model": {}}, "reward_model.ground_truth: the row has no gold answer")],
    parse_math: [({"solution": "s"}, "problem: expected a non-empty text, got only the fields solution"),
                 ({"problem": "p"}, "solution: expected a non-empty text, got only the fields problem"),
                 ({**LIGHTEVAL, "answer": ""}, r"answer: the row has no gold answer \(text or number\), got ''")],
    parse_aime: [({"problem": "p"}, "answer or expected_answer: missing; the row has only the fields problem"),
                 ({"answer": 1}, "problem or question: missing; the row has only the fields answer"),
                 ({"problem": "p", "answer": None}, r"answer: the row has no gold answer \(text or number\), got None"),
                 ({"problem": "", "answer": 1}, "problem: expected a non-empty text, got str ''")],
    parse_dianjin: [({"instruction": "q"}, "output: expected a non-empty text, got only the fields instruction"),
                    ({"instruction": None, "output": "o"}, "instruction: expected a non-empty text, got nothing")],
    parse_gsm8k: [({"question": "q", "answer": None}, "answer: expected a non-empty text, got nothing"),
                  ({"question": "q"}, "answer: expected a non-empty text, got only the fields question"),
                  ({"question": " ", "answer": "#### 5"}, "question: expected a non-empty text"),
                  ({"question": 5, "answer": "#### 5"}, "question: expected a non-empty text, got int '5'"),
                  ({}, r"question: .* got only the fields \(none\)")],
}  # fmt: skip
BAD_VERL = [
    ({"reward_model": {}}, "reward_model.ground_truth: the row has no gold answer"),
    ({"reward_model": {"ground_truth": ["4"]}}, "reward_model.ground_truth: .* got \\['4'\\]"),
    ({"reward_model": {"ground_truth": True}}, "reward_model.ground_truth: .* got True"),
    ({"reward_model": {"ground_truth": float("nan")}}, "reward_model.ground_truth: .* got nan"),
    ({"reward_model": None}, "reward_model: expected {ground_truth, style}, got nothing"),
    ({"prompt": "2+2?"}, "prompt: expected a list of {role, content} messages, got str '2\\+2\\?'"),
    ({"prompt": []}, "prompt: expected a list"),
    ({"prompt": ["hi"]}, r"prompt\[0\]: expected {role, content}, got str 'hi'"),
    ({"prompt": [{"role": "user"}]}, r"prompt\[0\]: content: .* got only the fields role"),
    ({"prompt": [said("user", [{"type": "image"}])]}, r"prompt\[0\]: content: .* got list"),
    ({"prompt": [said("user", "\ud800")]}, r"prompt\[0\]: content: holds half a surrogate pair"),
    ({"prompt": [said("human")]}, r"prompt\[0\]: role: .* got 'human'; did you mean 'user'\?"),
    ({"prompt": [said("User")]}, r"prompt\[0\]: role: .* got 'User'; did you mean 'user'\?"),
    ({"prompt": [said("wizard")]}, r"prompt\[0\]: role: expected one of system, user, assistant, tool, got 'wizard'$"),
    ({"prompt": [said("user"), said("assistant")]},
     r"prompt\[1\]: role: the last message must be of user or tool, got 'assistant'"),
    ({"data_source": None}, "data_source: expected a non-empty text, got nothing"),
    ({"extra_info": [1]}, "extra_info: expected an object, got list"),
]  # fmt: skip
BAD[parse_verl] = [({**VERL, **change}, message) for change, message in BAD_VERL]


@pytest.mark.parametrize(("given", "kept", "nulled"), [
    (float("nan"), None, ["NaN or infinity"]),
    (Decimal("-inf"), None, ["NaN or infinity"]),
    (np.float32("nan"), None, ["NaN or infinity"]),
    (b"\xff", None, ["bytes that are no text"]),
    (object, None, ["type"]),
    ([1, {"a": float("inf")}, (b"\x80",)], [1, {"a": None}, [None]], ["NaN or infinity", "bytes that are no text"]),
    (Decimal("3.10"), "3.10", []),
    (datetime.date(2024, 1, 2), "2024-01-02", []),
    (datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC), "2024-01-02T03:00:00+00:00", []),
    (datetime.time(3, 4), "03:04:00", []),
    (datetime.timedelta(hours=1), "1:00:00", []),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005", []),
    ("é".encode(), "é", []),
    (np.int64(7), 7, []),
    (np.bool_(True), True, []),
    (np.float32(0.1), 0.1, []),
    (np.float16(0.1), 0.1, []),
    (np.array([[0.1, 2.5]], np.float32), [[0.1, 2.5]], []),
    (np.array(["a", None], object), ["a", None], []),
    (np.array(5), 5, []),
    (np.datetime64("2024-01-02"), "2024-01-02", []),
    ({1: {2, }}, {"1": [2]}, []),
])  # fmt: skip
def test_what_json_has_nothing_for_is_converted_or_null_and_counted(given: object, kept: object, nulled: list):
    row = parse_verl({**VERL, "extra_info": {"x": given, "index": 3}}, "f:9")
    assert isinstance(row, SourceRow)
    assert (row.extra_info["x"], row.extra_info["index"], [*row.nulled]) == (kept, 3, nulled)


@pytest.mark.parametrize("parse", PARSERS.values())
def test_bad_rows_are_named_with_their_place(parse: Callable):
    for row, message in [*BAD[parse], ({}, "")]:
        with pytest.raises(DataError, match=f"^f:9: {message}"):
            parse(row, "f:9")
