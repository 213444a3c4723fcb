#!/usr/bin/env python3
"""Training and evaluation rows for this example: {"instruction": ..., "output": ...}, as in DianJin-R1-Data.

    python examples/custom_reward/make_data.py                                   # 96 generated questions
    python examples/custom_reward/make_data.py --input DianJin-R1-Data/cflue_mcq.jsonl

With a file, its multiple-choice rows are split by a hash of the question, so that a question never stands on both sides
and the split does not depend on the order of the file. Without one, questions about interest are generated, enough to
try everything without a download. Writes train.jsonl and eval.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

EVAL_SHARE = 0.1
NUM_GENERATED = 96
# One or more letters: AB, or A, B, or with the Chinese enumeration comma.
BOX = re.compile(r"\\boxed\{\s*[A-J](?:[\s,\u3001]*[A-J])*\s*\}")
INSTRUCTION = (
    "{question}\n{choices}\nThink first, then give the letter: <think>...</think><answer>\\boxed{{X}}</answer>"
)


def main() -> None:
    """Parse the command line and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", type=Path, help="JSON Lines with instruction and output; none: generate questions")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / "data", help="folder to write")
    options = parser.parse_args()
    if options.input is not None and not options.input.is_file():
        parser.error(f"--input {options.input}: no such file")
    rows = list(generated_rows() if options.input is None else choice_rows(options.input))
    if not rows:
        parser.error(f"--input {options.input}: no row has an output with letters in a \\boxed{{}}")
    options.output.mkdir(parents=True, exist_ok=True)
    for name, is_eval in (("train.jsonl", False), ("eval.jsonl", True)):
        chosen = [row for row in rows if is_held_out(row["instruction"]) is is_eval]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
        (options.output / name).write_text(text, encoding="utf-8")
        print(f"{options.output / name}: {len(chosen)} rows")


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the evaluation set: decided by its own hash."""
    number = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big")
    return number < EVAL_SHARE * 2**64


def choice_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows whose answer is one or more letters in a box."""
    num_others = 0
    with path.open(encoding="utf-8") as lines:
        for line in filter(str.strip, lines):
            row = json.loads(line)
            if BOX.search(row["output"]):
                yield {"instruction": row["instruction"], "output": row["output"]}
            else:
                num_others += 1
    print(f"{path}: {num_others} rows without letters in a box are left out")


def generated_rows(seed: int = 1) -> Iterator[dict[str, str]]:
    """Questions about simple interest, four choices each, with worked answers."""
    draw = random.Random(seed)
    for _ in range(NUM_GENERATED):
        capital, rate, years = 100 * draw.randint(1, 90), draw.randint(1, 9), draw.randint(2, 9)
        right = capital * rate * years // 100
        values = [right, right + capital // 100, right * 2, capital + right]
        order = draw.sample(range(4), 4)
        letter = "ABCD"[order.index(0)]
        choices = "  ".join(f"{name}. {values[which]}" for name, which in zip("ABCD", order, strict=True))
        question = (
            f"A bank pays {rate}% simple interest a year. How much interest do {capital} yuan earn in {years} years?"
        )
        steps = f"{capital} x {rate} / 100 = {capital * rate // 100} a year, x {years} = {right}"
        yield {
            "instruction": INSTRUCTION.format(question=question, choices=choices),
            "output": f"<think>{steps}</think><answer>\\boxed{{{letter}}}</answer>",
        }


if __name__ == "__main__":
    main()
