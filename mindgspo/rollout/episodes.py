"""Episodes on any service that generates: what the policy says is answered by an environment, and the response goes on
behind the answer.

    turn ends -> environment (worker process) -> observation -> request that continues behind it -> ...

An `EpisodeService` is itself a service, whose responses are whole episodes. Nothing waits for an environment but its
own episode. What was sampled is never tokenized again; observations are tokens behind it. An episode that is aborted is
continued from its tokens, its turns and the environment's attributes, in another process if need be.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.parallel.platform import heartbeat
from mindgspo.rewards.verification import JobOutcome, Reply
from mindgspo.rollout.answer_log import key_of
from mindgspo.rollout.player import OpenEnvironment, row_of
from mindgspo.rollout.protocol import Purpose, SamplingSettings
from mindgspo.rollout.service import NO_TOKENS, Answer, CompletionService, EpisodeSoFar, Piece, Request
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Episode, EpisodeEnd, FinishReason, Prompt, Routing, TurnSpan

# Longest time to listen to the service alone, and to the environments alone, while the others may have something.
_LISTEN_S, _WAIT_S = 0.02, 1.0
_CUT = (EpisodeEnd.TURN_TOKENS, EpisodeEnd.EPISODE_TOKENS)


@dataclass(slots=True, kw_only=True, eq=False)
class _Episode:
    """One sample of a request. All its tokens but the request's prefix are this call's."""

    request: Request
    sample: int
    ids: list[int]
    turns: list[TurnSpan]
    state: dict[str, Any] | None
    logprobs: list[np.ndarray] = field(default_factory=list)
    routing: Routing | None = None
    ended: Episode | None = None
    is_aborted: bool = False
    asked: str = ""
    """Key of the last job in the log of answers."""

    @property
    def num_said(self) -> int:
        """Tokens of the turn that is at the end; 0 where an observation is."""
        return self.turns[-1].length if self.turns and self.turns[-1].stop == len(self.ids) else 0

    def add_turn(self, piece: Piece) -> None:
        """Append what the policy said. Experts of earlier tokens stay: they were drawn with them."""
        stop = len(self.ids) + piece.ids.size
        if self.num_said:  # it was aborted in the middle
            self.turns[-1] = replace(self.turns[-1], stop=stop)
        elif piece.ids.size:
            self.turns.append(TurnSpan(start=len(self.ids), stop=stop))
        found, earlier = piece.routing, self.routing
        if found is not None and earlier is not None:
            observed_LX = found.prompt_LX[len(earlier.whole) :]
            response_LX = np.concatenate([earlier.response_LX, observed_LX, found.response_LX])
            found = Routing(prompt_LX=earlier.prompt_LX, response_LX=response_LX)
        self.routing = found or earlier
        self.ids += piece.ids.tolist()
        self.logprobs.append(piece.logprobs)

    def piece(self) -> Piece:
        """What this call adds to the request's prefix."""
        start, stop = self.request.prefix.size, self.turns[-1].stop if self.turns else 0
        reason, routing = None, None
        if self.routing is not None:
            before = self.request.prompt.ids.size + start - 1
            routing = Routing(prompt_LX=self.routing.whole[:before], response_LX=self.routing.whole[before:])
        if self.ended is not None:
            reason = FinishReason.LENGTH if self.ended.end in _CUT else FinishReason.STOP
        return Piece(
            ids=np.array(self.ids[start:stop], np.int32),
            logprobs=np.concatenate([NO_TOKENS.logprobs, *self.logprobs]),
            finish_reason=reason,
            routing=routing,
            so_far=EpisodeSoFar(
                turns=tuple(self.turns), state=self.state, observed=tuple(self.ids[stop:]), ended=self.ended
            ),
        )


class EpisodeService:
    """Implements `CompletionService` by playing an episode for each response that `service` begins.

    environment: made with `tokenizer`.
    """

    answers_each_sample = False

    def __init__(self, service: CompletionService, environment: OpenEnvironment, tokenizer: Tokenizer) -> None:
        self._service, self._tokenizer = service, tokenizer
        self._section, self._player, self._dialogue = environment.section, environment.player, environment.dialogue
        self._style, self._answers = environment.style, environment.answers
        self._episodes: dict[int, list[_Episode]] = {}  # by number of the request, until all of its samples have ended
        self._asked: dict[int, tuple[_Episode, ...]] = {}  # by number of the request to the service
        self._jobs: dict[Future[Reply], _Episode] = {}
        self._numbers = itertools.count()
        self._version = 0
        self.idle_seconds = service.idle_seconds

    def submit(self, requests: Sequence[Request]) -> None:
        """See `CompletionService`; `Request.so_far` belongs to a prefix."""
        asked: list[Request] = []
        for request in requests:
            so_far = request.so_far or EpisodeSoFar()
            episodes = [
                _Episode(
                    request=request,
                    sample=sample,
                    ids=[*request.prefix.tolist(), *so_far.observed],
                    turns=list(so_far.turns),
                    state=so_far.state,
                )
                for sample in request.samples
            ]
            self._episodes[request.number] = episodes
            if self._is_whole(episodes[0]):
                self._answer_turn(episodes[0])
            elif self._service.answers_each_sample:
                asked.append(self._next_turn(episodes))
            else:
                asked += [self._next_turn([episode]) for episode in episodes]
        self._service.submit(asked)

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """See `CompletionService`."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not (answers := self._ended()) and (left := until - time.monotonic()) > 0:
            if self._asked:
                listen = min(left, _LISTEN_S if self._jobs else math.inf)
                self._take_turns(self._service.wait(None if listen == math.inf else listen))
            self._take_replies(0.0 if self._asked else min(left, _WAIT_S))
        return answers

    def abort(self) -> list[Answer]:
        """See `CompletionService`. What environments are computing is not waited for; they are asked again."""
        self._take_turns(self._service.abort())
        self._jobs.clear()
        for episodes in self._episodes.values():
            for episode in episodes:
                episode.is_aborted = True
        return self._ended()

    def load_weights(self, folder: Path, version: int) -> None:
        """See `CompletionService`."""
        self._service.load_weights(folder, version)

    def _ended(self) -> list[Answer]:
        """Answers to the requests all of whose episodes have ended, or were aborted."""
        numbers = [
            number
            for number, episodes in self._episodes.items()
            if all(one.ended is not None or one.is_aborted for one in episodes)
        ]
        return [
            Answer(
                number=number,
                weight_version=self._version,
                pieces=tuple(one.piece() for one in self._episodes.pop(number)),
            )
            for number in numbers
        ]

    def _next_turn(self, episodes: Sequence[_Episode]) -> Request:
        """The request for the next turn of these episodes; of several only where none has a token yet."""
        number, request, ids = next(self._numbers), episodes[0].request, episodes[0].ids
        assert len(episodes) == 1 or not ids, "siblings differ"
        self._asked[number] = tuple(episodes)
        settings, of_turn = request.settings, self._section.max_turn_tokens
        if of_turn is not None:
            most = len(ids) - episodes[0].num_said + of_turn
            settings = replace(settings, max_new_tokens=min(settings.max_new_tokens, most))
        return Request(
            number=number,
            prompt=request.prompt,
            samples=tuple(one.sample for one in episodes),
            settings=settings,
            prefix=np.array(ids, np.int32),
            may_continue=True,
        )

    def _take_turns(self, answers: Sequence[Answer]) -> None:
        """Hand the turns that ended to their environments."""
        for answer in answers:
            self._version = answer.weight_version
            asked = self._asked[answer.number]
            samples = [one.sample for one in asked] if answer.samples is None else answer.samples
            for sample, piece in zip(samples, answer.pieces, strict=True):
                (episode,) = (one for one in asked if one.sample == sample)
                episode.add_turn(piece)
                if piece.finish_reason is not None:
                    self._answer_turn(episode)
            left = tuple(one for one in asked if one.sample not in samples)
            if left:
                self._asked[answer.number] = left
            else:
                del self._asked[answer.number]

    def _is_whole(self, episode: _Episode) -> bool:
        """Whether there is a turn at the end that the policy has ended, or that a limit has."""
        most, said = self._section.max_turn_tokens, episode.num_said
        is_full = len(episode.ids) == episode.request.settings.max_new_tokens or said == most
        return said > 0 and (is_full or episode.ids[-1] in self._tokenizer.eos_ids)

    def _answer_turn(self, episode: _Episode) -> None:
        """Let the environment answer the last turn, or end an episode whose turn was cut."""
        turn, number = episode.turns[-1], len(episode.turns)
        ids = episode.ids[turn.start : turn.stop]
        if ids[-1] not in self._tokenizer.eos_ids:
            is_full = len(episode.ids) == episode.request.settings.max_new_tokens
            self._cut(episode, EpisodeEnd.EPISODE_TOKENS if is_full else EpisodeEnd.TURN_TOKENS)
            return
        self._ask(
            episode,
            kind="step",
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
            number=number,
            is_last=number == self._section.max_turns,
            style=self._style,
        )

    def _take_replies(self, timeout_s: float) -> None:
        """Let episodes go on or end whose environments have answered. Waits for one, at most for `timeout_s`."""
        if not self._jobs:
            return
        done, _ = wait(self._jobs, timeout=timeout_s, return_when=FIRST_COMPLETED)
        heartbeat.tick()
        going_on = []
        for job in done:
            episode, reply = self._jobs.pop(job), job.result()
            if self._answers is not None:
                self._answers.add(episode.asked, reply)
            if self._goes_on(episode, reply):
                going_on.append(episode)
        self._service.submit([self._next_turn([episode]) for episode in going_on])

    def _goes_on(self, episode: _Episode, reply: Reply) -> bool:
        """Take an environment's answer; whether there is an observation to go on behind."""
        if reply.outcome is not JobOutcome.DONE:
            self._end(episode, EpisodeEnd.FAILED, message=f"environment: {reply.message}")
            return False
        said: Any = reply.value
        if "seconds" in said:
            facts = {"seconds": said["seconds"], "num_calls": said["num_calls"], "errors": tuple(said["errors"])}
            episode.turns[-1] = replace(episode.turns[-1], **facts)
        if "ended" in said:
            found = {name: said[name] for name in ("reward", "is_correct", "info")}
            self._end(episode, EpisodeEnd(said["ended"]), **found)
            return False
        observed = self._dialogue.continuation(
            said["messages"], last_id=episode.ids[-1], max_tokens=self._section.max_observation_tokens
        )
        episode.turns[-1] = replace(episode.turns[-1], num_left_out=observed.num_left_out)
        if len(episode.ids) + len(observed.ids) >= episode.request.settings.max_new_tokens:
            # `episode.state` stays that before the turn, which is played again if the episode is aborted now.
            self._cut(episode, EpisodeEnd.EPISODE_TOKENS, state=said["state"])
            return False
        episode.state = said["state"]
        episode.ids += observed.ids
        return True

    def _ask(self, episode: _Episode, **arguments: Any) -> None:
        request = episode.request
        about = {"row": row_of(request.prompt), "seed": _seed(request.settings, request.prompt), "state": episode.state}
        job, kept = about | arguments, None
        if self._answers is not None:
            episode.asked = key_of(job, episode.sample, request.settings.stream)
            kept = self._answers.find(episode.asked)
        if kept is None:
            answer = self._player.submit(job)
        else:
            answer = Future()
            answer.set_result(kept)
        self._jobs[answer] = episode

    def _cut(self, episode: _Episode, end: EpisodeEnd, **arguments: Any) -> None:
        self._ask(episode, kind="cut", reason=end.value, **arguments)

    def _end(self, episode: _Episode, end: EpisodeEnd, **told: Any) -> None:
        nothing = {"reward": None, "is_correct": None, "info": {}}
        episode.ended = Episode(turns=tuple(episode.turns), end=end, **(nothing | told))


def _seed(settings: SamplingSettings, prompt: Prompt) -> int:
    """Seed of a row's environments, below 2**63: another one each time that training draws it."""
    stream = settings.stream
    step, draw = (stream.step, stream.draw) if stream.purpose is Purpose.TRAINING else (0, 0)
    parts = [stream.seed, int(stream.purpose), step, draw, prompt.index]
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest(), "big") >> 1
