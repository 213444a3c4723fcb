"""An environment of verifiers with several turns: the game of examples/environments/guess.py, as its author would write
it for verifiers. The environment plays the user."""

import json
import re
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["GuessingEnv", "GuessingTaskset"]


class NumberData(vf.TaskData):
    answer: str
    solution: list[dict]
    """A demonstration, for a warm-up."""


class NumberTask(vf.Task[NumberData]):
    pass


class GuessingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=4)


class GuessingEnv(vf.Env[GuessingConfig]):
    async def run(self, task, agents):
        number, was_found = int(task.data.answer), False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                said = re.fullmatch(r"\s*(\d{1,3})\s*", segment.last_reply)
                if said is None or int(said[1]) == number:
                    was_found = said is not None
                    break
                segment = await interaction.turn("more" if int(said[1]) < number else "less")
        interaction.trace.record_reward("found", float(was_found))
        interaction.trace.record_metric("turns", interaction.trace.num_turns)


class RowsConfig(vf.TasksetConfig):
    rows: Path
    """Written by examples/environments/make_data.py."""


class GuessingTaskset(vf.Taskset[NumberTask, RowsConfig]):
    def load(self):
        for line in self.config.rows.read_text().splitlines():
            row = json.loads(line)
            data = NumberData(prompt=row["question"], answer=row["answer"], solution=row["solution"])
            yield NumberTask(data, self.config.task)
