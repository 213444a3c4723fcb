"""Writes the rows of the examples, data/guess_{train,test}.jsonl, and the tokenizer of the tiny model, data/tokenizer.
The same on every machine.

    python examples/environments/make_data.py
"""

import json
import random
from pathlib import Path

from mindgspo.config import TokenizerSection
from mindgspo.tokenization import load_tokenizer

DATA = Path(__file__).with_name("data")
WIDTH = 15
"""Distance of the bounds."""
TURNS = 4


def guessing_rows(count: int, lowest: range, seed: int) -> list[dict]:
    """Rows of the game for bounds that begin with one of `lowest`. The demonstration is a careless player's, who stays
    within what is left and halves it every third time."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        low = rng.choice(lowest)
        high, number = low + WIDTH, rng.randint(low, low + WIDTH)
        rows.append({"question": f"{low} {high}", "answer": str(number), "solution": played(low, high, number, rng)})
    return rows


def played(low: int, high: int, number: int, rng: random.Random) -> list[dict]:
    """A game as messages."""
    messages = []
    for _ in range(TURNS):
        guess = (low + high) // 2 if rng.random() < 1 / 3 else rng.randint(low, high)
        messages.append({"role": "assistant", "content": str(guess)})
        if guess == number:
            break
        if guess < number:
            low, said = guess + 1, "more"
        else:
            high, said = guess - 1, "less"
        messages.append({"role": "user", "content": said})
    return messages if messages[-1]["role"] == "assistant" else messages[:-1]


def write(name: str, rows: list[dict]) -> None:
    """Write rows as lines of JSON."""
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    load_tokenizer(TokenizerSection()).save(DATA / "tokenizer")
    lowest = range(0, 81, 10)
    write("guess_train", guessing_rows(4000, lowest, seed=1))
    write("guess_test", guessing_rows(512, lowest, seed=2))
