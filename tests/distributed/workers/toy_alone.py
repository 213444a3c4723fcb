"""Workers that never meet, so that they start in a moment; ACTION says what RANK does.

python toy_alone.py ACTION RANK
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time

from mindgspo.errors import DataError
from mindgspo.launch.worker import run_worker
from mindgspo.parallel.platform import heartbeat, worker_process


def work() -> int:
    action, is_chosen = sys.argv[1], int(sys.argv[2]) == worker_process.launched_rank()
    for step in (1, 2):
        heartbeat.enter("generate", step)
        if is_chosen and step == 2:
            act(action)
        heartbeat.enter("update", step)
    print("terminal" if os.environ.get("TTY_COMPATIBLE") else "no terminal")
    if action in ("linger", "child", "stall", "stop"):
        print("lingers")
        time.sleep(float(os.environ.get("TOY_SLEEP_S", "600")))
        heartbeat.enter("generate", 3)
    return 0


def act(action: str) -> None:
    if action == "user_error":
        raise DataError("rows.jsonl:3: no answer")
    elif action == "stall":
        time.sleep(float(os.environ["TOY_SLEEP_S"]))
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "child":  # in a session of its own, as reward workers are
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    elif action == "thread":
        threading.Thread(target=time.sleep, args=(600,)).start()
    elif action == "exit_function":
        atexit.register(time.sleep, 600)
    elif action == "exit":
        sys.exit(3)


if __name__ == "__main__":
    run_worker(work)
