"""Norms, softmax and activations: operators that go through their tensors row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_emulator.contract import Relation, axis_of, operator, same_shape, shape_is, tensor, value
from ascend_emulator.tensors import FLOATS, DeviceTensor
from mindgspo_kernels import binding as kernels

_FLOAT32 = frozenset({"float32"})
_INTERNAL = "MindSpore's internal kernels, internal_kernel/include/op_param.h"

# ------------------------------------------------------------------------------------------------------- RMSNorm


def _normalized_axes(x: str, gamma: str) -> Relation:
    """gamma has the last axes of x."""

    def check(arguments: dict[str, Any]) -> str | None:
        whole, last = arguments[x].shape, arguments[gamma].shape
        if whole[len(whole) - len(last) :] == last:
            return None
        return f"{gamma} {list(last)} must be the last axes of {x} {list(whole)}"

    return check


def _rstd_shape(x: str, rstd: str) -> Relation:
    """rstd has the shape of x, 1 in the axes of gamma."""

    def shape(arguments: dict[str, Any]) -> list[int]:
        own = len(arguments["gamma"].shape)
        return [*arguments[x].shape[: arguments[x].rank - own], *[1] * own]

    return shape_is(rstd, shape)


def _gamma_dtype(x: str) -> Relation:
    """gamma has the dtype of x, or float32."""

    def check(arguments: dict[str, Any]) -> str | None:
        given, gamma = arguments[x].dtype, arguments["gamma"].dtype
        return None if gamma in (given, "float32") else f"gamma must be {given} or float32, not {gamma}"

    return check


def _rows(x: DeviceTensor, gamma: DeviceTensor) -> DeviceTensor:
    """The axes that are normalized as one."""
    return x if gamma.rank == 1 else x.view(*x.shape[: x.rank - gamma.rank], gamma.size)


def _ones(rstd: DeviceTensor, x: DeviceTensor) -> DeviceTensor:
    """rstd beside those rows: its last axis is 1."""
    return rstd.view(*x.shape[:-1], 1)


@operator(
    "aclnnRmsNorm",
    takes=(
        tensor("x", FLOATS, rank=(1, 8)),
        tensor("gamma", FLOATS, rank=(1, 8)),
        value("epsilon"),
        tensor("yOut", FLOATS, rank=(1, 8), like="x"),
        tensor("rstdOut", _FLOAT32, rank=(1, 8)),
    ),
    relations=(
        _gamma_dtype("x"),
        _normalized_axes("x", "gamma"),
        same_shape("x", "yOut"),
        _rstd_shape("x", "rstdOut"),
    ),
    source="ops-nn norm/rms_norm/docs/aclnnRmsNorm.md",
)
def _rms_norm(x: DeviceTensor, gamma: DeviceTensor, epsilon: float, y: DeviceTensor, rstd: DeviceTensor) -> None:
    x = _rows(x, gamma)
    kernels.rms_norm(x, gamma.view(-1), epsilon=epsilon, y=_rows(y, gamma), rstd=_ones(rstd, x))


def _rstd_size(arguments: dict[str, Any]) -> str | None:
    """Written with and without the axes that are 1."""
    rows = arguments["x"].shape[: arguments["x"].rank - arguments["gamma"].rank]
    given = arguments["rstd"].shape
    if given[: len(rows)] == rows and set(given[len(rows) :]) <= {1}:
        return None
    return f"rstd must be of shape {list(rows)}, not {list(given)}"


@operator(
    "aclnnRmsNormGrad",
    takes=(
        tensor("dy", FLOATS, rank=(1, 8)),
        tensor("x", FLOATS, rank=(1, 8), like="dy"),
        tensor("rstd", _FLOAT32, rank=(1, 8)),
        tensor("gamma", FLOATS, rank=(1, 7)),
        tensor("dxOut", FLOATS, rank=(1, 8), like="dy"),
        tensor("dgammaOut", _FLOAT32, rank=(1, 7)),
    ),
    relations=(
        _gamma_dtype("x"),
        _normalized_axes("x", "gamma"),
        same_shape("dy", "x", "dxOut"),
        same_shape("gamma", "dgammaOut"),
        _rstd_size,
    ),
    source="ops-nn norm/rms_norm_grad/docs/aclnnRmsNormGrad.md",
)
def _rms_norm_grad(
    d_y: DeviceTensor,
    x: DeviceTensor,
    rstd: DeviceTensor,
    gamma: DeviceTensor,
    d_x: DeviceTensor,
    d_gamma: DeviceTensor,
) -> None:
    d_y, x, d_x = (_rows(one, gamma) for one in (d_y, x, d_x))
    kernels.rms_norm_backward(d_y, x, _ones(rstd, x), gamma.view(-1), d_x=d_x, d_gamma=d_gamma.view(-1))


@operator(
    "aclnnAddRmsNorm",
    takes=(
        tensor("x1", FLOATS, rank=(1, 8)),
        tensor("x2", FLOATS, rank=(1, 8), like="x1"),
        tensor("gamma", FLOATS, rank=(1, 8), like="x1"),
        value("epsilon", low=0),
        tensor("yOut", FLOATS, rank=(1, 8), like="x1"),
        tensor("rstdOut", _FLOAT32, rank=(1, 8)),
        tensor("xOut", FLOATS, rank=(1, 8), like="x1"),
    ),
    relations=(
        same_shape("x1", "x2", "yOut", "xOut"),
        _normalized_axes("x1", "gamma"),
        _rstd_shape("x1", "rstdOut"),
    ),
    source="ops-nn norm/add_rms_norm/docs/aclnnAddRmsNorm.md",
)
def _add_rms_norm(
    x1: DeviceTensor,
    x2: DeviceTensor,
    gamma: DeviceTensor,
    epsilon: float,
    y: DeviceTensor,
    rstd: DeviceTensor | None,
    total: DeviceTensor,
) -> None:
    x1, x2, y, total = (_rows(one, gamma) for one in (x1, x2, y, total))
    rstd = None if rstd is None else _ones(rstd, x1)
    kernels.rms_norm(x1, gamma.view(-1), epsilon=epsilon, y=y, rstd=rstd, other=x2, total=total)


@operator(
    "internal:RmsNorm",
    takes=(tensor("x", FLOATS, rank=(1, 8)), tensor("gamma", FLOATS), value("epsilon")),
    outputs=(tensor("y", FLOATS, like="x"),),
    relations=(_normalized_axes("x", "gamma"), same_shape("x", "y")),
    source=_INTERNAL,
)
def _internal_rms_norm(inputs: list, outputs: list, parameters: dict) -> None:
    x, gamma = inputs[:2]
    rstd = outputs[1] if len(outputs) > 1 else None
    x, y = _rows(x, gamma), _rows(outputs[0], gamma)
    rstd = None if rstd is None else _ones(rstd, x)
    kernels.rms_norm(x, gamma.view(-1), epsilon=parameters["epsilon"], y=y, rstd=rstd)


@operator(
    "internal:AddRmsNorm",
    takes=(
        tensor("x1", FLOATS, rank=(1, 8)),
        tensor("x2", FLOATS, like="x1"),
        tensor("gamma", FLOATS),
        value("epsilon"),
    ),
    outputs=(tensor("y", FLOATS, like="x1"),),
    relations=(_normalized_axes("x1", "gamma"), same_shape("x1", "x2", "y")),
    source=_INTERNAL,
)
def _internal_add_rms_norm(inputs: list, outputs: list, parameters: dict) -> None:
    y, rstd, total = outputs
    _add_rms_norm(*inputs[:3], parameters["epsilon"], y, rstd, total)


# ------------------------------------------------------------------------------------------------------- softmax


def _axes(x: DeviceTensor) -> DeviceTensor:
    """A number counts as of one axis."""
    return x if x.rank else x.view(1)


def _enter_softmax(name: str, is_log: bool, rank: tuple[int, int], forward: str, backward: str) -> None:
    @operator(
        f"aclnn{name}",
        takes=(tensor("self", FLOATS, rank=rank), axis_of("dim"), tensor("out", FLOATS, rank=rank)),
        relations=(same_shape("self", "out"),),
        source=f"ops-nn activation/{forward}/docs/aclnn{name}.md",
    )
    def run(x: DeviceTensor, axis: int, y: DeviceTensor) -> None:
        kernels.softmax(_axes(x), axis, y=_axes(y), is_log=is_log)

    @operator(
        f"aclnn{name}Backward",
        takes=(
            tensor("gradOutput", FLOATS, rank=rank),
            tensor("output", FLOATS, rank=rank, like="gradOutput"),
            axis_of("dim", of="gradOutput"),
            tensor("out", FLOATS, rank=rank),
        ),
        relations=(same_shape("gradOutput", "output", "out"),),
        source=f"ops-nn activation/{backward}/docs/aclnn{name}Backward.md",
    )
    def run_backward(d_y: DeviceTensor, y: DeviceTensor, axis: int, d_x: DeviceTensor) -> None:
        kernels.softmax_backward(_axes(d_y), _axes(y), axis, d_x=_axes(d_x), is_log=is_log)


_enter_softmax("Softmax", False, (0, 8), "softmax_v2", "softmax_grad")
_enter_softmax("LogSoftmax", True, (1, 8), "log_softmax_v2", "log_softmax_grad")


@operator(
    "internal:Softmax",
    takes=(tensor("x", FLOATS, rank=(1, 8)),),
    outputs=(tensor("y", FLOATS),),
    relations=(same_shape("x", "y"),),
    source=_INTERNAL,
)
def _internal_softmax(inputs: list, outputs: list, parameters: dict) -> None:
    (axis,) = parameters["axes"]
    kernels.softmax(inputs[0], axis, y=outputs[0])


# --------------------------------------------------------------------------------------------------- activations


def _halved(x: str, y: str, axis: str) -> Relation:
    """y has the shape of x, half of it along the axis."""

    def shape(arguments: dict[str, Any]) -> list[int] | str:
        whole, at = [*arguments[x].shape], arguments[axis]
        if whole[at] % 2:
            return f"{x} must be even along {axis} {at}, not {whole}"
        whole[at] //= 2
        return whole

    return shape_is(y, shape)


@operator(
    "aclnnSwiGlu",
    takes=(tensor("x", FLOATS, rank=(1, 8)), axis_of("dim", of="x"), tensor("out", like="x")),
    relations=(_halved("x", "out", "dim"),),
    source="ops-nn activation/swi_glu/docs/aclnnSwiGlu.md",
)
def _swiglu(x: DeviceTensor, axis: int, y: DeviceTensor) -> None:
    kernels.swiglu(x, axis, y=y)


@operator(
    "aclnnSwiGluGrad",
    takes=(
        tensor("yGrad", FLOATS, rank=(1, 8)),
        tensor("x", rank=(1, 8), like="yGrad"),
        axis_of("dim", of="x"),
        tensor("out", rank=(1, 8), like="x"),
    ),
    relations=(_halved("x", "yGrad", "dim"), same_shape("x", "out")),
    source="ops-nn activation/swi_glu_grad/docs/aclnnSwiGluGrad.md",
)
def _swiglu_grad(d_y: DeviceTensor, x: DeviceTensor, axis: int, d_x: DeviceTensor) -> None:
    kernels.swiglu_backward(d_y, x, axis, d_x=d_x)


@operator(
    "internal:SwiGLU",
    takes=(tensor("x", FLOATS, rank=(1, 8)), axis_of("axis", of="x")),
    outputs=(tensor("y", like="x"),),
    relations=(_halved("x", "y", "axis"),),
    source=_INTERNAL,
)
def _internal_swiglu(inputs: list, outputs: list, parameters: dict) -> None:
    kernels.swiglu(inputs[0], parameters["axis"], y=outputs[0])


@operator(
    "aclnnSilu",
    takes=(tensor("self", FLOATS), tensor("out", like="self")),
    relations=(same_shape("self", "out"),),
    source="ops-nn activation/swish/docs/aclnnSilu.md",
)
def _silu(x: DeviceTensor, y: DeviceTensor) -> None:
    kernels.silu(x, y=y)


@operator(
    "aclnnSiluBackward",
    takes=(
        tensor("gradOutput", FLOATS, rank=(1, 8)),
        tensor("self", rank=(1, 8), like="gradOutput"),
        tensor("gradInput", rank=(1, 8), like="gradOutput"),
    ),
    relations=(
        shape_is("gradInput", lambda given: np.broadcast_shapes(given["gradOutput"].shape, given["self"].shape)),
    ),
    source="ops-nn activation/silu_grad/docs/aclnnSiluBackward.md",
)
def _silu_backward(d_y: DeviceTensor, x: DeviceTensor, d_x: DeviceTensor) -> None:
    kernels.silu_backward(d_y, x, d_x=d_x)


@operator(
    "internal:Swish",
    takes=(tensor("x", FLOATS),),
    outputs=(tensor("y", like="x"),),
    relations=(same_shape("x", "y"),),
    source=_INTERNAL,
)
def _internal_swish(inputs: list, outputs: list, parameters: dict) -> None:
    kernels.silu(inputs[0], y=outputs[0])
