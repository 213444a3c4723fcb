"""Brings trained weights to the model that generates, to the reference policy, and to completion servers.

Metrics:
  Progress, time and memory:
    perf/reshard_mb:
      meaning: weights that rank 0's generating model got at the hand-over before the step, from other ranks or copied,
        or that servers got
      unit: MB
      healthy: all of its weights; with rollout.lora=separate, after the first step, those of the adapters, which is all
        that servers with the base of their own ever get
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Container, Mapping
from pathlib import Path
from typing import TypeVar

import mindspore as ms
import numpy as np

from mindgspo.config.model import ModelSection
from mindgspo.config.schema import ReshardSection
from mindgspo.models.lora import merged_weights
from mindgspo.models.model import Model
from mindgspo.models.names import to_hugging_face, trained_shapes
from mindgspo.models.weights import master_layouts, master_views, weight_layouts, weight_views
from mindgspo.parallel.platform.cluster import first_rank_first
from mindgspo.parallel.platform.parameter_memory import commit_values
from mindgspo.reshard.resharder import (
    Resharder,
    ReshardReport,
    Residency,
    everything_stays,
    gather_to_first_rank,
)
from mindgspo.reshard.verify import sampled_names, verify_reshard
from mindgspo.rollout.weights_folder import write_weights

Value = TypeVar("Value")


class WeightTransfer:
    """Copies weights from the layout of the training plan to that of the generating model, whose parameters may have a
    smaller type. Planned once, and reused; what is not trained travels the first time alone.

    model: the generating model's section. from_masters: copies the float32 master weights where the training model
    computes with rounded ones. merges: the generating model has no adapters, and gets W + scale B A in the place of W.
    among: names of the parameters to copy; None: all.
    """

    def __init__(
        self,
        trained: Model,
        generating: Model,
        model: ModelSection,
        section: ReshardSection,
        residency: Residency = everything_stays,
        *,
        from_masters: bool = False,
        merges: bool = False,
        among: Collection[str] | None = None,
    ) -> None:
        self._trained, self._generating = trained, generating
        self._views, self._merges = master_views if from_masters else weight_views, merges
        self._verify, self._residency = section.verify, residency
        # For all names, because a rank also sends parameters that its generating model lacks.
        own = {parameter.name: ms.dtype_to_nptype(parameter.dtype) for parameter in generating.get_parameters()}
        source = (master_layouts if from_masters else weight_layouts)(model, trained)
        destination = weight_layouts(model, generating)
        self._types = {name: np.dtype(own.get(name, np.float32)) for name in destination}

        def resharder(names: Collection[str]) -> Resharder:
            return Resharder(
                _among(names, source),
                _among(names, destination),
                bucket_bytes=section.bucket_mb << 20,
                types=_among(names, self._types),
                residency=residency,
            )

        names = [name for name in source if among is None or name in among]
        self._whole = self._trained_alone = resharder(names)
        if model.lora is not None:
            changing = trained_shapes(model)
            self._trained_alone = resharder([name for name in names if name in changing])
        self._transfers = 0
        self.last: ReshardReport | None = None

    def metrics(self) -> dict[str, float]:
        """The metric of the last push."""
        return {} if self.last is None else {"perf/reshard_mb": (self.last.received + self.last.copied) / 2**20}

    def push(self, version: int) -> None:
        """Fill the generating model. Raises WeightsError if a verified parameter is not bit for bit the rounded
        trained one."""
        resharder = self._trained_alone if self._transfers else self._whole
        source, destination = resharder.plan.source, resharder.plan.destination
        old = self._views(self._trained, None if self._merges else source)
        if self._merges:
            old = merged_weights(self._trained.config, old)
        new = weight_views(self._generating, source)
        self.last = resharder.run(old, new)
        for parameter in self._generating.get_parameters():
            if parameter.name in new:
                commit_values(parameter, new[parameter.name])
        every = list(source)
        names = {"off": [], "sampled": sampled_names(every, self._transfers), "full": every}[self._verify]
        self._transfers += 1
        if names:
            # Views are taken again, so that the comparison sees what the engine will read.
            new = weight_views(self._generating, source)
            verify_reshard(names, source, destination, old, new, self._residency, self._types)


class ServedWeights:
    """Brings trained weights to completion servers through `folder`, which has no other content.

    All ranks gather the weights, and rank 0 writes them; servers generate on until the folder is complete. base: digest
    of the base that servers hold, so that they get adapters alone; None: they get whole weights, adapters merged.
    """

    def __init__(self, trained: Model, model: ModelSection, folder: Path, *, base: str | None = None) -> None:
        self._trained, self._model, self.folder, self._base = trained, model, folder, base
        self._bytes = 0

    def metrics(self) -> dict[str, float]:
        """See `WeightTransfer.metrics`; rank 0 has it."""
        return {"perf/reshard_mb": self._bytes / 2**20} if self._bytes else {}

    def push_weights(self, version: int, load: Callable[[Path, int], None]) -> None:
        """Call on all ranks. load: called on rank 0 with folder and version. They stay until the next push, for servers
        that come back."""
        among = None if self._base is None else trained_shapes(self._model)
        tensors = weights_as_numpy(self._trained, self._model, among=among)
        if self._model.lora is not None and self._base is None and tensors:
            tensors = merged_weights(self._model, tensors)

        def publish() -> None:
            folder = self.folder / f"version_{version:08d}"
            for earlier in self.folder.glob("*"):  # a killed run may have left weights, too
                shutil.rmtree(earlier)
            self._bytes = write_weights(folder, tensors, self._model, version, base=self._base)
            load(folder, version)

        first_rank_first(publish)

    def close(self) -> None:
        """Remove the weights; call on rank 0."""
        shutil.rmtree(self.folder, ignore_errors=True)


def weights_as_numpy(
    model: Model, section: ModelSection, *, among: Container[str] | None = None
) -> dict[str, np.ndarray]:
    """Copy all parameters of `section` to rank 0, float32 under Hugging Face names. among: names of parameters; None:
    all.

    Where ranks hold parts of the model, all of them call this, and the others get {}.
    """
    layouts = master_layouts(section, model)
    layouts = layouts if among is None else _among(among, layouts)
    views = master_views(model, layouts)
    if model.place.plan.world_size > 1:
        views = gather_to_first_rank(layouts, views)
    return {name: np.array(view, np.float32) for name, view in to_hugging_face(section, views).items()}


def _among(names: Container[str], values: Mapping[str, Value]) -> dict[str, Value]:
    """Without what a model has beside the weights asked for."""
    return {name: value for name, value in values.items() if name in names}
