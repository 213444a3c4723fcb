"""Our own engine as a completion service, and the rollout engine that plays episodes on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo import faults
from mindgspo.parallel.collectives.host import share_bytes
from mindgspo.parallel.plans.placement import Placement, Ranks
from mindgspo.rollout.engine import Decoding, NativeEngine
from mindgspo.rollout.episodes import EpisodeService
from mindgspo.rollout.player import OpenEnvironment
from mindgspo.rollout.protocol import Purpose, Rollout, SamplingSettings
from mindgspo.rollout.service import Answer, Request, ServiceEngine
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Prompt


class LocalService:
    """Implements `CompletionService` for one call of an engine: `wait` decodes up to the next sync with the host. The
    first of the ranks that decode together asks, and the others follow it.

    weight_version: of the weights that are loaded.
    """

    answers_each_sample = True

    def __init__(
        self,
        engine: NativeEngine,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        *,
        weight_version: int,
        ranks: Ranks,
    ) -> None:
        self._prompts, self._settings, self._ranks = prompts, settings, ranks
        self._places = {prompt.index: place for place, prompt in enumerate(prompts)}
        self._weight_version = weight_version
        self._asked: list[Request] = []
        self.decoding: Decoding = engine.begin(settings)

    def submit(self, requests: Sequence[Request]) -> None:
        """See `CompletionService`."""
        self._asked += requests

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """See `CompletionService`; returns after one run of decode steps."""
        asked, self._asked = self._asked, []
        if len(self._ranks) > 1:
            self._tell([self._told(request) for request in asked])
        return self._advance(asked)

    def abort(self) -> list[Answer]:
        """Never called: a call of an engine ends by itself."""
        raise AssertionError("a call of an engine is not aborted")

    def load_weights(self, folder: Path, version: int) -> None:
        """Never called: the engine has them."""
        raise AssertionError("weights do not change within a call of an engine")

    def idle_seconds(self) -> float:
        """0, as nothing runs in the background."""
        return 0.0

    def close(self) -> None:
        """Let the other ranks go."""
        if len(self._ranks) > 1:
            self._tell(None)

    def follow(self) -> None:
        """Do on another rank what the first one does, until it closes."""
        while (told := json.loads(share_bytes(b"", sender=self._ranks[0], ranks=self._ranks))) is not None:
            self._advance([self._request(**fields) for fields in told])

    def _tell(self, told: list[dict[str, Any]] | None) -> None:
        share_bytes(json.dumps(told).encode(), sender=self._ranks[0], ranks=self._ranks)

    def _told(self, request: Request) -> dict[str, Any]:
        return {
            "number": request.number,
            "place": self._places[request.prompt.index],
            "samples": request.samples,
            "most": request.settings.max_new_tokens,
            "prefix": request.prefix.tolist(),
        }

    def _request(self, *, number: int, place: int, samples: list[int], most: int, prefix: list[int]) -> Request:
        return Request(
            number=number,
            prompt=self._prompts[place],
            samples=tuple(samples),
            settings=replace(self._settings, max_new_tokens=most),
            prefix=np.array(prefix, np.int32),
            may_continue=True,
        )

    def _advance(self, asked: Sequence[Request]) -> list[Answer]:
        for request in asked:
            self.decoding.add(request)
        if not self.decoding.done:
            self.decoding.advance()
        fault = "rollout" if self._settings.stream.purpose is Purpose.TRAINING else "eval"
        faults.reach(f"{fault}.inside")
        return [
            Answer(
                number=one.request.number,
                weight_version=self._weight_version,
                pieces=one.pieces,
                samples=one.request.samples,
            )
            for one in self.decoding.ended()
        ]


class EpisodeEngine:
    """Implements `RolloutEngine` by playing an episode for each sample. The ranks of a model-parallel group decode
    together; the first of them has the environments, and returns the responses.

    environment: made with `tokenizer`.
    """

    def __init__(
        self, engine: NativeEngine, environment: OpenEnvironment, tokenizer: Tokenizer, place: Placement
    ) -> None:
        self._engine, self._environment, self._tokenizer = engine, environment, tokenizer
        self._ranks, self._is_first = place.model_ranks, place.is_replica_leader
        self.load_weights = engine.load_weights

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`."""
        self._engine.require_version(weight_version)
        faults.reach("rollout.before" if settings.stream.purpose is Purpose.TRAINING else "eval.before")
        local = LocalService(self._engine, prompts, settings, weight_version=weight_version, ranks=self._ranks)
        responses = ()
        if not self._is_first:
            local.follow()
        else:
            engine = ServiceEngine(EpisodeService(local, self._environment, self._tokenizer))
            engine.load_weights(weight_version)
            responses = engine.generate(prompts, settings, weight_version=weight_version).responses
            local.close()
        return Rollout(responses=responses, counters=local.decoding.counters())
