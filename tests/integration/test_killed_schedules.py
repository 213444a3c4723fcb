"""Runs with servers of their own, killed again and again: nothing is lost, nothing is trained twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from games import GAME, GAMES
from running import command, environment, read_lines, reproducible, sets

MODEL = Path(__file__).resolve().parents[2] / "model_configs" / "qwen2_tiny.yaml"
EXPERIMENT = f"""include: {MODEL}
experiment: killed
seed: 1
model: {{hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2}}
data:
  train: {{format: arithmetic, split: train}}
  eval: {{format: arithmetic, split: test, max_rows: 8}}
  max_prompt_length: 32
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 64, slots: 8}}
optimizer: {{lr: 1e-4}}
trainer: {{max_steps: 40, prompts_per_mini_batch: 2, samples_per_micro_batch: 8, length_multiple: 16, save_every: 1}}
eval: {{every: 10}}
logging: {{groups_per_step: null}}
"""
RESPONSES = 16
# An untrained model solves no problem. Vowels it has, more or fewer: each step changes the weights.
REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info):
    return sum(character in "aeiou" for character in solution_str) / 64
"""
REWARDED = ("reward.functions=[reward.py:compute_score]",)


def start(folder: Path, name: str, *settings: str) -> subprocess.Popen:
    path = folder / "killed.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    (folder / "game.py").write_text(GAME, encoding="utf-8")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command("run", path, *sets(f"run_dir={folder / name}", "resume=auto", *settings)),
            stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment(), start_new_session=True,
        )  # fmt: skip


def finish(folder: Path, name: str, *settings: str) -> None:
    assert start(folder, name, *settings).wait(600) == 0, (folder / f"{name}.log").read_text()[-4000:]


def num_steps(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def kill(run: subprocess.Popen) -> None:
    """The trainer alone: its servers must follow, and its reward processes."""
    family = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGKILL)
    run.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive, [process.cmdline() for process in alive]


def check_account(run_dir: Path, *, batches_ahead: int) -> None:
    """Every step once; what waited + what was begun = what was drawn + what waits; every prompt is trained once."""
    steps = [row for row in read_lines(run_dir / "metrics.jsonl") if "samples/generated" in row]
    assert [row["step"] for row in steps] == list(range(1, 41))
    waiting = 0
    for row in steps:
        drawn = row["samples/generated"]
        assert waiting + row["samples/begun"] == drawn + row["samples/waiting"] + row.get("samples/expired", 0), row
        assert drawn == row["samples/trained"] + row["samples/filtered"] + row.get("samples/dropped", 0) == RESPONSES
        assert row["staleness/token_max"] <= batches_ahead
        waiting = row["samples/waiting"]
    assert waiting == 0
    trained = [(row["prompt_index"], row["sample_index"]) for row in read_lines(run_dir / "samples.jsonl")]
    assert len(trained) == len(set(trained)) == 40 * RESPONSES


def check_learnt(run_dir: Path) -> None:
    """Weights of other steps would show: they change."""
    norms = [row["actor/grad_norm"] for row in read_lines(run_dir / "metrics.jsonl") if "actor/grad_norm" in row]
    assert len(norms) == 40 and sum(norm > 0 for norm in norms) > 30, norms


def samples_of(run_dir: Path) -> list[dict]:
    """Samples without the time that environments took."""
    rows = read_lines(run_dir / "samples.jsonl")
    for row in rows:
        for turn in row.get("episode", {}).get("turns", ()):
            del turn["seconds"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "staleness", "kills", "task"),
    [
        ("bounded", 2, 20, REWARDED),
        ("one_step_off", 1, 5, REWARDED),
        ("bounded", 2, 20, GAMES),
        ("one_step_off", 1, 20, GAMES),
    ],
    ids=["bounded", "one_step_off", "bounded-games", "one_step_off-games"],
)
def test_a_run_survives_every_kill(
    tmp_path: Path, schedule: str, staleness: int, kills: int, task: tuple[str, ...]
) -> None:
    settings = (f"trainer.schedule={schedule}", f"trainer.max_staleness={staleness}", *task)
    choose, survived = random.Random(7), 0
    while survived < kills:
        run, before = start(tmp_path, "killed", *settings), num_steps(tmp_path / "killed")
        # Somewhere between its start and a few steps on.
        wanted, rest = before + choose.choice((0, 0, 1, 2)), choose.uniform(0.0, 1.0)
        until = time.monotonic() + choose.uniform(3.0, 25.0)
        while run.poll() is None and time.monotonic() < until and num_steps(tmp_path / "killed") <= wanted:
            time.sleep(0.02)
        time.sleep(0.3 * rest)
        assert run.poll() is None, "it ended before it was killed: " + (tmp_path / "killed.log").read_text()[-2000:]
        kill(run)
        survived += 1
    finish(tmp_path, "killed", *settings)
    check_account(tmp_path / "killed", batches_ahead=staleness)
    if task == REWARDED:
        check_learnt(tmp_path / "killed")
    if schedule == "one_step_off":  # which weights draw a token does not depend on the clock
        finish(tmp_path, "whole", *settings)
        check_equal(tmp_path / "killed", tmp_path / "whole")
    print(json.dumps({"schedule": schedule, "kills": kills, "survived": survived}))


def check_equal(*runs: Path) -> None:
    """Weights, samples and metrics, but for what clocks decide."""
    ours, theirs = (run_dir / "export" / "model.safetensors" for run_dir in runs)
    assert ours.read_bytes() == theirs.read_bytes()
    ours, theirs = map(samples_of, runs)
    assert ours == theirs
    ours, theirs = (read_lines(run_dir / "metrics.jsonl") for run_dir in runs)
    assert reproducible(ours) == reproducible(theirs)


# ---- servers that are killed


TWO = ("plans.infer.data_parallel=2", "watch.min_seconds=10", *REWARDED)
SCHEDULES = {"bounded": 2, "one_step_off": 1}


def settings_of(schedule: str) -> tuple[str, ...]:
    return (f"trainer.schedule={schedule}", f"trainer.max_staleness={SCHEDULES[schedule]}", *TWO)


class Attacked:
    """A run whose servers are attacked, in folder / "attacked"."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.root, self.log = folder / "attacked", folder / "attacked.log"
        self.run = start(folder, "attacked", *settings)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Or until the run has ended."""
        give_up = time.monotonic() + 600
        while self.run.poll() is None and not condition():
            assert time.monotonic() < give_up, self.log.read_text()[-4000:]
            time.sleep(0.02)

    def wait_for_steps(self, count: int) -> None:
        before = num_steps(self.root)
        self.wait_until(lambda: num_steps(self.root) >= before + count)

    def wait_for(self, text: str, count: int = 1) -> None:
        self.wait_until(lambda: self.log.read_text().count(text) >= count)

    def signal(self, number: signal.Signals, *servers: int) -> None:
        """To servers of the run, by their place among those that there are now."""
        assert self.run.poll() is None, "it has ended before: " + self.log.read_text()[-2000:]
        processes = list(json.loads((self.root / "logs" / "servers.json").read_text()).values())
        for server in servers:
            os.kill(processes[server], number)


LOST, BACK = "this server is lost", "the server has come back, with weights of version"


def attack(run: Attacked, kind: str, choose: random.Random) -> None:
    first = choose.randrange(2)
    run.wait_for_steps(choose.randint(1, 4))
    time.sleep(choose.uniform(0.0, 1.0))
    if kind == "all":
        run.signal(signal.SIGKILL, 0, 1)
        run.wait_for(BACK, 1)
    elif kind == "stopped":
        run.signal(signal.SIGSTOP, first)
        run.wait_for(LOST)
        run.signal(signal.SIGCONT, first)
        run.wait_for(BACK)
    else:
        run.signal(signal.SIGKILL, first)
        run.wait_for(LOST)
        if kind == "each":
            run.wait_for(BACK)
            run.signal(signal.SIGKILL, 1 - first)
        elif kind == "last":
            run.wait_for_steps(2)
            run.signal(signal.SIGKILL, 1 - first)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(folder, "whole", *settings_of("one_step_off"))
    return folder / "whole"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["one", "each", "all", "stopped", "last"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_survives_its_servers(
    tmp_path: Path, request: pytest.FixtureRequest, schedule: str, kind: str, seed: int
) -> None:
    """Servers are killed, one, one by one and all at once, and started again; or stopped for longer than they may be
    silent. Where nobody starts them again, the last one ends the run, which can be resumed."""
    settings = settings_of(schedule)
    restart = f"rollout.servers.restart={str(kind != 'last').lower()}"
    run = Attacked(tmp_path, *settings, restart)
    attack(run, kind, random.Random(seed))
    code = run.run.wait(900)
    text = run.log.read_text()
    assert code == (kind == "last") and LOST in text, text[-4000:]
    if kind == "last":
        assert "error: http://127.0.0.1:" in text and "Traceback" not in text, text[-4000:]
        finish(tmp_path, "attacked", *settings)
    check_account(run.root, batches_ahead=SCHEDULES[schedule])
    check_learnt(run.root)
    assert not (run.root / "rollout_weights").exists() and not list(Path("/dev/shm").glob("mindgspo-attacked-*"))
    if schedule == "one_step_off":
        check_equal(run.root, request.getfixturevalue("undisturbed"))
