"""Ctrl-C at every stage of a command: one line, exit code 130. Real processes that get real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import PROJECT, imported_by

COMMAND = """
import os, sys, time
from mindgspo import interrupts

def ready():
    print("ready", flush=True)
    time.sleep(60)

with interrupts.caught():
    try:
        {body}
    except BaseException:
        if not interrupts.is_received():
            raise
interrupts.say_interrupted()
sys.exit(interrupts.EXIT_CODE)
"""
WHILE_IMPORTING = """
        interrupts.begin_work()
        sys.path.insert(0, {folder!r})
        import slow_package
        time.sleep(60)
"""
IN_DESTRUCTOR = """
        class Slow:
            def __del__(self): ready()
        interrupts.begin_work()
        Slow()
        time.sleep(60)
"""
WHILE_CLEARING_UP = """
        interrupts.begin_work()
        interrupts.advise("go on so")
        try:
            ready()
        finally:
            time.sleep(0.5)
            print("cleared", flush=True)
"""
SWALLOWED = """
        interrupts.begin_work()
        try:
            ready()
        except KeyboardInterrupt:
            os.write(2, b"a compiler's log")
            raise ImportError("half a module")
"""


def interrupted(program: str, *, signals: int = 1, number: int = signal.SIGINT) -> tuple[int, str, str]:
    """(exit code, standard output behind "ready", standard error) of a program that gets signals 0.1 s apart."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    for _ in range(signals):
        process.send_signal(number)
        time.sleep(0.1)
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


@pytest.mark.parametrize("body", ["ready()", IN_DESTRUCTOR, SWALLOWED], ids=["importing", "destructor", "swallowed"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_one_signal_ends_a_command_in_one_line(body: str, number: int) -> None:
    assert interrupted(COMMAND.format(body=body), number=number) == (130, "", "interrupted\n")


def test_an_import_is_not_left_half_way(tmp_path: Path) -> None:
    (tmp_path / "slow_package.py").write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(0.5)\n    print('whole', flush=True)\n"
        "except KeyboardInterrupt:\n    print('half a package')\n"
    )
    body = WHILE_IMPORTING.format(folder=str(tmp_path))
    assert interrupted(COMMAND.format(body=body), signals=2) == (130, "whole\n", "interrupted\n")


def test_three_signals_do_not_disturb_the_clearing_up() -> None:
    program = COMMAND.format(body=WHILE_CLEARING_UP)
    assert interrupted(program, signals=3) == (130, "cleared\n", "interrupted; go on so\n")


def test_a_clearing_up_that_hangs_is_ended_by_a_later_signal() -> None:
    program = COMMAND.format(body=WHILE_CLEARING_UP.replace("0.5", "60"))
    program = program.replace("import interrupts", "import interrupts\ninterrupts._PATIENCE_S = 0.05")
    assert interrupted(program, signals=2) == (130, "", "interrupted; go on so\n")


def test_counted_signals_raise_nothing_until_the_third() -> None:
    body = """
        interrupts.begin_work()
        with interrupts.counting() as count:
            print("ready", flush=True)
            while count() < {most}:
                time.sleep(0.01)
        print("went on", flush=True)
        sys.exit(0)
"""
    program = COMMAND.replace("except BaseException", "except KeyboardInterrupt")
    assert interrupted(program.format(body=body.format(most=2)), signals=2) == (0, "went on\n", "")
    assert interrupted(program.format(body=body.format(most=9)), signals=3) == (130, "", "interrupted\n")


def test_what_comes_after_the_last_line_changes_nothing() -> None:
    program = """
import atexit, time
from mindgspo import interrupts
with interrupts.caught():
    pass
atexit.register(lambda: (print("ready", flush=True), time.sleep(0.3)))
"""
    assert interrupted(program) == (0, "", "")


def test_what_the_shell_ignores_stays_ignored() -> None:
    body = COMMAND.format(body="ready()").replace("time.sleep(60)", "time.sleep(0.3); sys.exit(0)")
    program = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{body}"
    code, _, errors = interrupted(program.replace("except BaseException", "except ValueError"))
    assert (code, errors) == (0, "")


def test_the_entry_point_imports_nothing_heavy_before_it_answers() -> None:
    own = {name for name in imported_by("import mindgspo.cli") if name.startswith("mindgspo")}
    assert own == {"mindgspo", "mindgspo.cli", "mindgspo.interrupts"}
