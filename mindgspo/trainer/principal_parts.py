"""The start of a run with `init: pissa`, see `models.principal`; part of its checkpoints, since another machine may
find other parts of the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.models.initial_values import open_base
from mindgspo.models.model import Model
from mindgspo.models.names import (
    InFile,
    adapter_name,
    hugging_face_names,
    is_adapter,
    to_hugging_face,
    weight_shapes,
)
from mindgspo.models.principal import principal_parts, without_parts
from mindgspo.models.weight_check import check_names
from mindgspo.models.weights import OwnSlice, own_slices, weight_layouts
from mindgspo.parallel.platform.parameter_memory import set_values
from mindgspo.reshard.resharder import gather_to_first_rank
from mindgspo.swap.states import Phase
from mindgspo.swap.swap import Swap
from mindgspo.tensor_files.tensors import TensorSource, float32_of


class PrincipalParts:
    """A0 and B0 of every adapter, of which each rank holds its slices; `Stateful`."""

    def __init__(self, model: Model, section: ModelSection, seed: int, swap: Swap) -> None:
        """Set adapters, and the weights to what these leave. Decomposes one target after the other, on every rank.
        swap: moves the weights that `load` changes."""
        self._model, self._section, self._seed, self._swap = model, section, seed, swap
        self._held: dict[str, np.ndarray] = {}
        self._fill(None)

    def state(self) -> dict[str, Any]:
        """Nothing beside `arrays`."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """Whole, by the adapters' names in a checkpoint, on rank 0."""
        whole = self._held
        if self._model.place.plan.world_size > 1:
            layouts = weight_layouts(self._section, self._model)
            whole = gather_to_first_rank({name: one for name, one in layouts.items() if is_adapter(name)}, whole)
        return {name: np.array(array) for name, array in to_hugging_face(self._section, whole).items()}

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Have the weights that the saved parts leave; the adapters stay. Raises WeightsError."""
        shapes = {name: shape for name, shape in weight_shapes(self._section).items() if is_adapter(name)}
        check_names(shapes, arrays.tensors, where=arrays.path)
        with self._swap.phase(Phase.SAVE):
            self._fill(arrays)

    def _fill(self, saved: TensorSource | None) -> None:
        lora, names = self._section.lora, hugging_face_names(self._section)
        assert lora is not None
        own: dict[str, list[OwnSlice]] = {}
        for one in own_slices(self._model, self._section):
            own.setdefault(one.name, []).append(one)
        with open_base(self._section, self._seed) as base:
            for name in [name for name in own if adapter_name(name, "A") in own]:
                weight = _whole(base, names[name])
                pair = [adapter_name(name, matrix) for matrix in "AB"]
                a, b = principal_parts(lora, weight) if saved is None else (_whole(saved, names[one]) for one in pair)
                _set(own[name], without_parts(lora, weight, a, b))
                for adapter, part in zip(pair, (a, b), strict=True):
                    self._held[adapter] = np.ascontiguousarray(part[own[adapter][0].index])
                    if saved is None:
                        _set(own[adapter], part)


def _set(slices: list[OwnSlice], whole: np.ndarray) -> None:
    for one in slices:
        set_values(one.parameter, np.ascontiguousarray(whole[one.index]))


def _whole(source: TensorSource, place: InFile) -> np.ndarray:
    """A parameter; of experts, which are several, their stack. One of joined rows has no parts (`lora_problems`)."""
    arrays = [float32_of(source, name)[place.rows_of(source.tensors[name].shape)] for name in place.names]
    return arrays[0] if len(arrays) == 1 else np.stack(arrays)
