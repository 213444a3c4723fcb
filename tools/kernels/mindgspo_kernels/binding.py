"""The kernels as Python functions.

`kernels.h` says what each function computes.

Every function takes `threads`; results do not depend on it. Raises ValueError with the reason for what cannot be
computed, and KernelsUnavailable at the first call where nothing can be compiled.

Legend: B batch, T tokens, N query heads, K key/value heads, D head size, S sequences.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from mindgspo_kernels.build import library

_DTYPES = {"float32": 0, "float16": 1, "int32": 3, "uint8": 4, "int16": 6, "int64": 9, "bool": 12, "bfloat16": 27}
_MAX_RANK = 8
_DESCRIPTOR = struct.Struct(f"@Pii{_MAX_RANK}q{_MAX_RANK}q")  # mindgspo_tensor
_ANY = 1 << 40


class Bits(Protocol):
    """A tensor: dtype "float32", "bfloat16", ...; bits its memory, uint16 for bfloat16."""

    dtype: str
    bits: np.ndarray


class Visible(NamedTuple):
    """Which keys a query of a sequence sees: query i sees key j if -before <= j - i - shift <= after.

    from_end: shift is the number of keys less the number of queries, so that the last ones are aligned; else it is 0.
    """

    before: int = _ANY
    after: int = _ANY
    from_end: bool = False


class _Visible(ctypes.Structure):
    _fields_ = (("before", ctypes.c_int64), ("after", ctypes.c_int64), ("from_end", ctypes.c_int64))


def matmul(
    a: Bits, b: Bits, out: Bits, *, bias: Bits | None = None, alpha: float = 1.0, beta: float = 1.0, threads: int = 1
) -> None:
    """out[..., M, N] = alpha * a @ b + beta * bias; batch axes and bias are spread to out's."""
    call("matmul", a, b, bias, out, alpha, beta, threads)


def attention(
    q: Bits,
    k: Bits,
    v: Bits,
    *,
    scale: float,
    out: Bits,
    highest: Bits,
    total: Bits,
    visible: Visible = Visible(),  # noqa: B008 - a constant
    mask: Bits | None = None,
    q_ends: Sequence[int] | None = None,
    k_ends: Sequence[int] | None = None,
    prefixes: Sequence[int] | None = None,
    threads: int = 1,
) -> None:
    """out [B, T, N, Dv] of q [B, T, N, D], k [B, T2, K, D], v [B, T2, K, Dv]; highest, total: float32 [B, T, N, any].

    mask: uint8 or bool [S, N, longest T, longest T2], 1 hides; its first two axes may be 1. Ends: cumulative lengths,
    with B = 1; without them every batch entry is a sequence. prefixes: by sequence an earlier one that it continues, or
    -1: its keys come first, and its own queries see them as tokens of one sequence do.
    """
    ends = _ends(q_ends), _ends(k_ends), _ends(prefixes), len(q_ends or ())
    call("attention", q, k, v, mask, *ends, scale, _Visible(*visible), highest, total, out, threads)


def attention_backward(
    q: Bits,
    k: Bits,
    v: Bits,
    *,
    scale: float,
    out: Bits,
    highest: Bits,
    total: Bits,
    d_out: Bits,
    d_q: Bits,
    d_k: Bits,
    d_v: Bits,
    visible: Visible = Visible(),  # noqa: B008 - a constant
    mask: Bits | None = None,
    q_ends: Sequence[int] | None = None,
    k_ends: Sequence[int] | None = None,
    prefixes: Sequence[int] | None = None,
    threads: int = 1,
) -> None:
    """Gradients of `attention`, whose results are given: out, highest, total."""
    ends = _ends(q_ends), _ends(k_ends), _ends(prefixes), len(q_ends or ())
    outputs = highest, total, out, d_out, d_q, d_k, d_v
    call("attention_backward", q, k, v, mask, *ends, scale, _Visible(*visible), *outputs, threads)


def paged_attention(
    q: Bits,
    key_cache: Bits,
    value_cache: Bits,
    table: Bits,
    lengths: Bits,
    *,
    scale: float,
    out: Bits,
    threads: int = 1,
) -> None:
    """One query per sequence: q, out [S, N, D]; caches [blocks, block size, K, D]; table [S, blocks]; lengths [S]."""
    call("paged_attention", q, key_cache, value_cache, table, lengths, scale, out, threads)


def rms_norm(
    x: Bits,
    gamma: Bits,
    *,
    epsilon: float,
    y: Bits,
    rstd: Bits | None = None,
    other: Bits | None = None,
    total: Bits | None = None,
    threads: int = 1,
) -> None:
    """y = x * rstd * gamma [H] over the last axis; rstd [..., 1]. With other, of x + other, which goes to total."""
    call("rms_norm", x, other, gamma, epsilon, y, rstd, total, threads)


def rms_norm_backward(
    d_y: Bits,
    x: Bits,
    rstd: Bits,
    gamma: Bits,
    *,
    d_x: Bits,
    d_gamma: Bits,
    added: Bits | None = None,
    threads: int = 1,
) -> None:
    """Gradients of `rms_norm`, x being the sum where there was `other`; `added` is added to d_x."""
    call("rms_norm_backward", d_y, x, rstd, gamma, added, d_x, d_gamma, threads)


def softmax(x: Bits, axis: int, *, y: Bits, is_log: bool = False, threads: int = 1) -> None:
    """Softmax, or its logarithm, along an axis."""
    call("softmax", x, axis, is_log, y, threads)


def softmax_backward(d_y: Bits, y: Bits, axis: int, *, d_x: Bits, is_log: bool = False, threads: int = 1) -> None:
    """Gradient of `softmax`, whose result y is given."""
    call("softmax_backward", d_y, y, axis, is_log, d_x, threads)


def swiglu(x: Bits, axis: int, *, y: Bits, threads: int = 1) -> None:
    """silu(first half of x along the axis) * second half."""
    call("swiglu", x, axis, y, threads)


def swiglu_backward(d_y: Bits, x: Bits, axis: int, *, d_x: Bits, threads: int = 1) -> None:
    """Gradient of `swiglu`."""
    call("swiglu_backward", d_y, x, axis, d_x, threads)


def rotary(
    x: Bits, cos: Bits, sin: Bits, *, y: Bits, interleaved: bool = False, backward: bool = False, threads: int = 1
) -> None:
    """x * cos + rotated(x) * sin over the last axis, or its transpose for gradients; the tables are spread to x."""
    call("rotary", x, cos, sin, interleaved, backward, y, threads)


def add(a: Bits, b: Bits, *, out: Bits, threads: int = 1) -> None:
    """a + b, both spread to out; they have as many axes."""
    call("elementwise", 0, a, b, out, threads)


def mul(a: Bits, b: Bits, *, out: Bits, threads: int = 1) -> None:
    """a * b, both spread to out; they have as many axes."""
    call("elementwise", 1, a, b, out, threads)


def silu(x: Bits, *, y: Bits, threads: int = 1) -> None:
    """x * sigmoid(x)."""
    call("elementwise", 2, x, None, y, threads)


def silu_backward(d_y: Bits, x: Bits, *, d_x: Bits, threads: int = 1) -> None:
    """Gradient of `silu`."""
    call("elementwise", 3, d_y, x, d_x, threads)


@functools.cache
def _library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library()))
    loaded.mindgspo_error.restype = loaded.mindgspo_graph_failure.restype = ctypes.c_char_p
    for name in ("panel_columns", "threads", "group_bytes"):
        getattr(loaded, f"mindgspo_{name}").restype = ctypes.c_int64
    # The user's word, which os.environ has: importing MindSpore sets the variable itself to 1, for C alone.
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    loaded.mindgspo_threads(ctypes.c_int64(int(limit) if limit.isdecimal() else 0))
    return loaded


def graph_operator(name: str) -> str:
    """The operator `graph_<name>` of `graph.cc`, as `ops.Custom` names it; the library is loaded."""
    _library()
    return f"{library()}:graph_{name}"


def graph_failure() -> str:
    """Why an operator of a graph has failed last; empty where none has."""
    return _library().mindgspo_graph_failure().decode()


def graph_threads() -> int:
    """Threads of an operator in a graph: $OMP_NUM_THREADS, by default and at most the processors of this process."""
    return _library().mindgspo_threads(ctypes.c_int64(0))


def call(name: str, *arguments: object) -> None:
    """Calls mindgspo_<name>; order and kinds of the arguments are those of `kernels.h`. Tensors are `Bits`, several of
    them a list or a tuple."""
    loaded = _library()
    kept = [Tensors(one) if isinstance(one, (list, tuple)) else one for one in arguments]
    if getattr(loaded, f"mindgspo_{name}")(*map(_argument, kept)):
        raise ValueError(f"{name}: {loaded.mindgspo_error().decode()}")


def panel_columns() -> int:
    """Columns of a panel of packed weights on this processor."""
    return _library().mindgspo_panel_columns()


def group_bytes(world_size: int, slot_bytes: int, num_slots: int) -> int:
    """Size of the file that the ranks of a CPU cluster share."""
    return _library().mindgspo_group_bytes(*map(ctypes.c_int64, (world_size, slot_bytes, num_slots)))


class Tensors:
    """Several descriptors as the array of pointers that C takes; null for None."""

    def __init__(self, tensors: Sequence[Bits | None]) -> None:
        self.descriptors = [None if one is None else ctypes.create_string_buffer(_descriptor(one)) for one in tensors]
        places = [None if one is None else ctypes.addressof(one) for one in self.descriptors]
        self.array = (ctypes.c_void_p * len(places))(*places)


def _argument(given: object) -> object:
    if given is None or isinstance(given, (ctypes.Array, ctypes.Structure, type(ctypes.byref(ctypes.c_int())))):
        return given
    if isinstance(given, Tensors):
        return given.array
    if isinstance(given, float):
        return ctypes.c_double(given)
    if isinstance(given, (int, np.integer)):  # flags too
        return ctypes.c_int64(given)
    return _descriptor(given)


def _descriptor(tensor: Bits) -> bytes:
    """A mindgspo_tensor; ctypes passes the address of the bytes, which live until the call returns."""
    bits, number = tensor.bits, _DTYPES.get(tensor.dtype)
    if bits is None:
        raise ValueError(f"{tensor!r} has no memory")
    if number is None or bits.ndim > _MAX_RANK:
        raise ValueError(f"{tensor.dtype} with {bits.ndim} axes is not computed by the kernels")
    size, padding = bits.itemsize, (0,) * (_MAX_RANK - bits.ndim)
    strides = (stride // size for stride in bits.strides)
    return _DESCRIPTOR.pack(bits.ctypes.data, number, bits.ndim, *bits.shape, *padding, *strides, *padding)


def _ends(ends: Sequence[int] | None) -> ctypes.Array | None:
    return None if ends is None else (ctypes.c_int64 * len(ends))(*ends)
