"""The interface of an engine that generates while others work: responses are asked for, and come back later.

Nothing is generated under half-loaded weights: an answer has one weight version, and new weights are loaded while
nothing runs. What runs at that moment is cut: it comes back as far as it has come, and is asked for again with its
tokens as a prefix, which the engine runs once more under the new weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from mindgspo import progress
from mindgspo.rollout.protocol import Rollout, RolloutCounters, SamplingSettings
from mindgspo.types import FinishReason, Float32Array, Int32Array, Prompt, Response, Routing


def _no_ids() -> Int32Array:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Responses to one prompt.

    number: names the request; no other that runs has it. samples: their sample indexes. settings: as of a whole
    rollout; max_new_tokens counts the prefix, num_samples is not read. prefix: int32 [L], tokens that the one response
    asked for has already, without an EOS; its next token is number L of the response and of its random stream.
    """

    number: int
    prompt: Prompt
    samples: tuple[int, ...]
    settings: SamplingSettings
    prefix: Int32Array = field(default_factory=_no_ids)

    def __post_init__(self) -> None:
        assert self.samples and (len(self.samples) == 1 or not self.prefix.size), self
        assert self.prefix.size < self.settings.max_new_tokens, self

    @property
    def token_ids(self) -> list[int]:
        """Prompt and prefix."""
        return [*self.prompt.ids.tolist(), *self.prefix.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one response got in one go. ids, logprobs: int32, float32 [L], behind the prefix; none at all where it was
    cut before its first token. finish_reason: None where it was cut. routing: where it is recorded; its prompt_LX is of
    prompt and prefix but the last token, empty where the piece is."""

    ids: Int32Array
    logprobs: Float32Array
    finish_reason: FinishReason | None
    routing: Routing | None = None

    def __post_init__(self) -> None:
        assert self.ids.shape == self.logprobs.shape and self.ids.ndim == 1, (self.ids.shape, self.logprobs.shape)
        assert self.ids.size or self.finish_reason is None, "an ended response without a token"


NO_TOKENS = Piece(ids=_no_ids(), logprobs=np.zeros(0, np.float32), finish_reason=None)
"""Of a response that was cut before its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To the request of that number: a piece per sample, in the request's order, all under one version of the
    weights."""

    number: int
    weight_version: int
    pieces: tuple[Piece, ...]


class CompletionService(Protocol):
    """Generates in the background. Called by one thread. Raises RolloutError where an engine behind it fails for good,
    or answers with what it was not asked for."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Begin with these, in this order where not all can run at once. Returns at once."""

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """Answers that nobody has been given, in any order; waits until there is one, or for `timeout_s` at most."""

    def abort(self) -> list[Answer]:
        """Stop whatever runs. All answers that nobody has been given, those of cut requests among them: afterwards
        nothing runs."""

    def load_weights(self, folder: Path, version: int) -> None:
        """Take the weights in `folder` (see `rollout.weights_folder`) over; nothing may run. On return all engines have
        them, and answer with `version`."""

    def idle_seconds(self) -> float:
        """Time since the service began in which an engine had nothing to do, mean over the engines."""


class ServiceEngine:
    """Implements `RolloutEngine` with a service that has no other requests: asks, and waits for all.

    The weights are loaded by whoever owns the service.
    """

    def __init__(self, service: CompletionService) -> None:
        self._service = service
        self._weight_version: int | None = None

    def load_weights(self, version: int) -> None:
        """Take note of the version that the service has loaded."""
        self._weight_version = version

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`. The counters know tokens alone."""
        assert weight_version == self._weight_version, (weight_version, self._weight_version)
        samples = tuple(range(settings.num_samples))
        requests = [
            Request(number=number, prompt=prompt, samples=samples, settings=settings)
            for number, prompt in enumerate(prompts)
        ]
        self._service.submit(requests)
        answers: dict[int, Answer] = {}
        while len(answers) < len(requests):
            answers |= {answer.number: answer for answer in self._service.wait()}
            num_done, num_all = (len(some) * len(samples) for some in (answers, requests))
            progress.count(num_done, num_all, "responses")
        responses = tuple(
            whole_responses(request, answers[request.number].pieces, weight_version) for request in requests
        )
        return Rollout(responses=responses, counters=tokens_counted(responses))


def whole_responses(request: Request, pieces: Sequence[Piece], weight_version: int) -> tuple[Response, ...]:
    """Of a request without prefix that was not cut."""
    assert not request.prefix.size, request.number
    responses = []
    for sample, piece in zip(request.samples, pieces, strict=True):
        assert piece.finish_reason is not None, f"request {request.number} was cut"
        responses.append(
            Response(
                prompt_index=request.prompt.index,
                sample_index=sample,
                ids=piece.ids,
                logprobs=piece.logprobs,
                finish_reason=piece.finish_reason,
                temperature=request.settings.temperature,
                weight_version=weight_version,
                routing=piece.routing,
            )
        )
    return tuple(responses)


def tokens_counted(responses: Sequence[Sequence[Response]]) -> RolloutCounters:
    """What can be said of work that an engine elsewhere has done."""
    counters: Mapping[str, int] = dict.fromkeys(
        ("prefilled_prompts", "decode_steps", "busy_slot_steps", "slot_steps", "preemptions", "most_blocks"), 0
    )
    return RolloutCounters(
        **counters, generated_tokens=sum(response.length for siblings in responses for response in siblings)
    )


WaitingGroup = TypeVar("WaitingGroup")


def first_due(
    groups: Sequence[WaitingGroup],
    count: int,
    *,
    is_complete: Callable[[WaitingGroup], bool],
    due: Callable[[WaitingGroup], int],
    step: int,
    batch_size: int,
) -> list[WaitingGroup] | None:
    """The `count` complete groups that are due first, in the order of `groups`; None while step `step` has to wait.

    due: the last step that may train a group. Where passing over the others would leave more of them due in some later
    step than it can train, those are waited for: number i of the rest, by the step in which they are due, is trained
    i // batch_size steps after the next one at the latest.
    """
    complete = [group for group in groups if is_complete(group)]
    if len(complete) < count:
        return None
    dues = {id(group): due(group) for group in groups}
    chosen = {id(group) for group in sorted(complete, key=lambda group: dues[id(group)])[:count]}
    rest = sorted(dues[id(group)] for group in groups if id(group) not in chosen)
    fits = all(last > step + number // batch_size for number, last in enumerate(rest))
    if not fits and len(complete) < len(groups):
        return None
    return [group for group in groups if id(group) in chosen]
