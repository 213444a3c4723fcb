"""Operators that make values: constants, ranges, one-hot codes, random numbers.

Random numbers follow from seed and offset and have the distribution that is asked for; they are other numbers than a
card's, whose generator is not documented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ascend_emulator.contract import (
    Rule,
    anything,
    operator,
    shape_is,
    tensor,
    value,
)
from ascend_emulator.operators.elementwise import converted
from ascend_emulator.tensors import ANY, FLOATS, INTEGERS, REAL, DeviceTensor

_CODES = frozenset({"float16", "float32", "int32", "int64"})


@operator(
    "aclnnInplaceZero",
    takes=(tensor("selfRef", REAL | {"uint16"}),),
    source="ops-math math/zero_op aclnnInplaceZero",
)
def _zero(self: DeviceTensor) -> None:
    self.bits[...] = 0


@operator(
    "aclnnInplaceOne",
    takes=(tensor("selfRef", REAL),),
    source="ops-math math/ones_like aclnnInplaceOne",
)
def _one(self: DeviceTensor) -> None:
    self.store(1)


@operator(
    "aclnnInplaceFillScalar",
    takes=(tensor("selfRef", ANY), anything("value")),
    source="ops-math conversion/fill aclnnInplaceFillScalar",
)
@operator(
    "aclnnInplaceFillTensor",
    takes=(tensor("selfRef", REAL), tensor("value", like="selfRef", rank=(0, 1))),
    relations=(shape_is("value", lambda arguments: (1,) * arguments["value"].rank),),
    source="ops-math conversion/fill aclnnInplaceFillTensor",
)
def _fill(self: DeviceTensor, filling: DeviceTensor | float) -> None:
    self.store(converted(filling, self.dtype))


def _range_length(arguments: dict[str, Any]) -> Sequence[int] | str:
    start, end, step = arguments["start"], arguments["end"], arguments["step"]
    if step == 0 or (end - start) * step < 0:
        return f"step must lead from start to end, not {step} from {start} to {end}"
    return [int(np.ceil((end - start) / step))]


@operator(
    "aclnnArange",
    takes=(anything("start"), anything("end"), anything("step"), tensor("out", FLOATS | {"float64", "int32", "int64"})),
    relations=(shape_is("out", _range_length),),
    source="ops-math math/range aclnnArange",
)
def _arange(start: float, end: float, step: float, out: DeviceTensor) -> None:
    out.store(start + step * np.arange(out.size))


@operator(
    "aclnnLinspace",
    takes=(
        anything("start"),
        anything("end"),
        value("steps", low=1),
        tensor("out", FLOATS | INTEGERS | {"float64"} - {"int64"}),
    ),
    relations=(shape_is("out", lambda arguments: [arguments["steps"]]),),
    source="ops-math math/lin_space aclnnLinspace",
)
def _linspace(start: float, end: float, steps: int, out: DeviceTensor) -> None:
    out.store(np.linspace(start, end, steps))


@operator(
    "aclnnEye",
    takes=(value("n", low=0), value("m", low=0), tensor("out", REAL - {"float64"})),
    relations=(shape_is("out", lambda arguments: [arguments["n"], arguments["m"]]),),
    source="ops-math math/eye aclnnEye",
)
def _eye(n: int, m: int, out: DeviceTensor) -> None:
    out.store(np.eye(n, m))


def coded_shape(self: DeviceTensor, classes: int, axis: int) -> Sequence[int] | str:
    if axis > self.rank:
        return f"axis must be at most the rank of self, {self.rank}, not {axis}"
    shape = list(self.shape)
    shape.insert(self.rank if axis == -1 else axis, classes)
    return shape


@operator(
    "aclnnOneHot",
    takes=(
        tensor("self", frozenset({"int32", "int64"}), rank=(0, 7)),
        value("numClasses", low=0),
        tensor("onValue", _CODES),
        tensor("offValue", like="onValue"),
        value("axis", low=-1),
        tensor("out", like="onValue"),
    ),
    relations=(
        shape_is("out", lambda arguments: coded_shape(arguments["self"], arguments["numClasses"], arguments["axis"])),
    ),
    source="ops-math math/one_hot aclnnOneHot",
)
def _one_hot(
    self: DeviceTensor, classes: int, on: DeviceTensor, off: DeviceTensor, axis: int, out: DeviceTensor
) -> None:
    one_hot(self, classes, on, off, axis, out)


def one_hot(
    self: DeviceTensor, classes: int, on: DeviceTensor, off: DeviceTensor, axis: int, out: DeviceTensor
) -> None:
    """A class that is not there is coded as no class at all."""
    codes = self.values()[..., None] == np.arange(classes)
    on_value, off_value = (np.ravel(one.values())[0] for one in (on, off))
    out.store(np.moveaxis(np.where(codes, on_value, off_value), -1, axis))


def generator(seed: int, offset: int) -> np.random.Generator:
    """Of numbers that depend on both alone."""
    return np.random.Generator(np.random.Philox(key=seed % 2**64, counter=offset % 2**64))


def _enter_random(name: str, draw: Callable, first: Rule, second: Rule, dtypes: frozenset[str], folder: str) -> None:
    @operator(
        f"aclnnInplace{name}",
        takes=(tensor("selfRef", dtypes), first, second, anything("seed"), anything("offset")),
        source=f"ops-math random/{folder} aclnnInplace{name}",
    )
    def run(self: DeviceTensor, one: float, other: float, seed: int, offset: int) -> None:
        self.store(draw(generator(seed, offset), one, other, self.shape))


def _at_most(name: str, upper: str) -> Rule:
    def check(given: float, others: dict[str, Any]) -> str | None:
        return None if given <= others[upper] else f"must be at most {upper}, {others[upper]}, not {given}"

    return Rule(name=name, check=check)


_enter_random(
    "Uniform",
    lambda random, low, high, shape: random.uniform(low, high, shape),
    _at_most("from", "to"),
    anything("to"),
    REAL - {"bool"},
    "dsa_random_uniform",
)
_enter_random(
    "Normal",
    lambda random, mean, std, shape: random.normal(mean, std, shape),
    anything("mean"),
    value("std", low=0),
    FLOATS | {"float64"},
    "dsa_random_normal",
)
