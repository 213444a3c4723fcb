"""The generated task: right, short, disjoint, and the same for the same seed."""

from __future__ import annotations

import re

import pytest

from mindgspo.data.arithmetic import SPLITS, generate_rows, problems
from mindgspo.tokenization import Tokenizer


def pair_of(row) -> tuple[str, frozenset[int]]:
    return row.extra_info["operation"], frozenset(row.extra_info["operands"])


def test_splits_have_their_sizes_and_share_no_pair_of_operands_whatever_the_seed():
    sizes = {split: len(problems(split)) for split in SPLITS}
    assert sizes["test"] >= 512 and sizes["dev"] >= 200 and sizes["train"] > 0.8 * sum(sizes.values())
    differences = sum(problem.operation == "-" for split in SPLITS for problem in problems(split))
    assert 0.2 < differences / sum(sizes.values()) < 0.3
    seen = {split: {pair_of(row) for seed in (1, 2) for row in generate_rows(split, None, seed)} for split in SPLITS}
    assert not seen["train"] & seen["dev"] and not seen["train"] & seen["test"] and not seen["dev"] & seen["test"]
    assert {split: len(pairs) for split, pairs in seen.items()} == sizes


def test_sums_and_differences_alone_are_all_problems():
    for split in SPLITS:
        sums, differences = ({pair_of(row) for row in generate_rows(split, None, 1, operation=one)} for one in "+-")
        assert {operation for operation, _ in sums} == {"+"} and {operation for operation, _ in differences} == {"-"}
        assert len(sums) + len(differences) == len(problems(split))


def test_a_problem_repeats_only_after_all_others():
    size = len(problems("dev"))
    rows = generate_rows("dev", 2 * size + 5, 4)
    assert len({pair_of(row) for row in rows[:size]}) == len({pair_of(row) for row in rows[size : 2 * size]}) == size


@pytest.mark.parametrize("split", SPLITS)
def test_every_line_of_every_solution_is_true(split):
    for row in generate_rows(split, None, 5):
        ones, tens, answer = row.solution.split("\n")
        a, b = row.extra_info["operands"]
        asked = [int(n) for n in re.findall(r"\d+", row.messages[0]["content"])]
        assert asked == [a, b]
        value = a + b if row.extra_info["operation"] == "+" else a - b
        assert answer == f"#### {value}" and row.answer == str(value)
        for line in (ones, tens):
            left, right = line.split("=")
            numbers = [int(n) for n in re.findall(r"\d+", left)]
            signs = [1] + [1 if sign == "+" else -1 for sign in re.findall(r"[+-]", left)]
            assert sum(s * n for s, n in zip(signs, numbers, strict=True)) == int(right) >= 0, row.solution
        # The digits written down are those of the answer.
        assert int(tens.split("=")[1]) * 10 + int(ones.split("=")[1]) % 10 == value


def test_rows_are_short_with_the_built_in_tokenizer_to_which_a_word_is_one_token(tokenizer: Tokenizer):
    for row in generate_rows("train", None, 1):
        assert len(tokenizer.encode(tokenizer.render_chat(row.messages))) <= 32
        assert len(tokenizer.encode(row.solution)) + 1 <= 28
        text = row.messages[0]["content"]
        pieces = re.findall(r"\d| (?=\d)| ?[A-Za-z]+|[.?]", text)
        assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == pieces


def test_deterministic_in_the_seed():
    assert generate_rows("train", 50, 1) == generate_rows("train", 50, 1)
    assert generate_rows("train", 50, 1) != generate_rows("train", 50, 2)
    assert generate_rows("train", 50, 1) == generate_rows("train", 80, 1)[:50]
    # Frozen, so that a change of the generator is noticed: prepared data sets would no longer match.
    first = generate_rows("test", 1, 1)[0]
    assert (first.messages[0]["content"], first.solution) == FIRST


FIRST = ("Mia had 77 apples and sold 59. How many are left?", "17-9=8\n7-5-1=1\n#### 18")


def needs_carry(row) -> bool:
    a, b = row.extra_info["operands"]
    return a % 10 + b % 10 >= 10 if row.extra_info["operation"] == "+" else a % 10 < b % 10


def test_a_careless_teacher_forgets_only_carries_and_the_gold_answer_stays_right():
    careful, careless = generate_rows("train", None, 1), generate_rows("train", None, 1, 1.0)
    assert [row.messages for row in careful] == [row.messages for row in careless]
    assert [row.answer for row in careful] == [row.answer for row in careless]
    for row, forgetful in zip(careful, careless, strict=True):
        written = int(forgetful.solution.split("#### ")[1])
        gap = 10 if needs_carry(row) else 0
        assert abs(written - int(row.answer)) == gap, forgetful.solution
        if not gap:
            assert forgetful.solution == row.solution


def test_the_share_of_forgotten_carries_is_the_one_asked_for():
    rows = [row for seed in range(8) for row in generate_rows("train", None, seed, 0.65) if needs_carry(row)]
    wrong = sum(row.solution.split("#### ")[1] != row.answer for row in rows)
    standard_error = (0.65 * 0.35 / len(rows)) ** 0.5
    assert abs(wrong / len(rows) - 0.65) < 4 * standard_error
