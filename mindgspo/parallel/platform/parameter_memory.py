"""The numbers of MindSpore parameters as numpy arrays, read and written where they lie.

On CPU the array is the parameter's own memory (mapped or pooled), so neither way costs a copy; a device with memory of
its own hands out a copy and takes one back.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor
from mindspore.common.initializer import initializer

from mindgspo.parallel.platform.runtime import current_device


def zero_parameter(
    shape: tuple[int, ...], name: str, dtype: ms.Type = ms.float32, *, requires_grad: bool = True
) -> Parameter:
    """Zeros that take no memory until they are first read or written, and none of MindSpore's pool, which gives nothing
    back."""
    return Parameter(initializer("zeros", shape, dtype), name=name, requires_grad=requires_grad)


def zeros_beside(
    weights: Sequence[Parameter], prefix: str, *, names: Sequence[str] | None = None, requires_grad: bool = True
) -> ParameterTuple:
    """Zeros of the shapes of the weights, float32, named <prefix>.<weight>; names: other names for <weight>."""
    names = [weight.name for weight in weights] if names is None else names
    return ParameterTuple(
        [
            zero_parameter(tuple(weight.shape), f"{prefix}.{name}", requires_grad=requires_grad)
            for weight, name in zip(weights, names, strict=True)
        ]
    )


def values_of(parameter: Parameter) -> np.ndarray:
    """The parameter's array, to be read before the next graph runs, or filled: `commit_values` then makes it the
    parameter's. On CPU it is so at once."""
    return parameter.asnumpy()


def commit_values(parameter: Parameter, array: np.ndarray) -> None:
    """Make an array that `values_of` gave, and that was filled, the parameter's values."""
    if current_device() != "CPU":
        parameter.set_data(Tensor(array), slice_shape=True)


def set_values(parameter: Parameter, array: np.ndarray) -> None:
    """Write `array` (of the parameter's shape) into the parameter, in the parameter's type."""
    assert tuple(parameter.shape) == array.shape, f"{parameter.name}: {parameter.shape} is not {array.shape}"
    if current_device() == "CPU":
        parameter.asnumpy()[...] = array
    else:
        array = array.astype(ms.dtype_to_nptype(parameter.dtype), copy=False)
        parameter.set_data(Tensor(array), slice_shape=True)
