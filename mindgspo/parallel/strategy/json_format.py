"""Strategy records as MindSpore's JSON (`*.json`), and back.

What enters: a record, or the text of a file. What leaves: the other one. Called by `strategy.file`. The keys are those
of the protobuf fields, in maps by name; `tensor_shape`, which protobuf has not, comes on top.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mindgspo.parallel.strategy.record import StoredLayout, Strategy
from mindgspo.parallel.strategy.stage_names import CURRENT_STAGE, join_stages, split_stages, stage_marks, written_name
from mindgspo.text import shorten

_LAYOUTS, _STRATEGIES = "parallel_layout_item", "parallel_strategy_item"


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
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {len(content)} bytes are no JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get(_LAYOUTS), dict):
        hint = ""
        if isinstance(document, dict) and _STRATEGIES in document:
            hint = "; it holds strategies of operators only (save_operator_strategy_file)"
        raise ValueError(f"key {_LAYOUTS!r} with the layouts of parameters is missing{hint}")
    return split_stages(document[_LAYOUTS].items(), _stored, own_stage=_stage(document), source=source)


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


def _stored(entry: object) -> StoredLayout:
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
