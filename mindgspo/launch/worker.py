"""The entry of a started process: does a worker's work, or serves as MindSpore's scheduler, and ends.

If the user called msrun, there is no launcher, and nothing is reported; `copy_output` then writes the logs into the run
folder.
"""

from __future__ import annotations

import faulthandler
import io
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

import psutil

from mindgspo.errors import MindGSPOError
from mindgspo.launch.failures import FailureRecord, LaunchFolder, log_file
from mindgspo.parallel.platform import heartbeat, worker_process
from mindgspo.text import error_text, raw_stream

_LOOK_S = 1.0
# Time for this worker to leave its contexts when the launcher is gone.
_GRACE_S = 4.0
# To leave the cluster takes 0.4 s.
_MAX_EXIT_S = 15.0


def run_worker(body: Callable[[], int]) -> NoReturn:
    """Run `body` and end the process with the exit code that it returns, or with 1 after an exception. In the
    scheduler's process, serve and do not call it. `body` joins its threads and clears its contexts: nothing else waits
    for them."""
    orders = worker_process.launch_orders()
    if worker_process.is_scheduler():
        _serve(orders)
    if isinstance(stdout := raw_stream(sys.stdout), io.TextIOWrapper):
        stdout.reconfigure(line_buffering=True)  # a file would get whole blocks, and lose the last in a crash
    faulthandler.enable()
    signal.signal(signal.SIGTERM, _raise_terminated)
    folder = _report_to_launcher(orders) if orders is not None else None
    code = _do(body, folder)
    if code == 0:
        heartbeat.mark_ended(heartbeat.State.FINISHED)
        _leave_cluster()
    else:
        heartbeat.mark_ended(heartbeat.State.FAILED)
    end_process(code)


def copy_output(log_dir: Path, rank: int) -> None:
    """Copy what Python prints from now on to `log_dir`/rank_<rank>.log. MindSpore's own output is only in msrun's
    log."""
    log = log_file(log_dir, rank).open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
    log.write(f"rank {rank}, process {os.getpid()} on {socket.gethostname()}\n")
    sys.stdout, sys.stderr = _Copied(sys.stdout, log), _Copied(sys.stderr, log)


class _Copied:
    """A text stream that writes to another one and to a log."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        """All of it; returns the number of characters."""
        self._log.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which clears contexts away as Ctrl-C does."""


def _raise_terminated(number: int, frame: object) -> None:
    raise _Terminated


def _report_to_launcher(orders: worker_process.LaunchOrders) -> LaunchFolder:
    rank = worker_process.launched_rank()
    folder = LaunchFolder(log_dir=Path(orders.log_dir), state_dir=Path(orders.state_dir))
    # The launcher sends SIGUSR1 only to ranks that have a heartbeat, so this comes first.
    stack = folder.stack(rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    heartbeat.start_beating(folder.heartbeat(rank))
    watched = (orders.launcher, folder)
    threading.Thread(target=_end_with_launcher, args=watched, name="mindgspo-launcher", daemon=True).start()
    return folder


def _do(body: Callable[[], int], folder: LaunchFolder | None) -> int:
    """Returns the exit code. Once the work has ended, signals are ignored, because the launcher sends SIGTERM as soon
    as it knows of a failure."""
    try:
        code = body()
        _ignore_signals()
        return code
    except SystemExit as ended:
        _ignore_signals()
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupted:
        _ignore_signals()
        number = signal.SIGTERM if isinstance(interrupted, _Terminated) else signal.SIGINT
        print(f"ended by {number.name}", file=sys.stderr)
        return 128 + number
    except Exception as error:
        _ignore_signals()
        _tell_failure(error, folder)
        return 1


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _tell_failure(error: Exception, folder: LaunchFolder | None) -> None:
    """Record, then print, so that the launcher knows of the failure before it can copy a traceback from the log."""
    if folder is not None:
        sys.stdout.flush()
        rank, record = worker_process.launched_rank(), FailureRecord.of(error, log_bytes=_bytes_printed())
        for path in (folder.failure(rank), folder.failure_beside_logs(rank)):
            with suppress(OSError):  # a full disk, say
                record.write(path)
                break
    if isinstance(error, MindGSPOError):
        print(error_text(error), file=sys.stderr)
    else:
        traceback.print_exception(error)


def _bytes_printed() -> int:
    """Length of the log, which standard output and error share; 0 if it is no file."""
    with suppress(OSError):
        return os.lseek(1, 0, os.SEEK_CUR)
    return 0


def _serve(orders: worker_process.LaunchOrders | None) -> NoReturn:
    if orders is not None:
        _tie_to_launcher(orders.launcher)
    try:
        worker_process.serve_as_scheduler()
    except Exception:
        traceback.print_exc()
        end_process(1)
    end_process(0)


def _tie_to_launcher(process_id: int) -> None:
    """The scheduler blocks in C code while it holds Python's lock, so only the kernel can end it together with the
    launcher, its parent."""
    worker_process.die_with_parent()
    if os.getppid() != process_id:
        end_process(1)


def _end_with_launcher(process_id: int, folder: LaunchFolder) -> None:
    """Thread of a worker that ends it when the launcher, its parent, is gone; gently at first. MindSpore lets other
    threads run while it compiles, and while it waits in a collective."""
    while os.getppid() == process_id:
        time.sleep(_LOOK_S)
    print("the launcher is gone; this worker ends", file=sys.stderr)
    shutil.rmtree(folder.state_dir, ignore_errors=True)  # all workers do so at this moment
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    end_process(128 + signal.SIGTERM)


def _leave_cluster() -> None:
    """Leave in order, so that the scheduler does not take this rank for lost while others still work.

    If that hangs, a thread outside Python ends the process; the launcher has seen that the work is finished.
    """
    log = os.fdopen(os.dup(2), "w")
    faulthandler.dump_traceback_later(_MAX_EXIT_S, exit=True, file=log)
    # At any log level, MindSpore reports here that its connections have ended, which does not belong on the user's
    # screen.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        worker_process.run_exit_functions()


def end_process(code: int) -> NoReturn:
    """End this process and its children. Not by `sys.exit`: threads of MindSpore that hang, e.g. waiting for a dead
    rank, would keep the process alive, and what its destructors print hides the failure in the log."""
    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
