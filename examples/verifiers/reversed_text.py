"""A taskset of verifiers with one turn: write a word backwards."""

import random

import verifiers.v1 as vf

__all__ = ["ReversedTextTaskset"]


class WordData(vf.TaskData):
    answer: str


class WordTask(vf.Task[WordData]):
    @vf.reward
    async def is_reversed(self, task: WordData, trace: vf.Trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.5)
    async def letters(self, task: WordData, trace: vf.Trace) -> float:
        return sum(a == b for a, b in zip(trace.last_reply, task.answer, strict=False)) / len(task.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class ReversedTextTaskset(vf.Taskset[WordTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        generator = random.Random(0)
        while True:
            word = "".join(generator.choices("abcdefgh", k=4))
            data = WordData(prompt=word, system_prompt="Write it backwards.", answer=word[::-1])
            yield WordTask(data, self.config.task)
