#!/usr/bin/env python3
"""Seconds and memory of cutting and merging a checkpoint, beside `cp` on the same bytes. Prints JSON.

    python tools/bench_checkpoint.py [--gib 2] [--runs 5] [--jobs 2] [--format ckpt] [--folder DIR] [--patience 60]

The checkpoint is random: weights and AdamW's moments of a Qwen2 by its shapes, float32. It is cut for 1x4x2 (8 ranks,
no replicas of matrices), and merged again. Every transform runs in a process of its own: `seconds` is the transform
(find, compare with the strategy, write, fsync, read back and compare by hash, rename), `process_seconds` the process
from start to end, Python's imports included, `peak_rss` the most resident memory of it. `cp` is `cp -r` of the same
bytes, whose data are not on the disk when it ends, and `no_sync` a transform with --no-sync, which ends so too;
`cp_sync` is `cp -r` and `sync` of what it wrote, as durable as a transform. `cp` never reads back. What is copied lies
in the page cache, and what is read back does so too; a `sync` of the whole machine stands before every measurement. The
ways take turns, `--runs` times; all figures are medians. `share_of_cp` is the median over rounds of cp's seconds by
no_sync's, `share_of_cp_sync` of cp_sync's by the transform's: 0.5 means half of cp's speed. Before each measurement
at most --patience seconds are waited for other processes to rest; `quiet` is how many measurements then began while
they did.
A transform works on all processors and `cp` on one, so a busy machine slows the transform more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.parameter_layouts import parameter_layouts
from mindgspo.strategy.file import merge_strategies, read_strategy, save_strategy, write_strategies
from mindgspo.tensor_files.formats import library_order
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.tensor_files.writer import write_tensors

PLAN = ParallelPlan(data_parallel=1, model_parallel=4, pipeline_stage=2, vocab_emb_dp=False)
CHUNK = 1 << 24
_LOOK_S = 0.5
_RESTING_PERCENT = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the checkpoint")
    parser.add_argument("--runs", type=int, default=5, help="rounds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files at a time")
    parser.add_argument("--format", choices=("safetensors", "ckpt"), default="safetensors")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default the system's temporary folder")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_child(**json.loads(options.child))
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=options.folder) as folder:
        print(json.dumps(measure(Path(folder), options), indent=2))
    return 0


def measure(folder: Path, options: argparse.Namespace) -> dict:
    model = model_of(options.gib)
    whole, sharded, strategy = folder / f"whole.{options.format}", folder / "sharded", folder / "strategy.ckpt"
    make_strategy(model, folder, strategy)
    make_checkpoint(model, whole)
    run_transform(whole, sharded, None, strategy, options)
    largest = max(path.stat().st_size for path in sharded.glob("rank_*/*"))
    out = folder / "out"
    ways: dict[str, Callable[[], dict]] = {
        "cp_whole": lambda: run_copy(whole, out, durable=False),
        "shard": lambda: run_transform(whole, out, None, strategy, options),
        "shard_no_sync": lambda: run_transform(whole, out, None, strategy, options, sync=False),
        "cp_whole_sync": lambda: run_copy(whole, out, durable=True),
        "cp_shards": lambda: run_copy(sharded, out, durable=False),
        "merge": lambda: run_transform(sharded, out.with_suffix(whole.suffix), strategy, None, options),
        "merge_no_sync": lambda: run_transform(
            sharded, out.with_suffix(whole.suffix), strategy, None, options, sync=False
        ),
        "cp_shards_sync": lambda: run_copy(sharded, out, durable=True),
    }
    rounds: list[dict] = []
    num_quiet = 0
    for _ in range(options.runs):
        rounds.append({})
        for name, way in ways.items():
            os.sync()
            num_quiet += is_quiet(options.patience)
            rounds[-1][name] = way()
            remove(out), remove(out.with_suffix(whole.suffix))
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()},
        "format": options.format,
        "jobs": options.jobs,
        "runs": options.runs,
        "measurements": options.runs * len(ways),
        "quiet": num_quiet,
        "bytes": whole.stat().st_size,
        "ranks": PLAN.world_size,
        "largest_shard": largest,
        "shard": summary(rounds, "shard", "cp_whole", largest),
        "merge": summary(rounds, "merge", "cp_shards", largest),
    }


def summary(rounds: list[dict], name: str, copy: str, largest: int) -> dict:
    """Medians, and ratios within each round."""

    def median(value: Callable[[dict], float]) -> float:
        return round(statistics.median(value(one) for one in rounds), 3)

    return {
        "seconds": median(lambda one: one[name]["seconds"]),
        "no_sync": median(lambda one: one[f"{name}_no_sync"]["seconds"]),
        "process_seconds": median(lambda one: one[name]["process_seconds"]),
        "cp": median(lambda one: one[copy]["seconds"]),
        "cp_sync": median(lambda one: one[f"{copy}_sync"]["seconds"]),
        "share_of_cp": median(lambda one: one[copy]["seconds"] / one[f"{name}_no_sync"]["seconds"]),
        "share_of_cp_sync": median(lambda one: one[f"{copy}_sync"]["seconds"] / one[name]["seconds"]),
        "peak_rss": max(one[name]["peak_rss"] for one in rounds),
        "peak_by_largest_shard": round(max(one[name]["peak_rss"] for one in rounds) / largest, 3),
    }


def run_transform(
    source: Path,
    destination: Path,
    source_strategy: Path | None,
    strategy: Path | None,
    options: argparse.Namespace,
    *,
    sync: bool = True,
) -> dict:
    """One transform in its own process."""
    job = {
        "source": str(source),
        "destination": str(destination),
        "source_strategy": source_strategy and str(source_strategy),
        "destination_strategy": strategy and str(strategy),
        "jobs": options.jobs,
        "sync": sync,
    }
    started = time.perf_counter()
    output = subprocess.run([sys.executable, __file__, "--child", json.dumps(job)], check=True, capture_output=True)
    return {**json.loads(output.stdout), "process_seconds": time.perf_counter() - started}


def run_child(
    source: str,
    destination: str,
    source_strategy: str | None,
    destination_strategy: str | None,
    jobs: int,
    sync: bool,
) -> int:
    from mindgspo.checkpoint.transform import TransformRequest, transform

    request = TransformRequest(
        source=Path(source),
        destination=Path(destination),
        source_strategy=None if source_strategy is None else read_strategy(source_strategy),
        destination_strategy=None if destination_strategy is None else read_strategy(destination_strategy),
        jobs=jobs,
        sync=sync,
    )
    started = time.perf_counter()
    transform(request, note=lambda line: None, shows_bar=False)
    seconds = time.perf_counter() - started
    # ru_maxrss counts what the parent held when it forked; VmHWM is this process's own.
    status = Path("/proc/self/status").read_text(encoding="ascii") if Path("/proc/self/status").is_file() else ""
    peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if peak is None else peak
    print(json.dumps({"seconds": seconds, "peak_rss": peak * 1024}))
    return 0


def is_quiet(patience: float) -> bool:
    """Whether other processes rest; waits for it."""
    deadline = time.monotonic() + patience
    while psutil.cpu_percent(_LOOK_S) > _RESTING_PERCENT:
        if time.monotonic() >= deadline:
            return False
    return True


def run_copy(source: Path, destination: Path, *, durable: bool) -> dict:
    """`cp -r`, and for a durable copy `sync` of its files."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", source, destination], check=True)
    if durable:
        files = [path for path in destination.rglob("*") if path.is_file()] if destination.is_dir() else [destination]
        subprocess.run(["sync", *files], check=True)
    return {"seconds": time.perf_counter() - started}


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def model_of(gib: float) -> ModelSection:
    """A Qwen2 whose weights and moments have about that size: as many layers as it takes, two at least."""
    width = 1024 if gib >= 1 else 256
    sizes = {"vocab_size": 32 * width, "hidden_size": width, "intermediate_size": 11 * width // 4}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}

    def model(layers: int) -> ModelSection:
        return ModelSection(**sizes, **heads, num_hidden_layers=layers)

    def num_bytes(layers: int) -> int:
        return 12 * sum(int(np.prod(shape)) for shape in weight_shapes(model(layers)).values())

    layers = 2
    while num_bytes(layers + 2) <= gib * 2**30:
        layers += 2
    return model(layers)


def make_strategy(model: ModelSection, folder: Path, path: Path) -> None:
    """The merged file of all stages."""
    layouts = parameter_layouts(weight_shapes(model), model, PLAN)
    moments = {f"adamw.{kind}.{name}": layout for kind in "mv" for name, layout in layouts.items()}
    save_strategy(path, merge_strategies(write_strategies(folder / "ranks", {**layouts, **moments}, plan=PLAN)))


def make_checkpoint(model: ModelSection, path: Path) -> None:
    """Random bits, weights and moments in one file."""
    shapes = weight_shapes(model)
    names = {**shapes, **{f"adamw.{kind}.{name}": shape for kind in "mv" for name, shape in shapes.items()}}
    infos = {name: TensorInfo(dtype="F32", shape=shape) for name, shape in names.items()}
    infos = library_order({**infos, "adamw.updates": TensorInfo(dtype="I64", shape=())})
    write_tensors(path, infos, random_parts(infos))


def random_parts(infos: dict[str, TensorInfo]) -> Iterator[tuple[str, bytes]]:
    random = np.random.default_rng(0)
    for name, info in infos.items():
        for start in range(0, info.num_bytes, CHUNK):
            yield name, random.bytes(min(CHUNK, info.num_bytes - start))


if __name__ == "__main__":
    sys.exit(main())
