"""The worker pool against functions that hang, crash, eat memory and shout, in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mindgspo.config.reward import RewardWorkersSection
from mindgspo.rewards.functions.from_file import conclude
from mindgspo.rewards.verification import JobOutcome, JSONValue, Reply, RewardJob
from mindgspo.rewards.workers.pool import WorkerPool

ROOT = Path(__file__).parents[3]

# The function named first in solution_str is called, with what follows the blank.
HOSTILE = r"""
import ctypes, decimal, fcntl, os, re, signal, stat, subprocess, sys, time
class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")
def hang():
    while True: pass
def regex(): return re.match(r"(a+)+$", "a" * 60 + "b")
def note(folder, pid): open(f"{folder}/{pid}.started", "w").close()
def stuck(folder):
    note(folder, os.getpid())
    return regex()
def meet(folder):
    note(folder, os.getpid())
    while sum(file.endswith(".started") for file in os.listdir(folder)) < 2: time.sleep(0.01)
    return os.getpid()
def starts_others(folder):
    # in the worker's group, in a session of its own, without environment
    for own, env in ((False, None), (True, None), (False, {})):
        note(folder, subprocess.Popen(["sleep", "600"], start_new_session=own, env=env).pid)
    time.sleep(600)
def late(seconds):
    time.sleep(float(seconds))
    return seconds
def big_power(): return 9 ** 9 ** 9 ** 9
def sleep(): time.sleep(60)
def exit_3(): os._exit(3)
def kill_self(): os.kill(os.getpid(), signal.SIGSEGV)
def bad_address(): ctypes.string_at(0)
def sys_exit(): sys.exit()
def half_second():
    time.sleep(0.5)
    return "slept"
def alarm():
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    return "set"
def ten_gigabytes(): return len(bytearray(10 * 2**30))
def grow():
    kept = []
    while True:
        kept.append(bytearray(2**20))
def recursion(): return recursion()
def nested_value():
    value = []
    for _ in range(100_000):
        value = [value]
    return value
def shout():
    for _ in range(5):
        print("out" * 700_000)
        print("err" * 700_000, file=sys.stderr)
    os.write(1, b"straight to the first output\n")
    return 1.0
def held_pipe():
    program = "import time; time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", program], close_fds=False)
    return 1.0
def held_pipe_then_exit():
    if os.fork() == 0:
        time.sleep(60)
    os._exit(5)
def close_jobs():
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            is_read = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        except OSError:
            continue
        if number > 2 and is_read and stat.S_ISFIFO(os.fstat(number).st_mode):
            os.close(number)
    return 1.0
def come_back_twice():
    os.fork()
    return 1.0
def hundred_megabytes(): return "x" * 100_000_000
def base_exception(): raise BaseException("not an Exception")
def silent_exception(): raise Silent
def interrupt(): raise KeyboardInterrupt
def close_everything():
    os.closerange(0, 1000)
    return 1.0
def stop(): os.kill(os.getpid(), signal.SIGSTOP)
def ask(): return input("a number, please: ")
def nan(): return {"score": [float("nan")]}
def infinite(): return decimal.Decimal("-Infinity")
def a_set(): return {1}
def no_reply(): raise ValueError("two\nlines")
def f(data_source, solution_str, ground_truth, extra_info):
    name, _, argument = solution_str.partition(" ")
    if name in globals():
        return globals()[name](*[argument] * bool(argument))
    return [solution_str, ground_truth, extra_info]
def pid(**kwargs):
    return os.getpid()
"""


def ask(task: str, text: str, index: int = 0) -> RewardJob:
    arguments: dict[str, JSONValue] = {
        "data_source": "test", "solution_str": text, "ground_truth": "72", "extra_info": {"index": index},
    }  # fmt: skip
    return RewardJob(task=task, arguments=arguments, conclude=conclude)


def values(replies: Sequence[Reply]) -> list[JSONValue]:
    assert [reply.outcome for reply in replies] == [JobOutcome.DONE] * len(replies), replies
    return [reply.value for reply in replies]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    give_up = time.monotonic() + seconds
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.01)
    return condition()


def children_of(pid: int) -> set[int]:
    found = set()
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        found |= {int(child) for child in tasks.read_text().split()}
    return found


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    file = tmp_path / "hostile.py"
    file.write_text(HOSTILE)
    return str(file)


def a_pool(file: str, *, timeout_s: float = 30.0, count: int = 2) -> WorkerPool:
    limits = RewardWorkersSection(count=count, timeout_s=timeout_s, startup_timeout_s=60.0, memory_mb=512)
    return WorkerPool([f"{file}:f", f"{file}:pid"], limits)


@pytest.fixture
def pool(hostile: str) -> Iterator[WorkerPool]:
    with a_pool(hostile) as pool:
        yield pool


@pytest.fixture
def strict_pool(hostile: str) -> Iterator[WorkerPool]:
    with a_pool(hostile, timeout_s=0.5) as pool:
        yield pool


@pytest.mark.parametrize(("act", "outcome", "message"), [
    ("hang", JobOutcome.TIMEOUT, r"no value within 0\.5 s \(reward\.workers\.timeout_s\)"),
    ("regex", JobOutcome.TIMEOUT, "no value"), ("big_power", JobOutcome.TIMEOUT, "no value"),
    ("sleep", JobOutcome.TIMEOUT, "no value"), ("stop", JobOutcome.TIMEOUT, "no value"),
    ("exit_3", JobOutcome.DIED, "ended with exit code 3$"),
    ("kill_self", JobOutcome.DIED, r"ended by signal 11 .*printed last: .*hostile\.py., line \d+ in kill_self"),
    ("bad_address", JobOutcome.DIED, "ended by signal 11"),
    ("held_pipe_then_exit", JobOutcome.DIED, "ended with exit code 5$"),
    ("close_everything", JobOutcome.DIED, "worker"),
    ("sys_exit", JobOutcome.FAILED, r"^SystemExit \(hostile\.py, line \d+\)$"),
    ("ten_gigabytes", JobOutcome.FAILED, r"^out of memory: .* 512 MiB \(reward\.workers\.memory_mb\)"),
    ("grow", JobOutcome.FAILED, "^out of memory"), ("recursion", JobOutcome.FAILED, "^RecursionError"),
    ("nested_value", JobOutcome.FAILED, "^RecursionError"),
    ("hundred_megabytes", JobOutcome.FAILED, "^returned more than 1 MiB"),
    ("base_exception", JobOutcome.FAILED, r"^BaseException: not an Exception \(hostile\.py, line \d+\)$"),
    ("silent_exception", JobOutcome.FAILED, "^Silent: .*__str__ raised"),
    ("interrupt", JobOutcome.FAILED, "^KeyboardInterrupt"), ("ask", JobOutcome.FAILED, "^EOFError"),
    ("nan", JobOutcome.FAILED, r"^returned nan in \['score'\]\[0\]; a value must be finite"),
    ("infinite", JobOutcome.FAILED, "^returned -inf;"),
    ("a_set", JobOutcome.FAILED, "^returned a set; expected a number"),
    ("no_reply", JobOutcome.FAILED, r"^ValueError: two lines \(hostile\.py, line \d+\)$"),
])  # fmt: skip
def test_a_misdeed_costs_its_own_sample_only(hostile: str, act: str, outcome: JobOutcome, message: str) -> None:
    texts = ["a", "b", act, "c", "d", "e"]
    with a_pool(hostile, timeout_s=0.5 if outcome is JobOutcome.TIMEOUT else 60.0) as pool:
        replies = pool.run([ask(f"{hostile}:f", text, index) for index, text in enumerate(texts)])
    assert replies[2].outcome is outcome and replies[2].value is None
    assert re.search(message, replies[2].message), replies[2].message
    assert "\n" not in replies[2].message
    neighbours = [index for index in range(6) if index != 2]
    found = values([replies[index] for index in neighbours])
    assert found == [[texts[index], "72", {"index": index}] for index in neighbours]


@pytest.mark.parametrize("act", ["shout", "held_pipe", "come_back_twice", "close_jobs"])
def test_noise_costs_nothing(pool: WorkerPool, hostile: str, act: str) -> None:
    replies = pool.run([ask(f"{hostile}:f", text) for text in ["a", act, "b", act, "c"]])
    assert values(replies)[1::2] == [1.0, 1.0]
    assert [value[0] for value in values(replies)[::2]] == ["a", "b", "c"]


def test_a_worker_that_stops_reading_is_replaced_and_an_alarm_hits_no_other_response(hostile: str) -> None:
    with a_pool(hostile, count=1) as pool:
        assert values(pool.run([ask(f"{hostile}:f", "close_jobs")] * 4)) == [1.0] * 4
        assert values(pool.run([ask(f"{hostile}:f", act) for act in ("alarm", "half_second")])) == ["set", "slept"]


def test_all_misdeeds_at_once(strict_pool: WorkerPool, hostile: str) -> None:
    acts = ["hang", "exit_3", "ten_gigabytes", "kill_self", "hundred_megabytes", "sys_exit"]
    texts = [text for act in acts for text in (act, f"after {act}")]
    replies = strict_pool.run([ask(f"{hostile}:f", text) for text in texts])
    assert [value[0] for value in values(replies[1::2])] == texts[1::2]
    assert JobOutcome.DONE not in {reply.outcome for reply in replies[::2]}


def test_at_most_as_many_workers_as_jobs_and_they_stay(pool: WorkerPool, hostile: str, tmp_path: Path) -> None:
    before = children_of(os.getpid())
    assert pool.run([]) == []
    assert children_of(os.getpid()) == before
    (first,) = values(pool.run([ask(f"{hostile}:pid", "")]))
    assert children_of(os.getpid()) - before == {first}
    assert values(pool.run([ask(f"{hostile}:pid", "")])) == [first]
    both = set(values(pool.run([ask(f"{hostile}:f", f"meet {tmp_path}")] * 50)))
    assert first in both and len(both) == 2
    assert children_of(os.getpid()) - before == both


def test_replies_come_in_input_order(hostile: str) -> None:
    delays = ["0.3", "0", "0.01", "0.2", "0", "0.05", "0"]
    with a_pool(hostile, count=3) as pool:
        assert values(pool.run([ask(f"{hostile}:f", f"late {delay}") for delay in delays])) == delays


def test_any_text_crosses_the_pipe_and_what_is_no_json_fails_alone(pool: WorkerPool, hostile: str) -> None:
    texts = ["\ud800 lone \udfff", "\0\n\r\u2028\x85", "\U0001f600 \u4e2d", "x" * 400_000, '"\\', ""]
    replies = pool.run([ask(f"{hostile}:f", text) for text in texts])
    assert [value[0] for value in values(replies)] == texts
    broken = RewardJob(task=f"{hostile}:f", arguments={"solution_str": b"bytes"}, conclude=conclude)  # type: ignore[dict-item]
    replies = pool.run([ask(f"{hostile}:f", "a"), broken, ask(f"{hostile}:f", "b")])
    assert [reply.outcome for reply in replies] == [JobOutcome.DONE, JobOutcome.FAILED, JobOutcome.DONE]
    assert "bytes is not JSON serializable" in replies[1].message


def test_a_worker_that_does_not_read_is_late(strict_pool: WorkerPool, hostile: str) -> None:
    (pid,) = values(strict_pool.run([ask(f"{hostile}:pid", "")]))
    os.kill(pid, signal.SIGSTOP)
    (late,) = strict_pool.run([ask(f"{hostile}:f", "x" * 2**20)])
    assert late.outcome is JobOutcome.TIMEOUT
    assert not is_running(pid)


def test_an_idle_worker_that_was_killed_is_replaced_for_free(pool: WorkerPool, hostile: str) -> None:
    for _ in range(3):
        (pid,) = set(values(pool.run([ask(f"{hostile}:pid", "")])))
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda pid=pid: not is_running(pid))
        (other,) = values(pool.run([ask(f"{hostile}:pid", "")]))
        assert other != pid


def started_in(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.started")]


def test_what_a_killed_function_started_ends_too(strict_pool: WorkerPool, hostile: str, tmp_path: Path) -> None:
    (reply,) = strict_pool.run([ask(f"{hostile}:f", f"starts_others {tmp_path}")])
    assert reply.outcome is JobOutcome.TIMEOUT
    started = started_in(tmp_path)
    assert len(started) == 3 and wait_until(lambda: not any(map(is_running, started))), started


def test_thirty_kills_leave_no_process_and_no_open_file(strict_pool: WorkerPool, hostile: str) -> None:
    strict_pool.run([ask(f"{hostile}:f", text) for text in ("a", "b", "c", "d")])
    files, processes = len(os.listdir("/proc/self/fd")), len(children_of(os.getpid()))
    replies = strict_pool.run([ask(f"{hostile}:f", "exit_3") for _ in range(28)] + [ask(f"{hostile}:f", "hang")] * 2)
    assert JobOutcome.DONE not in {reply.outcome for reply in replies}
    strict_pool.run([ask(f"{hostile}:f", "sleep"), ask(f"{hostile}:f", "a")])
    strict_pool.run([ask(f"{hostile}:f", text) for text in ("a", "b", "c", "d")] * 20)
    assert (len(os.listdir("/proc/self/fd")), len(children_of(os.getpid()))) == (files, processes)


def test_closed_and_forgotten_pools_end_their_workers(pool: WorkerPool, hostile: str) -> None:
    before = children_of(os.getpid())
    files = len(os.listdir("/proc/self/fd"))
    first = set(values(pool.run([ask(f"{hostile}:pid", "")] * 20)))
    pool.close()
    assert children_of(os.getpid()) == before and len(os.listdir("/proc/self/fd")) == files
    pool.close()
    assert not first & set(values(pool.run([ask(f"{hostile}:pid", "")])))
    pool = a_pool(hostile, count=1)
    (pid,) = values(pool.run([ask(f"{hostile}:pid", "")]))
    del pool
    assert not is_running(pid)


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_ctrl_c_ends_the_work_and_leaves_the_pool_usable(pool: WorkerPool, hostile: str) -> None:
    own = set(values(pool.run([ask(f"{hostile}:pid", "")] * 20)))
    sender = threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT))
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        pool.run([ask(f"{hostile}:f", "sleep")] * 20)
    sender.join()
    assert not [pid for pid in own if is_running(pid)]
    assert [value[0] for value in values(pool.run([ask(f"{hostile}:f", text) for text in "abc"]))] == ["a", "b", "c"]


def test_threads_share_a_pool_in_turn_and_it_outlives_them(pool: WorkerPool, hostile: str) -> None:
    found: list[JSONValue] = []
    thread = threading.Thread(target=lambda: found.extend(values(pool.run([ask(f"{hostile}:pid", "")]))))
    thread.start()
    thread.join()
    time.sleep(0.1)  # the kernel's signal, were there one, would come now
    assert values(pool.run([ask(f"{hostile}:pid", "")])) == found
    found: dict[int, list[JSONValue]] = {}

    def score(number: int) -> None:
        texts = [f"{number} {index}" for index in range(50)]
        found[number] = [value[0] for value in values(pool.run([ask(f"{hostile}:f", text) for text in texts]))]

    threads = [threading.Thread(target=score, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number} {index}" for index in range(50)] for number in range(4)}


def test_a_forked_copy_of_the_process_has_its_own_workers(pool: WorkerPool, hostile: str) -> None:
    (pid,) = values(pool.run([ask(f"{hostile}:pid", "")]))
    copy = os.fork()
    if copy == 0:
        try:
            (other,) = values(pool.run([ask(f"{hostile}:pid", "")]))
            pool.close()
            os._exit(0 if other != pid else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    assert values(pool.run([ask(f"{hostile}:pid", "")])) == [pid]


def test_a_program_that_ignores_its_workers_end(strict_pool: WorkerPool, hostile: str) -> None:
    """The kernel then reaps them, and nobody can tell how they ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        replies = strict_pool.run([ask(f"{hostile}:f", text) for text in ("a", "exit_3", "hang", "b", "c")])
    finally:
        signal.signal(signal.SIGCHLD, before)
    outcomes = [JobOutcome.DONE, JobOutcome.DIED, JobOutcome.TIMEOUT, JobOutcome.DONE, JobOutcome.DONE]
    assert [reply.outcome for reply in replies] == outcomes


def script_of(folder: Path, task: str, text: str, count: int, timeout_s: float) -> Path:
    """A user's script: no `if __name__`, the package only on sys.path; it prints the replies of `count` jobs."""
    arguments = {"data_source": "", "solution_str": text, "ground_truth": "", "extra_info": {}}
    script = folder / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import json, sys
            sys.path.insert(0, {str(ROOT)!r})
            from mindgspo.config.reward import RewardWorkersSection
            from mindgspo.rewards.verification import RewardJob
            from mindgspo.rewards.workers.pool import WorkerPool
            limits = RewardWorkersSection(count=2, timeout_s={timeout_s}, startup_timeout_s=30.0, memory_mb=256)
            pool = WorkerPool([{task!r}], limits)
            replies = pool.run([RewardJob(task={task!r}, arguments={arguments!r}, conclude=print)] * {count})
            print(json.dumps([reply.value for reply in replies]))
            """
        )
    )
    return script


@pytest.mark.parametrize(("act", "count", "processes"), [("stuck", 2, 2), ("starts_others", 1, 3)])
def test_a_parent_killed_by_sigkill_leaves_no_worker_and_nothing_that_one_started(
    tmp_path: Path, hostile: str, act: str, count: int, processes: int
) -> None:
    """Two workers hang in the C code of re, or one sleeps that has started three processes."""
    script = script_of(tmp_path, f"{hostile}:f", f"{act} {tmp_path}", count=count, timeout_s=600.0)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=environment) as parent:
        try:
            assert wait_until(lambda: parent.poll() is not None or len(started_in(tmp_path)) == processes, 60.0)
            assert parent.poll() is None, "the script ended by itself"
        finally:
            parent.kill()
    started = started_in(tmp_path)
    try:
        assert len(started) == processes and wait_until(lambda: not any(map(is_running, started))), started
    finally:
        for pid in filter(is_running, started):
            os.kill(pid, signal.SIGKILL)


def test_a_script_ends_with_its_workers(tmp_path: Path, hostile: str) -> None:
    script = script_of(tmp_path, f"{hostile}:pid", "", count=50, timeout_s=5.0)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    children = set(json.loads(done.stdout))
    assert children and None not in children
    assert not any(map(is_running, children))
    assert done.stderr == ""
