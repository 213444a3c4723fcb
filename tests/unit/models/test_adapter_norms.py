"""Norms of adapters, against whole matrices in float64."""

from __future__ import annotations

import numpy as np
import pytest
from small_plans import drawn_model, small_model

from mindgspo.config.lora import LoraSection
from mindgspo.models.adapter_norms import AdapterNorms
from mindgspo.models.names import is_adapter
from mindgspo.parallel.platform.parameter_memory import set_values

pytestmark = pytest.mark.usefixtures("cpu_runtime")


def test_norms_are_those_of_whole_matrices() -> None:
    section = small_model(lora=LoraSection(rank=4, alpha=6.0, targets=("k_proj", "down_proj")))
    model, random = drawn_model(section, 3), np.random.default_rng(0)
    norms = AdapterNorms(model)
    first = norms.metrics()
    assert first["lora/norm_b"] == first["lora/relative_change"] == 0.0 and first["lora/norm_a"] > 0
    arrays = {}
    for parameter in model.get_parameters():
        if is_adapter(parameter.name):
            set_values(parameter, random.standard_normal(parameter.shape, np.float32))
        arrays[parameter.name] = parameter.asnumpy().astype(np.float64)
    found = norms.metrics()
    for matrix in "AB":
        squares = [np.sum(array**2) for name, array in arrays.items() if name.endswith(f"lora_{matrix}.weight")]
        assert found[f"lora/norm_{matrix.lower()}"] == pytest.approx(np.sqrt(sum(squares)), rel=1e-6)
    change = weights = 0.0
    for name, a in arrays.items():
        if name.endswith(".lora_A.weight"):
            layer = name.removesuffix(".lora_A.weight")
            change += np.sum((1.5 * arrays[f"{layer}.lora_B.weight"] @ a) ** 2)
            weights += np.sum(arrays[f"{layer}.weight"] ** 2)
    assert found["lora/relative_change"] == pytest.approx(np.sqrt(change / weights), rel=1e-5)
