"""Strategy records as MindSpore's protobuf (`*.ckpt`), and back.

What enters: a record, or the bytes of a file. What leaves: the other one. Called by `strategy.file`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from mindgspo.parallel.strategy.messages import strategy_map_message
from mindgspo.parallel.strategy.optimizer_shard import TensorMap, device_axes
from mindgspo.parallel.strategy.record import StoredLayout, Strategy
from mindgspo.parallel.strategy.stage_names import CURRENT_STAGE, join_stages, split_stages, stage_marks, written_name


def to_protobuf(strategy: Strategy) -> bytes:
    """The content of the file. The same record always gives the same bytes."""
    message = strategy_map_message()
    message.current_stage = CURRENT_STAGE
    for node, stage in stage_marks(strategy):
        item = message.parallel_strategy_item.add()
        item.node_name = node
        item.parallel_strategys.stage = stage
    for stage, name, stored in join_stages(strategy):
        item = message.parallel_layout_item.add()
        item.param_name = written_name(strategy, stage, name)
        _fill(item.parallel_layouts, stored)
    return message.SerializeToString(deterministic=True)


def from_protobuf(content: bytes, source: str) -> Strategy:
    """The record of a file. Raises ValueError, without the path, for content that is no strategy."""
    message = strategy_map_message()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"its {len(content)} bytes are no ParallelStrategyMap ({error})") from error
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors()[:3])
        raise ValueError(f"its {len(content)} bytes lack {missing} (weights have the same suffix)")
    stages = [item.parallel_strategys.stage for item in message.parallel_strategy_item]
    entries = ((item.param_name, item.parallel_layouts) for item in message.parallel_layout_item)
    return split_stages(entries, _stored, own_stage=stages[0] if stages else 0, source=source)


def _fill(layouts: Any, stored: StoredLayout) -> None:
    layouts.dev_matrix.add().dim.extend(stored.device_matrix)
    if any(isinstance(entry, tuple) for entry in stored.tensor_map):
        for entry in stored.tensor_map:
            layouts.tensor_map.add().dim.extend(device_axes(entry) or (-1,))
        if len(stored.tensor_map) == 1:
            # One message alone would be read as the flat form; MindSpore adds an empty one, too.
            layouts.tensor_map.add()
    else:
        layouts.tensor_map.add().dim.extend(stored.tensor_map)
    layouts.param_split_shape.add().dim.extend(stored.param_split_shape)
    layouts.indices_offset.add().dim.extend(stored.indices_offset)
    layouts.field = stored.field
    layouts.opt_weight_shard_step = stored.opt_weight_shard_step
    layouts.opt_weight_shard_size = stored.opt_weight_shard_size


def _stored(layouts: Any) -> StoredLayout:
    if len(layouts.dev_matrix) != 1 or not layouts.tensor_map:
        raise ValueError(
            f"{len(layouts.dev_matrix)} device matrices and {len(layouts.tensor_map)} tensor maps; expected 1 and at "
            "least 1"
        )
    return StoredLayout(
        device_matrix=tuple(layouts.dev_matrix[0].dim),
        tensor_map=_tensor_map([tuple(one.dim) for one in layouts.tensor_map]),
        field=layouts.field,
        opt_weight_shard_step=layouts.opt_weight_shard_step,
        opt_weight_shard_size=layouts.opt_weight_shard_size,
        param_split_shape=_first(layouts.param_split_shape),
        indices_offset=_first(layouts.indices_offset),
    )


def _tensor_map(messages: list[tuple[int, ...]]) -> TensorMap:
    """One message is the flat map; several are one per tensor axis, with empty ones to be skipped."""
    return messages[0] if len(messages) == 1 else tuple(axes for axes in messages if axes)


def _first(messages: Any) -> tuple[int, ...]:
    return tuple(messages[0].dim) if messages else ()
