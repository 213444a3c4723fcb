"""When each step of a schedule begins and ends: generation and training simulated, one ended response after the other.

The queue is that of `trainer.feed`; what generates is a number of replicas, each with decode steps whose seconds are
linear in what it decodes. Letters: P prompts, G responses per prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mindgspo.planner.simulated_replicas import Generation, Group, Rates, Span
from mindgspo.rollout.service import first_due

Schedule = Literal["sync", "one_step_off", "bounded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One step; seconds from the start of the run.

    begin: it asks for responses. drawn: its responses are there. trained: its weights are. stopped: nothing runs any
    more. end: generation has the weights. tokens: of its prompts and responses. busy: seconds in which a replica
    worked, mean over the replicas. staleness_mean, staleness_max: steps by which the weights that drew its response
    tokens were behind those that it began with.
    """

    step: int
    begin: float
    drawn: float
    trained: float
    stopped: float
    end: float
    tokens: int
    busy: float
    staleness_mean: float
    staleness_max: int

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def waiting(self) -> float:
        """Seconds in which the trainer waited, for responses or for the end of those that new weights wait for."""
        return self.drawn - self.begin + self.stopped - self.trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """steps: in their order. replicas: what each of them did."""

    steps: tuple[StepTimes, ...]
    replicas: tuple[tuple[Span, ...], ...]


def simulate(
    lengths_PG: NDArray[np.int64],
    rates: Rates,
    *,
    schedule: Schedule,
    prompts_per_step: int,
    replicas: int,
    slots: int,
    steps: int,
    max_staleness: int = 1,
    prompt_tokens: int = 0,
    is_dealt: bool = False,
    is_whole: bool = True,
) -> Timeline:
    """So many steps of a run; of its first and, if is_whole, last ones, behind which nothing is drawn ahead.

    lengths_PG: int64 [P, G], tokens of the responses in the order in which their prompts are drawn; the first prompts
    come again behind the last. slots: sequences that a replica decodes at once. max_staleness: not read with sync; 0 or
    1 with one_step_off. prompt_tokens: of each prompt; siblings share its prefill. is_dealt: each replica has an equal
    part of the prompts, as those of one engine have; else they are servers, which get the next one when they have room.
    """
    assert lengths_PG.ndim == 2 and lengths_PG.size and lengths_PG.min() >= 1, lengths_PG.shape
    assert min(prompts_per_step, replicas, slots, steps) >= 1 and max_staleness >= 0
    generation = Generation(rates, replicas, slots, prompt_tokens, is_dealt)
    staleness = 0 if schedule == "sync" else max_staleness
    total_steps = steps if is_whole else steps + staleness
    queue = _Queue(lengths_PG, prompts_per_step, staleness, schedule != "bounded", total_steps)
    done: list[StepTimes] = []
    now = 0.0
    for step in range(1, steps + 1):
        begin, busy = now, generation.busy
        generation.submit(queue.fill(step), now)
        while (chosen := queue.choice(step)) is None:
            now = generation.run_until_group()
        tokens = sum(prompt_tokens * len(group.lengths) + sum(group.lengths) for group in chosen)
        drawn, trained = now, now + rates.train_step + rates.train_token * tokens
        stopped = trained
        generation.run_until(trained)
        if queue.is_strict:
            stopped = max(trained, generation.run_until_all())
        else:
            generation.cut(trained)
        now = stopped + rates.push_weights
        behind = np.array([(step - 1 - version, count) for group in chosen for version, count in group.drawn.items()])
        done.append(
            StepTimes(
                step=step,
                begin=begin,
                drawn=drawn,
                trained=trained,
                stopped=stopped,
                end=now,
                tokens=tokens,
                busy=(generation.busy - busy) / replicas,
                staleness_mean=float((behind[:, 0] * behind[:, 1]).sum() / behind[:, 1].sum()),
                staleness_max=int(behind[:, 0].max()),
            )
        )
        generation.version = queue.version = step
        generation.submit([group for group in queue.groups if group.num_open], now)
    return Timeline(steps=tuple(done), replicas=tuple(tuple(each.spans) for each in generation.replicas))


class _Queue:
    """The prompts that wait, and the choice among them: as `trainer.feed.Feed` has them."""

    def __init__(
        self, lengths_PG: NDArray[np.int64], batch_size: int, max_staleness: int, is_strict: bool, total_steps: int
    ) -> None:
        self._lengths_PG, self._batch_size, self._max_staleness = lengths_PG, batch_size, max_staleness
        self.is_strict, self._total_steps = is_strict, total_steps
        self._taken = 0
        self.version = 0
        self.groups: list[Group] = []  # in the order in which their prompts were taken

    def fill(self, step: int) -> list[Group]:
        """Take prompts until those of this step and of the steps ahead are there; returns the new ones."""
        ahead = min(self._max_staleness, self._total_steps - step)
        missing = (1 + ahead) * self._batch_size - len(self.groups)
        rows = [(self._taken + i) % len(self._lengths_PG) for i in range(missing)]
        self._taken += missing
        new = [Group(row, [0] * len(row), len(row)) for row in self._lengths_PG[rows].tolist()]
        self.groups += new
        return new

    def choice(self, step: int) -> list[Group] | None:
        """The groups that the step trains, which leave the queue; None while they are not there."""
        size = self._batch_size
        if self.is_strict:
            chosen = self.groups[:size]
            if any(group.num_open for group in chosen):
                return None
            self.groups = self.groups[size:]
            return chosen
        due_first = first_due(
            self.groups, size, is_complete=lambda group: not group.num_open, due=self._due, step=step, batch_size=size
        )
        if due_first is not None:
            taken = set(map(id, due_first))
            self.groups = [group for group in self.groups if id(group) not in taken]
        return due_first

    def _due(self, group: Group) -> int:
        """The last step that may train it."""
        return min(group.drawn, default=self.version) + self._max_staleness + 1
