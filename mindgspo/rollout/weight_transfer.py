"""Trained weights on their way to the model that generates, or to the reference policy, over the same processes."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn

from mindgspo.config.model import ModelSection
from mindgspo.config.schema import ReshardSection
from mindgspo.models.names import compute_type, to_hugging_face
from mindgspo.models.weights import hold_in_types, master_layouts, master_views, weight_layouts, weight_views
from mindgspo.parallel.platform.parameter_memory import commit_values
from mindgspo.reshard.resharder import (
    Resharder,
    ReshardReport,
    Residency,
    everything_stays,
    gather_to_first_rank,
)
from mindgspo.reshard.verify import sampled_names, verify_reshard


def hold_in_compute_type(model: nn.Cell) -> None:
    """Give a model that generates, and that nobody trains, parameters of the type it computes in. Each is cast to it
    wherever it is read, so the results stay as they are."""
    hold_in_types(model, lambda parameter: compute_type(parameter.name, model.config.dtype))


class WeightTransfer:
    """From the training model's plan to the generating model's, whose parameters may have a smaller type. Planned once.

    from_masters: from the float32 weights, where the training model computes with rounded ones. Raises WeightsError
    where a transfer that is verified did not arrive bit for bit, rounded to that type.
    """

    def __init__(
        self,
        trained: nn.Cell,
        generating: nn.Cell,
        model: ModelSection,
        section: ReshardSection,
        residency: Residency = everything_stays,
        *,
        from_masters: bool = False,
    ) -> None:
        self._trained, self._generating = trained, generating
        self._views = master_views if from_masters else weight_views
        self._source = (master_layouts if from_masters else weight_layouts)(model, trained)
        self._destination = weight_layouts(model, generating)
        self._verify, self._residency = section.verify, residency
        # Of all names: a rank also sends what it does not hold itself.
        own = {parameter.name: ms.dtype_to_nptype(parameter.dtype) for parameter in generating.get_parameters()}
        self._types = {name: np.dtype(own.get(name, np.float32)) for name in self._destination}
        self._resharder = Resharder(
            self._source,
            self._destination,
            bucket_bytes=section.bucket_mb << 20,
            types=self._types,
            residency=residency,
        )
        self._transfers = 0
        self.last: ReshardReport | None = None

    def push(self, version: int) -> None:
        """Fill the generating model with the weights of the trained one, which bear the number `version`."""
        old, new = self._views(self._trained), weight_views(self._generating)
        self.last = self._resharder.run(old, new)
        for parameter in self._generating.get_parameters():
            commit_values(parameter, new[parameter.name])
        names = self._names()
        self._transfers += 1
        if names:
            # Read again: what is compared is what the engine will read.
            new = weight_views(self._generating)
            verify_reshard(names, self._source, self._destination, old, new, self._residency, self._types)

    def _names(self) -> list[str]:
        names = list(self._source)
        return {"off": [], "sampled": sampled_names(names, self._transfers), "full": names}[self._verify]


def weights_as_numpy(model: nn.Cell, section: ModelSection) -> dict[str, np.ndarray]:
    """Copy all parameters to rank 0, float32 under Hugging Face names.

    Where ranks hold parts of the model, all of them call this, and the others get {}.
    """
    views = master_views(model)
    if model.place.plan.world_size > 1:
        views = gather_to_first_rank(master_layouts(section, model), views)
    return {name: np.array(view) for name, view in to_hugging_face(section, views).items()}
