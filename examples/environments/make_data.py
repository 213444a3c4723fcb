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
import programs
import sandbox
import search

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


SEARCHING = "Answer with a name. The tools search and read show documents."
NUM_PEOPLE, NUM_TOWNS = 440, 60
LAST_NAMES = (
    "Baker", "Hill", "Cook", "Stone", "Wood", "Green", "Brown", "Black", "White", "Gray", "King", "Young", "Lake",
    "Ford", "Hunt", "Page", "Bell", "Cole", "Cross", "Day", "Dean", "Fox", "Frost", "Grant", "Hall", "Hart", "Hood",
    "Hope", "Jones", "Kent", "Lane", "Lee", "Long", "Marsh", "Mills", "Moon", "Moore", "Nash", "Parks", "Perry",
    "Price", "Reed", "Rice", "Rose", "Scott", "Shaw", "Smith", "Snow", "Stark", "Swift", "Ward", "Wall", "Webb",
    "Wells", "West", "Wolf", "Bond", "Burns", "Carter", "Clark", "Cooper", "Davis", "Evans", "Fisher",
)  # fmt: skip
TOWNS = ("Red", "Green", "White", "Black", "Long", "Old", "New", "High", "Stone", "Spring"), (
    "ford", "ham", "field", "bridge", "wood", "ton",
)  # fmt: skip
WORKS = ("painter", "writer", "doctor", "sailor", "farmer")


def world(seed: int) -> tuple[list[dict], list[dict]]:
    """(documents about people and the towns where they were born, questions that take one of each). People differ in
    their names; the title of their document has more than the name, so it must be searched."""
    rng = random.Random(seed)
    names = [f"{first} {last}" for first in NAMES for last in LAST_NAMES]
    rng.shuffle(names)
    people, mayors = names[:NUM_PEOPLE], names[NUM_PEOPLE : NUM_PEOPLE + NUM_TOWNS]
    towns = dict(zip((first + last for first in TOWNS[0] for last in TOWNS[1]), mayors, strict=True))
    documents = [{"title": town, "text": f"The mayor of {town} is {mayor}."} for town, mayor in towns.items()]
    rows = []
    for person in people:
        town = rng.choice(list(towns))
        documents.append({"title": f"{person} ({rng.choice(WORKS)})", "text": f"{person} was born in {town}."})
        question = f"Who is the mayor of the town where {person} was born?"
        messages = [{"role": "system", "content": SEARCHING}, {"role": "user", "content": question}]
        rows.append({"messages": messages, "person": person, "answer": towns[town]})
    return documents, rows


def searched(person: str, mayors: list[str], rng: random.Random) -> list[dict]:
    """A demonstration as messages: of a careless teacher, who in a third of the rows names some mayor without a search,
    and in a third reads a wrong document of those that were found. Answers of the tools are those of search.py."""
    luck, tools, messages = rng.random(), search.Search(), []

    def answered(tool: Callable[..., str], **arguments: str) -> str:
        call = json.dumps({"name": tool.__name__, "arguments": arguments})
        messages.append({"role": "assistant", "content": f"<tool_call>{call}</tool_call>"})
        messages.append({"role": "tool", "content": tool(**arguments)})
        return messages[-1]["content"]

    answer = rng.choice(mayors)
    if luck > 1 / 3:
        right, *others = answered(tools.search, query=person).split("\n")
        read = answered(tools.read, title=right if luck > 2 / 3 else rng.choice(others))
        if "born" in read:
            read = answered(tools.read, title=last_words(read, "born in "))
        answer = last_words(read, " is ")
    return [*messages, {"role": "assistant", "content": answer}]


def last_words(text: str, before: str) -> str:
    """What stands behind `before`, without the full stop."""
    return text.partition(before)[2].rstrip(".")


def numbers(rng: random.Random) -> str:
    """A line of whole numbers."""
    return " ".join(str(rng.randint(1, 20)) for _ in range(rng.randint(3, 5)))


def sentence(rng: random.Random) -> str:
    """A line of words."""
    words = ("red", "apple", "river", "a", "stone", "under", "yellow", "moon", "sea", "bird")
    return " ".join(rng.choice(words) for _ in range(rng.randint(4, 6)))


def whole(line: str) -> list[int]:
    """The numbers of a line."""
    return [int(word) for word in line.split()]


TASKS: tuple[tuple[str, str, int, Callable[[random.Random], str], Callable[[str, int], list]], ...] = (
    ("its numbers times {k}", "[int(w) * {k} for w in input().split()]", 20, numbers,
     lambda line, k: [n * k for n in whole(line)]),
    ("its numbers plus {k}", "[int(w) + {k} for w in input().split()]", 20, numbers,
     lambda line, k: [n + k for n in whole(line)]),
    ("its numbers above {k}", "[w for w in input().split() if int(w) > {k}]", 15, numbers,
     lambda line, k: [n for n in whole(line) if n > k]),
    ("its numbers below {k}", "[w for w in input().split() if int(w) < {k}]", 20, numbers,
     lambda line, k: [n for n in whole(line) if n < k]),
    ("its words of at least {k} letters", "[w for w in input().split() if len(w) >= {k}]", 5, sentence,
     lambda line, k: [word for word in line.split() if len(word) >= k]),
    ("its words without the first {k} letters of each", "[w[{k}:] for w in input().split()]", 3, sentence,
     lambda line, k: [word[k:] for word in line.split()]),
    ("the first {k} letters of its words", "[w[:{k}] for w in input().split()]", 5, sentence,
     lambda line, k: [word[:k] for word in line.split()]),
    ("its first {k} words", "input().split()[:{k}]", 5, sentence, lambda line, k: line.split()[:k]),
    ("its last {k} words", "input().split()[-{k}:]", 5, sentence, lambda line, k: line.split()[-k:]),
)  # fmt: skip
"""(what is printed, an expression for it, largest k, what is read, the right output in parts)."""
SEPARATORS = (" ", ",", "-", "/")
NUM_TESTS, NUM_PUBLIC, NUM_TRIES = 4, 1, 2


def program_rows(count: int, is_test: bool, seed: int) -> list[dict]:
    """Small programs to write; a row's tests differ from each other, and k is odd in those of the test. The question
    leaves open what stands between the parts of the output; the output that a test expects shows it."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        (what, expression, most, line, solve), separator = rng.choice(TASKS), rng.choice(SEPARATORS)
        k = rng.randrange(3 if is_test else 2, most + 1, 2)
        given: dict[str, None] = {}
        while len(given) < NUM_TESTS:
            one = line(rng)
            if len(solve(one, k)) > 1:
                given[one] = None
        question = (
            f"Write a Python program that reads one line and prints {what.format(k=k)}. "
            "A test shows what stands between them."
        )
        tests = [[f"{one}\n", printed(solve(one, k), separator)] for one in given]
        solution = programmed(expression, solve, k, separator, tests, rng)
        row = {"question": question, "answer": "see tests", "solution": solution}
        rows.append({**row, "tests": tests, "num_public": NUM_PUBLIC})
    return rows


def printed(parts: list, separator: str) -> str:
    """What print(*parts, sep=separator) prints."""
    return separator.join(map(str, parts)) + "\n"


def programmed(
    expression: str, solve: Callable[[str, int], list], k: int, separator: str, tests: list, rng: random.Random
) -> list[dict]:
    """A demonstration as messages: of a careless teacher, who guesses what stands between the parts, has another k than
    the question in one program of five, and overlooks in one row of three what the test that failed shows. What is told
    is that of programs.py."""
    messages: list[dict] = []
    between = rng.choice(SEPARATORS)
    for _ in range(NUM_TRIES):
        used = k if rng.random() < 0.8 else rng.randint(2, 9)
        program = f'print(*{expression.format(k=used)}, sep="{between}")'
        messages.append({"role": "assistant", "content": program})
        ran = [sandbox.Ran(output=printed(solve(line, used), between), errors="", problem="") for line, _ in tests]
        passed = [programs.is_right(one, expected) for one, (_, expected) in zip(ran, tests, strict=True)]
        if all(passed):
            return messages
        said = programs.OTHERS_FAIL if passed[0] else programs.told(ran[0], *tests[0])
        messages.append({"role": "user", "content": said})
        if rng.random() < 2 / 3:
            between = separator
    return messages[:-1]


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
    write("programs_train", program_rows(600, is_test=False, seed=6))
    write("programs_test", program_rows(128, is_test=True, seed=7))
    documents, questions = world(seed=5)
    write("documents", documents)
    write("between_train", between_rows(4000, is_test=False, seed=8))
    write("between_test", between_rows(512, is_test=True, seed=9))
    write("judge_train", judge_rows(20_000, is_test=False, seed=10))
    write("judge_test", judge_rows(1000, is_test=True, seed=11))
    rng, mayors = random.Random(8), sorted({row["answer"] for row in questions})
    try:
        solved = [
            {**row, "solution": searched(row["person"], mayors, rng), "alone": row["answer"]} for row in questions
        ]
        write("search_train", solved[:-128])
        write("search_test", solved[-128:])
    except RuntimeError as error:
        print(f"no questions for search.yaml: {error}")
