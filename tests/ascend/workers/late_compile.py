"""Rank 1 compiles for longer than a collective may wait. The ranks meet before they run the graph, so that nobody waits
in it; on two hosts the collective of rank 0 runs out. usage: see launch_cards.py.
"""

import os
import socket
import time

from ascend_emulator.launcher import enter_emulated_cards
from mindgspo.launch.worker import run_worker


def work() -> int:
    import numpy as np
    from mindspore import Tensor, nn

    from mindgspo.parallel.collectives import host as collectives
    from mindgspo.parallel.collectives.graph import all_reduce
    from mindgspo.parallel.collectives.host import GraphOfRanks, world_ranks
    from mindgspo.parallel.platform import runtime

    limit_s = float(os.environ["HCCL_EXEC_TIMEOUT"])
    runtime.set_up_runtime("Ascend")
    runtime.join_cluster()
    collectives.open_shared_memory()
    rank, ranks = runtime.rank(), world_ranks()

    class LateSum(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.sum = all_reduce(ranks)
            self.seconds = 2 * limit_s if rank == 1 else 0.0

        def compile(self, *inputs: Tensor) -> None:
            time.sleep(self.seconds)
            self.seconds = 0.0
            super().compile(*inputs)

        def construct(self, x: Tensor) -> Tensor:
            return self.sum(x)

    values = np.full(8, rank + 1, np.float32)
    assert GraphOfRanks(LateSum(), ranks)(Tensor(values)).asnumpy().tolist() == [3.0] * 8
    assert collectives._here == ranks
    socket.gethostname = lambda: f"host {rank}"
    collectives._room, collectives._here = collectives._room_of_host()
    assert collectives._here == (rank,)
    try:
        GraphOfRanks(LateSum(), ranks)(Tensor(values)).asnumpy()
    except RuntimeError as error:
        assert rank == 0 and "rank 0 in AllReduce (group of ranks 0 1): waits for rank 1" in str(error), error
        assert "HCCL_EXEC_TIMEOUT" in str(error), error
    else:
        assert rank == 1, "rank 0 waited"
    return 0


if __name__ == "__main__":
    enter_emulated_cards()
    run_worker(work)
