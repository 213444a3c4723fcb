"""MindSpore strategy files: read, written and merged without MindSpore.

A file ends in `.ckpt` (protobuf) or `.json`; MindSpore goes by that, reading here goes by the content.

What the fields mean, and how that was established with MindSpore 2.10.0. [C]: seen in files that its Ascend front end
wrote in a dry run (plain, hsdp, Layout, pipeline). [T]: checkpoints cut by our layouts and given to
`transform_checkpoints` with our files came out as our layouts' slices. [R]: MindSpore's Python readers.

parallel_layout_item
    One entry per parameter of the stage, under its name, or `<stage>-<name>` in a merged file [R, T]; also of the
    optimizer state (adam_m., adam_v., accu_grads.) [C]. Read by all of MindSpore's functions.
dev_matrix
    Arrangement of the stage's ranks, row-major [C, T]. The compiler leaves out axes of one device; one rank is (1) [C].
tensor_map
    Per tensor axis the device axis that splits it, from the right; -1: not split [C, T]. An axis split by several: one
    message per tensor axis, outermost device axis first, and an empty message after a single one [C, T]. The JSON form
    has flat maps only: the compiler writes map and shape of a reshaped tensor there [C], which is read as it stands.
    `load_distributed_checkpoint`, too, takes flat maps only [R].
tensor_shape
    Full shape; JSON only [C]. Protobuf has no field for it, nor does any reader ask for it.
opt_weight_shard_step, opt_weight_shard_size
    The rank stores one of `size` parts of axis 0 of its slice, weights and moments alike; replicas that share a slice
    are `step` ranks apart. -1: as many parts as replicas, which is the compiler's default and counts the model_parallel
    ranks of a norm [C]. 0: whole. Which replicas: `strategy.record` [T, with hand-made entries too]; which
    parameters the compiler cuts: `strategy.layouts` [C]. `step` only repeats what the device matrix says; readers ask
    for non-zero, and for the right one where a single device axis is free [R].
field; param_split_shape, indices_offset
    Tables split by fields; rows per slice and first rows of tables split unevenly. 0 and empty for all others [C].
    Others' hand-written files put shapes into param_split_shape, so it counts with indices_offset only.
parallel_strategy_item
    Operators with the splits of their inputs, by `<operator>_<parameter>` [C]. Merging asks for one at least and takes
    the first one's `stage` for the file's [R]; so one per stage, without splits, is written here.
current_stage
    Counts the compiler's saves (2 seen) [C]; 1 in merged files. Read by nobody.
Rank lists are not in the file: rank = stage x ranks per stage + position in the device matrix [R, T].
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import CheckpointError
from mindgspo.io import write_file
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.ranks import RankGrid
from mindgspo.strategy.formats import from_json, from_protobuf, to_json, to_protobuf
from mindgspo.strategy.layouts import stage_strategy
from mindgspo.strategy.record import StoredLayout, Strategy

_WRITERS: Mapping[str, Callable[[Strategy], bytes]] = {".ckpt": to_protobuf, ".json": to_json}
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


def write_strategy(path: Path | str, layouts: Mapping[str, Layout], *, plan: ParallelPlan, rank: int) -> None:
    """Write the file that MindSpore wants for this rank: the parameters of its pipeline stage; see `stage_strategy`.

    Raises CheckpointError for another suffix than `.ckpt` and `.json`, and for what the JSON form cannot hold.
    """
    save_strategy(path, stage_strategy(layouts, plan=plan, rank=rank))


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
    Errors as `write_strategy` and `rank_paths`.
    """
    grid = RankGrid.of(plan)
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
    others = sorted({path for path in folder.iterdir() if path.suffix in _WRITERS} - set(paths))
    if others:
        raise CheckpointError(
            f"{folder}: holds {len(others)} file(s) beside those of the {plan.world_size} ranks of {plan}, first "
            f"{others[0].name}; MindSpore would merge them all: give another folder"
        )
    return paths


def save_strategy(path: Path | str, strategy: Strategy) -> None:
    """Write a record, e.g. a merged one, as `.ckpt` or `.json`. Errors as `write_strategy`."""
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
    if path.suffix not in _WRITERS:
        raise CheckpointError(f"{path}: a strategy file ends in .ckpt (protobuf) or .json, not in {path.suffix!r}")
    try:
        return _WRITERS[path.suffix](strategy)
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
