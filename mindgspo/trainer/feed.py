"""The queue of prompts whose responses are generated while a step trains, between a service and the trainer.

The age of a token is the number of steps between the weights that drew it and those that a step begins with; a group is
as old as its oldest token. Each step chooses its groups so that none is passed over until it becomes older than
`max_staleness`: see `first_due`.

Metrics:
  Schedule:
    samples/begun:
      meaning: responses that the servers were asked for in this step
      unit: responses
      healthy: as many as are trained and filtered, over many steps
    samples/waiting:
      meaning: responses after the step that were asked for and not drawn, ended or not
      unit: responses
      healthy: rollout.prompts_per_step x num_generations x trainer.max_staleness; 0 at the end of the run
    samples/expired:
      meaning: responses that became older than trainer.max_staleness before a step drew them, because steps
        draw less than a batch
      unit: responses
      healthy: '0'
    schedule/queue:
      meaning: prompts of later steps whose responses have all ended
      unit: prompts
      healthy: 'more than 0 with trainer.schedule=bounded: the next step need not wait'
    schedule/running:
      meaning: prompts of later steps with responses that have not ended
      unit: prompts
      healthy: as many as the servers' slots can take
    schedule/trainer_idle_share:
      meaning: share of the step in which the trainer waited for responses
      unit: share
      healthy: below 0.1
      action: 'above: give generation more of the cards, or raise trainer.max_staleness'
    schedule/rollout_idle_share:
      meaning: share of the time since the last step in which a server had nothing to do, mean over the servers
      unit: share
      healthy: below 0.1
      action: 'above: give training more of the cards, or raise trainer.max_staleness'
    staleness/token_mean:
      meaning: steps between the weights that drew a trained token and those that the step began with
      unit: steps
      healthy: below trainer.max_staleness
    staleness/token_max:
      meaning: the same of the oldest token
      unit: steps
      healthy: at most trainer.max_staleness
    staleness/mixed_share:
      meaning: trained responses whose tokens were drawn by several versions of the weights
      unit: share of responses
      healthy: 0 with trainer.schedule=one_step_off
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo import progress
from mindgspo.parallel.platform import heartbeat
from mindgspo.rollout.protocol import SamplingSettings
from mindgspo.rollout.service import Answer, CompletionService, Request, first_due
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.trainer.partial_responses import (
    PartialGroup,
    PartialResponse,
    PromptsByIndex,
    arrays_of,
    describe,
    restore,
)
from mindgspo.types import Prompt, Response


@dataclass(slots=True, kw_only=True)
class _Account:
    """Counts since the last step's metrics."""

    waiting: int
    """Groups that waited at the start."""
    began: float
    """Time of the start, on the feed's clock."""
    idle_before: float
    """Seconds that the service had been idle until then."""
    taken: int = 0
    """Groups whose prompts were taken."""
    drawn: int = 0
    """Groups that were drawn for a step."""
    expired: int = 0
    """Groups that became too old."""
    waited_s: float = 0.0
    """Seconds in which the trainer waited."""


class Feed:
    """Requests responses from a service ahead of the steps that train them; stateful.

    take_prompts: returns the next prompts, in the order of training.
    sampling: settings of every training response; its step and draw are replaced.
    batch_size: prompts of a step.
    max_staleness: steps by which a token may be stale; this many batches are requested ahead.
    is_strict: a step trains the prompts that were taken first, and new weights wait until all running requests have
        ended (one_step_off). Otherwise it trains the prompts whose responses ended first, as long as no other becomes
        too old, and running requests continue under new weights (bounded).
    total_steps: steps of the run; nothing is requested beyond it.
    clock: returns seconds from an arbitrary origin.
    """

    def __init__(
        self,
        service: CompletionService,
        take_prompts: Callable[[int], list[Prompt]],
        sampling: SamplingSettings,
        *,
        batch_size: int,
        max_staleness: int,
        is_strict: bool,
        total_steps: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._service, self._take_prompts, self._sampling = service, take_prompts, sampling
        self._batch_size, self._max_staleness, self._is_strict = batch_size, max_staleness, is_strict
        self._total_steps, self._clock = total_steps, clock
        self._groups: list[PartialGroup] = []  # in the order in which their prompts were taken
        self._running: dict[int, tuple[PartialGroup, tuple[int, ...]]] = {}
        self._next_number = 0
        self._step, self._takes = 0, 0  # the step that draws, and how often it has taken prompts
        self._steps_of: dict[int, int] = {}  # steps before the weights of a version
        self._version = 0
        self._account = self._new_account()

    def __len__(self) -> int:
        return len(self._groups)

    def draw(self, num_prompts: int, *, step: int) -> list[PartialGroup]:
        """Draw this many complete groups for step `step`, in the order in which their prompts were taken; waits for
        them."""
        if step != self._step:
            self._step, self._takes = step, 0
        self._drop_expired()
        self._fill(num_prompts)
        while (chosen := self._choice(num_prompts)) is None:
            num_samples = self._sampling.num_samples
            num_whole = sum(group.is_complete for group in self._groups)
            progress.count(min(num_whole, num_prompts) * num_samples, num_prompts * num_samples, "responses")
            self._absorb(self._waited(self._service.wait))
        drawn = set(chosen)
        self._groups = [group for group in self._groups if group not in drawn]
        self._account.drawn += len(chosen)
        return chosen

    def push_weights(self, folder: Path, version: int) -> None:
        """Let the service continue with the weights in `folder`, those after the step that drew last."""
        if self._is_strict:
            while self._running:
                self._absorb(self._waited(self._service.wait))
        else:
            self._abort()
        self._service.load_weights(folder, version)
        self._version = version
        self._steps_of[version] = self._step
        oldest = self._step - self._max_staleness - 1
        self._steps_of = {key: steps for key, steps in self._steps_of.items() if steps >= oldest}
        self._submit(self._groups)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend generation within the block; afterwards it continues where it stopped."""
        self._abort()
        yield
        self._submit(self._groups)

    def metrics(self, trained: Sequence[Response], *, seconds: float) -> dict[str, float]:
        """Metrics of the step that drew last. trained: its responses. seconds: its time, from draw to hand-over."""
        account, self._account = self._account, self._new_account()
        assert account.waiting + account.taken == account.drawn + account.expired + len(self._groups), account
        samples = self._sampling.num_samples
        idle, elapsed = self._account.idle_before - account.idle_before, self._account.began - account.began
        metrics = {
            "samples/begun": account.taken * samples,
            "samples/waiting": len(self._groups) * samples,
            "schedule/queue": sum(group.is_complete for group in self._groups),
            "schedule/running": sum(not group.is_complete for group in self._groups),
            "schedule/trainer_idle_share": account.waited_s / seconds,
            "schedule/rollout_idle_share": idle / elapsed if elapsed else 0.0,
        }
        if account.expired:
            metrics["samples/expired"] = account.expired * samples
        return metrics | self._staleness(trained)

    def state(self) -> dict[str, Any]:
        """See `Stateful`. Running requests are saved with the tokens received so far, and continue from there."""
        return {
            "step": self._step,
            "steps_of": [[version, steps] for version, steps in self._steps_of.items()],
            "groups": describe(self._groups),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Tokens of the waiting responses, whole and in part."""
        return arrays_of(self._groups, with_routing=True)

    def load(self, state: Mapping[str, Any], arrays: TensorSource, prompts: PromptsByIndex) -> None:
        """Continue from what `state` and `arrays` returned; generation continues with the next hand-over."""
        assert not self._running, "the feed is in use"
        self._step, self._takes = int(state["step"]), 0
        self._steps_of = {int(version): int(steps) for version, steps in state["steps_of"]}
        read = {name: arrays.read(name) for name in arrays.tensors}
        self._groups = restore(state["groups"], read, stream=self._sampling.stream, prompts=prompts)
        self._account = self._new_account()

    def _new_account(self) -> _Account:
        return _Account(waiting=len(self._groups), began=self._clock(), idle_before=self._service.idle_seconds())

    def _fill(self, num_prompts: int) -> None:
        """Take prompts until there are enough for this draw and for the steps ahead."""
        ahead = min(self._max_staleness, self._total_steps - self._step) * self._batch_size
        missing = num_prompts + ahead - len(self._groups)
        while missing > 0:
            # No prompt occurs twice in one take, and each take has its own random numbers.
            prompts = self._take_prompts(min(missing, max(num_prompts, self._batch_size)))
            missing -= len(prompts)
            stream = replace(self._sampling.stream, step=self._step, draw=self._takes)
            self._takes += 1
            self._account.taken += len(prompts)
            groups = [
                PartialGroup(
                    prompt=prompt,
                    stream=stream,
                    partials=[PartialResponse() for _ in range(self._sampling.num_samples)],
                )
                for prompt in prompts
            ]
            self._groups += groups
            self._submit(groups)

    def _choice(self, num_prompts: int) -> list[PartialGroup] | None:
        """The groups of a draw; None while they are incomplete. Strict: the first ones; else see `first_due`."""
        if self._is_strict:
            chosen = self._groups[:num_prompts]
            return chosen if all(group.is_complete for group in chosen) else None
        return first_due(
            self._groups,
            num_prompts,
            is_complete=lambda group: group.is_complete,
            due=self._due,
            step=self._step,
            batch_size=self._batch_size,
        )

    def _due(self, group: PartialGroup) -> int:
        """The last step that may train a group."""
        oldest = group.oldest_version
        steps = self._steps_of[self._version if oldest is None else oldest]
        return steps + self._max_staleness + 1

    def _drop_expired(self) -> None:
        """Drop groups that became too old, which happens if steps train fewer groups than a batch."""
        kept = [group for group in self._groups if self._due(group) >= self._step]
        self._account.expired += len(self._groups) - len(kept)
        self._groups = kept

    def _submit(self, groups: Sequence[PartialGroup]) -> None:
        """Request what these groups lack: one request for all responses of a group without a token yet, and one for
        each response that continues."""
        requests = []
        for group in groups:
            open_samples = [number for number, partial in enumerate(group.partials) if partial.finish_reason is None]
            fresh = tuple(number for number in open_samples if not group.partials[number].ids.size)
            begun = [(number,) for number in open_samples if group.partials[number].ids.size]
            for samples in ([fresh] if fresh else []) + begun:
                requests.append(self._request(group, samples))
                self._running[requests[-1].number] = (group, samples)
        self._service.submit(requests)

    def _request(self, group: PartialGroup, samples: tuple[int, ...]) -> Request:
        number, self._next_number = self._next_number, self._next_number + 1
        settings = replace(self._sampling, stream=group.stream)
        first = group.partials[samples[0]]
        return Request(
            number=number,
            prompt=group.prompt,
            samples=samples,
            settings=settings,
            prefix=first.ids,
            so_far=first.so_far,
        )

    def _abort(self) -> None:
        if self._running:
            self._absorb(self._waited(self._service.abort))
            assert not self._running, f"{len(self._running)} requests run after an abort"

    def _absorb(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            group, samples = self._running.pop(answer.number)
            for sample, piece in zip(samples, answer.pieces, strict=True):
                group.partials[sample].append(piece, answer.weight_version)
            heartbeat.tick()

    def _waited(self, answers: Callable[[], list[Answer]]) -> list[Answer]:
        began = self._clock()
        found = answers()
        self._account.waited_s += self._clock() - began
        return found

    def _staleness(self, trained: Sequence[Response]) -> dict[str, float]:
        """Staleness of the tokens of the step's responses, in steps."""
        if not trained:
            return {}
        behind = []
        for response in trained:
            versions = response.token_versions
            if versions is None:
                versions = np.full(response.length, response.weight_version)
            steps = np.array([self._steps_of[version] for version in versions.tolist()])
            behind.append(np.maximum(self._step - 1 - steps, 0))  # weights that no update has changed are as new
        tokens = np.concatenate(behind)
        return {
            "staleness/token_mean": float(tokens.mean()),
            "staleness/token_max": float(tokens.max()),
            "staleness/mixed_share": sum(bool(one.min() < one.max()) for one in behind) / len(behind),
        }
