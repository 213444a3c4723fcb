"""A game with a hidden state: find a number between two bounds, told "more" or "less" after each guess."""

import re

from mindgspo.environments import End, Environment, Row, Turn


class Guess(Environment):
    """The row's answer is the number; its prompt names the bounds, which are 15 apart. Four guesses that halve what is
    left find 15 numbers out of 16, one guess finds one of 16."""

    def reset(self, row: Row, seed: int) -> None:
        self.number = int(row.answer)

    def step(self, turn: Turn) -> str | End:
        said = re.fullmatch(r"\s*(\d{1,3})\s*", turn.text)
        if said is None:
            return End(reward=0.0, info={"no_number": 1.0})
        guess = int(said[1])
        if guess == self.number:
            return End(reward=1.0, info={"guesses": turn.number})
        return "more" if guess < self.number else "less"

    def cut(self, reason: str) -> End:
        return End(reward=0.0)
