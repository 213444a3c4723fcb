"""The generated arithmetic task: two-digit sums and differences in a one-line story, GSM8K's answer format.

    Tom has 47 apples and buys 38 more. How many now?       Mia had 62 coins and lost 35. How many are left?
    7+8=15                                                   12-5=7
    4+3+1=8                                                  6-3-1=2
    #### 85                                                  #### 27

The ones come first, then the tens with the carry (or the borrowed ten) written out, so that a model of a
third of a million parameters can learn it. A problem is (operation, unordered pair of operands) and its hash
alone decides its split, so no problem of one split ever occurs in another, whatever the seed, story or order
of operands.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mindgspo.data.source_rows import SourceRow

ArithmeticSplit = Literal["train", "dev", "test"]
Operation = Literal["+", "-"]
SPLITS: tuple[ArithmeticSplit, ...] = ("train", "dev", "test")

DATA_SOURCE = "arithmetic"
NAMES = ["Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Zoe"]
THINGS = ["apples", "pens", "coins", "cards", "books", "eggs", "shells", "stamps"]
STORIES: dict[Operation, tuple[str, ...]] = {
    "+": (
        "{name} has {a} {things} and buys {b} more. How many now?",
        "{name} has {a} {things} and gets {b} more. How many now?",
        "{name} sold {a} {things} today and {b} before. How many in all?",
    ),
    "-": (
        "{name} had {a} {things} and sold {b}. How many are left?",
        "{name} had {a} {things} and lost {b}. How many are left?",
    ),
}
# One difference in three is used: about a quarter of all problems are differences.
DIFFERENCE_SHARE = 3
TEST_PERCENT = 12
DEV_PERCENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """operation on two operands of two digits, low <= high ("-" means high - low)."""

    operation: Operation
    low: int
    high: int

    @property
    def hash(self) -> int:
        """A number that depends on nothing but the problem."""
        return int.from_bytes(hashlib.sha256(f"{self.operation} {self.low} {self.high}".encode()).digest()[:8], "big")

    @property
    def split(self) -> ArithmeticSplit:
        percentile = self.hash % 100
        return "test" if percentile < TEST_PERCENT else "dev" if percentile < TEST_PERCENT + DEV_PERCENT else "train"


@functools.cache
def problems(split: ArithmeticSplit, operation: Operation | None = None) -> tuple[Problem, ...]:
    """Every problem of a split, or those of one operation, in a fixed order."""
    pairs = list(itertools.combinations_with_replacement(range(10, 100), 2))
    sums = [Problem(operation="+", low=low, high=high) for low, high in pairs]
    differences = [Problem(operation="-", low=low, high=high) for low, high in pairs if low < high]
    used = sums + [problem for problem in differences if problem.hash // 100 % DIFFERENCE_SHARE == 0]
    return tuple(one for one in used if one.split == split and operation in (None, one.operation))


def generate_rows(
    split: ArithmeticSplit,
    num_rows: int | None,
    seed: int,
    forgotten_carries: float = 0.0,
    operation: Operation | None = None,
) -> list[SourceRow]:
    """`num_rows` rows, a function of the arguments alone; None: each problem of the split once.

    operation: of all problems; None: both.
    forgotten_carries: probability that a worked solution forgets its carry or borrow; the answer is always right.

    The split's problems are walked in random order, again and again, so rows repeat a problem (with another story) only
    after all others have occurred, and the first `len(problems(split, operation))` rows are distinct.
    """
    pool = problems(split, operation)
    count = len(pool) if num_rows is None else num_rows
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, SPLITS.index(split)])))
    rows: list[SourceRow] = []
    while len(rows) < count:
        for i in random.permutation(len(pool))[: count - len(rows)]:
            where = f"arithmetic {split} row {len(rows) + 1}"
            rows.append(_row(pool[int(i)], random, forgotten_carries, where=where))
    return rows


def _row(problem: Problem, random: np.random.Generator, forgotten_carries: float, where: str) -> SourceRow:
    def choose(options: tuple[str, ...] | list[str]) -> str:
        return options[int(random.integers(len(options)))]

    a, b = problem.high, problem.low
    if problem.operation == "+" and random.integers(2):
        a, b = b, a
    question = choose(STORIES[problem.operation]).format(name=choose(NAMES), things=choose(THINGS), a=a, b=b)
    careful = random.random() >= forgotten_carries
    steps, written = _sum_steps(a, b, careful) if problem.operation == "+" else _difference_steps(a, b, careful)
    return SourceRow(
        where=where,
        messages=({"role": "user", "content": question},),
        answer=str(a + b if problem.operation == "+" else a - b),
        solution=f"{steps}\n#### {written}",
        data_source=DATA_SOURCE,
        extra_info={"operation": problem.operation, "operands": [a, b]},
    )


def _sum_steps(a: int, b: int, careful: bool) -> tuple[str, int]:
    """The two lines of a sum and the result they lead to; not careful: without the carry."""
    ones = a % 10 + b % 10
    carry = ones // 10 if careful else 0
    tens = a // 10 + b // 10 + carry
    return f"{a % 10}+{b % 10}={ones}\n{a // 10}+{b // 10}+{carry}={tens}", 10 * tens + ones % 10


def _difference_steps(a: int, b: int, careful: bool) -> tuple[str, int]:
    """The two lines of a difference and the result they lead to; not careful: without the borrow."""
    top = a % 10 + 10 * (a % 10 < b % 10)
    borrow = int(a % 10 < b % 10) if careful else 0
    tens = a // 10 - b // 10 - borrow
    return f"{top}-{b % 10}={top - b % 10}\n{a // 10}-{b // 10}-{borrow}={tens}", 10 * tens + top - b % 10
