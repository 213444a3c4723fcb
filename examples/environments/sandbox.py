"""Runs Python programs that a model wrote, where they can do nothing but compute and print. Standard library only.

    ran = run("print(int(input()) * 2)", "21")
    assert ran.output == "42\\n" and not ran.problem

A program is one process of one thread in namespaces of its own (bubblewrap): no network, no files but Python's own
(read-only) and a small /tmp that goes with it, no environment variables, no other process to see. The system calls that
start processes, open sockets, mount, or take memory that no limit counts are refused (libseccomp). Time, memory, disk
and output are limited, and everything is killed with the program, and the program with its caller.

What a program prints is its only way out, so whoever compares it with the expected output does so in another process.
Bugs of the kernel are not kept out: where programs may be worse than a model's, run all of it in a virtual machine.

It wants Linux, bubblewrap 0.7 or newer that may make user namespaces, and libseccomp 2: apt-get install bubblewrap
libseccomp2. In Docker's default profile user namespaces are refused: docker run --security-opt seccomp=unconfined
--security-opt apparmor=unconfined. `available` says what is missing.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAX_PROGRAM_BYTES = 64 << 10


class SandboxError(RuntimeError):
    """The program did not begin, which is not its fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may take."""

    seconds: float = 2.0
    """Wall clock, the start of Python (0.1 s) included; processor time likewise."""
    memory_mb: int = 256
    """Address space; Python itself has 20 MiB."""
    disk_mb: int = 16
    """Of /tmp, which is in memory as well, and of one file."""
    output_bytes: int = 64 << 10
    """Of standard output, and of standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of a program."""

    output: str
    errors: str
    """Standard error."""
    problem: str
    """How it ended, unless with exit code 0: then ""."""


@cache
def available() -> str | None:
    """Why programs cannot be confined on this machine; None: they can. The first call tries it out."""
    try:
        ran = run("print(6 * 7)", limits=Limits(seconds=20.0))
    except (OSError, SandboxError) as error:
        return str(error)
    return None if ran.output == "42\n" else f"a program that prints 42 {ran.problem or 'printed something else'}"


def run(program: str, stdin: str = "", *, limits: Limits = Limits(), is_confined: bool = True) -> Ran:
    """Run a program; returns within the limit of time, at most a second later. Whatever it does is in the result.

    is_confined: False runs it as a child in an empty folder, with this process's rights: it can read, write and send
    what the caller can. Only limits of time, memory, file size and output hold.

    Raises SandboxError if the program did not begin.
    """
    source = program.encode("utf-8", "backslashreplace")
    if len(source) > MAX_PROGRAM_BYTES:
        return Ran(output="", errors="", problem=f"has more than {MAX_PROGRAM_BYTES:,} bytes")
    with ExitStack() as stack:
        given, code = (_file(stack, data) for data in (stdin.encode("utf-8", "backslashreplace"), source))
        begun, begins = os.pipe()
        stack.callback(os.close, begun)
        passed = [code, begins]
        python = [os.path.realpath(sys.executable), "-S", "-s", "-B", "-c", _start(code, begins, limits)]
        if is_confined:
            passed.append(_file(stack, _refused_calls()))
            command, folder = [*_confinement(limits, passed[-1]), *python], "/"
        else:
            command, folder = python, stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        try:
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=passed,
                cwd=folder,
                env=None if is_confined else _VARIABLES,
                start_new_session=not is_confined,
            )
        finally:
            os.close(begins)
        with process:
            try:
                output, errors, problem = _watched(process, limits)
            finally:
                _kill(process, is_group=not is_confined)
        os.set_blocking(begun, False)
        with suppress(BlockingIOError):
            if os.read(begun, 1):
                return Ran(output=output, errors=errors, problem=problem)
    raise SandboxError(" ".join(errors.split())[-300:] or problem)


_VARIABLES = {"PATH": "", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
"""Environment variables of a program, which so does the same each time."""


def _file(stack: ExitStack, data: bytes) -> int:
    """A file in memory that holds `data`."""
    number = os.memfd_create("program")
    stack.callback(os.close, number)
    with open(number, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _start(code: int, begins: int, limits: Limits) -> str:
    """What Python runs first: it limits itself for good, says that it begins, and becomes the program."""
    size = {"AS": limits.memory_mb << 20, "FSIZE": limits.disk_mb << 20, "CPU": math.ceil(limits.seconds)}
    most = size | {"NOFILE": 32, "NPROC": 1, "CORE": 0}
    return (
        f"import os, resource\n"
        f"for name, most in {most}.items():\n"
        f"    resource.setrlimit(getattr(resource, 'RLIMIT_' + name), (most, most))\n"
        f"with open({code}, 'rb') as file:\n"
        f"    program = file.read()\n"
        f"os.write({begins}, b'.')\n"
        f"os.close({begins})\n"
        f"exec(compile(program, 'program.py', 'exec'), {{'__name__': '__main__'}})\n"
    )


def _confinement(limits: Limits, refused: int) -> list[str]:
    """The command before the program's. refused: file of the filter of system calls."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bwrap is not installed: apt-get install bubblewrap")
    python = Path(sys.executable).resolve()
    libraries = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", python]
    libraries += [python.parents[1] / name for name in ("lib", "lib64")]
    seen = [str(word) for path in libraries for word in ("--ro-bind-try", path, path)]
    packages = [Path(sysconfig.get_path("stdlib"), "site-packages"), Path("/usr/lib/python3/dist-packages")]
    hidden = [str(word) for path in packages if path.is_dir() for word in ("--tmpfs", path, "--remount-ro", path)]
    variables = [word for name, value in _VARIABLES.items() for word in ("--setenv", name, value)]
    return [
        *(bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"),
        *("--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--clearenv", *variables),
        *(*seen, *hidden, "--dev-bind", "/dev/null", "/dev/null"),
        *("--size", str(limits.disk_mb << 20), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"),
        *("--seccomp", str(refused), "--"),
    ]


_REFUSED = (
    # Processes and threads: only one process is limited.
    *("fork", "vfork", "clone", "clone3", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),
    # Memory that the limit of the address space does not count.
    *("shmget", "shmat", "msgget", "msgsnd", "semget", "mq_open", "memfd_create", "memfd_secret"),
    # Sockets, their kin, and calls that go around this filter.
    *("socket", "socketpair", "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "userfaultfd"),
    # Namespaces and mounts, in which it could be its own root.
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("move_mount", "open_tree", "mount_setattr", "name_to_handle_at", "open_by_handle_at"),
    # The kernel itself.
    *("perf_event_open", "add_key", "request_key", "keyctl", "kexec_load", "kexec_file_load", "init_module"),
    *("finit_module", "delete_module", "personality", "syslog", "acct", "quotactl", "swapon", "swapoff", "reboot"),
)


@cache
def _refused_calls() -> bytes:
    """The filter of system calls, as bubblewrap reads it: what is refused fails with EPERM, and calls of another
    architecture, whose numbers differ, end the program."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        raise SandboxError(f"libseccomp is not installed: apt-get install libseccomp2 ({error})") from error
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(0x7FFF0000)))  # SCMP_ACT_ALLOW
    refuse = ctypes.c_uint32(0x00050000 | errno.EPERM)  # SCMP_ACT_ERRNO
    for name in _REFUSED:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number != -1 and library.seccomp_rule_add(rules, refuse, ctypes.c_int(number), ctypes.c_uint(0)) != 0:
            raise SandboxError(f"libseccomp cannot refuse {name}")
    with tempfile.TemporaryFile() as file:
        if library.seccomp_export_bpf(rules, file.fileno()) != 0:
            raise SandboxError("libseccomp cannot write its filter")
        library.seccomp_release(rules)
        file.seek(0)
        return file.read()


def _watched(process: subprocess.Popen[bytes], limits: Limits) -> tuple[str, str, str]:
    """(output, errors, problem). No more is read than the limit."""
    deadline = time.monotonic() + limits.seconds
    assert process.stdout and process.stderr
    output, errors = bytearray(), bytearray()
    problem = ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        while selector.get_map() and not problem:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in ready:
                piece = os.read(key.fd, limits.output_bytes + 1 - len(key.data))
                key.data.extend(piece)
                if not piece:
                    selector.unregister(key.fileobj)
                elif len(key.data) > limits.output_bytes:
                    problem = f"printed more than {limits.output_bytes:,} bytes"
            if not problem and time.monotonic() >= deadline:
                problem = f"ran longer than {limits.seconds:g} s"
    if not problem:
        try:
            problem = _ended(process.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            problem = f"ran longer than {limits.seconds:g} s"
    texts = [bytes(text[: limits.output_bytes]).decode("utf-8", "replace") for text in (output, errors)]
    return texts[0], texts[1], problem


def _ended(code: int) -> str:
    if code == 0:
        return ""
    number = -code if code < 0 else code - 128  # bubblewrap reports signals as shells do
    known = {one.value: one.name for one in signal.Signals}
    return f"was ended by {known[number]}" if number in known else f"ended with exit code {code}"


def _kill(process: subprocess.Popen[bytes], *, is_group: bool) -> None:
    """End it. bubblewrap's end is the end of all in its namespaces."""
    if is_group:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
