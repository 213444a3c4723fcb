"""A toy of a training: steps with two stages and a sum over all ranks; arguments say what goes wrong.

python toy_training.py STEPS [ACTION RANK STEP]
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from mindgspo.launch.worker import run_worker
from mindgspo.parallel.platform import heartbeat, runtime, worker_process
from mindgspo.parallel.platform.cluster import join_other_ranks


def misbehave(action: str) -> None:
    if action == "raise":
        raise ValueError("the toy broke")
    elif action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "sleep":
        print("dozing", flush=True)
        time.sleep(float(os.environ.get("TOY_SLEEP_S", "600")))


def train() -> int:
    num_steps = int(sys.argv[1])
    action, bad_rank, bad_step = (sys.argv[2], int(sys.argv[3]), int(sys.argv[4])) if len(sys.argv) > 2 else ("", -1, 0)
    runtime.set_up_runtime("CPU")
    join_other_ranks()
    rank, size = runtime.rank(), runtime.world_size()
    assert rank == worker_process.launched_rank()
    print(f"rank {rank} of {size} with {sys.executable}")
    for step in range(1, num_steps + 1):
        heartbeat.enter("generate", step)
        for _ in range(3):
            heartbeat.tick()
        if bad_rank in (rank, -2) and step == bad_step:
            misbehave(action)
        heartbeat.enter("update", step)
        total = np.full(3, rank + step, np.float32)
        runtime.sum_in_place(total, group="mccl_world_group")
        print(f"step {step} sum {total[0]:.0f}")
    return 0


if __name__ == "__main__":
    run_worker(train)
