"""Zeros beside weights: what lives as long as what."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from mindgspo.parallel.parameter_memory import forget_neighbours, zeros_beside
from mindgspo.parallel.runtime import without_values

pytestmark = pytest.mark.usefixtures("cpu_runtime")


def make_weights() -> list:
    return [Parameter(Tensor(np.ones((2, 3), np.float32)), name="w")]


def test_weights_do_not_keep_what_was_made_beside_them() -> None:
    """As the moments of a warm-up, which are twice the weights, must not stay for the rest of a run."""
    weights = make_weights()
    (zeros,) = zeros_beside(weights, "adamw.m", requires_grad=False)
    assert zeros.name == "adamw.m.w" and not zeros.requires_grad and zeros.asnumpy().tolist() == [[0] * 3] * 2
    watched = weakref.ref(zeros)
    del zeros
    gc.collect()
    assert watched() is None


def test_what_a_compiler_is_to_lay_out_is_kept_until_it_has() -> None:
    weights = make_weights()
    with without_values():
        (zeros,) = zeros_beside(weights, "gradient")
    assert zeros.has_init and zeros.name == "gradient.w" and zeros.requires_grad
    assert [parameter.name for parameter in weights[0].param_info.cloned_obj] == ["gradient.w"]
    forget_neighbours(weights)
    watched = weakref.ref(zeros)
    del zeros
    gc.collect()
    assert watched() is None
