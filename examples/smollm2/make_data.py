#!/usr/bin/env python3
"""Sums and differences of numbers up to 99, with held-out ones.

    python examples/smollm2/make_data.py [--out FOLDER] [--seed N]

Writes {"question": ..., "answer": ...} by line: boxed_train.jsonl and boxed_test.jsonl. No question is in both.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = {"train": 1200, "test": 200}


def sum_of_two(draw: random.Random) -> tuple[str, int]:
    """A question and its answer."""
    a, b = sorted(draw.sample(range(2, 100), 2))
    question, answer = (f"{a} + {b}", a + b) if draw.random() < 0.5 else (f"{b} - {a}", b - a)
    return f"What is {question}?", answer


def main() -> None:
    """Parse the command line and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "data", help="folder to write")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, answers = random.Random(options.seed), {}
    while len(answers) < sum(SIZES.values()):
        question, answer = sum_of_two(draw)
        answers[question] = str(answer)
    rows = [json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in answers.items()]
    options.out.mkdir(parents=True, exist_ok=True)
    for part, size in SIZES.items():
        path = options.out / f"boxed_{part}.jsonl"
        path.write_text("".join(rows[:size]), encoding="utf-8")
        rows = rows[size:]
        print(f"{path}: {size} rows")


if __name__ == "__main__":
    main()
