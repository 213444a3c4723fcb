"""A small game for runs with an environment."""

GAME = """
from mindgspo.environments import End, Environment

class Game(Environment):
    def reset(self, row, seed):
        self.heard = [seed % 10]

    def step(self, turn):
        self.heard.append(len(turn.text))
        if turn.number == 3:
            return End(reward=len(set(turn.text)) / 20)
        return " ".join(map(str, self.heard))

    def cut(self, reason):
        return End(reward=0.0)
"""
"""Three turns, of which the last is paid for different characters; each answer is made of the attributes."""

GAMES = ("environment.path=game.py:Game", "environment.max_turn_tokens=16", "reward.functions=[environment]")
"""Settings of an experiment with `GAME` in game.py."""
