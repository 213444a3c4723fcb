"""Two ranks with a sum in a graph, to which rank 1 comes late; or then it gathers instead.

python toy_waiting.py SECONDS [gather]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from mindgspo.launch.worker import run_worker
from mindgspo.parallel.platform import heartbeat, runtime
from mindgspo.parallel.platform.cluster import join_other_ranks


def body() -> int:
    runtime.set_up_runtime("CPU")
    from mindspore import Tensor

    from mindgspo.parallel.collectives import host as collectives
    from mindgspo.parallel.collectives.graph import all_gather, all_reduce

    join_other_ranks()
    collectives.open_shared_memory()
    ranks = collectives.world_ranks()
    total = collectives.GraphOfRanks(all_reduce(ranks), ranks)
    x = Tensor(np.ones(3, np.float32))
    total(x)
    heartbeat.enter("update", 1)
    if runtime.rank() == 1:
        time.sleep(float(sys.argv[1]))
    if runtime.rank() == 1 and sys.argv[2:]:
        total = collectives.GraphOfRanks(all_gather(ranks), (1,))
    total(x)
    heartbeat.tick()
    return 0


if __name__ == "__main__":
    run_worker(body)
