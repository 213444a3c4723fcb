"""Log-probs of a step's responses under the old and the reference policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from mindspore import nn

from mindgspo.models.scoring import PolicyScorer, TokenScores
from mindgspo.trainer.batches import MiniBatches, flattened, regrouped
from mindgspo.trainer.reference import ReferencePolicy
from mindgspo.trainer.routing_transfer import RoutingTransfer
from mindgspo.types import ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScores:
    """Scores mini-batches before their updates; on ranks with recorded routing where that routing is."""

    policy: nn.Cell | None
    """The transformer that is trained; a moving reference follows it."""
    scorer: PolicyScorer
    """Scores with the present weights."""
    old_log_probs: Literal["recompute", "sampler"]
    reference: ReferencePolicy | None
    """The policy that a KL term refers to; None without one."""
    routing: RoutingTransfer | None
    """Brings recorded routing to the ranks that train a sample; None where none is recorded or replayed."""
    records_experts: bool
    replays_old: bool
    """Whether updates replay the routing of the scoring pass (algorithm.router_replay=old)."""

    def follow(self, step: int, version: int) -> None:
        """Let a moving reference policy take its step towards the policy of weight version `version`."""
        if self.reference is not None:
            self.reference.follow(self.policy, steps_done=step - 1, version=version)

    @property
    def reference_version(self) -> float | None:
        """Version of the reference policy's weights, counted in updates; None without one."""
        return None if self.reference is None else self.reference.version

    def with_routing(self, mini_batches: MiniBatches, groups: tuple[ScoredGroup, ...]) -> MiniBatches:
        """Return the batches with the routing that was recorded while sampling, if it was."""
        if self.routing is None or not self.records_experts:
            return mini_batches
        return self.routing.routed(mini_batches, groups)

    def expert_loads(self, generated: tuple[ScoredGroup, ...]) -> np.ndarray | None:
        """Return the tokens of these responses by layer and expert, [L, E]; None where routing is not recorded."""
        if self.routing is None or not self.records_experts:
            return None
        return self.routing.loads([response for group in generated for response in group.responses])

    def score(self, mini_batches: MiniBatches) -> tuple[MiniBatches, list[TokenScores]]:
        """Return the batches with old (and, for a KL term, reference) log-probs, and the old policy's scores.

        The old policy of all updates of a step is that of its present weights; with algorithm.old_log_probs=sampler
        the sampler's log-probs stand for it, and nothing is scored.
        """
        if not mini_batches:
            return [], []
        batches, old = flattened(mini_batches), []
        if self.old_log_probs == "sampler":
            batches = [replace(batch, old_logp_NK=batch.rollout_logp_NK) for batch in batches]
        else:
            old = self._score_old(mini_batches)
            batches = [replace(batch, old_logp_NK=found.logp_NK) for batch, found in zip(batches, old, strict=True)]
            if self.replays_old:
                assert self.routing is not None
                batches = [
                    replace(batch, experts_RTX=found.experts_RTX) for batch, found in zip(batches, old, strict=True)
                ]
                batches = flattened(self.routing.shared(regrouped(batches, mini_batches)))
        if self.reference is not None:
            scores = self.reference.scorer.score(batches)
            batches = [replace(batch, ref_logp_NK=found.logp_NK) for batch, found in zip(batches, scores, strict=True)]
        return regrouped(batches, mini_batches), old

    def _score_old(self, mini_batches: MiniBatches) -> list[TokenScores]:
        """Score all batches at once; where routing is recorded or replayed mini-batch by mini-batch, so that each is
        scored on the ranks that train it, which have its routing."""
        if self.routing is None:
            return self.scorer.score(flattened(mini_batches))
        return [score for batches in mini_batches for score in self.scorer.score(batches)]
