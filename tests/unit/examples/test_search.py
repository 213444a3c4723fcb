"""examples/environments/search.py: questions about two documents, in a real worker process."""

import json
import random
import sys
from pathlib import Path

import make_data
import pytest
import search
from running import PROJECT

from mindgspo.config import load_config
from mindgspo.config.environment import EnvironmentSection
from mindgspo.environments import End, Row, Turn
from mindgspo.environments.tool_calls import parse
from mindgspo.rollout.player import Player


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    documents, rows = make_data.world(seed=5)
    path = tmp_path_factory.mktemp("search") / "documents.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    return path, rows


def turn(text: str) -> Turn:
    parsed = parse(text, "hermes")
    return Turn(text=text, content=parsed.content, calls=parsed.calls, problems=parsed.errors, number=1, is_last=False)


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_two_documents_lead_to_the_answer(world: tuple[Path, list[dict]], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bm25s", reason="the extra `environments` is not installed")
    path, rows = world
    monkeypatch.setenv("SEARCH_DOCUMENTS", str(path))
    section = EnvironmentSection(path=f"{PROJECT / 'examples/environments/search.py'}:Search")
    with Player(section) as player:
        for row in rows[:10]:
            about = {"row": {"prompt": "", "answer": row["answer"]}, "seed": 0, "style": "hermes", "is_last": False}
            state, number = None, 0

            def said(text: str, about: dict = about) -> dict:
                nonlocal state, number
                number += 1
                job = {**about, "kind": "step", "text": text, "number": number, "state": state}
                value = player.submit(job).result(60).value
                state = value.get("state")
                return value

            (found,) = said(call("search", query=f"Where was {row['person']} born?"))["messages"]
            title, *others = found["content"].split("\n")
            assert title.startswith(f"{row['person']} (") and len(others) == 2
            (read,) = said(call("read", title=title))["messages"]
            town = read["content"].rpartition(" ")[2].rstrip(".")
            (read,) = said(call("read", title=town))["messages"]
            assert row["answer"] in read["content"]
            end = said(row["answer"].upper() + ".")
            assert (end["reward"], end["is_correct"], end["info"]) == (1.0, True, {"calls": 3.0})
        assert said("Nobody")["reward"] == 0.0


def test_what_is_not_there_is_said(world: tuple[Path, list[dict]], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bm25s", reason="the extra `environments` is not installed")
    monkeypatch.setattr(search, "DOCUMENTS", world[0])
    search.index.cache_clear()
    environment = search.Search()
    assert environment.read("Nowhere") == "there is no document 'Nowhere'"
    assert environment.search("zzz \0 \ud800") == environment.search("") == "nothing found"
    assert len(environment.search("is a " * 20_000).split("\n")) == search.NUM_FOUND
    search.index.cache_clear()


def test_what_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    search.index.cache_clear()
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(RuntimeError, match=r"bm25s is not installed: pip install 'mindgspo\[environments\]'"):
        search.Search().reset(Row(prompt="", answer=""), 0)
    monkeypatch.setitem(sys.modules, "bm25s", sys)
    monkeypatch.setattr(search, "DOCUMENTS", tmp_path / "none.jsonl")
    with pytest.raises(RuntimeError, match="none.jsonl is missing; write it by: python examples/environments/make"):
        search.Search().reset(Row(prompt="", answer=""), 0)


def test_every_question_takes_two_documents() -> None:
    documents, rows = make_data.world(seed=5)
    assert len({one["title"] for one in documents}) == len(documents) == make_data.NUM_PEOPLE + make_data.NUM_TOWNS
    texts = {one["title"].partition(" (")[0]: one["text"] for one in documents}
    assert len(texts) == len(documents), "names differ without what the titles add"
    for row in rows:
        assert f"where {row['person']} was born" in row["messages"][-1]["content"]
        town = texts[row["person"]].rpartition(" ")[2].rstrip(".")
        assert texts[town] == f"The mayor of {town} is {row['answer']}." and row["answer"] not in texts[row["person"]]


def test_a_careless_teacher_is_right_in_a_third_of_the_rows(
    world: tuple[Path, list[dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bm25s", reason="the extra `environments` is not installed")
    monkeypatch.setattr(search, "DOCUMENTS", world[0])
    search.index.cache_clear()
    rng, mayors = random.Random(1), sorted({row["answer"] for row in world[1]})
    guessed, read = [], []
    for row in world[1]:
        environment = search.Search()
        environment.reset(Row(prompt="", answer=row["answer"]), 0)
        *messages, last = make_data.searched(row["person"], mayors, rng)
        for said, told in zip(messages[::2], messages[1::2], strict=True):
            assert environment.step(turn(said["content"])) == [told]
        end = environment.step(turn(last["content"]))
        assert isinstance(end, End)
        (read if messages else guessed).append(end.reward)
    search.index.cache_clear()
    assert 110 < len(guessed) < 180 and sum(guessed) <= 10, "a guess of 60"
    assert 0.4 < sum(read) / len(read) < 0.6


@pytest.mark.parametrize("task", ["search", "programs"])
def test_the_comparison_has_one_turn_and_is_else_the_same(task: str) -> None:
    turns, alone = (
        load_config(PROJECT / f"examples/environments/{name}.yaml", check_files=False)
        for name in (task, f"{task}_alone")
    )
    assert turns.environment is not None and alone.environment == turns.environment.model_copy(update={"max_turns": 1})
    assert all(
        getattr(turns, key) == getattr(alone, key) for key in ("model", "warmup", "optimizer", "trainer", "eval")
    )
