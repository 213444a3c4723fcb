"""The routers' correction biases, moved by the experts' loads: balance without an auxiliary loss (arXiv 2408.15664;
DeepSeek-V3, arXiv 2412.19437, 2.1.2; Megatron: moe_router_bias_update_rate).

Legend: L layers with a router, E experts.
"""

from __future__ import annotations

import numpy as np

from mindgspo.models.model import Model
from mindgspo.models.names import CORRECTION
from mindgspo.parallel.platform.parameter_memory import set_values, values_of


class RouterBiases:
    """Those of this rank's layers; ranks with the same layers hold the same values. rate: by which each bias moves."""

    def __init__(self, model: Model, rate: float) -> None:
        self._rate, section = rate, model.config
        assert section.num_experts is not None, "biases of a dense model"
        self.shape = (len(section.expert_layers), section.num_experts)
        names = {f"model.layers.{layer}.mlp.gate{CORRECTION}": row for row, layer in enumerate(section.expert_layers)}
        self._biases = {names[each.name]: each for each in model.get_parameters() if each.name in names}

    def step(self, loads_LE: np.ndarray) -> None:
        """Raise the biases of experts with less than their layer's mean load, and lower those with more.

        loads_LE: tokens of one update, over all ranks."""
        for row, bias in self._biases.items():
            load_E = loads_LE[row]
            moved_E = values_of(bias) + self._rate * np.sign(load_E.mean() - load_E)
            set_values(bias, moved_E.astype(np.float32))
