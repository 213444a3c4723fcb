"""MindSpore strategy files: read, written and merged without MindSpore.

A file ends in `.ckpt` (protobuf) or `.json`; MindSpore goes by that, reading here goes by the content.

What the fields mean, and how that was established with MindSpore 2.10.0. [C]: seen in files that its Ascend front end
wrote in a dry run (plain, hsdp, Layout, pipeline). [T]: checkpoints cut by our layouts and given to
`transform_checkpoints` with our files came out as our layouts' slices. [R]: MindSpore's Python readers.

parallel_layout_item One entry per parameter of the stage, under its name, or `<stage>-<name>` in a merged file [R, T];
also of the optimizer state (adam_m., adam_v., accu_grads.) [C]. Read by all of MindSpore's functions. dev_matrix
Arrangement of the stage's ranks, row-major [C, T]. The compiler leaves out axes of one device; one rank is (1) [C].
tensor_map Per tensor axis the device axis that splits it, from the right; -1: not split [C, T]. An axis split by
several: one message per tensor axis, outermost device axis first, and an empty message after a single one [C, T]. The
JSON form has flat maps only: the compiler writes map and shape of a reshaped tensor there [C], which is read as it
stands. `load_distributed_checkpoint`, too, takes flat maps only [R]. tensor_shape Full shape; JSON only [C]. Protobuf
has no field for it, nor does any reader ask for it. opt_weight_shard_step, opt_weight_shard_size The rank stores one of
`size` parts of axis 0 of its slice, weights and moments alike; replicas that share a slice are `step` ranks apart. -1:
as many parts as replicas, which is the compiler's default and counts the model_parallel ranks of a norm [C]. 0: whole.
Which replicas: `strategy.record` [T, with hand-made entries too]; which parameters the compiler cuts:
`strategy.layouts` [C]. `step` only repeats what the device matrix says; readers ask for non-zero, and for the right one
where a single device axis is free [R]. field; param_split_shape, indices_offset Tables split by fields; rows per slice
and first rows of tables split unevenly. 0 and empty for all others [C]. Others' hand-written files put shapes into
param_split_shape, so it counts with indices_offset only. parallel_strategy_item Operators with the splits of their
inputs, by `<operator>_<parameter>` [C]. Merging asks for one at least and takes the first one's `stage` for the file's
[R]; so one per stage, without splits, is written here. current_stage Counts the compiler's saves (2 seen) [C]; 1 in
merged files. Not read. A file of one stage has plain parameter names, and the stage in every item of
parallel_strategy_item. The protobuf messages are built here from their field numbers, in a pool of their own, so
MindSpore need not be installed and may register its copy in the same process. Rank lists are not in the file: rank =
stage x ranks per stage + position in the device matrix [R, T].
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import CheckpointError
from mindgspo.io import parse_json, write_file
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.placement import RankGrid
from mindgspo.strategy.layouts import stage_strategy
from mindgspo.strategy.record import StoredLayout, Strategy, check_sizes, device_axes
from mindgspo.text import shorten

# A strategy of 1,000 parameters has under 100 kB; whole weights must not be read into memory to be refused.
_MOST_BYTES = 1 << 28
_EXPECTED = "expected a MindSpore strategy file: what save_param_strategy_file writes, protobuf (.ckpt) or JSON"
SINGLE = ""
"""The name of what has none: a file, or a folder that holds files itself."""
_SUFFIXES = (".ckpt", ".json")


def read_strategy(path: Path | str) -> Strategy:
    """The record of a strategy file, of one stage or merged.

    Raises CheckpointError: no such file, empty, truncated, or of another kind. A protobuf that was cut exactly between
    two entries looks whole; `check_fits` then names what is missing.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= _MOST_BYTES else b""
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {_EXPECTED}") from error
    if size > _MOST_BYTES:
        raise CheckpointError(f"{path}: {size} bytes are more than any strategy has; {_EXPECTED}, not weights")
    if not content:
        raise CheckpointError(f"{path}: the file is empty; {_EXPECTED}")
    parse = from_json if content.lstrip()[:1] in (b"{", b"[") else from_protobuf
    try:
        return parse(content, str(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; {_EXPECTED}") from error


def write_strategies(
    folder: Path | str,
    layouts: Mapping[str, Layout],
    *,
    plan: ParallelPlan,
    suffix: str = ".ckpt",
    strategy_of: Callable[..., Strategy] = stage_strategy,
) -> list[Path]:
    """Write the file of every rank of the plan; returns the paths, by rank: see `rank_paths`.

    strategy_of: `stage_strategy` or `compiled_strategy`. The files of a stage are equal, so each is worked out once.
    Raises CheckpointError as `rank_paths` and `save_strategy`.
    """
    grid = RankGrid(plan)
    paths = rank_paths(Path(folder), plan, suffix)
    for stage in range(plan.pipeline_stage):
        ranks = grid.stage_ranks(stage)
        content = _content(Path(folder, f"*{suffix}"), strategy_of(layouts, plan=plan, rank=ranks[0]))
        for rank in ranks:
            write_file(paths[rank], content)
    return paths


def rank_paths(folder: Path, plan: ParallelPlan, suffix: str) -> list[Path]:
    """`<folder>/ckpt_strategy_rank_<rank><suffix>` of all ranks, as MindFormers names them, in a folder made for them.

    Raises CheckpointError for a folder that cannot be made, or with files of other ranks or of the other form, because
    MindSpore merges all that a folder holds.
    """
    paths = [folder / f"ckpt_strategy_rank_{rank}{suffix}" for rank in range(plan.world_size)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made ({error.strerror}); give another folder") from error
    others = sorted({path for path in folder.iterdir() if path.suffix in _SUFFIXES} - set(paths))
    if others:
        raise CheckpointError(
            f"{folder}: holds {len(others)} file(s) beside those of the {plan.world_size} ranks of {plan}, first "
            f"{others[0].name}; MindSpore would merge them all: give another folder"
        )
    return paths


def save_strategy(path: Path | str, strategy: Strategy) -> None:
    """Write a record, e.g. a merged one. Raises CheckpointError for another suffix than `.ckpt` and `.json`, and for
    what the JSON form cannot hold."""
    write_file(Path(path), _content(Path(path), strategy))


def merge_strategies(paths: Sequence[Path | str]) -> Strategy:
    """One record of all pipeline stages from the files of any ranks, at least one per stage.

    Raises CheckpointError: a file that cannot be read, a stage that is missing or described in two ways, stages of
    different sizes.
    """
    if not paths:
        raise CheckpointError("no strategy files to merge; give the file of one rank of every pipeline stage")
    stages: dict[int, Mapping[str, StoredLayout]] = {}
    sources: dict[int, Strategy] = {}
    for path in paths:
        strategy = read_strategy(path)
        for stage, entries in strategy.stages.items():
            if stages.setdefault(stage, entries) != entries:
                raise CheckpointError(
                    f"{sources[stage].source} and {path} describe stage {stage} differently; give files of one run"
                )
            sources.setdefault(stage, strategy)
    missing = [str(stage) for stage in range(max(stages)) if stage not in stages]
    if missing:
        raise CheckpointError(
            f"{', '.join(map(str, paths[:3]))}: of the stages 0 to {max(stages)}, {', '.join(missing)} is missing in "
            f"{len(paths)} file(s); add the file of any rank of it"
        )
    sizes = {strategy.stage_size: strategy.source for strategy in sources.values()}
    if len(sizes) > 1:
        described = ", ".join(f"{size} ranks in {source}" for size, source in sorted(sizes.items()))
        raise CheckpointError(f"stages of different sizes: {described}; give files of one run")
    merged = {stage: stages[stage] for stage in sorted(stages)}
    return Strategy(stages=merged, source=f"{len(merged)} stages from {sources[0].source}")


def _content(path: Path, strategy: Strategy) -> bytes:
    if path.suffix not in _SUFFIXES:
        raise CheckpointError(f"{path}: a strategy file ends in .ckpt (protobuf) or .json, not in {path.suffix!r}")
    try:
        return to_json(strategy) if path.suffix == ".json" else to_protobuf(strategy)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def read_source(path: Path) -> Mapping[str, Strategy]:
    """{name: record}: under SINGLE for a file or a folder of files, by subfolder for a folder of folders.

    Raises CheckpointError for what is not there or is no strategy.
    """
    if not path.is_dir():
        return {SINGLE: read_strategy(path)}
    if strategy_files(path):
        return {SINGLE: read_folder(path)}
    below = {folder.name: read_folder(folder) for folder in sorted(path.iterdir()) if strategy_files(folder)}
    if not below:
        raise CheckpointError(
            f"{path}: holds no strategy files ({', '.join(f'*{suffix}' for suffix in _SUFFIXES)}), nor does a folder "
            "in it; tools/generate_strategy.py writes them"
        )
    return below


def read_folder(folder: Path) -> Strategy:
    """The record of all files of a folder. Ranks of a stage have equal files, of which one is read."""
    paths = strategy_files(folder)
    if not paths:
        raise CheckpointError(f"{folder}: holds no strategy files; give the folder that does, e.g. {folder / 'train'}")
    distinct: dict[bytes, Path] = {}
    for path in paths:
        distinct.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    return merge_strategies(list(distinct.values()))


def strategy_files(folder: Path) -> list[Path]:
    """The files of a folder that end as strategy files do; [] for what is no folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())


PACKAGE = "mindspore.straspb"

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_REQUIRED, _Field.LABEL_REPEATED
_UINT32, _INT32, _INT64 = _Field.TYPE_UINT32, _Field.TYPE_INT32, _Field.TYPE_INT64
_STRING = _Field.TYPE_STRING

# {message: ((field, number, how many, scalar type or the name of a message), ...)}
_MESSAGES: dict[str, tuple[tuple[str, int, int, _Field.Type.ValueType | str], ...]] = {
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
def strategy_map_message() -> Any:
    """The class ParallelStrategyMap: the message that a strategy file consists of."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_descriptor())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.ParallelStrategyMap"))


def _written_entries(strategy: Strategy) -> Iterator[tuple[str, StoredLayout]]:
    """(parameter's name as the file has it, stored layout) in the order of the file. Raises ValueError for a name that
    MindSpore's readers would split."""
    for stage in sorted(strategy.stages):
        for name, stored in strategy.stages[stage].items():
            if "-" in name:
                raise ValueError(
                    f"{name}: MindSpore takes what stands before a '-' for a pipeline stage; rename the parameter"
                )
            yield (name if len(strategy.stages) == 1 else f"{stage}-{name}"), stored


def _by_stage(
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
    message = strategy_map_message()()
    message.current_stage = CURRENT_STAGE
    for stage in sorted(strategy.stages):
        item = message.parallel_strategy_item.add()
        item.node_name = f"stage_{stage}"
        item.parallel_strategys.stage = stage
    for name, stored in _written_entries(strategy):
        item = message.parallel_layout_item.add()
        item.param_name = name
        _fill(item.parallel_layouts, stored)
    return message.SerializeToString(deterministic=True)


def from_protobuf(content: bytes, source: str) -> Strategy:
    """The record of a file. Raises ValueError, without the path, for content that is no strategy."""
    message = strategy_map_message()()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"its {len(content)} bytes are no ParallelStrategyMap ({error})") from error
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors()[:3])
        raise ValueError(f"its {len(content)} bytes lack {missing} (weights have the same suffix)")
    stages = [item.parallel_strategys.stage for item in message.parallel_strategy_item]
    entries = ((item.param_name, item.parallel_layouts) for item in message.parallel_layout_item)
    return _by_stage(entries, _from_message, own_stage=stages[0] if stages else 0, source=source)


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
    # One message is the flat map; several are one per tensor axis, with empty ones to be skipped.
    maps = [tuple(one.dim) for one in layouts.tensor_map]
    return StoredLayout(
        device_matrix=tuple(layouts.dev_matrix[0].dim),
        tensor_map=maps[0] if len(maps) == 1 else tuple(axes for axes in maps if axes),
        field=layouts.field,
        opt_weight_shard_step=layouts.opt_weight_shard_step,
        opt_weight_shard_size=layouts.opt_weight_shard_size,
        param_split_shape=tuple(dim for one in layouts.param_split_shape[:1] for dim in one.dim),
        indices_offset=tuple(dim for one in layouts.indices_offset[:1] for dim in one.dim),
    )


def to_json(strategy: Strategy) -> bytes:
    """The content of the file. Raises ValueError for an entry that the JSON form cannot hold."""
    stages = {f"stage_{stage}": {"stage": stage, "parallel_strategy": []} for stage in sorted(strategy.stages)}
    layouts = {name: _as_json(name, stored) for name, stored in _written_entries(strategy)}
    return json.dumps({"current_stage": CURRENT_STAGE, _STRATEGIES: stages, _LAYOUTS: layouts}).encode()


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
    return _by_stage(document[_LAYOUTS].items(), _from_entry, own_stage=_stage(document), source=source)


def _as_json(name: str, stored: StoredLayout) -> dict[str, Any]:
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
    """The stage of the first strategy item, 0 if there is none."""
    items = document.get(_STRATEGIES)
    first = next(iter(items.values()), None) if isinstance(items, dict) else None
    stage = _integer(first, "stage") if isinstance(first, dict) else 0
    if stage < 0:
        raise ValueError(f"stage {stage} of its first strategy item is negative")
    return stage


def _integers(entry: Mapping[str, object], key: str) -> tuple[int, ...]:
    values = entry.get(key)
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError(f"{key} is {shorten(repr(values))}, not a list of integers")
    return tuple(values)


def _integer(entry: Mapping[str, object], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int:
        raise ValueError(f"{key} is {shorten(repr(value))}, not an integer")
    return value
