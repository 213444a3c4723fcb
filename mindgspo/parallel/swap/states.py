"""What a training process holds, the phases of a step, and which phase needs what: the declared states of the swap.

Read by `swap` (moves), `swap.ledger` (books) and whoever opens a phase. Pure Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Holding(Enum):
    """Parameters that are moved together. The order is that of eviction: first what is given up for nothing."""

    KV_CACHE = "KV cache"
    GRADIENTS = "gradients"
    MOMENTS = "moments"
    REFERENCE_WEIGHTS = "reference weights"
    ROLLOUT_WEIGHTS = "rollout weights"
    ACTOR_WEIGHTS = "actor weights"


class Phase(Enum):
    """A stretch of a step during which the same holdings are read."""

    ROLLOUT = "rollout"
    EVALUATE = "evaluate"
    SCORE = "score"
    UPDATE = "update"
    RESHARD = "reshard"
    SAVE = "save"


_GENERATION = (Holding.ROLLOUT_WEIGHTS, Holding.KV_CACHE)

# In the order of loading. RESHARD is memory level 0; level 1 holds one step's parameters of both sides instead.
NEEDS: Mapping[Phase, tuple[Holding, ...]] = MappingProxyType(
    {
        Phase.ROLLOUT: _GENERATION,
        Phase.EVALUATE: _GENERATION,
        Phase.SCORE: (Holding.ACTOR_WEIGHTS, Holding.REFERENCE_WEIGHTS),
        Phase.UPDATE: (Holding.ACTOR_WEIGHTS, Holding.GRADIENTS, Holding.MOMENTS),
        Phase.RESHARD: (Holding.ACTOR_WEIGHTS, Holding.ROLLOUT_WEIGHTS),
        Phase.SAVE: (Holding.ACTOR_WEIGHTS, Holding.MOMENTS),
    }
)
