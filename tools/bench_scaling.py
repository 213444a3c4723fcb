"""How the seconds per token of generation and of updates change with the size of the work, as JSON.

    python tools/bench_scaling.py [--series group prompts length width processes] [--rounds 4]

Series, of which one size grows while the others stay:

    group      4, 8, 16, 32 samples of each of 4 prompts, 64 tokens each
    prompts    2, 4, 8, 16 prompts, 8 samples each, 64 tokens each
    length     64, 128, 256, 512 response tokens of 8 samples of 2 prompts
    width      128, 256, 512 hidden units, and heads and inner features in proportion; 4 prompts, 8 samples, 64 tokens
    processes  1, 2, 4 data-parallel workers of one thread, started by the launcher, with 4 prompts of 8 samples each

Model and pieces are those of `bench_step.py`: 64 sequences are decoded at once, and one update takes all samples in
micro-batches of 16. An update counts with the laying out of its batches. Tokens are those of responses. `us` are
microseconds per token by the clock, `cpu_us` of all threads and processes; of all rounds the least, since whatever
else the machine does only adds to them. The points of a series take turns.

Seconds per token may fall with the size, as batches fill up, but not rise. `ratio` sets a point against the best one
before it; `flat`: no ratio is above 1.10. What is compared is, for

    length     the time without s * columns of a fit c + s * columns + f / length, where a response's tokens see
               `columns` others in the mean: s is attention's, f what a response costs whatever its length. The share of
               attention at the longest is s * columns of the time, and expected by operations
    width      the time per operation
    processes  the times per token of one worker over those of as many processes that each do that work for themselves
               at the same time, `alone`: what they share beside it, cores and memory, is in both
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench_step import MODEL, StepBench, StepSizes

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.config.schema import WatchSection
from mindgspo.launch.launcher import launch
from mindgspo.launch.worker import run_worker
from mindgspo.models.operations import Operations
from mindgspo.parallel.collectives.host import open_shared_memory, sum_over_world, wait_for_ranks, world_ranks
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import join_other_ranks
from mindgspo_kernels.binding import graph_threads

FLAT = 1.10
PHASES = ("generation", "update")
CLOCKS = ("us", "cpu_us")
LONG = MODEL.model_copy(update={"max_position_embeddings": 1024})
SMALL = StepSizes(model=LONG, num_prompts=4, mini_batch=1 << 20)


def of_width(hidden: int) -> ModelSection:
    """The model with `hidden` units, heads of 32."""
    return LONG.model_copy(
        update={
            "hidden_size": hidden,
            "intermediate_size": hidden * MODEL.intermediate_size // MODEL.hidden_size,
            "num_attention_heads": hidden // 32,
            "num_key_value_heads": hidden // 64,
        }
    )


SERIES: Mapping[str, Mapping[int, StepSizes]] = {
    "group": {size: replace(SMALL, group=size) for size in (4, 8, 16, 32)},
    "prompts": {size: replace(SMALL, num_prompts=size) for size in (2, 4, 8, 16)},
    "length": {size: replace(SMALL, num_prompts=2, max_new_tokens=size) for size in (64, 128, 256, 512)},
    "width": {size: replace(SMALL, model=of_width(size)) for size in (128, 256, 512)},
}
PROCESSES = (1, 2, 4)
Figures = dict[str, np.ndarray]
"""By phase: microseconds per token by the clock, and of the processors."""


def main() -> int:
    arguments = parse_arguments()
    if arguments.worker is not None:
        run_worker(lambda: work(arguments.rounds, arguments.worker))
    runtime.set_up_runtime("CPU")
    report: dict[str, object] = {"cores": len(os.sched_getaffinity(0)), "threads": graph_threads()}
    for name in arguments.series:
        if name == "processes":
            report[name] = of_processes(arguments.rounds)
            continue
        found = measured(SERIES[name], arguments.rounds)
        report[name] = {
            "length": of_lengths,
            "width": of_widths,
        }.get(name, of_sizes)(found)
    print(json.dumps(report, indent=2))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*SERIES, "processes"]
    parser.add_argument("--series", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=4, help="counted steps of every point")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def measured(points: Mapping[int, StepSizes], rounds: int) -> dict[int, Figures]:
    """The least of all rounds, by point."""
    benches = {size: StepBench(sizes) for size, sizes in points.items()}
    return {size: least(found) for size, found in in_turns(benches, rounds).items()}


def in_turns(benches: Mapping[int, StepBench], rounds: int) -> dict[int, list[Figures]]:
    """Every round takes a step of every bench; the first one, which compiles, is not counted."""
    found: dict[int, list[Figures]] = {size: [] for size in benches}
    for step in range(rounds + 1):
        for size, bench in benches.items():
            passed = bench.run(step, clocks)
            update = passed["old_log_probs_s"] + passed["update_s"]
            spent = {"generation": passed["generation_s"], "update": update}
            found[size].append({phase: 1e6 * spent[phase] / passed["tokens"] for phase in PHASES})
    return {size: of_size[1:] for size, of_size in found.items()}


def clocks() -> np.ndarray:
    """Seconds of the clock, and of all threads of this process."""
    return np.array([time.perf_counter(), time.process_time()])


def least(rounds: Sequence[Figures]) -> Figures:
    """Of each figure by itself."""
    return {phase: np.min([figures[phase] for figures in rounds], axis=0) for phase in PHASES}


def of_sizes(found: Mapping[int, Figures]) -> dict[str, object]:
    """Of a series whose time per token should stay."""
    return {phase: judged({size: figures[phase] for size, figures in found.items()}) for phase in PHASES}


def judged(times: Mapping[int, np.ndarray], compared: Mapping[int, np.ndarray] | None = None) -> dict[str, object]:
    """The points of one phase, and whether they are flat. times: [2] of `CLOCKS`. compared: of which ratios are taken;
    None: the times."""
    compared = times if compared is None else compared
    found: dict[str, object] = {}
    for index, clock in enumerate(CLOCKS):
        ratios = rises([of_point[index] for of_point in compared.values()])
        found[clock] = {size: round(float(of_point[index]), 2) for size, of_point in times.items()}
        found[f"{clock}_ratio"] = dict(zip(times, (round(ratio, 3) for ratio in ratios), strict=True))
        found[f"{clock}_flat"] = max(ratios) <= FLAT
    return found


def rises(times: Sequence[float]) -> list[float]:
    """Each time by the least one before it; 1 for the first."""
    before = [times[0], *np.minimum.accumulate(times)[:-1]]
    return [float(one / best) for one, best in zip(times, before, strict=True)]


def of_lengths(found: Mapping[int, Figures]) -> dict[str, object]:
    """With the fits of both clocks."""
    columns = np.array([mean_columns(SERIES["length"][length]) for length in found])
    operations = Operations.of(LONG)
    of_attention = operations.pair * columns[-1]
    expected = of_attention / (operations.trunk + operations.head + of_attention)
    report: dict[str, object] = {"columns": columns.tolist(), "attention_share_of_operations": round(expected, 3)}
    for phase in PHASES:
        times = np.array([figures[phase] for figures in found.values()])
        fits = [fitted(list(found), columns, of_clock) for of_clock in times.T]
        rest = times - columns[:, None] * [slope for _, slope, _ in fits]
        report[phase] = {
            **judged(dict(zip(found, times, strict=True)), dict(zip(found, rest, strict=True))),
            **{
                f"{clock}_fit": {
                    "constant": round(c, 2),
                    "per_column": round(s, 5),
                    "per_response": round(f, 1),
                    "attention_share": round(s * columns[-1] / of_clock[-1], 3),
                }
                for clock, (c, s, f), of_clock in zip(CLOCKS, fits, times.T, strict=True)
            },
        }
    return report


def mean_columns(sizes: StepSizes) -> float:
    """Tokens that a response's tokens see in the mean, themselves included."""
    return sizes.prompt_length + (sizes.max_new_tokens + 1) / 2


def fitted(lengths: Sequence[int], columns: Sequence[float], times: Sequence[float]) -> tuple[float, float, float]:
    """c, s and f of time = c + s * columns + f / length, by least squares of the relative errors."""
    terms = np.stack([np.ones(len(lengths)), columns, 1 / np.array(lengths)], axis=1) / np.array(times)[:, None]
    constant, slope, fixed = np.linalg.lstsq(terms, np.ones(len(lengths)), rcond=None)[0].tolist()
    return constant, slope, fixed


def of_widths(found: Mapping[int, Figures]) -> dict[str, object]:
    """Times per token, judged by operation."""
    columns = mean_columns(SMALL)
    report: dict[str, object] = {}
    operations = {}
    for width in found:
        of_token = Operations.of(of_width(width))
        operations[width] = of_token.trunk + of_token.head + of_token.pair * columns
    for phase in PHASES:
        times = {width: figures[phase] for width, figures in found.items()}
        report[phase] = judged(times, {width: times[width] / operations[width] for width in times})
    return {**report, "operations_per_token": {width: round(number) for width, number in operations.items()}}


def of_processes(rounds: int) -> dict[str, object]:
    """Every number of workers is a launch of its own."""
    os.environ["OMP_NUM_THREADS"] = "1"
    alone: dict[int, Figures] = {}
    together: dict[int, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="bench-scaling-") as folder:
        for workers in PROCESSES:
            result = Path(folder) / f"{workers}.json"
            command = [__file__, "--rounds", str(rounds), "--worker", str(result)]
            code = launch(command, num_workers=workers, log_dir=Path(folder) / str(workers), watch=WatchSection())
            if code != 0:
                raise SystemExit(code)
            alone[workers], together[workers] = (
                {phase: np.array(times) for phase, times in figures.items()}
                for figures in json.loads(result.read_text(encoding="utf-8"))
            )
    report: dict[str, object] = {}
    for phase in PHASES:
        times = {workers: figures[phase] for workers, figures in together.items()}
        report[phase] = {
            "alone": {workers: np.round(figures[phase], 2).tolist() for workers, figures in alone.items()},
            **judged(times, {workers: times[workers] / alone[workers][phase] for workers in times}),
        }
    return report


def work(rounds: int, result: Path) -> int:
    """A worker. Rank 0 writes the figures alone and together, means over the workers per token of one."""
    runtime.set_up_runtime("CPU")
    join_other_ranks()
    open_shared_memory()
    workers = runtime.world_size()
    place = Placement(plan=ParallelPlan(data_parallel=workers), rank=runtime.rank())
    benches = {
        1: StepBench(SMALL),
        workers + 1: StepBench(replace(SMALL, num_prompts=SMALL.num_prompts * workers), place=place),
    }
    # Behind the steps together, which end with a meeting, all begin those alone at once.
    figures = []
    for number, found in in_turns(benches, rounds).items():
        times = np.array([[of_round[phase] for phase in PHASES] for of_round in found], np.float32)
        sum_over_world(times)
        times *= 1 / workers if number == 1 else 1
        figures.append(dict(zip(PHASES, times.min(axis=0).tolist(), strict=True)))
    if runtime.rank() == 0:
        result.write_text(json.dumps(figures), encoding="utf-8")
    wait_for_ranks(world_ranks())
    return 0


if __name__ == "__main__":
    sys.exit(main())
