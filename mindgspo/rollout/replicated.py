"""Generation over all replicas of the infer plan: each answers its share of the prompts, everybody gets all responses.

The ranks of one model-parallel group run one native engine together. Weights come over from the training plan first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, fields

import numpy as np

from mindgspo.parallel.collectives.replicas import Arrays, Replicas
from mindgspo.parallel.plans.placement import Placement
from mindgspo.rollout.protocol import Rollout, RolloutCounters, RolloutEngine, SamplingSettings
from mindgspo.types import FinishReason, Prompt, Response, Routing

_REASONS = tuple(FinishReason)


class ReplicatedEngine:
    """Implements `RolloutEngine` around this rank's own engine.

    bring_weights: called with the version, on all ranks at once; it fills the parameters of the engine's model.
    """

    def __init__(self, engine: RolloutEngine, place: Placement, bring_weights: Callable[[int], None]) -> None:
        self._engine, self._bring_weights = engine, bring_weights
        self._replicas = Replicas(place)

    def load_weights(self, version: int) -> None:
        """Bring the trained weights over, then stamp them."""
        self._bring_weights(version)
        self._engine.load_weights(version)

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`. The responses do not depend on how many replicas there are."""
        own = self._replicas.own(prompts)
        found: list[Arrays] = []
        counted = np.zeros(len(_COUNTERS), np.int64)
        if own:
            rollout = self._engine.generate(own, settings, weight_version=weight_version)
            found = [_packed(siblings) for siblings in rollout.responses]
            counted = np.array(astuple(rollout.counters), np.int64)
        groups = self._replicas.collect(found, num_items=len(prompts))
        routing: dict[int, list[Routing | None]] = {}
        if own and self._replicas.speaks:
            numbers = self._replicas.own(range(len(prompts)))
            routing = {
                number: [response.routing for response in siblings]
                for number, siblings in zip(numbers, rollout.responses, strict=True)
            }
        of_replicas = [
            RolloutCounters(**dict(zip(_COUNTERS, map(int, numbers), strict=True)))
            for (numbers,) in self._replicas.collect_each((counted,))
        ]
        return Rollout(
            responses=tuple(
                _unpacked(arrays, prompt, settings, weight_version, routing.get(number))
                for number, (prompt, arrays) in enumerate(zip(prompts, groups, strict=True))
            ),
            counters=RolloutCounters.total(of_replicas),
        )


_COUNTERS = tuple(field.name for field in fields(RolloutCounters))


def _packed(siblings: Sequence[Response]) -> Arrays:
    """Lengths and finish reasons [G], then ids and log-probs of all siblings end to end."""
    return (
        np.array([response.length for response in siblings], np.int64),
        np.array([_REASONS.index(response.finish_reason) for response in siblings], np.int64),
        np.concatenate([response.ids for response in siblings]),
        np.concatenate([response.logprobs for response in siblings]),
    )


def _unpacked(
    arrays: Arrays,
    prompt: Prompt,
    settings: SamplingSettings,
    weight_version: int,
    routing: Sequence[Routing | None] | None,
) -> tuple[Response, ...]:
    """routing: of the responses that this rank speaks for; it stays here until somebody trains them."""
    lengths, reasons, ids, logprobs = arrays
    stops = np.cumsum(lengths)[:-1]
    return tuple(
        Response(
            prompt_index=prompt.index,
            sample_index=sample,
            ids=own_ids,
            logprobs=own_logprobs,
            finish_reason=_REASONS[reason],
            temperature=settings.temperature,
            weight_version=weight_version,
            routing=None if routing is None else routing[sample],
        )
        for sample, (reason, own_ids, own_logprobs) in enumerate(
            zip(reasons, np.split(ids, stops), np.split(logprobs, stops), strict=True)
        )
    )
