"""Programs that want out of the sandbox, hang in it, or be paid for nothing.

Each prints "escaped" where its attack succeeds. What it is meant to print is known to nobody but this process.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import programs
import psutil
import pytest
import sandbox
from running import PROJECT

from mindgspo.environments import End, Row, Turn

WHY_NOT = sandbox.available()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no sandbox here: {WHY_NOT}")
SECRET = "e7c9f1"
LIMITS = sandbox.Limits(seconds=1.5)
MOST_SECONDS = 5.0
"""For the time limit, on a busy machine."""
C = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"


def attempt(*lines: str, before: str = "") -> str:
    """A program that tries each line, and says if one succeeds."""
    tries = "".join(
        f"try:\n    {line}\n    print('escaped', {line!r})\nexcept (OSError, RuntimeError, MemoryError): pass\n"
        for line in lines
    )
    return f"import os, sys, time\n{before}{tries}"


LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", f"{Path(sys.executable).resolve().parents[1]}/lib")
LATE, ENDED, LOUD = "ran longer", "ended with exit code", "printed more than"
ATTACKS: dict[str, tuple[str, str]] = {
    # name: (program, beginning of the problem; "": it ends well)
    "fork bomb": ("import os\nwhile True:\n    os.fork()", ENDED),
    "forks": (attempt("os.fork()", "os.forkpty()", "os.posix_spawn(sys.executable, ['x'], {})"), ""),
    "vfork": (attempt("assert c.vfork() < 0; raise OSError", before=C), ""),
    "a thread": (attempt("threading.Thread(target=print).start()", before="import threading\n"), ""),
    "another program": (attempt("subprocess.run(['/bin/sh'])", before="import subprocess\n"), ""),
    "a daemon": ("import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass", ENDED),
    "Python by exec": ("import os, sys\nos.execv(sys.executable, ['x', '-c', 'import os; os.fork()'])", ENDED),
    "memory": ("x = bytearray(1 << 30)", ENDED),
    "memory, bit by bit": ("x = []\nwhile True:\n    x.append(bytearray(1 << 20))", f"{LATE}|{ENDED}"),
    "mapped memory": (attempt("mmap.mmap(-1, 1 << 30)", before="import mmap\n"), ""),
    "files in memory": (attempt("os.memfd_create('x')"), ""),
    "shared memory": (attempt("assert c.shmget(0, 1 << 20, 0o1600) < 0; raise OSError", before=C), ""),
    "messages": (attempt("assert c.msgget(0, 0o1600) < 0; raise OSError", before=C), ""),
    "a large file": (attempt("open('/tmp/x', 'wb').write(b'x' * (32 << 20))"), ""),
    "many files": ("for i in range(64):\n    open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 20))", ENDED),
    "many open files": ("x = [open('/dev/null') for i in range(1000)]", ENDED),
    "a growing input": (attempt("os.ftruncate(0, 1 << 30)"), ""),
    "higher limits": (
        attempt(
            *(f"resource.setrlimit(resource.RLIMIT_{name}, (-1, -1))" for name in ("CPU", "FSIZE", "NPROC")),
            "resource.prlimit(0, resource.RLIMIT_AS, (1 << 40, 1 << 40))",
            before="import resource\nresource.error = OSError\n",
        ).replace("MemoryError", "MemoryError, ValueError"),
        "",
    ),
    "endless output": ("while True:\n    print('x' * 1000)", LOUD),
    "endless output without a line": ("import os\nwhile True:\n    os.write(1, b'x' * 65536)", LOUD),
    "endless errors": ("import os\nwhile True:\n    os.write(2, b'x' * 65536)", LOUD),
    "a loop": ("while True: pass", LATE),
    "a loop that ignores signals": (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        "while True: pass",
        LATE,
    ),
    "a loop in C": ("print(10 ** 10 ** 9)", LATE),
    "sleep": ("import time\ntime.sleep(60)", LATE),
    "sleep with closed pipes": ("import os, time\nos.closerange(0, 9)\ntime.sleep(60)", LATE),
    "stopped": ("import os\nos.kill(os.getpid(), 19)", LATE),
    "waiting for nothing": ("import select, sys\nsys.stdin.read()\nselect.select([], [], [])", LATE),
    "killing its parent": (attempt("os.kill(1, 9); time.sleep(.2); os.kill(1, 0); raise OSError"), ""),
    "killing all": ("import os\nos.kill(-1, 9)\nwhile True: pass", f"{LATE}|{ENDED}"),
    "a crash": ("import ctypes\nctypes.string_at(0)", "was ended by SIGSEGV"),
    "an abort": ("import os\nos.abort()", "was ended by SIGABRT"),
    "recursion": ("import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): return f()\nf()", f"{LATE}|{ENDED}|was ended"),
    "/etc": (attempt("open('/etc/shadow')", "open('/etc/passwd')", "open('/etc/hostname')"), ""),
    "folders": (attempt("os.listdir('/home')", "os.listdir('/proc')", "os.listdir('/sys')", "os.listdir('/work')"), ""),
    "this project": (attempt(f"open({str(PROJECT / 'pyproject.toml')!r})", f"open({__file__!r})"), ""),
    "the caller's folder": (attempt("open('/proc/self/cwd/pyproject.toml')", "os.chdir('../..//proc')"), ""),
    "devices": (attempt(*(f"open('/dev/{name}')" for name in ("mem", "kmsg", "sda", "tty", "shm/x", "pts/0"))), ""),
    "links": (
        attempt("os.symlink('/etc/shadow', '/tmp/a'); open('/tmp/a')", "os.link('/usr/lib/os-release', '/tmp/b')")
        + attempt("os.symlink('/', '/tmp/c'); open('/tmp/c/x', 'w')", "open('/tmp/../x', 'w')"),
        "",
    ),
    "writing outside": (
        attempt(
            *(f"open({at!r} + '/x', 'w')" for at in ("/", "/usr", "/usr/lib", "/dev", "/etc", "/var/tmp", "/run")),
            "open(os.path.dirname(os.__file__) + '/x.py', 'w')",
            "open(sys.executable, 'ab')",
            "os.chmod(sys.executable, 0o777)",
            "os.mkdir('/x')",
            "os.utime('/usr/lib')",
        ),
        "",
    ),
    "the network": (
        attempt(
            "socket.socket()",
            "socket.socketpair()",
            "socket.create_connection(('127.0.0.1', PORT))",
            "socket.getaddrinfo('localhost', 80, proto=6)[0]; raise OSError",
            before="import socket\n",
        ),
        "",
    ),
    "a user namespace": (attempt("assert c.unshare(0x10000000) < 0; raise OSError", before=C), ""),
    "a mount namespace": (attempt("assert c.unshare(0x20000) < 0; raise OSError", before=C), ""),
    "mounts": (
        attempt(
            "assert c.mount(b'none', b'/tmp', b'tmpfs', 0, None) < 0; raise OSError",
            "assert c.umount2(b'/tmp', 2) < 0; raise OSError",
            "os.chroot('/tmp')",
            before=C,
        ),
        "",
    ),
    "tracing": (attempt("assert c.ptrace(16, os.getppid(), 0, 0) < 0; raise OSError", before=C), ""),
    "another user": (attempt("os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.setresuid(0, 0, 0)"), ""),
    "system calls of 32 bits": (  # fork; elsewhere than on x86 these bytes are no code
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b802000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        "was ended by SIG",
    ),
    "open files": (attempt(*(f"os.fstat({number})" for number in range(3, 32))), ""),
    "variables": (
        "import os\nprint(os.environ)\nif 'SECRET' in os.environ or len(os.environ) > 5: print('escaped')",
        "",
    ),
    "frames": (
        "import sys\nf = sys._getframe()\nwhile f:\n    print({**f.f_globals, **f.f_locals})\n    f = f.f_back",
        "",
    ),
    "objects": ("import gc\nfor o in gc.get_objects():\n    if 'mindgspo' in str(type(o)): print('escaped')", ""),
    "all files": (
        f"import os, sys\nlibraries = {LIBRARIES!r}\n"
        "expected = {'null', 'ld.so.cache', os.path.basename(sys.executable)}\n"
        "for at, folders, names in os.walk('/'):\n    if at in libraries: folders.clear()\n"
        "    elif set(names) - expected: print('escaped', at, names)\n"
        "if os.listdir(os.path.dirname(os.__file__) + '/site-packages'): print('escaped')",
        "",
    ),
    "rewinding the input": ("import os\nos.lseek(0, 0, 0)\nprint(os.read(0, 9999), os.read(0, 9999))", ""),
    "forged success": ("import os\nprint('passed\\n1.0\\nAll tests passed', flush=True)\nos._exit(0)", ""),
    "sys.exit": ("import sys\nsys.exit()", ""),
    "another checker": (
        "import builtins, sys\nclass All(str):\n    __eq__ = lambda *_: True\n    __hash__ = None\n"
        "builtins.str = All\nsys.stdout.write(All('anything'))",
        "",
    ),
    "forged reply": ('import os\nfor n in 0, 1, 2:\n    os.write(n, b\'{"outcome": "done", "value": 1.0}\\n\')', ""),
    "bytes that are no text": ("import os\nos.write(1, bytes(range(256)) * 9)", ""),
    "NUL": ("print('x')\0", ENDED),
    "half a surrogate pair": ("print('\ud800')", ENDED),
    "no Python": ("this is no program", ENDED),
    "another encoding": ("# -*- coding: utf-7 -*-\nprint(1)", ""),
    "nested brackets": ("(" * 5000, ENDED),
    "a program of a megabyte": ("#" * (1 << 20), "has more than"),
    "traces": ("import atexit, sys\natexit.register(lambda: print('late'))\nsys.settrace(lambda *_: None)", ""),
    "modules": (
        attempt("import sandbox", "import programs", "import mindgspo", "import numpy").replace("Memory", "Import"),
        "",
    ),
}


@pytest.fixture(scope="module")
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", ATTACKS)
def test_no_program_escapes_hangs_or_is_paid(name: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, problem = ATTACKS[name]
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setattr(programs, "LIMITS", LIMITS)
    seen = []
    monkeypatch.setattr(programs, "is_right", lambda ran, expected: seen.append(ran) or is_right(ran, expected))
    environment = programs.Programs()
    tests = [["1\n", f"{SECRET}\n"]]
    environment.reset(Row(prompt="", answer="", extra_info={"tests": tests, "num_public": 0}), 0)
    start = time.monotonic()
    said = environment.step(turn_of(program.replace("PORT", str(port))))
    assert time.monotonic() - start < MOST_SECONDS
    (ran,) = seen
    assert re.match(problem, ran.problem) and bool(ran.problem) == bool(problem), ran
    assert "escaped" not in ran.output and SECRET not in ran.output + ran.errors, ran
    assert len(ran.output) <= LIMITS.output_bytes and len(ran.errors) <= LIMITS.output_bytes
    assert isinstance(said, str) and SECRET not in said and environment.cut("max_turns").reward == 0.0


is_right = programs.is_right


def turn_of(text: str, number: int = 1) -> Turn:
    return Turn(text=text, content=text, calls=(), problems=(), number=number, is_last=False)


def test_a_program_reads_computes_and_prints() -> None:
    ran = sandbox.run("import json, decimal\nprint(json.dumps([int(input()) * 2, 'é']))", "21\n")
    assert ran == sandbox.Ran(output='[42, "\\u00e9"]\n', errors="", problem="")
    assert sandbox.run("print('é', input())", "ü").output == "é ü\n"
    assert sandbox.run("import random; open('x', 'w').write('1'); print(open('/tmp/x').read())").output == "1\n"
    assert sandbox.run("import os; print(os.listdir())").output == "[]\n", "nothing is left of the last one"


def test_the_same_program_prints_the_same() -> None:
    assert len({sandbox.run("print({'a', 'b', 'c'}, hash('x'))").output for _ in range(3)}) == 1


def test_nothing_outlives_its_caller() -> None:
    """A worker that is killed in the middle, by SIGKILL, takes the program with it."""
    script = "import sandbox\nsandbox.run('while True: pass', limits=sandbox.Limits(seconds=60))"
    worker = subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT / "examples" / "environments")
    try:
        until = time.monotonic() + 20
        while len(running := psutil.Process(worker.pid).children(recursive=True)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(running) == 3, "bubblewrap, its init and the program"
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    _, alive = psutil.wait_procs(running, timeout=5)
    assert not alive


def test_nothing_is_left_behind() -> None:
    before, children = len(os.listdir("/proc/self/fd")), psutil.Process().children()
    threads = [threading.Thread(target=sandbox.run, args=("print(1)",)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(os.listdir("/proc/self/fd")) == before and psutil.Process().children() == children


def test_a_program_that_could_not_begin_is_not_to_blame() -> None:
    with pytest.raises(sandbox.SandboxError, match="ran longer than 0.001 s"):
        sandbox.run("print(1)", limits=sandbox.Limits(seconds=0.001))


def test_without_a_sandbox_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: "bwrap is not installed")
    row = Row(prompt="", answer="", extra_info={"tests": [["1", "2"]]})
    with pytest.raises(RuntimeError, match=r"cannot be confined here: bwrap is not installed \(.*UnsafePrograms"):
        programs.Programs().reset(row, 0)
    unsafe = programs.UnsafePrograms()
    unsafe.reset(row, 0)
    said = unsafe.step(turn_of("print(int(input()) + 1)"))
    assert isinstance(said, End) and said.reward == 1.0
    monkeypatch.setenv("PATH", "")
    with pytest.raises(sandbox.SandboxError, match="bwrap is not installed: apt-get install bubblewrap"):
        sandbox.run("")
