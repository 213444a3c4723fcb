"""Answers that a run takes from its folder when it plays turns again."""

from __future__ import annotations

from pathlib import Path

from mindgspo.rewards.verification import JobOutcome, Reply
from mindgspo.rollout.answer_log import AnswerLog, key_of
from mindgspo.rollout.protocol import Purpose, RandomStream

STREAM = RandomStream(seed=1, purpose=Purpose.TRAINING, step=2)


def done(value: object) -> Reply:
    return Reply(outcome=JobOutcome.DONE, value=value)  # pyright: ignore[reportArgumentType]


def test_a_stopped_run_finds_what_answered_and_no_failure(tmp_path: Path):
    log = AnswerLog(tmp_path / "answers", rank=0, new_run=True)
    log.add("a", done({"messages": ["1\n"]}))
    log.add("b", Reply(outcome=JobOutcome.TIMEOUT, message="late"))
    with (tmp_path / "answers" / "1.rank_0.jsonl").open("ab") as file:
        file.write(b'{"key": "c", "va')  # killed while it wrote
    again = AnswerLog(tmp_path / "answers", rank=0, new_run=False)
    assert again.find("a") == done({"messages": ["1\n"]})
    assert again.find("b") is None and again.find("c") is None
    assert (
        AnswerLog(tmp_path / "answers", rank=0, new_run=True).find("a") is None and not (tmp_path / "answers").exists()
    )


def test_answers_last_for_two_checkpoints(tmp_path: Path):
    log = AnswerLog(tmp_path, rank=0, new_run=True)
    for name in "abc":
        log.add(name, done(name))
        log.state()
    found = AnswerLog(tmp_path, rank=0, new_run=False)
    assert [found.find(name) for name in "abc"] == [None, None, done("c")]


def test_a_found_answer_outlives_its_file(tmp_path: Path):
    AnswerLog(tmp_path, rank=0, new_run=True).add("a", done("a"))
    second = AnswerLog(tmp_path, rank=0, new_run=False)
    second.add("a", second.find("a") or done("never"))
    second.state()
    (tmp_path / "1.rank_0.jsonl").unlink(missing_ok=True)
    assert AnswerLog(tmp_path, rank=0, new_run=False).find("a") == done("a")


def test_a_key_is_of_job_sample_and_stream():
    job = {"kind": "step", "text": "x", "state": {"b": 1, "a": 2}}
    same = {"state": {"a": 2, "b": 1}, "text": "x", "kind": "step"}
    assert key_of(job, 0, STREAM) == key_of(same, 0, STREAM)
    others = [key_of(job, 1, STREAM), key_of({**job, "text": "y"}, 0, STREAM)]
    others.append(key_of(job, 0, RandomStream(seed=1, purpose=Purpose.TRAINING, step=3)))
    assert len({key_of(job, 0, STREAM), *others}) == 4
