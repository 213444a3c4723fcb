"""Strategy records as MindSpore's protobuf (`*.ckpt`) and JSON (`*.json`), and back.

The protobuf messages are built from their field numbers, in a pool of their own, so MindSpore need not be installed and
may register its copy in the same process.

A file of one stage has plain parameter names, and the stage in every item of `parallel_strategy_item`, which lists
operators in MindSpore's files. Its readers ask for one item at least and read the first one's stage; so one item per
stage is written here. A merged file has `<stage>-<parameter>` for names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mindgspo.io import parse_json
from mindgspo.strategy.record import StoredLayout, Strategy, TensorMap, check_sizes, device_axes
from mindgspo.text import shorten

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
CURRENT_STAGE = 1
"""Field `current_stage`: MindSpore counts its saves in it; merged files have 1. Nobody reads it."""
_MERGED_NAME = re.compile(r"(\d{1,9})-(.+)", re.DOTALL)
Entry = TypeVar("Entry")
_LAYOUTS, _STRATEGIES = "parallel_layout_item", "parallel_strategy_item"


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


def stage_marks(strategy: Strategy) -> list[tuple[str, int]]:
    """(node name, stage) of the strategy items."""
    return [(f"stage_{stage}", stage) for stage in sorted(strategy.stages)]


def join_stages(strategy: Strategy) -> Iterator[tuple[int, str, StoredLayout]]:
    """(stage, parameter, stored layout) in the order of the file."""
    for stage in sorted(strategy.stages):
        for name, stored in strategy.stages[stage].items():
            yield stage, name, stored


def written_name(strategy: Strategy, stage: int, name: str) -> str:
    """The parameter's name as the file has it. Raises ValueError for one that MindSpore's readers would split."""
    if "-" in name:
        raise ValueError(f"{name}: MindSpore takes what stands before a '-' for a pipeline stage; rename the parameter")
    return name if len(strategy.stages) == 1 else f"{stage}-{name}"


def split_stages(
    entries: Iterable[tuple[str, Entry]], stored: Callable[[Entry], StoredLayout], *, own_stage: int, source: str
) -> Strategy:
    """The record of a file's (name, entry) pairs; plain names belong to `own_stage`.

    Raises ValueError: no entries, one twice, plain names beside merged ones, entries that are no layout.
    """
    stages: dict[int, dict[str, StoredLayout]] = {}
    kinds = set()
    for written, entry in entries:
        merged = _MERGED_NAME.fullmatch(written)
        kinds.add(merged is not None)
        stage, name = (int(merged[1]), merged[2]) if merged else (own_stage, written)
        if name in stages.setdefault(stage, {}):
            raise ValueError(f"{written}: named twice")
        try:
            stages[stage][name] = stored(entry)
        except ValueError as error:
            raise ValueError(f"{written}: {error}") from error
    if len(kinds) > 1:
        raise ValueError("names of merged stages ('0-...') stand beside plain ones")
    strategy = Strategy(stages={stage: stages[stage] for stage in sorted(stages)}, source=source)
    check_sizes(strategy)
    return strategy


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
    return split_stages(entries, _from_message, own_stage=stages[0] if stages else 0, source=source)


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


def _from_message(layouts: Any) -> StoredLayout:
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


def to_json(strategy: Strategy) -> bytes:
    """The content of the file. Raises ValueError for an entry that the JSON form cannot hold."""
    return json.dumps(
        {
            "current_stage": CURRENT_STAGE,
            _STRATEGIES: {node: {"stage": stage, "parallel_strategy": []} for node, stage in stage_marks(strategy)},
            _LAYOUTS: {
                written_name(strategy, stage, name): _written(name, stored)
                for stage, name, stored in join_stages(strategy)
            },
        }
    ).encode()


def from_json(content: bytes, source: str) -> Strategy:
    """The record of a file. Raises ValueError, without the path, for content that is no strategy."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise ValueError(f"its {len(content)} bytes are no JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get(_LAYOUTS), dict):
        hint = ""
        if isinstance(document, dict) and _STRATEGIES in document:
            hint = "; it holds strategies of operators only (save_operator_strategy_file)"
        raise ValueError(f"key {_LAYOUTS!r} with the layouts of parameters is missing{hint}")
    return split_stages(document[_LAYOUTS].items(), _from_entry, own_stage=_stage(document), source=source)


def _written(name: str, stored: StoredLayout) -> dict[str, Any]:
    if any(isinstance(entry, tuple) for entry in stored.tensor_map):
        raise ValueError(
            f"{name}: tensor map {stored.tensor_map} splits one axis by several device axes, which MindSpore's JSON "
            "form cannot hold; write a .ckpt file"
        )
    if stored.shape is None:
        raise ValueError(f"{name}: the JSON form holds the full shape, which is not known; write a .ckpt file")
    entry: dict[str, Any] = {
        "dev_matrix": stored.device_matrix,
        "tensor_map": stored.tensor_map,
        "tensor_shape": stored.shape,
        "field": stored.field,
        "opt_weight_shard_step": stored.opt_weight_shard_step,
        "opt_weight_shard_size": stored.opt_weight_shard_size,
    }
    if stored.param_split_shape:
        entry["param_split_shape"] = stored.param_split_shape
    if stored.indices_offset:
        entry["indices_offset"] = stored.indices_offset
    return entry


def _from_entry(entry: object) -> StoredLayout:
    if not isinstance(entry, dict):
        raise ValueError("no map of fields")
    return StoredLayout(
        device_matrix=_integers(entry, "dev_matrix"),
        tensor_map=_integers(entry, "tensor_map"),
        shape=_integers(entry, "tensor_shape") if "tensor_shape" in entry else None,
        field=_integer(entry, "field"),
        opt_weight_shard_step=_integer(entry, "opt_weight_shard_step"),
        opt_weight_shard_size=_integer(entry, "opt_weight_shard_size"),
        param_split_shape=_integers(entry, "param_split_shape") if "param_split_shape" in entry else (),
        indices_offset=_integers(entry, "indices_offset") if "indices_offset" in entry else (),
    )


def _stage(document: Mapping[str, object]) -> int:
    """The stage of the first strategy item, 0 where there is none."""
    items = document.get(_STRATEGIES)
    first = next(iter(items.values()), None) if isinstance(items, dict) else None
    stage = _integer(first, "stage") if isinstance(first, dict) else 0
    if stage < 0:
        raise ValueError(f"stage {stage} of its first strategy item is negative")
    return stage


def _integers(entry: Mapping[str, object], key: str) -> tuple[int, ...]:
    values = entry.get(key)
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError(f"{key} is {_short(values)}, not a list of integers")
    return tuple(values)


def _integer(entry: Mapping[str, object], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int:
        raise ValueError(f"{key} is {_short(value)}, not an integer")
    return value


def _short(value: object) -> str:
    return shorten(repr(value))
