"""The size of low-rank adapters, over all ranks of a plan.

Legend: r rank, I and O in- and output features.

Metrics:
  Gradient and learning rate:
    lora/norm_a:
      meaning: L2 norm of all matrices A of the adapters together, after the step (model.lora)
      healthy: moves slowly away from its first value
    lora/norm_b:
      meaning: L2 norm of all matrices B of the adapters together, after the step
      healthy: grows from 0, where B begins
      action: 'still 0 after a few steps: no update moved it; see actor/grad_norm and actor/updates_skipped'
    lora/relative_change:
      meaning: size of what the adapters add to the weights beside them, |scale B A| / |W|, over all targets together
      healthy: grows slowly and steadily
      action: 'a leap from one step to the next: lower optimizer.lr'
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt

import numpy as np

from mindgspo.models.model import Model
from mindgspo.models.names import adapter_pairs, is_adapter, parameter_shapes
from mindgspo.models.weights import weight_layouts, weight_views
from mindgspo.parallel.collectives.host import sum_over_world
from mindgspo.types import Float32Array


class AdapterNorms:
    """Norms of a model's adapters, from A A^T and B^T B [r, r]: those of slices add up to those of whole matrices, and
    |B A|^2 is the sum of their products, element by element. All ranks call it at once."""

    def __init__(self, model: Model) -> None:
        section = model.config
        assert section.lora is not None, "a model without adapters"
        self._model, self._scale = model, section.lora.scale
        self._layouts = weight_layouts(section, model)
        shapes = parameter_shapes(section)
        self._targets = adapter_pairs(model.config)
        rank = section.lora.rank
        self._shapes = {name: (*shapes[name][:-2], rank, rank) for name in shapes if is_adapter(name)}
        self._base_square: float | None = None

    def metrics(self) -> dict[str, float]:
        """Return the norms of the present weights, equal on all ranks."""
        views = weight_views(self._model)
        if self._base_square is None:
            square = np.zeros(1, np.float32)
            for name in self._targets:
                if name in views:
                    weight = views[name].astype(np.float32, copy=False).reshape(-1)
                    square += np.vdot(weight, weight) / self._layouts[name].replicas
            sum_over_world(square)
            self._base_square = float(square[0])
        products = self._products(views)
        squares = dict.fromkeys("AB", 0.0)
        change = 0.0
        for name, product in products.items():
            matrix = "A" if name.endswith("A.weight") else "B"
            squares[matrix] += float(np.trace(product, axis1=-2, axis2=-1).sum())
        for a, b in self._targets.values():
            change += float((products[a] * products[b]).sum(dtype=np.float64))
        return {
            "lora/norm_a": sqrt(squares["A"]),
            "lora/norm_b": sqrt(squares["B"]),
            "lora/relative_change": self._scale * sqrt(max(change, 0.0) / self._base_square),
        }

    def _products(self, views: Mapping[str, np.ndarray]) -> dict[str, Float32Array]:
        """A A^T or B^T B of every whole matrix of an adapter, by name; of experts' one each."""
        buffer = np.zeros(sum(prod(shape) for shape in self._shapes.values()), np.float32)
        products, start = {}, 0
        for name, shape in self._shapes.items():
            products[name] = buffer[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
            if name in views:
                held, layout = views[name], self._layouts[name]
                own = held @ held.swapaxes(-1, -2) if name.endswith("A.weight") else held.swapaxes(-1, -2) @ held
                experts = layout.held_by(self._model.place.rank).index[:-2]
                products[name][experts] += own / np.float32(layout.replicas)
        sum_over_world(buffer)
        return products
