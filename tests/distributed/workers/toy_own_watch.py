"""A process that no launcher looks at, and that stalls: python toy_own_watch.py ON_STALL SECONDS."""

from __future__ import annotations

import subprocess
import sys
import time

from mindgspo.config.schema import WatchSection
from mindgspo.launch.watch import watch_this_process
from mindgspo.parallel.platform import heartbeat


def held_up(seconds: float) -> None:
    time.sleep(seconds)


if __name__ == "__main__":
    on_stall, seconds = sys.argv[1], float(sys.argv[2])
    section = WatchSection(min_seconds=0.5, factor=1, poll_seconds=0.05, on_stall=on_stall)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    with watch_this_process(section):
        heartbeat.begin_step(3)
        for stage in ("gen", "reward"):
            heartbeat.enter_stage(stage)
            for _ in range(20):
                heartbeat.tick()
                time.sleep(0.05)
        held_up(seconds)
        heartbeat.tick()
        time.sleep(0.3)
    child.kill()
    print("went on")
