"""What every worker script does around its own work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mindgspo.launch.worker import run_worker
from mindgspo.parallel.platform import runtime


def run_joined(work: Callable[[Path], object], device: runtime.Device = "CPU") -> None:
    """Call work(FOLDER, the first argument) on ranks that have met, and wait for each other at the end."""

    def body() -> int:
        runtime.set_up_runtime(device)
        from mindgspo.parallel.collectives import host as collectives
        from mindgspo.parallel.platform.cluster import join_other_ranks

        join_other_ranks()
        collectives.open_shared_memory()
        work(Path(sys.argv[1]))
        collectives.barrier()
        return 0

    run_worker(body)
