"""The protobuf messages of MindSpore's strategy files, built from their field numbers.

What leaves: `strategy_map_message()`, an empty message to fill or to parse into. Called by `strategy.protobuf_format`.
MindSpore need not be installed; where it is, a test compares the fields below with its own `node_strategy_pb2`. The
messages live in a pool of their own, so that MindSpore may register its copy in the same process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "mindspore.straspb"

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_REQUIRED, _Field.LABEL_REPEATED
_UINT32, _INT32, _INT64 = _Field.TYPE_UINT32, _Field.TYPE_INT32, _Field.TYPE_INT64
_STRING = _Field.TYPE_STRING

# {message: ((field, number, how many, scalar type or the name of a message), ...)}
_MESSAGES: dict[str, tuple[tuple[str, int, int, int | str], ...]] = {
    "ParallelStrategy": (("dim", 1, _MANY, _UINT32),),
    "ParallelStrategys": (("stage", 1, _ONE, _UINT32), ("parallel_strategy", 2, _MANY, "ParallelStrategy")),
    "ParallelStrategyItem": (
        ("node_name", 1, _ONE, _STRING),
        ("parallel_strategys", 2, _ONE, "ParallelStrategys"),
    ),
    "DevMatrix": (("dim", 1, _MANY, _UINT32),),
    "TensorMap": (("dim", 1, _MANY, _INT32),),
    "ParamSplitShape": (("dim", 1, _MANY, _INT64),),
    "IndicesOffset": (("dim", 1, _MANY, _INT64),),
    "ParallelLayouts": (
        ("dev_matrix", 1, _MANY, "DevMatrix"),
        ("tensor_map", 2, _MANY, "TensorMap"),
        ("param_split_shape", 3, _MANY, "ParamSplitShape"),
        ("indices_offset", 4, _MANY, "IndicesOffset"),
        ("field", 5, _ONE, _INT32),
        ("opt_weight_shard_step", 6, _ONE, _INT32),
        ("opt_weight_shard_size", 7, _ONE, _INT32),
    ),
    "ParallelLayoutItem": (("param_name", 1, _ONE, _STRING), ("parallel_layouts", 2, _ONE, "ParallelLayouts")),
    "ParallelStrategyMap": (
        ("current_stage", 1, _ONE, _UINT32),
        ("parallel_strategy_item", 2, _MANY, "ParallelStrategyItem"),
        ("parallel_layout_item", 3, _MANY, "ParallelLayoutItem"),
    ),
}


def strategy_map_message() -> Any:
    """A new ParallelStrategyMap: the message that a strategy file consists of."""
    return _strategy_map_class()()


def file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """All messages above as protobuf describes them."""
    described = descriptor_pb2.FileDescriptorProto(
        name="mindgspo/strategy_messages.proto", package=PACKAGE, syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        message = described.message_type.add(name=name)
        for field_name, number, label, kind in fields:
            field = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                field.type = kind
    return described


@lru_cache(maxsize=1)
def _strategy_map_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_descriptor())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.ParallelStrategyMap"))
