"""GSM8K's and verl's rows, good and bad."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

from mindgspo.data.formats import parse_dapo, parse_gsm8k, parse_verl
from mindgspo.data.source_rows import DroppedRow
from mindgspo.errors import DataError

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


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answer": None}, "f:3: answer: expected a non-empty text, got nothing"),
        ({"question": "q"}, "f:3: answer: expected a non-empty text, got only the fields question"),
        ({"question": " ", "answer": "#### 5"}, "f:3: question: expected a non-empty text"),
        ({"question": 5, "answer": "#### 5"}, "f:3: question: expected a non-empty text, got int '5'"),
        ({}, r"f:3: question: .* got only the fields \(none\)"),
    ],
)
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward_model": {}}, "f:9: reward_model.ground_truth: the row has no gold answer"),
        ({"reward_model": {"ground_truth": ["4"]}}, "f:9: reward_model.ground_truth: .* got \\['4'\\]"),
        ({"reward_model": {"ground_truth": True}}, "f:9: reward_model.ground_truth: .* got True"),
        ({"reward_model": None}, "f:9: reward_model: expected {ground_truth, style}, got nothing"),
        ({"prompt": "2+2?"}, "f:9: prompt: expected a list of {role, content} messages, got str '2\\+2\\?'"),
        ({"prompt": []}, "f:9: prompt: expected a list"),
        ({"prompt": ["hi"]}, r"f:9: prompt\[0\]: expected {role, content}, got str 'hi'"),
        ({"prompt": [{"role": "user"}]}, r"f:9: prompt\[0\]: content: .* got only the fields role"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
            r"prompt\[0\]: content: .* got list",
        ),
        ({"prompt": [{"role": "human", "content": "?"}]}, r"prompt\[0\]: role: .* got 'human'; did you mean 'user'\?"),
        ({"prompt": [{"role": "User", "content": "?"}]}, r"role: .* got 'User'; did you mean 'user'\?"),
        (
            {"prompt": [{"role": "wizard", "content": "?"}]},
            r"f:9: prompt\[0\]: role: expected one of system, user, assistant, tool, got 'wizard'$",
        ),
        (
            {"prompt": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]},
            r"f:9: prompt\[1\]: role: the last message must be of user or tool, got 'assistant'",
        ),
        ({"data_source": None}, "f:9: data_source: expected a non-empty text, got nothing"),
        ({"extra_info": [1]}, "f:9: extra_info: expected an object, got list"),
        (
            {"extra_info": {"when": datetime.date(2024, 1, 1)}},
            "f:9: extra_info: holds something that JSON cannot",
        ),
        ({"extra_info": {"x": float("nan")}}, "f:9: extra_info: holds something that JSON cannot"),
        ({"reward_model": {"ground_truth": float("nan")}}, "f:9: reward_model.ground_truth: .* got nan"),
        ({"prompt": [{"role": "user", "content": "\ud800"}]}, "content: holds half a surrogate pair"),
    ],
)
def test_bad_verl_rows(change: dict, message: str):
    with pytest.raises(DataError, match=message):
        parse_verl({**VERL, **change}, "f:9")
