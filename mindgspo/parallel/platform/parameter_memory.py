"""Values of MindSpore parameters as numpy arrays.

On CPU the array is the parameter's own memory, so reading and writing need no copy; on Ascend it is a copy.
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
    """Return a parameter of zeros that takes no memory until first read or written.

    Its memory is not of MindSpore's pool, which never shrinks.
    """
    return Parameter(initializer("zeros", shape, dtype), name=name, requires_grad=requires_grad)


def zeros_beside(
    weights: Sequence[Parameter], prefix: str, *, names: Sequence[str] | None = None, requires_grad: bool = True
) -> ParameterTuple:
    """Return float32 zeros of the weights' shapes named <prefix>.<weight>; `names` replaces the weights' names."""
    names = [weight.name for weight in weights] if names is None else names
    return ParameterTuple(
        [
            zero_parameter(tuple(weight.shape), f"{prefix}.{name}", requires_grad=requires_grad)
            for weight, name in zip(weights, names, strict=True)
        ]
    )


def values_of(parameter: Parameter) -> np.ndarray:
    """Return the parameter's array, to be read before the next graph runs, or filled and given to `commit_values`.

    On CPU it is the parameter's memory.
    """
    return parameter.asnumpy()


def commit_values(parameter: Parameter, array: np.ndarray) -> None:
    """Make a filled array from `values_of` the parameter's values."""
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
