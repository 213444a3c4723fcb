"""Microseconds of the collectives in compiled CPU graphs, over real worker processes, beside MindSpore's AllReduce.

    python tools/bench_collectives.py [--ranks 2 4 8] [--kib 1 1024 16384] [--runs 9]

Prints JSON: for every number of ranks, operation and size the median over the runs of one collective on rank 0. A run
is a call of a graph with six collectives that wait for each other. Sizes are what a rank hands in, float32; an
all_gather hands in the share that the reduce_scatter before it has left. "one call" is the whole time of a graph that
has six products in their place: a sixth of it is in every other figure. Processes share the processor's cores, as they
do in a run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mindgspo.config.schema import WatchSection
from mindgspo.launch.launcher import launch
from mindgspo.launch.worker import run_worker
from mindgspo.parallel.platform import runtime, worker_process
from mindgspo.parallel.platform.cluster import join_other_ranks

REPEATS = 6
# Of all ranks from 2 to 8, and of the blocks of rows and columns.
ROWS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="powers of 2 up to 8")
    parser.add_argument("--kib", type=int, nargs="+", default=[1, 1024, 16384], help="powers of 2")
    parser.add_argument("--runs", type=int, default=9)
    arguments = parser.parse_args()
    report = {}
    for ranks in arguments.ranks:
        with tempfile.TemporaryDirectory(prefix="bench-collectives-") as folder:
            result = Path(folder) / "report.json"
            job = json.dumps({"kib": arguments.kib, "runs": arguments.runs})
            command = [str(Path(__file__).resolve()), job, str(result)]
            code = launch(command, num_workers=ranks, log_dir=Path(folder) / "logs", watch=WatchSection())
            if code != 0:
                return code
            report[f"{ranks} ranks"] = json.loads(result.read_text(encoding="utf-8"))
    print(json.dumps(report, indent=2))
    return 0


def work() -> int:
    runtime.set_up_runtime("CPU")
    from mindspore import Tensor, nn, ops

    from mindgspo.parallel.collectives import graph as collective_ops
    from mindgspo.parallel.collectives import host as collectives

    join_other_ranks()
    collectives.open_shared_memory()
    job, ranks = json.loads(sys.argv[1]), collectives.world_ranks()
    size = len(ranks)

    class Chain(nn.Cell):
        def __init__(self, operators: list[Callable]) -> None:
            super().__init__(auto_prefix=False)
            self.operators = nn.CellList(operators)

        def construct(self, x: Tensor) -> Tensor:
            for operator in self.operators:
                x = operator(x)
            return x

    class MindSporeSum(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.sum = ops.AllReduce(group=collectives.group_name(collectives.world_ranks()))

        def construct(self, x: Tensor) -> Tensor:
            return self.sum(x)

    class Scaled(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x * 0.5

    def to_and_fro(number: int) -> Callable:
        return collective_ops.all_to_all(ranks, *((0, 1) if number % 2 else (1, 0)))

    def scatter_or_gather(number: int) -> Callable:
        return (collective_ops.all_gather if number % 2 else collective_ops.reduce_scatter)(ranks)

    kinds: dict[str, Callable[[int], Callable]] = {
        "one call": lambda number: Scaled(),
        "all_reduce": lambda number: collective_ops.all_reduce(ranks),
        "all_to_all": to_and_fro,
        "reduce_scatter and all_gather by turns": scatter_or_gather,
        "MindSpore's AllReduce": lambda number: MindSporeSum(),
    }
    report: dict[str, dict[str, float]] = {}
    for kind, make in kinds.items():
        for kib in job["kib"]:
            graph = collectives.GraphOfRanks(Chain([make(number) for number in range(REPEATS)]), ranks)
            x = Tensor(np.zeros((ROWS, max(size, kib * 256 // ROWS)), np.float32))
            graph(x).asnumpy()
            seconds = []
            for _ in range(job["runs"]):
                collectives.wait_for_ranks(ranks)
                began = time.perf_counter()
                graph(x).asnumpy()
                seconds.append(time.perf_counter() - began)
            each = statistics.median(seconds) / (1 if kind == "one call" else REPEATS)
            report.setdefault(kind, {})[f"{kib} KiB"] = round(each * 1e6, 1)
    if runtime.rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(report), encoding="utf-8")
    collectives.barrier()
    return 0


if __name__ == "__main__":
    if worker_process.is_launched():
        run_worker(work)
    else:
        sys.exit(main())
