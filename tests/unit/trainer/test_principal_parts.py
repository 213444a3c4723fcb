"""Runs that begin with the principal parts of their weights (`init: pissa`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_plans import MIXTURE, drawn_model, small_model

from mindgspo.config.lora import LoraSection
from mindgspo.config.schema import SwapSection
from mindgspo.errors import WeightsError
from mindgspo.models.lora import merged_weights
from mindgspo.models.names import is_adapter
from mindgspo.models.principal import plain_adapters, plain_model, principal_parts, without_parts
from mindgspo.models.weights import load_trained
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.swap.swap import Swap
from mindgspo.tensor_files.tensors import ArraySource
from mindgspo.trainer.principal_parts import PrincipalParts

pytestmark = pytest.mark.usefixtures("cpu_runtime")

NO_SWAP = Swap(SwapSection(), None)


def test_the_parts_of_a_weight_by_hand() -> None:
    """A diagonal has its entries as singular values: 9 is the largest, and scale 4 leaves roots of 9 / 4 in A and B."""
    lora = LoraSection(rank=1, alpha=4.0, init="pissa")
    weight = np.diag(np.array([2.0, 9.0, 1.0], np.float32))
    a, b = principal_parts(lora, weight)
    np.testing.assert_allclose(np.abs(a), [[0, 1.5, 0]], atol=1e-6)
    np.testing.assert_allclose(np.abs(b), [[0], [1.5], [0]], atol=1e-6)
    np.testing.assert_allclose(without_parts(lora, weight, a, b), np.diag([2.0, 0.0, 1.0]), atol=1e-5)


@pytest.mark.parametrize("sizes", [{}, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("use_rslora", [False, True])
def test_the_first_policy_is_the_base_and_plain_adapters_say_the_same(sizes: dict, use_rslora: bool) -> None:
    targets = ("all", "router") if sizes else ("all",)
    lora = LoraSection(rank=3, alpha=5.0, use_rslora=use_rslora, targets=targets, init="pissa")
    section = small_model(**sizes, initializer_range=0.2, lora=lora)
    model = drawn_model(section, 3)
    base = weights_as_numpy(drawn_model(section.base, 3), section.base)
    parts = PrincipalParts(model, section, 3, NO_SWAP)
    begun = weights_as_numpy(model, section)
    name = "model.layers.1.self_attn.o_proj"
    largest = np.linalg.svd(base[f"{name}.weight"], compute_uv=False)
    left = np.linalg.svd(begun[f"{name}.weight"], compute_uv=False)
    np.testing.assert_allclose(left, [*largest[3:], 0, 0, 0], atol=2e-6)
    for key, array in merged_weights(section, begun).items():
        np.testing.assert_allclose(array, base[key], rtol=0, atol=1e-6, err_msg=key)
    # Trained on, and exported: on the base itself.
    random = np.random.default_rng(1)
    trained = {key: array + 0.1 * random.standard_normal(array.shape, np.float32)
               for key, array in begun.items() if is_adapter(key)}  # fmt: skip
    plain = plain_adapters(trained, parts.arrays())
    here, there = merged_weights(section, begun | trained), merged_weights(plain_model(section), base | plain)
    moved = 0.0
    for key, array in here.items():
        np.testing.assert_allclose(there[key], array, rtol=0, atol=1e-5, err_msg=key)
        moved = max(moved, float(np.abs(array - base[key]).max()))
    assert moved > 0.05 and plain_model(section).lora.scale == pytest.approx(lora.scale)
    assert plain_model(plain_model(section)) == plain_model(section)


def test_another_process_takes_the_saved_parts_whatever_it_would_find(tmp_path: Path) -> None:
    section = small_model(lora=LoraSection(rank=2, targets=("v_proj",), init="pissa"))
    first, second = drawn_model(section, 3), drawn_model(section, 3)
    parts, others = (PrincipalParts(model, section, 3, NO_SWAP) for model in (first, second))
    saved = {name: -1.5 * array for name, array in parts.arrays().items()}  # as if another machine had found these
    base = weights_as_numpy(drawn_model(section.base, 3), section.base)
    trained = {name: array for name, array in weights_as_numpy(first, section).items() if is_adapter(name)}
    load_trained(second, section, ArraySource({name: array + 1 for name, array in trained.items()}, path=tmp_path))
    others.load({}, ArraySource(saved, path=tmp_path))
    found = weights_as_numpy(second, section)
    for name, array in trained.items():
        np.testing.assert_array_equal(found[name], array + 1, err_msg=name)
        np.testing.assert_array_equal(others.arrays()[name], saved[name], err_msg=name)
    layer = "model.layers.0.self_attn.v_proj"
    product = np.float32(section.lora.scale) * (saved[f"{layer}.lora_B.weight"] @ saved[f"{layer}.lora_A.weight"])
    np.testing.assert_array_equal(found[f"{layer}.weight"], base[f"{layer}.weight"] - product)
    saved.popitem()
    with pytest.raises(WeightsError, match="missing"):
        others.load({}, ArraySource(saved, path=tmp_path))
