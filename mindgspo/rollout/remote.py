"""Generation by other processes, seen from the trainer: rank 0 asks them, and tells the other ranks.

Weights go through a folder: all ranks gather them, rank 0 writes them, and the servers have read them when it is
removed again. What runs meanwhile is not disturbed before the folder is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from mindspore import nn

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import first_rank_first, is_first
from mindgspo.rollout.protocol import Rollout, RolloutEngine, SamplingSettings
from mindgspo.rollout.replicated import ReplicatedEngine
from mindgspo.rollout.service import ServiceEngine, tokens_counted
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.rollout.weights_folder import write_weights
from mindgspo.types import Prompt


class ServedWeights:
    """trained: the model whose weights are handed over. folder: through which; nothing else is ever in it."""

    def __init__(self, trained: nn.Cell, model: ModelSection, folder: Path) -> None:
        self._trained, self._model, self._folder = trained, model, folder

    def push_weights(self, version: int, load: Callable[[Path, int], None]) -> None:
        """All ranks. load: called on rank 0 with the folder and the version; returns when it has been read."""
        tensors = weights_as_numpy(self._trained, self._model)

        def publish() -> None:
            folder = self._folder / f"version_{version:08d}"
            shutil.rmtree(self._folder, ignore_errors=True)  # what a killed run may have left
            write_weights(folder, tensors, self._model, version)
            load(folder, version)
            shutil.rmtree(self._folder)

        first_rank_first(publish)


class _Told:
    """The engine of a rank that is told what rank 0 was answered."""

    def load_weights(self, version: int) -> None:
        """Nothing is held here."""

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """Nothing: rank 0 has all of it."""
        return Rollout(responses=(), counters=tokens_counted(()))


def remote_engine(engine: ServiceEngine | None, bring_weights: Callable[[int], None]) -> RolloutEngine:
    """On all ranks, with the one of rank 0. bring_weights: see `ReplicatedEngine`."""
    place = Placement(plan=ParallelPlan(model_parallel=runtime.world_size()), rank=runtime.rank())
    assert (engine is not None) == is_first()
    return ReplicatedEngine(engine or _Told(), place, bring_weights)
