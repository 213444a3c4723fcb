"""How turns reach the worker processes of an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config.environment import EnvironmentSection
from mindgspo.rollout import player as module
from mindgspo.rollout.player import Player

GAME = """
from mindgspo.environments import End, Environment

class Game(Environment):
    def step(self, turn):
        return End(reward=1.0)
"""
RESET = {"kind": "reset", "row": {"prompt": "?", "answer": "1"}, "seed": 0}


class Clock:
    """Time that passes by waiting alone, for an event that never comes."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.slept.append(seconds)
        self.now += seconds
        return False

    def set(self) -> None:
        pass


def test_turns_begin_at_the_given_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "game.py").write_text(GAME)
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    workers = {"count": 1, "turns_per_second": 4.0}
    with Player(EnvironmentSection(path=f"{tmp_path}/game.py:Game", workers=workers)) as player:
        monkeypatch.setattr(player, "_is_closed", clock)
        for _ in range(3):
            reply = player.submit(RESET).result()
            assert reply.value == {"state": {}}, reply.message
        assert clock.slept == [0.0, 0.25, 0.25]  # the first begins at once
        clock.now += 0.1
        player.submit(RESET).result()
    assert clock.slept[-1] == pytest.approx(0.15) and clock.now == pytest.approx(100.75)


def test_a_turn_that_waits_for_its_time_ends_with_the_player(tmp_path: Path):
    (tmp_path / "game.py").write_text(GAME)
    workers = {"count": 2, "turns_per_second": 0.001}
    with Player(EnvironmentSection(path=f"{tmp_path}/game.py:Game", workers=workers)) as player:
        assert player.submit(RESET).result().value == {"state": {}}
        waiting = player.submit(RESET)  # its turn is in a thousand seconds
    assert waiting.cancelled() or waiting.result(timeout=60).message == "the environment was closed"
