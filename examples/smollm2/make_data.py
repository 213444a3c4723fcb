#!/usr/bin/env python3
"""Questions about small numbers for a model of 135 million parameters, with held-out ones.

    python examples/smollm2/make_data.py [--out FOLDER] [--seed N]

Writes {"question": ..., "answer": ..., "solution": ...} by line: boxed_train.jsonl and boxed_test.jsonl, sums and
differences to be answered with a box and nothing else; words_train.jsonl and words_test.jsonl, word problems of one or
two steps. No question is in two files.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Zoe")
THINGS = ("apples", "pens", "coins", "cards", "books", "eggs", "shells", "stamps")
SIZES = {"train": 1200, "test": 200}
Question = tuple[str, int, str]
"""Text, answer, worked solution."""


def sum_of_two(draw: random.Random) -> Question:
    """A sum or a difference of numbers up to 99."""
    a, b = sorted(draw.sample(range(2, 100), 2))
    question, answer = (f"{a} + {b}", a + b) if draw.random() < 0.5 else (f"{b} - {a}", b - a)
    return f"What is {question}?", answer, f"\\boxed{{{answer}}}"


def word_problem(draw: random.Random) -> Question:
    """One or two steps with numbers up to 20."""
    name, friend = draw.sample(NAMES, 2)
    thing, a, b, c = draw.choice(THINGS), draw.randint(6, 20), draw.randint(2, 5), draw.randint(2, 9)
    question, steps = draw.choice(
        [
            (f"{name} has {a} {thing} and buys {c} more. How many {thing} does {name} have now?", [(a, "+", c)]),
            (f"{name} has {a} {thing} and gives {b} of them to {friend}. How many {thing} are left?", [(a, "-", b)]),
            (f"{name} buys {b} boxes with {c} {thing} each. How many {thing} does {name} buy?", [(b, "*", c)]),
            (
                f"{name} has {a} {thing}, gives {b} to {friend} and finds {c} more. How many {thing} now?",
                [(a, "-", b), (a - b, "+", c)],
            ),
            (
                f"{name} has {a} {thing} and buys {b} boxes of {c}. How many {thing} does {name} have?",
                [(b, "*", c), (a, "+", b * c)],
            ),
        ]
    )
    results = [{"+": x + y, "-": x - y, "*": x * y}[sign] for x, sign, y in steps]
    lines = [f"{x} {sign} {y} = {result}" for (x, sign, y), result in zip(steps, results, strict=True)]
    return question, results[-1], "\n".join([*lines, f"#### {results[-1]}"])


def rows(ask: Callable[[random.Random], Question], seed: int) -> dict[str, list[dict[str, str]]]:
    """{"train": rows, "test": rows}, all of them different."""
    draw, found = random.Random(seed), {}
    while len(found) < sum(SIZES.values()):
        question, answer, solution = ask(draw)
        found[question] = {"question": question, "answer": str(answer), "solution": solution}
    every = list(found.values())
    return {"train": every[: SIZES["train"]], "test": every[SIZES["train"] :]}


def main() -> None:
    """Parse the command line and write the four files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "data", help="folder to write")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for task, ask in (("boxed", sum_of_two), ("words", word_problem)):
        for part, of_part in rows(ask, options.seed).items():
            text = "".join(json.dumps(row) + "\n" for row in of_part)
            (options.out / f"{task}_{part}.jsonl").write_text(text, encoding="utf-8")
            print(f"{options.out / task}_{part}.jsonl: {len(of_part)} rows")


if __name__ == "__main__":
    main()
