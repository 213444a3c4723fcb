"""What happens before the first job: files that cannot be used, slow imports, files that change while a run goes on."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from mindgspo.config.reward import RewardWorkersSection
from mindgspo.errors import RewardError
from mindgspo.rewards.functions.from_file import conclude
from mindgspo.rewards.verification import JobOutcome, JSONValue, Reply, RewardJob
from mindgspo.rewards.workers.pool import WorkerPool

ARGUMENTS: dict[str, JSONValue] = {"data_source": "s", "solution_str": "72", "ground_truth": "72", "extra_info": {}}
SIGNATURE = "data_source, solution_str, ground_truth, extra_info"
GOOD = f"def f({SIGNATURE}):\n    return 1.0\n"


def write(folder: Path, text: str, name: str = "reward.py") -> Path:
    """The file, written without leaving compiled code of an earlier one in force."""
    file = folder / name
    file.write_text(text)
    for compiled in folder.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    return file


def a_pool(*tasks: str, **limits: float) -> WorkerPool:
    usual = {"count": 1, "timeout_s": 30.0, "startup_timeout_s": 60.0, "memory_mb": 256}
    return WorkerPool(tasks, RewardWorkersSection(**usual | limits))


def run(pool: WorkerPool, *tasks: str) -> list[Reply]:
    return pool.run([RewardJob(task=task, arguments=ARGUMENTS, conclude=conclude) for task in tasks])


@pytest.mark.parametrize(("text", "name", "message"), [
    ("import no_such_library\n", "f", "cannot be imported: line 1, `import no_such_library`: ModuleNotFoundError"),
    ("x = 1\ny = undefined\n", "f", "cannot be imported: line 2, `y = undefined`: NameError: name 'undefined'"),
    ("def f(:\n", "f", r"cannot be imported: SyntaxError: .*reward\.py, line 1"),
    ("raise SystemExit(3)\n", "f", "cannot be imported: line 1, .*: SystemExit: 3$"),
    ("raise KeyboardInterrupt\n", "f", "cannot be imported: line 1, .*: KeyboardInterrupt$"),
    (GOOD + "def g(): pass\nimport os\nx = 1\n", "ff", r"no function 'ff'; did you mean 'f'\? .*there: f, g\)"),
    ("import os\n", "compute_score", r"no function 'compute_score' \(there are no functions in it\)"),
    ("f = 1.0\n", "f", r"reward\.py:f is a float, not a function"),
    (f"async def f({SIGNATURE}):\n    return 1.0\n", "f", r"reward\.py:f is async; write it as an ordinary"),
    ("def f(response, answer):\n    return 1.0\n", "f",
        r"f\(response, answer\), but is called with .*missing a required argument: 'response'\. "
        rf"Write: def f\({SIGNATURE}\)"),
    ("def f(solution_str, ground_truth):\n    pass\n", "f", r"Write: def f\("),
    (f"def f({SIGNATURE}, tokenizer):\n    pass\n", "f", "missing a required argument: 'tokenizer'"),
    (f"def f({SIGNATURE}, /):\n    pass\n", "f", r"Write: def f\("),
    ("import os\nos._exit(7)\n", "f", r"while a worker loaded .*reward\.py:f: the worker ended with exit code 7"),
    ("print('on the way')\nimport os\nos.abort()\n", "f", r"ended by signal 6 .*printed last: .*line 3 in <module>"),
    ("x = bytearray(2**30)\n", "f", r"line 1, `x = bytearray.*`: MemoryError"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, text: str, name: str, message: str) -> None:
    file = write(tmp_path, text)
    with a_pool(f"{file}:{name}") as pool, pytest.raises(RewardError) as caught:
        pool.start()
    assert re.search(message, str(caught.value)), str(caught.value)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_second_task_are_refused(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "rewards.py")
    with (
        a_pool(f"{tmp_path}/reward.py:f") as pool,
        pytest.raises(RewardError, match=r"reward\.py: there is no such file; did you mean .*rewards\.py\?"),
    ):
        pool.start()
    file = write(tmp_path, GOOD)
    with a_pool(f"{file}:f", f"{file}:g") as pool, pytest.raises(RewardError, match="no function 'g'"):
        pool.start()


@pytest.mark.parametrize("text", [
    "def f(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n",
    *("def f(**kwargs):\n    return 1.0\n", "def f(solution_str, ground_truth, **kwargs):\n    return 1.0\n"),
    "def f(ground_truth, extra_info, solution_str, data_source, strict=True):\n    return 1.0\n",
    "class Judge:\n    def __call__(self, solution_str, **kwargs):\n        return 1.0\nf = Judge()\n",
    "import functools\ndef g(scale, **kwargs):\n    return scale\nf = functools.partial(g, 1.0)\n",
])  # fmt: skip
def test_signatures_that_take_the_four_arguments(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with a_pool(f"{file}:f") as pool:
        pool.start()
        assert run(pool, f"{file}:f") == [Reply(outcome=JobOutcome.DONE, value=1.0)]


def test_the_files_own_folder_comes_first_and_a_file_is_imported_once(tmp_path: Path) -> None:
    write(tmp_path, "LIMIT = 5.0\n", "helper_of_reward.py")
    text = (
        "from dataclasses import dataclass\nfrom helper_of_reward import LIMIT\nseen = []\n"
        "@dataclass\nclass Box:\n    value: 'float'\n"
        "def f(**kwargs):\n    seen.append(Box(LIMIT).value)\n    return seen\n"
        "def g(**kwargs):\n    return len(seen)\n"
    )
    file = write(tmp_path, text)
    with a_pool(f"{file}:f", f"{file}:g") as pool:
        assert [reply.value for reply in run(pool, f"{file}:f", f"{file}:g")] == [[5.0], 1]


def test_the_callers_search_path_is_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules on it are found, also those that are named like files of the pool's own folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("process", "worker", "pool"):
        write(elsewhere, f"NAME = {name!r}\n", f"{name}.py")
    text = "import process, worker, pool\ndef f(**kwargs):\n    return [process.NAME, worker.NAME]\n"
    file = write(tmp_path, text + "assert pool.NAME\n")
    monkeypatch.syspath_prepend(elsewhere)
    with a_pool(f"{file}:f") as pool:
        pool.start()
        assert [reply.value for reply in run(pool, f"{file}:f")] == [["process", "worker"]]


@pytest.mark.parametrize(("expression", "value"), [
    ("numpy.float32(0.5)", 0.5), ("numpy.int64(3)", 3), ("numpy.bool_(True)", True), ("numpy.array(2.0)", 2.0),
    ("{'score': numpy.float64(1.5), 'pred': numpy.str_('72')}", {"score": 1.5, "pred": "72"}), ("(1, 2)", [1, 2]),
    ("fractions.Fraction(1, 4)", 0.25), ("{1: True}", {"1": True}), ("None", None),
])  # fmt: skip
def test_values_become_plain(tmp_path: Path, expression: str, value: JSONValue) -> None:
    file = write(tmp_path, f"import fractions, numpy\ndef f(**kwargs):\n    return {expression}\n")
    with a_pool(f"{file}:f") as pool:
        (reply,) = run(pool, f"{file}:f")
    assert (reply.outcome, reply.value, type(reply.value)) == (JobOutcome.DONE, value, type(value))


def test_imports_out_of_time_and_not_charged_to_a_job(tmp_path: Path) -> None:
    file = write(tmp_path, "import time\ntime.sleep(60)\n" + GOOD)
    message = r"not ready within 0\.4 s \(reward\.workers\.startup_timeout_s\)"
    with a_pool(f"{file}:f", startup_timeout_s=0.4) as pool:
        with pytest.raises(RewardError, match=message):
            pool.start()
        replies = run(pool, *[f"{file}:f"] * 5)
    assert {reply.outcome for reply in replies} == {JobOutcome.FAILED}
    assert all(re.search(message, reply.message) for reply in replies)
    text = (
        "import os, time\ntime.sleep(0.7)\ndef f(solution_str, **kwargs):\n    time.sleep(60)\n"
        "def g(**kwargs):\n    return 1.0\n"
    )
    file = write(tmp_path, text)
    with a_pool(f"{file}:f", f"{file}:g", timeout_s=0.5) as pool:
        replies = run(pool, f"{file}:g", f"{file}:f", f"{file}:g")
    assert [reply.outcome for reply in replies] == [JobOutcome.DONE, JobOutcome.TIMEOUT, JobOutcome.DONE]


def test_loud_imports_and_a_second_start(tmp_path: Path) -> None:
    file = write(tmp_path, "import sys\nprint('x' * 500_000)\nsys.stderr.write('y' * 500_000)\n" + GOOD)
    with a_pool(f"{file}:f") as pool:
        pool.start()
        assert run(pool, f"{file}:f")[0].outcome is JobOutcome.DONE
    file = write(tmp_path, f"import os\ndef f({SIGNATURE}):\n    return os.getpid()\n")
    with a_pool(f"{file}:f", count=2) as pool:
        pool.start()
        (first,) = run(pool, f"{file}:f")
        pool.start()
        assert run(pool, f"{file}:f") == [first]


def test_a_file_broken_while_the_run_goes_on_fails_the_rest_with_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "imports"
    start = f"with open({str(log)!r}, 'a') as log:\n    log.write('x')\n"
    good = start + "import os\ndef f(**kwargs):\n    return 1.0\ndef die(**kwargs):\n    os._exit(1)\n"
    file = write(tmp_path, good)
    with a_pool(f"{file}:f", f"{file}:die") as pool:
        pool.start()
        write(tmp_path, start + "raise ValueError('edited too early')\n")
        replies = run(pool, f"{file}:f", f"{file}:die", *[f"{file}:f"] * 20)
        assert [reply.outcome for reply in replies] == [JobOutcome.DONE, JobOutcome.DIED] + [JobOutcome.FAILED] * 20
        assert all("line 3, `raise ValueError('edited too early')`" in reply.message for reply in replies[2:])
        assert len(log.read_text()) <= 4, "a file that cannot be imported is tried a few times only"
        write(tmp_path, good)
        assert [reply.value for reply in run(pool, f"{file}:f")] == [1.0]


def test_healthy_workers_go_on_when_no_more_can_start(tmp_path: Path) -> None:
    file = write(tmp_path, "import time\ndef f(**kwargs):\n    time.sleep(0.02)\n    return 1.0\n")
    with a_pool(f"{file}:f", count=3) as pool:
        pool.start()
        write(tmp_path, "import\n")
        assert [reply.value for reply in run(pool, *[f"{file}:f"] * 20)] == [1.0] * 20


def test_workers_that_die_as_soon_as_they_are_ready(tmp_path: Path) -> None:
    """A thread of the file's ends the process a moment after loading: no endless replacing, whoever is to blame."""
    text = (
        "import os, threading, time\ndef end():\n    time.sleep(0.05)\n    os._exit(9)\n"
        "threading.Thread(target=end).start()\ndef f(**kwargs):\n    time.sleep(60)\n"
    )
    file = write(tmp_path, text)
    with a_pool(f"{file}:f", count=2) as pool:
        replies = run(pool, *[f"{file}:f"] * 6)
    assert {reply.outcome for reply in replies} <= {JobOutcome.DIED, JobOutcome.FAILED}
    assert all("exit code 9" in reply.message for reply in replies)


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_ctrl_c_during_the_start(tmp_path: Path) -> None:
    file = write(
        tmp_path, f"import os, time\nif not os.path.exists({str(tmp_path / 'quick')!r}):\n    time.sleep(60)\n" + GOOD
    )
    with a_pool(f"{file}:f") as pool:
        sender = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        sender.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            pool.start()
        sender.join()
        assert time.monotonic() - began < 30, "it waited for the import"
        (tmp_path / "quick").touch()
        pool.start()
        assert run(pool, f"{file}:f")[0].outcome is JobOutcome.DONE


def test_the_memory_limit_leaves_what_it_says(tmp_path: Path) -> None:
    body = "(**kwargs):\n    return len(bytearray({} * 2**20))\n"
    file = write(tmp_path, f"def f{body.format(150)}def g{body.format(260)}")
    with a_pool(f"{file}:f", f"{file}:g", memory_mb=256) as pool:
        replies = run(pool, f"{file}:f", f"{file}:g", f"{file}:f")
    assert [reply.outcome for reply in replies] == [JobOutcome.DONE, JobOutcome.FAILED, JobOutcome.DONE]
    assert "256 MiB" in replies[1].message
