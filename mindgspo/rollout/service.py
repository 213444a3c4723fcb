"""The interface of generation in the background: responses are requested, and arrive later.

No response is generated with half-loaded weights: an answer has one weight version, and weights are loaded while
nothing runs. Requests that run at that moment are aborted: they return the tokens generated so far, and are submitted
again with these tokens as a prefix, which the engine prefills under the new weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from mindgspo import progress
from mindgspo.rollout.protocol import Rollout, RolloutCounters, SamplingSettings
from mindgspo.types import Episode, FinishReason, Float32Array, Int32Array, Prompt, Response, Routing, TurnSpan


def _no_ids() -> Int32Array:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSoFar:
    """What is known of an episode beside its tokens."""

    turns: tuple[TurnSpan, ...] = ()
    """Places count from the end of the prompt. The last turn is open if it was aborted, or has no answer yet."""
    state: dict[str, Any] | None = None
    """The environment's attributes, JSON; None before its first answer."""
    observed: tuple[int, ...] = ()
    """Tokens of an observation behind which nothing was drawn yet."""
    ended: Episode | None = None
    """The whole episode; None while it has not ended."""

    def to_json(self) -> dict[str, Any]:
        """The record as JSON."""
        return {
            "turns": [turn.to_json() for turn in self.turns],
            "state": self.state,
            "observed": list(self.observed),
            "ended": None if self.ended is None else self.ended.to_json(),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> EpisodeSoFar:
        """The inverse of `to_json`."""
        return cls(
            turns=tuple(map(TurnSpan.from_json, fields["turns"])),
            state=fields["state"],
            observed=tuple(fields["observed"]),
            ended=None if fields["ended"] is None else Episode.from_json(fields["ended"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Asks for responses to one prompt."""

    number: int
    """Unique among the requests that run."""
    prompt: Prompt
    samples: tuple[int, ...]
    """Sample indices of the responses."""
    settings: SamplingSettings
    """As of a whole rollout: max_new_tokens includes the prefix, and num_samples is not used."""
    prefix: Int32Array = field(default_factory=_no_ids)
    """int32 [L], tokens that the response has already, without the EOS at its end; only for a request of one sample.
    The next token has number L in the response and in its random stream."""
    may_continue: bool = False
    """Whether a response that ended may be continued by another request, with more tokens behind it: an engine may
    then keep its part of the cache."""
    so_far: EpisodeSoFar | None = None
    """Of the episode that the prefix belongs to; only an `EpisodeService` reads it."""

    def __post_init__(self) -> None:
        assert self.samples and (len(self.samples) == 1 or not self.prefix.size), self
        # An episode that is full may still wait for its environment.
        assert self.prefix.size < self.settings.max_new_tokens + (self.so_far is not None), self

    @property
    def token_ids(self) -> list[int]:
        """Ids of prompt and prefix."""
        return [*self.prompt.ids.tolist(), *self.prefix.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of one response that one request produced.

    Example: a response aborted after tokens 5 and 7 gives ids [5, 7] and no finish_reason; 5, 7 is its next prefix.
    """

    ids: Int32Array
    """int32 [L], the tokens after the prefix; empty if it was aborted before its first token."""
    logprobs: Float32Array
    """float32 [L]; of an episode only those of the tokens that were drawn."""
    finish_reason: FinishReason | None
    """None if it was aborted."""
    routing: Routing | None = None
    """Recorded experts; prompt_LX covers prompt and prefix but the last token, and is empty for an empty piece."""
    so_far: EpisodeSoFar | None = None
    """Given by an `EpisodeService`."""

    def __post_init__(self) -> None:
        if self.so_far is not None:
            return
        assert self.ids.shape == self.logprobs.shape and self.ids.ndim == 1, (self.ids.shape, self.logprobs.shape)
        assert self.ids.size or self.finish_reason is None, "an ended response without a token"


NO_TOKENS = Piece(ids=_no_ids(), logprobs=np.zeros(0, np.float32), finish_reason=None)
"""The piece of a response that was aborted before its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request."""

    number: int
    """The request's."""
    weight_version: int
    pieces: tuple[Piece, ...]
    """One per sample, in the request's order, all drawn with the same weights."""
    samples: tuple[int, ...] | None = None
    """Sample indices of the pieces, where a request is answered sample by sample. None: all of the request's."""


class CompletionService(Protocol):
    """Generates in the background, and is called from one thread. Raises RolloutError if an engine fails for good,
    or gives an invalid answer."""

    answers_each_sample: bool
    """Whether a request that may be continued gets an answer for each of its samples as soon as that has ended."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests in this order, and return at once."""
        ...

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """Return new answers, in any order. Waits for one, at most for `timeout_s`."""
        ...

    def abort(self) -> list[Answer]:
        """Abort all requests, and return all new answers, theirs included. Nothing runs afterwards."""
        ...

    def load_weights(self, folder: Path, version: int) -> None:
        """Load the weights in `folder` (see `rollout.weights_folder`); nothing may run. On return all engines have
        them, and answer with `version`; one that is lost gets them before it is asked again."""
        ...

    def idle_seconds(self) -> float:
        """Time since the start in which an engine had no work, averaged over the engines."""
        ...


class ServiceEngine:
    """Implements `RolloutEngine` with a service that has no other requests. The owner of the service loads its
    weights."""

    def __init__(self, service: CompletionService) -> None:
        self._service = service
        self._weight_version: int | None = None

    def load_weights(self, version: int) -> None:
        """Note the version that the service has loaded."""
        self._weight_version = version

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`. The counters contain the number of tokens only."""
        assert weight_version == self._weight_version, (weight_version, self._weight_version)
        requests = numbered_requests(prompts, settings)
        self._service.submit(requests)
        answers: dict[int, Answer] = {}
        while len(answers) < len(requests):
            answers |= {answer.number: answer for answer in self._service.wait()}
            progress.count(len(answers) * settings.num_samples, len(requests) * settings.num_samples, "responses")
        responses = tuple(
            whole_responses(request, answers[request.number].pieces, weight_version) for request in requests
        )
        return Rollout(responses=responses, counters=tokens_counted(responses))


def numbered_requests(prompts: Sequence[Prompt], settings: SamplingSettings) -> list[Request]:
    """Return one request per prompt, numbered from 0, for all samples that the settings ask for."""
    samples = tuple(range(settings.num_samples))
    return [
        Request(number=number, prompt=prompt, samples=samples, settings=settings)
        for number, prompt in enumerate(prompts)
    ]


def whole_responses(request: Request, pieces: Sequence[Piece], weight_version: int) -> tuple[Response, ...]:
    """Return the responses to a request that has no prefix and was not aborted."""
    assert not request.prefix.size, request.number
    responses = []
    for sample, piece in zip(request.samples, pieces, strict=True):
        assert piece.finish_reason is not None, f"request {request.number} was aborted"
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
                episode=None if piece.so_far is None else piece.so_far.ended,
            )
        )
    return tuple(responses)


def tokens_counted(responses: Sequence[Sequence[Response]]) -> RolloutCounters:
    """Return the counters of work done elsewhere: only the tokens are known."""
    return RolloutCounters(generated_tokens=sum(response.length for siblings in responses for response in siblings))


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
    """Return the `count` complete groups that are due first, in the order of `groups`; None while step `step` has to
    wait for more of them.

    due: returns the last step that may train a group. The step waits where passing over incomplete groups would leave
    more of them due in a later step than that step can train: group i of the rest, sorted by due step, is trained
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
