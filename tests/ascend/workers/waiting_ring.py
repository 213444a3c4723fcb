"""Ranks 0 and 1 both send first, and rank 2 waits for all in a graph: nobody goes on. usage: see launch_cards.py."""

from ascend_emulator.launcher import enter_emulated_cards
from mindgspo.launch.worker import run_worker


def work() -> int:
    import numpy as np
    from mindspore import Tensor, nn, ops
    from mindspore.mint import distributed

    from mindgspo.parallel.collectives.host import group_name, world_ranks
    from mindgspo.parallel.platform import heartbeat, runtime

    runtime.set_up_runtime("Ascend")
    runtime.join_cluster()

    class Sum(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.sum = ops.AllReduce(group=group_name(world_ranks()))

        def construct(self, x: Tensor) -> Tensor:
            return self.sum(x)

    cell, values, rank = Sum(), Tensor(np.zeros(8, np.float32)), runtime.rank()
    cell.compile_and_run(values).asnumpy()
    heartbeat.enter("update", 1)
    if rank == 2:
        heartbeat.tick()  # farther than the others
        cell.compile_and_run(values).asnumpy()
    distributed.send(values, 1 - rank)
    runtime.synchronize_device()  # after the first send: nobody comes to the line below
    distributed.recv(values, 1 - rank)
    return 0


if __name__ == "__main__":
    enter_emulated_cards()
    run_worker(work)
