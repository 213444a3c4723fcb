"""Equal prompts and unreadable gold answers: counted, reported, dropped where asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.config.data import DataSourceSection
from mindgspo.data.account import PromptIndex
from mindgspo.data.dataset import inspect_dataset, open_dataset
from mindgspo.data.source_rows import SourceRow
from mindgspo.errors import DataError
from mindgspo.tokenization import Tokenizer

ROWS = [  # line, question, gold
    ("Two plus two?", "4"),
    ("Four plus four?", "8"),
    (" Two  plus\ntwo? ", "4.0"),
    ("Which number?", "1"),
    ("Which number?", "2"),
    ("Which number?", "1.0"),
    ("Nine?", "9"),
    ("nine?", "9"),
]


@pytest.fixture
def rows_file(jsonl) -> Path:
    return jsonl({"question": q, "answer": f"#### {a}"} for q, a in ROWS)


def dropped_rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]


def key(*contents: str, role: str = "user") -> str:
    messages = tuple({"role": role, "content": content} for content in contents)
    return SourceRow(where="f:1", messages=messages, answer="1", data_source="d").prompt_key


def test_prompts_are_equal_if_their_messages_are_whitespace_aside():
    assert key("a  b\n") == key(" a b") == key("a\u3000b")
    assert len({key("a b"), key("ab"), key("A b"), key("a", "b"), key("a b", role="system"), key("a b", "")}) == 6


@pytest.mark.parametrize(("answers", "conflicts"),
                        [(["4", "4.0", " 4 ", "04"], 0), (["1/2", "0.5", "50%"], 0), (["1,000", "1000"], 0),
                         (["x+1", " x+1"], 0), ([r"\dfrac{\pi}{2}", r"\frac{\pi}{2}"], 0), (["(1,2)", "(1, 2)"], 0),
                         (["(1,2)", "(2,1)"], 1), (["AB", "A\u3001B", "B, A"], 0), (["AB", "AC"], 1),
                         (["x+1", "1+x"], 0), (["x+1", "x+2"], 1), (["4", "5"], 1),
                         (["4", "4", "four"], 1)])  # fmt: skip
def test_answers_are_equal_as_text_or_as_numbers(answers: list[str], conflicts: int):
    index = PromptIndex()
    for number, answer in enumerate(answers):
        index.add("ab" * 16, number=number, where=f"f:{number}", answer=answer, text="a b")
    facts = index.facts()
    assert (facts.repeated_rows, facts.conflicting_prompts) == (len(answers) - 1, conflicts)


def test_conflicts_of_equal_texts_are_told_from_those_that_white_space_hides():
    index = PromptIndex()
    rows = [("aa", "a b", "1"), ("aa", " a b", "2"), ("bb", "c", "1"), ("bb", "c", "2"), ("bb", "c ", "3")]
    for number, (name, text, answer) in enumerate(rows):
        index.add(name * 16, number=number, where=f"f:{number}", answer=answer, text=text)
    facts = index.facts()
    assert (facts.conflicting_prompts, facts.conflicting_letter_by_letter) == (2, 1)


def test_examples_show_each_answer_once_and_a_few_of_many():
    index = PromptIndex()
    for number in range(100):
        index.add("ab" * 16, number=number, where=f"f:{number}", answer=f"{number // 2}.0", text="a b")
    (example,) = index.facts().conflicting_examples
    assert example.answers == ("0.0", "1.0", "2.0", "3.0", "4.0")
    assert example.places == ("f:0", "f:2", "f:4", "f:6", "f:8")
    assert len(index.superfluous()) == 100
    index.add("cd" * 16, number=100, where="f:100", answer="1", text="c")
    index.add("cd" * 16, number=101, where="f:101", answer="1", text="c")
    assert len(index.superfluous()) == 101 and index.facts().repeated_rows == 100


def test_duplicates_are_counted_and_shown_but_kept(prepare, rows_file: Path, tmp_path: Path):
    source = DataSourceSection(format="gsm8k", path=rows_file)
    info = prepare(source)
    assert info.counts.rows_out == 8 and info.counts.dropped == {}
    assert (info.duplicates.repeated_rows, info.duplicates.conflicting_prompts) == (3, 1)
    assert [(one.again, one.first) for one in info.duplicates.repeated_examples] == [
        (f"{rows_file}:3", f"{rows_file}:1"),
        (f"{rows_file}:5", f"{rows_file}:4"),
        (f"{rows_file}:6", f"{rows_file}:4"),
    ]
    (conflict,) = info.duplicates.conflicting_examples
    assert conflict.places == (f"{rows_file}:4", f"{rows_file}:5") and conflict.answers == ("1", "2")
    shown = inspect_dataset(tmp_path / "out")
    assert "duplicates 3 rows whose prompt occurred before, 1 prompts with conflicting answers (kept; " in shown
    assert "rows.jsonl:3 asks the same as rows.jsonl:1" in shown
    assert "conflict: rows.jsonl:4 says '1'; rows.jsonl:5 says '2'" in shown
    assert not (tmp_path / "out" / "dropped.jsonl").exists()


def test_dedup_keeps_the_first_and_none_of_a_conflict(prepare, rows_file: Path, tokenizer: Tokenizer, tmp_path: Path):
    source = DataSourceSection(format="gsm8k", path=rows_file, dedup=True)
    info = prepare(source)
    prompts = [(prompt.index, prompt.answer) for prompt in open_dataset(tmp_path / "out", tokenizer)]
    assert prompts == [(0, "4"), (1, "8"), (2, "9"), (3, "9")]
    conflict = "equal prompts with different answers"
    assert info.counts.dropped == {"prompt occurred before": 1, conflict: 3}
    assert (info.duplicates.repeated_rows, info.duplicates.conflicting_prompts) == (3, 1)
    dropped = dropped_rows(tmp_path / "out")
    listed = ((3, "prompt occurred before", "4.0"), (4, conflict, "1"), (5, conflict, "2"), (6, conflict, "1.0"))
    assert dropped == [{"where": f"{rows_file}:{n}", "reason": why, "answer": answer} for n, why, answer in listed]
    assert "dropped.jsonl" in [file.name for file in info.files] and "(listed in dropped.jsonl)" in info.account()
    with pytest.raises(DataError, match="source.dedup: was True, now False"):
        prepare(source.model_copy(update={"dedup": False}))


def test_unreadable_gold_answers_are_dropped_and_listed(prepare, rows_file: Path, tmp_path: Path):
    asked = []

    def is_readable(data_source: str, gold: str) -> bool | None:
        asked.append((data_source, gold))
        return {"8": False, "1": None, "1.0": False}.get(gold, True)

    source = DataSourceSection(format="gsm8k", path=rows_file, dedup=True)
    info = prepare(source, is_readable=is_readable)
    assert asked == [("openai/gsm8k", gold) for _, gold in ROWS]
    # Line 6 takes no part in the conflict of lines 4 and 5, as it is dropped for a reason of its own.
    assert info.counts.dropped == {"gold answer cannot be read": 2, "prompt occurred before": 1,
                                   "equal prompts with different answers": 2}  # fmt: skip
    assert (info.duplicates.repeated_rows, info.duplicates.conflicting_prompts) == (2, 1)
    dropped = dropped_rows(tmp_path / "out")
    assert dropped[0] == {"where": f"{rows_file}:2", "reason": "gold answer cannot be read", "answer": "8"}
    assert [row["where"].rpartition(":")[2] for row in dropped] == ["2", "3", "4", "5", "6"]


def test_the_reward_that_fits_the_source_decides_by_default(prepare, jsonl, tokenizer: Tokenizer, tmp_path: Path):
    path = jsonl({"question": f"{answer}?", "answer": f"#### {answer}"} for answer in ("five apples", "5"))
    info = prepare(DataSourceSection(format="gsm8k", path=path))
    assert info.counts.dropped == {"gold answer cannot be read": 1}
    assert [prompt.answer for prompt in open_dataset(tmp_path / "out", tokenizer)] == ["5"]


def test_gold_answers_that_their_own_repetition_does_not_meet_are_dropped_and_listed(prepare, jsonl, tmp_path: Path):
    golds = [r"\frac{1}{2}", r"\frac{1}{2", r"\frac{1}{2}}", "Solution is: $k=4$.", r"f(x)=\{x\}", r"\text{no"]
    path = jsonl({"problem": f"{gold}?", "solution": "See above.", "answer": gold} for gold in golds)
    info = prepare(DataSourceSection(format="math", path=path))
    unmet = "gold answer is not met by its own repetition"
    assert (info.counts.rows_out, info.counts.dropped) == (4, {unmet: 2}) and unmet in info.account()
    listed = [{"where": f"{path}:{n}", "reason": unmet, "answer": golds[n - 1]} for n in (2, 6)]
    assert dropped_rows(tmp_path / "out") == listed


def test_rows_without_any_answer_are_listed_with_overlong_ones(prepare, jsonl, tmp_path: Path):
    rows = (("Short?", "no box"), ("Long? " * 50, r"\boxed{2}"), ("Short?", r"\boxed{3}"))
    path = jsonl({"problem": problem, "solution": solution} for problem, solution in rows)
    source = DataSourceSection(format="math", path=path)
    info = prepare(source, max_prompt_length=60, truncation="drop", is_readable=lambda source, gold: None)
    assert info.counts.dropped == {r"the solution has no \boxed{} answer": 1, "longer than max_prompt_length": 1}
    assert info.duplicates.repeated_rows == 0 and "1: longer than max_prompt_length" in info.account()
    assert (info.counts.rows_in, info.counts.rows_out, info.counts.truncated) == (3, 1, {})
    dropped = [(row["where"], row["answer"]) for row in dropped_rows(tmp_path / "out")]
    assert dropped == [(f"{path}:1", ""), (f"{path}:2", "2")]


def test_a_data_set_of_nothing_but_dropped_rows_is_refused(prepare, jsonl, tmp_path: Path):
    path = jsonl([{"problem": "a", "solution": "no box"}, {"problem": "b", "solution": r"\boxed{2}"}])
    said = r"rows.jsonl: all 2 rows are dropped \(1: the solution has no .*, 1: gold answer"
    with pytest.raises(DataError, match=said):
        prepare(DataSourceSection(format="math", path=path), is_readable=lambda source, gold: False)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
