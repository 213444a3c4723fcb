"""The reference policy of the KL term: the policy as it is when reinforcement learning begins, frozen.

What enters: the policy's weights after the warm-up, or those that the run saved. What leaves: log-probs under them.
Built only where a KL term is configured; `loop` freezes it in a new run and restores it in a resumed one.
"""

from __future__ import annotations

from pathlib import Path

from mindspore import Parameter, nn

from mindgspo.checkpoint import Keep, open_checkpoint, save_checkpoint
from mindgspo.config import ModelSection
from mindgspo.config.reshard_section import ReshardSection
from mindgspo.errors import CheckpointError
from mindgspo.models.logical_scorer import scorer_of
from mindgspo.models.policy import build_model
from mindgspo.models.weights import held_parameters, load_tensors, weights_as_numpy
from mindgspo.parallel.placement import Placement
from mindgspo.rollout.weight_transfer import WeightTransfer
from mindgspo.trainer.ranks import first_rank_first, newest_for_all
from mindgspo.types import Batch


class ReferencePolicy:
    """A second copy of the model under a plan of its own, never trained. `scorer` must not be used before `freeze` or
    `restore`; it shares batches out among this plan's replicas."""

    def __init__(
        self,
        section: ModelSection,
        place: Placement,
        *,
        temperature: float,
        reshard: ReshardSection | None = None,
        longest: Batch | None = None,
    ) -> None:
        """reshard: how weights come from the policy's plan. longest: compile for batches of this shape at once, where
        compiling lays the weights out on the ranks."""
        self._section, self._reshard = section, reshard or ReshardSection()
        self._model = build_model(section, place)
        self.scorer = scorer_of(self._model, temperature=temperature)
        if longest is not None:
            self.scorer.compile(longest)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The frozen weights, of this rank."""
        return tuple(held_parameters(self._model))

    def freeze(self, policy: nn.Cell, folder: Path) -> None:
        """Copy the policy's weights, slice by slice, and save them in `folder` for a resumed run. All ranks call it."""
        WeightTransfer(policy, self._model, self._section, self._reshard).bring(0)
        weights = weights_as_numpy(policy, self._section)
        first_rank_first(
            lambda: save_checkpoint(folder, step=0, parameters=weights, optimizer={}, state={}, keep=Keep(last=1))
        )

    def restore(self, folder: Path) -> None:
        """Load what `freeze` saved. Raises CheckpointError where nothing complete is left of it."""
        path = newest_for_all(folder)
        if path is None:
            raise CheckpointError(
                f"{folder}: the reference policy of this run is missing; without it the KL term has nothing to compare "
                "with. Restore the folder, or start the run again with --overwrite (it moves the run folder aside)"
            )
        with open_checkpoint(path) as saved:
            load_tensors(self._model, self._section, saved.parameters)
