"""The numbers of MindSpore parameters as numpy arrays, read and written where they lie.

What enters: a parameter. What leaves: its array. On CPU the array is the parameter's own memory (mapped or pooled), so
neither way costs a copy; a device with memory of its own hands out a copy and takes one back.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor
from mindspore.common.initializer import initializer

from mindgspo.parallel.runtime import current_device


def zero_parameter(
    shape: tuple[int, ...], name: str, dtype: ms.Type = ms.float32, *, requires_grad: bool = True
) -> Parameter:
    """Zeros that take no memory until they are first read or written, and none of MindSpore's pool, which gives nothing
    back."""
    return Parameter(initializer("zeros", shape, dtype), name=name, requires_grad=requires_grad)


def zero_parameter_beside(weight: Parameter, name: str, *, requires_grad: bool = True) -> Parameter:
    """Zeros of a weight's shape, float32, which the compiler of a logical graph lays out as it lays out the weight."""
    parameter = zero_parameter(tuple(weight.shape), name, requires_grad=requires_grad)
    # What `Parameter.clone` does; that would read the weight as well.
    requires_grad, name = parameter.requires_grad, parameter.name
    own = weight.param_info
    parameter.param_info = own.clone()
    parameter.param_info.obj = parameter
    own.cloned_obj = [*getattr(own, "cloned_obj", ()), parameter]
    weight.param_info = own
    parameter.name, parameter.requires_grad = name, requires_grad
    return parameter


def values_of(parameter: Parameter) -> np.ndarray:
    """The parameter's array, to be read before the next graph runs, or filled: `commit_values` then makes it the
    parameter's. On CPU it is so at once."""
    return parameter.asnumpy()


def commit_values(parameter: Parameter, array: np.ndarray) -> None:
    """Make an array that `values_of` gave, and that was filled, the parameter's values."""
    if current_device() != "CPU":
        parameter.set_data(Tensor(array), slice_shape=parameter.sliced)


def set_values(parameter: Parameter, array: np.ndarray) -> None:
    """Write `array` (of the parameter's shape) into the parameter."""
    assert tuple(parameter.shape) == array.shape, f"{parameter.name}: {parameter.shape} is not {array.shape}"
    if current_device() == "CPU":
        parameter.asnumpy()[...] = array
    else:
        parameter.set_data(Tensor(array.astype(np.float32)), slice_shape=parameter.sliced)
