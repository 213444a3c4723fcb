"""Small checkpoints of several plans, made without the code that transforms them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from reshard_in_numpy import scatter
from small_plans import compiled_layouts

from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, Retention, read_state, save_checkpoint
from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.strategy.file import merge_strategies, save_strategy, write_strategies
from mindgspo.strategy.layouts import compiled_strategy
from mindgspo.tensor_files.formats import library_order
from mindgspo.tensor_files.tensors import TensorInfo, info_of
from mindgspo.tensor_files.writer import read_safetensors, write_tensors

# Weights of more than 64 KB, below which MindSpore's compiler cuts nothing.
MODEL = ModelSection(
    vocab_size=512,
    hidden_size=256,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
)
SHAPES = weight_shapes(MODEL)
MOMENTS = ("adamw.m.", "adamw.v.")


def plan(data: int, model: int, stages: int, **changes: Any) -> ParallelPlan:
    return ParallelPlan(data_parallel=data, model_parallel=model, pipeline_stage=stages, **changes)


def layouts_of(parallel_plan: ParallelPlan, *, compiled: bool = False, prefixes: tuple[str, ...] = MOMENTS) -> dict:
    """Weights and moments under a plan. compiled: with the cuts of MindSpore's compiler instead of ours."""
    weights = parameter_layouts(SHAPES, MODEL, parallel_plan)
    moments = weights if compiled else moment_layouts(SHAPES, MODEL, parallel_plan)
    layouts = {**weights, **{f"{prefix}{name}": moments[name] for prefix in prefixes for name in SHAPES}}
    return compiled_layouts(layouts, plan=parallel_plan) if compiled else layouts


def write_strategy_files(
    folder: Path, parallel_plan: ParallelPlan, *, compiled: bool = False, suffix: str = ".ckpt", merged: bool = False
) -> Path:
    """The files of all ranks, or the merged one; returns the path to give."""
    plain = parameter_layouts(SHAPES, MODEL, parallel_plan)
    layouts = {**plain, **{f"{prefix}{name}": plain[name] for prefix in MOMENTS for name in SHAPES}}
    if compiled:
        paths = write_strategies(folder, layouts, plan=parallel_plan, suffix=suffix, strategy_of=compiled_strategy)
    else:
        paths = write_strategies(folder, layouts_of(parallel_plan), plan=parallel_plan, suffix=suffix)
    if not merged:
        return folder
    save_strategy(folder.with_suffix(suffix), merge_strategies(paths))
    return folder.with_suffix(suffix)


def random_tensors(prefixes: tuple[str, ...] = MOMENTS, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights, moments and the number of updates."""
    random = np.random.default_rng(seed)
    names = {**SHAPES, **{f"{prefix}{name}": shape for prefix in prefixes for name, shape in SHAPES.items()}}
    tensors = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in names.items()}
    return {**tensors, "adamw.updates": np.array(7, np.int64)}


def write_whole(path: Path, tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None) -> Path:
    """One file, as the safetensors library orders it. dtypes: {name: BF16} for arrays of bits."""
    infos = {name: info_of(array, bfloat16_bits=(dtypes or {}).get(name) == "BF16") for name, array in tensors.items()}
    ordered: Mapping[str, TensorInfo] = library_order(infos) if path.suffix == ".safetensors" else infos
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, ordered, ((name, tensors[name]) for name in ordered), metadata=None)
    return path


def write_step(
    run: Path,
    tensors: Mapping[str, np.ndarray],
    step: int = 3,
    kept: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Path:
    """A run's checkpoint. kept: what else the run keeps."""
    is_state = {name: name.startswith("adamw.") for name in tensors}
    return save_checkpoint(
        run / "checkpoints",
        step=step,
        parameters={name: array for name, array in tensors.items() if not is_state[name]},
        optimizer={name: array for name, array in tensors.items() if is_state[name]},
        state={"cursor": step},
        stateful=kept,
        keep=Retention(last=9),
    )


def save_small(folder: Path, step: int, keep: int = 2, *, best: int = 0, value: float | None = None, **changes) -> Path:
    """A small checkpoint whose every number is its step. value: found by an evaluation of this step."""
    latest = None if value is None else {"step": step, "value": value}
    contents = {"parameters": {"w": np.full((3, 4), step, np.float32)}, "state": {"progress": {"latest": latest}},
                "optimizer": {"m.w": np.full((3, 4), step, np.float32), "count": np.array(step, np.int64)}}  # fmt: skip
    return save_checkpoint(folder, step=step, keep=Retention(last=keep, best=best), **(contents | changes))


def load_checkpoint(path: Path) -> SimpleNamespace:
    """step, parameters, optimizer and state of a checkpoint, its content verified."""
    manifest = verify(path, required=CHECKPOINT_FILES)
    parameters, optimizer = (read_safetensors(path / f"{name}.safetensors") for name in ("parameters", "optimizer"))
    return SimpleNamespace(step=manifest.step, parameters=parameters, optimizer=optimizer, state=read_state(path))


def rank_tensors(tensors: Mapping[str, np.ndarray], layouts: Mapping[str, Layout]) -> dict[int, dict[str, np.ndarray]]:
    """Every rank's slices; what has no layout is on every rank."""
    cut = scatter({name: tensors[name] for name in layouts}, layouts)
    rest = {name: array for name, array in tensors.items() if name not in layouts}
    return {rank: {**slices, **rest} for rank, slices in cut.items()}


def write_ranks(
    folder: Path, tensors: Mapping[str, np.ndarray], layouts: Mapping[str, Layout], name: str = "w.safetensors"
) -> Path:
    """rank_<r>/<name>; {} in the name is the rank."""
    for rank, slices in rank_tensors(tensors, layouts).items():
        write_whole(folder / f"rank_{rank}" / name.format(rank), slices)
    return folder


def contents(path: Path) -> dict[str, str]:
    """{path within: SHA-256} of everything below a folder, or of one file."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()
    }
