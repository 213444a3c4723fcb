"""One worker of `bench_resume.py`: takes its part of a checkpoint, by one of two ways.

    python tools/bench_resume_child.py CHECKPOINT whole|slices HIDDEN LAYERS RESULT

whole: every rank reads all of it, then cuts. slices: every rank reads what it holds, as a run does. Rank 0 writes
RESULT, JSON by rank: MiB that the process grew by at its peak, MiB that it holds in the end, seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench_reshard_child import model_section

from mindgspo.algorithms.optim.updater import Updater
from mindgspo.launch.worker import run_worker
from mindgspo.parallel.collectives.host import exchange, open_shared_memory, wait_for_ranks, world_ranks
from mindgspo.parallel.platform import runtime
from mindgspo.parallel.platform.cluster import join_other_ranks

MIB = 2**20


def body(checkpoint: Path, way: str, section_sizes: tuple[int, int], result: Path) -> int:
    """Build, take, tell."""
    runtime.set_up_runtime("CPU")
    join_other_ranks()
    open_shared_memory()
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.checkpoint.store import OPTIMIZER_FILE, PARAMETERS_FILE, open_checkpoint
    from mindgspo.config import AlgorithmSection, OptimizerSection, ParallelPlan
    from mindgspo.config.load import with_recipe
    from mindgspo.models.policy import PolicyLogProbs, build_model
    from mindgspo.models.weights import load_tensors, load_weights
    from mindgspo.parallel.plans.placement import Placement
    from mindgspo.tensor_files.writer import read_safetensors

    section = model_section(*section_sizes)
    plan = ParallelPlan(data_parallel=2, model_parallel=2)
    model = build_model(section, Placement(plan=plan, rank=runtime.rank()))
    algorithm = with_recipe(AlgorithmSection(), max_new_tokens=8)
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False)
    updater = Updater(policy, build_policy_loss(algorithm), OptimizerSection(), policy.model.place)
    wait_for_ranks(world_ranks())
    before, started = _forget_peak(), time.perf_counter()
    if way == "whole":
        load_weights(model, section, read_safetensors(checkpoint / PARAMETERS_FILE), where=checkpoint)
        updater.load_state(read_safetensors(checkpoint / OPTIMIZER_FILE))
    else:
        with open_checkpoint(checkpoint) as saved:
            load_tensors(model, section, saved.parameters)
            updater.load_tensors(saved.optimizer)
    seconds = time.perf_counter() - started
    held = [*model.get_parameters(), *updater.moments]
    own = sum(parameter.size * 4 for parameter in held) / MIB
    told = exchange(json.dumps({"grew_mib": _status("VmHWM") - before, "own_mib": own, "s": seconds}).encode())
    if runtime.rank() == 0:
        result.write_text(json.dumps([json.loads(parcel) for parcel in told]))
    wait_for_ranks(world_ranks())
    return 0


def _forget_peak() -> float:
    """The resident memory of now, in MiB, from which the peak is counted from now on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> float:
    """MiB, from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


if __name__ == "__main__":
    folder, how, hidden, layers, out = sys.argv[1:]
    run_worker(lambda: body(Path(folder), how, (int(hidden), int(layers)), Path(out)))
