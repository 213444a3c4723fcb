"""Which weights MindSpore's compiler cuts over their replicas under `AutoParallel(...).hsdp()`, and in how many parts.

What enters: a stored layout without optimizer shards, and the arguments of hsdp(). What leaves: the layout with the two
optimizer-shard fields as the compiler writes them. Called by `strategy.layouts`; pure Python.

The rule, established with MindSpore 2.10.0 by compiling small networks for Ascend (2 to 512 ranks, all three optimizer
levels) and reading files and inserted collectives:
- Weights are cut, and with them their moments and accumulated gradients, along axis 0 of the slice.
- Into `shard_size` parts, or as many as there are replicas where these are fewer or it is -1 (1 is taken for -1).
- Replicas are all ranks of the stage with the same slice: of a norm also the model_parallel ranks, of few key/value
  heads also the ranks that share one. Parts go to runs of consecutive replicas; so only where replicas are exactly the
  data_parallel ranks does shard_size=data_parallel cut over these.
- A weight is cut or left whole, never cut into fewer parts. Whole if it is smaller than the threshold (bytes of the
  whole tensor in the parameter's own type), if the parts do not divide the replicas or axis 0 of the slice, or if the
  parameter's `parallel_optimizer` is False.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.strategy.optimizer_shard import ALL_REPLICAS, NOT_SPLIT, device_axes, map_entry
from mindgspo.parallel.strategy.record import StoredLayout

THRESHOLD = 64
"""KB; MindSpore's default, with which norms and biases stay whole."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HsdpCall:
    """What decides about the cuts."""

    shard_size: int = ALL_REPLICAS
    """Argument of hsdp(): parts at most; -1: as many as there are replicas."""
    threshold: int = THRESHOLD
    """Argument of hsdp(): KB from which on a tensor is cut."""
    element_bytes: int = _FLOAT_BYTES
    """Of the parameters, not of what they are cast to."""


def hsdp_call(plan: ParallelPlan) -> HsdpCall | None:
    """The call that graphs of this plan make; None: they make none."""
    if not plan.optimizer_shard or plan.data_parallel == 1:
        return None
    return HsdpCall(shard_size=plan.data_parallel)


def hsdp_shards(stored: StoredLayout, call: HsdpCall) -> StoredLayout:
    """The layout with the fields that the compiler writes for a parameter that requires a gradient.

    Example: a norm of 65536 elements on 2 x 4 ranks with shard_size 2: step 1, size 2; ranks 0 and 1 have its halves.
    """
    assert stored.shape is not None and not stored.opt_weight_shard_size, stored
    free = _free_axes(stored)
    replicas = prod(stored.device_matrix[position] for position in free)
    wanted = ALL_REPLICAS if call.shard_size == 1 else call.shard_size
    parts = replicas if wanted == ALL_REPLICAS else min(wanted, replicas)
    small = prod(stored.shape) * call.element_bytes < call.threshold * 1024
    if not stored.shape or small or parts == 1 or replicas % parts or _rows(stored) % parts:
        return stored
    return replace(
        stored,
        opt_weight_shard_step=prod(stored.device_matrix[free[-1] + 1 :]),
        opt_weight_shard_size=wanted if wanted == ALL_REPLICAS else parts,
    )


def without_single_devices(stored: StoredLayout) -> StoredLayout:
    """The same layout in the compiler's spelling: device axes of one device are left out; a stage of one rank is (1).

    Example: matrix (1, 4), map (0, -1) as (4,) and (0, -1); matrix (2, 1), map (0, -1) as (2,) and (-1, -1).
    """
    matrix = stored.device_matrix
    kept = [position for position, size in enumerate(matrix) if size > 1]
    number = {len(matrix) - 1 - position: len(kept) - 1 - new for new, position in enumerate(kept)}
    tensor_map = tuple(
        map_entry(tuple(number[axis] for axis in device_axes(entry) if axis in number)) for entry in stored.tensor_map
    )
    if not kept:
        return replace(stored, device_matrix=(1,), tensor_map=(NOT_SPLIT,) * len(tensor_map))
    return replace(stored, device_matrix=tuple(matrix[position] for position in kept), tensor_map=tensor_map)


def _free_axes(stored: StoredLayout) -> list[int]:
    """Positions in the device matrix, ascending, of the axes of more than one device that split nothing."""
    last = len(stored.device_matrix) - 1
    used = {last - axis for entry in stored.tensor_map for axis in device_axes(entry)}
    return [position for position, size in enumerate(stored.device_matrix) if size > 1 and position not in used]


def _rows(stored: StoredLayout) -> int:
    """Length of axis 0 of the slice."""
    assert stored.shape
    return stored.shape[0] // stored.splits[0]
