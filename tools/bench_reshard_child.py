"""One worker of `bench_reshard.py`.

    python tools/bench_reshard_child.py JOB-AS-JSON RESULT

Rank 0 writes RESULT, JSON: sizes in bytes, seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.launch.worker import run_worker
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.collectives.host import broadcast, exchange, open_shared_memory, wait_for_ranks, world_ranks
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import parameter_layouts
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import join_other_ranks
from mindgspo.reshard.planner import plan_reshard
from mindgspo.reshard.resharder import Resharder, ReshardReport

MIB = 2**20
# What `copy` reads; larger than caches.
ELSEWHERE_BYTES = 64 * MIB


def body(job: Mapping, result: Path) -> int:
    """Every pair of the job, one after the other."""
    runtime.set_up_runtime("CPU")
    join_other_ranks()
    open_shared_memory()
    model = model_section(job["hidden"], job["layers"])
    pairs = []
    for sizes in job["pairs"]:
        pair = Pair(model, *sizes, bucket_bytes=job["bucket_mb"] * MIB)
        pairs.append(pair.measure(job["runs"]))
        del pair
    if runtime.rank() == 0:
        parameters = sum(prod(shape) for shape in weight_shapes(model).values())
        report = {"workers": runtime.world_size(), "parameters": parameters, **job, "pairs": pairs}
        result.write_text(json.dumps(report), encoding="utf-8")
    wait_for_ranks(world_ranks())
    return 0


def model_section(hidden: int, layers: int) -> ModelSection:
    """100 M parameters at 768 x 10."""
    return ModelSection(
        vocab_size=16384,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """Seconds of one run, from the moment when all ranks were there to that when all were done."""

    reshard: float
    copy: float
    broadcast: float


class Pair:
    """Two plans, and this rank's slices under both."""

    def __init__(self, model: ModelSection, source: list[int], destination: list[int], *, bucket_bytes: int) -> None:
        self.name = "->".join("x".join(map(str, sizes)) for sizes in (source, destination))
        self.source, self.destination = layouts_of(model, source), layouts_of(model, destination)
        started = time.perf_counter()
        plan_reshard(self.source, self.destination, bucket_bytes=bucket_bytes)
        self.plan_s = time.perf_counter() - started
        wait_for_ranks(world_ranks())
        started = time.perf_counter()
        self.resharder = Resharder(self.source, self.destination, bucket_bytes=bucket_bytes)
        wait_for_ranks(world_ranks())
        self.setup_s = time.perf_counter() - started
        self.plan = self.resharder.plan
        self.elsewhere = np.ones(ELSEWHERE_BYTES // 4, np.float32)
        self.old, self.new = slices_of(self.source, seed=1), slices_of(self.destination, seed=2)

    def measure(self, num_runs: int) -> dict[str, object]:
        """The figures of all ranks, on all ranks."""
        report, grown = self._watched_warm_up()
        runs = [self._run() for _ in range(num_runs)]
        own = {"received": report.received, "buffer": report.peak_buffer, "grown": grown}
        told = [json.loads(parcel) for parcel in exchange(json.dumps(own).encode())]
        received, bound = sum(rank["received"] for rank in told), sum(self.plan.lacking_bytes().values())
        seconds = statistics.median(run.reshard for run in runs)
        return {
            "name": self.name,
            "received": received,
            "bound": bound,
            "ratio": received / bound if bound else None,
            "messages": sum(1 for _ in self.plan.buckets()),
            "groups": len(self.plan.groups()),
            "buffer": max(rank["buffer"] for rank in told),
            "step": max(new_bytes(self.destination, step.parameters) for step in self.plan.steps),
            "new": new_bytes(self.destination, tuple(self.destination)),
            "grown": max(rank["grown"] for rank in told),
            "plan_s": self.plan_s,
            "setup_s": self.setup_s,
            "reshard": seconds,
            "copy": statistics.median(run.copy for run in runs),
            "broadcast": statistics.median(run.broadcast for run in runs),
            "x_copy": statistics.median(run.reshard / run.copy for run in runs),
            "x_broadcast": statistics.median(run.reshard / run.broadcast for run in runs),
            "GB/s": received / seconds / 1e9,
            "runs": [vars(run) for run in runs],
        }

    def _watched_warm_up(self) -> tuple[ReshardReport, int]:
        """Each way once. The second reshard's growth of resident memory: the first one opens connections."""
        self.resharder.run(self.old, self.new)
        before = reset_peak()
        report = self.resharder.run(self.old, self.new)
        grown = peak_bytes() - before
        self._copy()
        self._broadcast()
        return report, grown

    def _run(self) -> Run:
        return Run(
            reshard=timed(lambda: self.resharder.run(self.old, self.new)),
            copy=timed(self._copy),
            broadcast=timed(self._broadcast),
        )

    def _copy(self) -> None:
        first = 0
        for array in self.new.values():
            flat = array.reshape(-1)
            for start in range(0, flat.size, self.elsewhere.size):
                part = flat[start : start + self.elsewhere.size]
                first = first if first + part.size <= self.elsewhere.size else 0
                part[...] = self.elsewhere[first : first + part.size]
                first += part.size

    def _broadcast(self) -> None:
        rank = runtime.rank()
        for name, layout in self.source.items():
            needed = self.destination[name].slice_of(rank)
            for index in layout.slice_indices():
                sender, sent = layout.holders(index)[0], layout.slice_at(index)
                buffer = self.old[name] if rank == sender else np.empty(sent.shape, np.float32)
                broadcast(buffer, sender=sender, ranks=world_ranks())
                common = needed.intersection(sent) if needed else None
                if needed and common:
                    block = buffer[common.relative_to(sent.starts).index]
                    self.new[name][common.relative_to(needed.starts).index] = block


def layouts_of(model: ModelSection, sizes: list[int]) -> dict[str, Layout]:
    """sizes: data, model, pipeline."""
    data, split, stages = sizes
    plan = ParallelPlan(data_parallel=data, model_parallel=split, pipeline_stage=stages, micro_batch_num=stages)
    return parameter_layouts(weight_shapes(model), model, plan)


def slices_of(layouts: Mapping[str, Layout], seed: int) -> dict[str, np.ndarray]:
    """This rank's, with anything in them."""
    random = np.random.default_rng([seed, runtime.rank()])
    return {
        name: random.random(layout.slice_shape, np.float32)
        for name, layout in layouts.items()
        if layout.slice_of(runtime.rank()) is not None
    }


def new_bytes(layouts: Mapping[str, Layout], names: Sequence[str]) -> int:
    """Of these parameters' slices, on the rank that has most."""
    held: Counter[int] = Counter()
    for name in names:
        held.update(dict.fromkeys(layouts[name].rank_list, 4 * prod(layouts[name].slice_shape)))
    return max(held.values())


def timed(act: Callable[[], object]) -> float:
    """Seconds until all ranks have done it, having begun together."""
    wait_for_ranks(world_ranks())
    started = time.perf_counter()
    act()
    wait_for_ranks(world_ranks())
    return time.perf_counter() - started


def peak_bytes() -> int:
    """The most that was resident since `reset_peak`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> int:
    """Let the kernel's high-water mark begin anew; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_bytes()


if __name__ == "__main__":
    run_worker(lambda: body(json.loads(sys.argv[1]), Path(sys.argv[2])))
