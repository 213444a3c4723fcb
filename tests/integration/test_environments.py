"""Runs with an environment: what is trained is what was drawn, on one process and on several, stopped or not."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from games import GAME, GAMES
from running import mindgspo, read_lines, reproducible, sets, succeeded, training_lines, write_experiment

TURNS = 3


def play(folder: Path, name: str, *settings: str, game: str = GAME, fault: str = "") -> Path:
    """The run folder. fault: at which the run ends."""
    config = write_experiment(folder)
    (folder / "game.py").write_text(game, encoding="utf-8")
    run_dir = folder / name
    sized = (
        "model.max_position_embeddings=128", "rollout.max_new_tokens=96", "trainer.save_every=1", "warmup.max_steps=25",
        f"run_dir={run_dir}",
    )  # fmt: skip
    done = mindgspo("run", config, *sets(*GAMES, *sized, *settings), cwd=folder, env={"MINDGSPO_FAULT": fault})
    assert (done.returncode != 0) == bool(fault), done.stdout[-4000:] + done.stderr[-4000:]
    return run_dir


def told(run_dir: Path) -> list[dict]:
    """Metrics of training without times, and without how the decode steps were filled, which depends on them."""
    lines = reproducible(training_lines(run_dir))
    return [{key: value for key, value in line.items() if not key.startswith("rollout/")} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("games"), "whole")


def test_sampler_and_trainer_agree_bit_for_bit_on_every_turn(whole: Path) -> None:
    lines = training_lines(whole)
    assert lines and all(line["training/rollout_logprob_diff_max"] == 0.0 for line in lines)
    assert all(line["actor/first_ratio_error_max"] == 0.0 and line["actor/grad_norm"] > 0 for line in lines)
    for line in lines:
        ends = sum(value for name, value in line.items() if name.startswith("env/end/"))
        assert ends == pytest.approx(1.0) and line["env/turns/max"] <= TURNS and line["env/end/failed"] == 0
        assert 0 < line["env/action_token_share"] < 1


def test_a_sample_tells_its_turns(whole: Path) -> None:
    rows = read_lines(whole / "samples.jsonl")
    several = [row for row in rows if len(row["episode"]["turns"]) > 1]
    assert several, "no episode has two turns"
    for row in several:
        turns = row["episode"]["turns"]
        assert row["length"] == sum(turn["stop"] - turn["start"] for turn in turns)
        for turn, following in itertools.pairwise(turns):
            assert turn["text"] + turn["observation"] in row["response"] and turn["stop"] < following["start"]
            assert turn["observation"].endswith("<|im_start|>assistant\n")
        heard = turns[0]["observation"].split("user\n")[1].split("<|im_end|>")[0].split()
        assert heard[1] == str(len(turns[0]["text"].removesuffix("<|im_end|>")))


def test_it_goes_on_after_a_stop(whole: Path) -> None:
    stopped = play(whole.parent, "stopped", "trainer.max_steps=2")
    succeeded(
        "run", stopped / "config.yaml", *sets("resume=auto", "trainer.max_steps=4", f"run_dir={stopped}"),
        cwd=whole.parent,
    )  # fmt: skip
    assert told(stopped) == told(whole)


@pytest.mark.slow
def test_answers_that_are_not_determined_come_back_after_a_kill(tmp_path: Path) -> None:
    game = GAME.replace("def reset", "is_deterministic = False\n    def reset").replace("seed % 10", "time.time_ns()")
    killed = play(tmp_path, "killed", "trainer.save_every=2", game=f"import time\n{game}", fault="log.after:3=kill")
    said = [row["response"] for row in read_lines(killed / "samples.jsonl")]
    again = ("run", killed / "config.yaml", *sets("resume=auto"))
    assert mindgspo(*again, cwd=tmp_path, env={"MINDGSPO_FAULT": "update.before=kill"}).returncode < 0
    succeeded(*again, cwd=tmp_path)
    rows = read_lines(killed / "samples.jsonl")
    assert [row["response"] for row in rows[: len(said)]] == said
    assert {row["step"] for row in rows[: len(said)]} == {1, 2, 3} and rows[-1]["step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("plans", [
    ("plans.train.data_parallel=2", "plans.infer.data_parallel=2"),
    ("plans.train.data_parallel=2", "plans.infer.model_parallel=2"),
    ("plans.train.data_parallel=4", "plans.infer.data_parallel=2", "plans.infer.model_parallel=2"),
])  # fmt: skip
def test_it_is_the_same_on_several_processes(whole: Path, plans: tuple[str, ...]) -> None:
    split = play(
        whole.parent,
        "_".join(plan[-24:].replace(".", "-") for plan in plans),
        "trainer.samples_per_micro_batch=2",
        *plans,
    )
    for ours, theirs in zip(told(split), told(whole), strict=True):
        for name in ("critic/score/mean", "env/turns/mean", "env/observation_tokens/mean", "response_length/mean"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
        assert ours["actor/grad_norm"] == pytest.approx(theirs["actor/grad_norm"], rel=1e-3)
