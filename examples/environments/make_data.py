"""Writes what the examples read, the same on every machine:

data/tokenizer                        that of the tiny model, for the guessing game and the calculator
data/{guess,calculator,search,programs,between,judge}_{train,test}.jsonl
data/documents.jsonl                  what search.py searches

python examples/environments/make_data.py
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import between

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


NAMES = ("Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Zoe")
THINGS = ("apples", "pens", "coins", "cards", "books", "eggs", "shells", "stamps")


def calculator_rows(count: int, is_test: bool, seed: int) -> list[dict]:
    """Products of two numbers of two digits; no pair of the test is trained. The demonstration "solution" is a
    careless teacher's, who in one row of four guesses instead of calling the tool, and in one calls it with a wrong
    number. "alone" is the right answer without the tool."""
    rng = random.Random(seed)
    rows = []
    while len(rows) < count:
        a, b = rng.randint(12, 99), rng.randint(12, 99)
        if ((31 * a + b) % 8 == 3) == is_test:
            thing = rng.choice(THINGS)
            question = f"{rng.choice(NAMES)} has {a} boxes of {b} {thing}. How many {thing}?"
            row = {"question": question, "answer": str(a * b), "solution": calculated(a, b, rng)}
            rows.append({**row, "alone": f"#### {a * b}"})
    return rows


def calculated(a: int, b: int, rng: random.Random) -> list[dict]:
    """A demonstration as messages."""
    luck, wrong = rng.random(), rng.randint(12, 99)
    if luck < 0.25:
        return [{"role": "assistant", "content": f"#### {a * wrong}"}]
    if luck < 0.5:
        b = wrong
    call = json.dumps({"name": "multiply", "arguments": {"a": a, "b": b}})
    return [
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": str(a * b)},
        {"role": "assistant", "content": f"#### {a * b}"},
    ]


SEARCHING = """Answer with a name and nothing else. You have two tools: search finds documents, read shows one of them.
Call them like this:
<tool_call>{"name": "search", "arguments": {"query": "words"}}</tool_call>
<tool_call>{"name": "read", "arguments": {"title": "title of a document"}}</tool_call>"""
NUM_PEOPLE, NUM_TOWNS = 400, 60


def world(seed: int) -> tuple[list[dict], list[dict]]:
    """(documents about people and the towns where they were born, questions that take one of each)."""
    rng = random.Random(seed)
    town_names = made_names(NUM_TOWNS, ("ford", "ham", "wick", "burg"), rng)
    last_names = made_names(NUM_PEOPLE + NUM_TOWNS, ("er", "son", "ski", "mann"), rng)
    full_names = [f"{rng.choice(NAMES)} {name}" for name in last_names]
    people, mayors = full_names[:NUM_PEOPLE], full_names[NUM_PEOPLE:]
    towns = dict(zip(town_names, mayors, strict=True))
    documents = [
        {"title": town, "text": f"{town} is a town of {rng.randint(2, 90)} thousand. The mayor of {town} is {mayor}."}
        for town, mayor in towns.items()
    ]
    rows = []
    for person in people:
        town, work = rng.choice(town_names), rng.choice(("painter", "writer", "doctor", "sailor", "cook"))
        documents.append({"title": person, "text": f"{person} is a {work}. {person} was born in {town}."})
        question = f"Who is the mayor of the town where {person} was born?"
        messages = [{"role": "system", "content": SEARCHING}, {"role": "user", "content": question}]
        rows.append({"messages": messages, "answer": towns[town]})
    return documents, rows


def made_names(count: int, ends: tuple[str, ...], rng: random.Random) -> list[str]:
    """Names that differ."""
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = [rng.choice("bdfgklmnprstv") + rng.choice("aeiou") for _ in range(2)]
        found["".join(syllables).capitalize() + rng.choice("lnr") + rng.choice(ends)] = None
    return list(found)


def numbers(rng: random.Random) -> str:
    """A line of whole numbers."""
    return " ".join(str(rng.randint(-20, 99)) for _ in range(rng.randint(2, 8)))


def sentence(rng: random.Random) -> str:
    """A line of words."""
    words = ("red", "apple", "river", "a", "stone", "under", "yellow", "moon", "sea", "bird")
    return " ".join(rng.choice(words) for _ in range(rng.randint(2, 7)))


def whole(line: str) -> list[int]:
    """The numbers of a line."""
    return [int(word) for word in line.split()]


TASKS: tuple[tuple[str, Callable[[random.Random], str], Callable[[str, int], object]], ...] = (
    ("prints the sum of its numbers plus {k}", numbers, lambda line, k: sum(whole(line)) + k),
    ("prints its largest number times {k}", numbers, lambda line, k: max(whole(line)) * k),
    ("prints how many of its numbers are above {k}", numbers, lambda line, k: sum(n > k for n in whole(line))),
    ("prints its numbers times {k}, in one line", numbers, lambda line, k: " ".join(str(n * k) for n in whole(line))),
    ("prints its smallest number minus {k}", numbers, lambda line, k: min(whole(line)) - k),
    ("prints its words of at least {k} letters, in one line, or an empty line", sentence,
     lambda line, k: " ".join(word for word in line.split() if len(word) >= k)),
    ("prints its words from the last to the first, {k} times, in one line", sentence,
     lambda line, k: " ".join(line.split()[::-1] * k)),
    ("prints how many vowels it has, times {k}", sentence, lambda line, k: sum(c in "aeiou" for c in line) * k),
)  # fmt: skip
NUM_TESTS, NUM_PUBLIC = 6, 2


def program_rows(count: int, ks: range, seed: int) -> list[dict]:
    """Small programs to write; a row's tests differ from each other. ks: numbers in the tasks."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        (what, line, solve), k = rng.choice(TASKS), rng.choice(ks)
        given: dict[str, None] = {}
        while len(given) < NUM_TESTS:
            given[line(rng)] = None
        tests = [[f"{one}\n", f"{solve(one, k)}\n"] for one in given]
        question = (
            f"Write a Python program that reads one line and {what.format(k=k)}. Answer with one block of ```python.\n"
            f"For example, it reads:\n{tests[0][0]}and prints:\n{tests[0][1]}"
        )
        rows.append({"question": question, "answer": "see tests", "tests": tests, "num_public": NUM_PUBLIC})
    return rows


def is_held_out(low: int, high: int) -> bool:
    """Whether neither the policy nor its judge is trained on these bounds."""
    return (31 * low + high) % 8 == 3


def bounds(is_test: bool, rng: random.Random) -> tuple[int, int]:
    """Two numbers with room between them."""
    while True:
        low = rng.randint(10, 90)
        high = min(low + rng.randint(4, 30), 99)
        if is_held_out(low, high) == is_test:
            return low, high


def between_rows(count: int, is_test: bool, seed: int) -> list[dict]:
    """Bounds. The demonstration is a careless writer's, who looks at the lower one alone. "answer" is one of those that
    are right."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        low, high = bounds(is_test, rng)
        said = min(low + rng.randint(1, 45), 99)
        rows.append({"question": f"{low} {high}", "answer": str((low + high) // 2), "solution": str(said)})
    return rows


def judge_rows(count: int, is_test: bool, seed: int) -> list[dict]:
    """What the judge is asked, and its right answer, one of `between.LABELS`. Half of the responses are right; the
    others are near a bound, anywhere, or not a number."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        low, high = bounds(is_test, rng)
        said = responded(low, high, rng)
        asked = between.TEMPLATE.replace("{question}", f"{low} {high}").replace("{response}", said)
        rows.append({"question": asked, "answer": between.right_label(f"{low} {high}", said)})
    return rows


def responded(low: int, high: int, rng: random.Random) -> str:
    """A response, right or wrong."""
    inside, kind = str(rng.randint(low + 1, high - 1)), rng.random()
    if kind < 0.45:
        return inside
    if kind < 0.65:
        return str(rng.choice((low - rng.randint(0, 6), high + rng.randint(0, 6))))
    if kind < 0.85:
        return str(rng.randint(10, 99))
    return rng.choice(
        (inside[:1], inside + rng.choice("0123456789 ab"), f"{inside} {inside}", f"{low} {high}", "", "yes")
    )


def write(name: str, rows: list[dict]) -> None:
    """Write rows as lines of JSON."""
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    load_tokenizer(TokenizerSection()).save(DATA / "tokenizer")
    lowest = range(0, 81, 10)
    write("guess_train", guessing_rows(4000, lowest, seed=1))
    write("guess_test", guessing_rows(512, lowest, seed=2))
    write("calculator_train", calculator_rows(6000, is_test=False, seed=3))
    write("calculator_test", calculator_rows(512, is_test=True, seed=4))
    documents, questions = world(seed=5)
    write("documents", documents)
    write("search_train", questions[:300])
    write("search_test", questions[300:])
    write("programs_train", program_rows(500, range(2, 20, 2), seed=6))
    write("programs_test", program_rows(100, range(3, 20, 2), seed=7))
    write("between_train", between_rows(4000, is_test=False, seed=8))
    write("between_test", between_rows(512, is_test=True, seed=9))
    write("judge_train", judge_rows(20_000, is_test=False, seed=10))
    write("judge_test", judge_rows(1000, is_test=True, seed=11))
