"""Faults on demand: what the variable may say, and what then happens, in processes of their own where it ends them."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mindgspo import faults
from mindgspo.errors import ConfigError

PACKAGE = Path(faults.__file__).parent


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.arm(0, "")


def test_a_fault_happens_at_its_point_the_nth_time_and_once() -> None:
    assert faults.arm(0, "save.inside:2=full_disk").startswith("warning: MINDGSPO_FAULT is set")
    assert not faults.reach("save.inside") and not faults.reach("save.before")
    with pytest.raises(OSError, match="save.inside:2=full_disk") as raised:
        faults.reach("save.inside")
    assert raised.value.errno == errno.ENOSPC
    assert not faults.reach("save.inside")


def test_several_faults_and_ranks() -> None:
    text = "update.batch=nan, reward.inside:3=raise@1,update.batch:2=nan@1"
    assert [str(fault) for fault in faults.faults_of(text)] == [
        "update.batch:1=nan",
        "reward.inside:3=raise@1",
        "update.batch:2=nan@1",
    ]
    faults.arm(0, text)
    assert [faults.reach("update.batch") for _ in range(3)] == [True, False, False]
    assert not any(faults.reach("reward.inside") for _ in range(4))
    faults.arm(1, text)
    assert [faults.reach("update.batch") for _ in range(3)] == [True, True, False]
    with pytest.raises(faults.InjectedFault):
        [faults.reach("reward.inside") for _ in range(3)]


def test_unarmed_nothing_happens_and_every_point_is_reached_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    assert faults.arm(0) is None
    assert not any(faults.reach(point) for point in faults.POINTS)
    named: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for point in re.findall(r'faults\.reach\((?:f?)"([\w.{}]+)"\)', path.read_text(encoding="utf-8")):
            named |= {point.replace("{fault}", kind) for kind in ("rollout", "eval")} if "{" in point else {point}
    assert named == set(faults.POINTS)


@pytest.mark.parametrize(("text", "said"), [
    ("save.inner=kill", "there is no point 'save.inner'; there are resume.after, "),
    ("save.inside=explode", "nothing is called 'explode'; write save.inside=<one of kill, "),
    ("save.inside", "nothing is called ''"), ("save.inside=nan", "nan is for update.batch only"),
    ("save.inside:0=kill", "'0' is no number from 1 on"), ("save.inside:=kill", "'' is no number from 1 on"),
    ("save.inside=kill@one", "'one' is no rank"),
])  # fmt: skip
def test_wrong_words_are_refused_with_the_right_ones(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        faults.arm(0, text)


def child(what: str) -> subprocess.Popen[str]:
    code = "from mindgspo import faults; faults.arm(0); faults.reach('log.after'); print('went on')"
    environment = {"PYTHONPATH": str(PACKAGE.parent), faults.VARIABLE: f"log.after={what}"}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("what", "code"), [("kill", -signal.SIGKILL), ("exit", faults.EXIT_CODE), ("raise", 1)])
def test_what_ends_a_process(what: str, code: int) -> None:
    output, errors = (process := child(what)).communicate(timeout=30)
    assert (process.returncode, output) == (code, "")
    assert errors.startswith(f"fault on purpose: log.after:1={what}\n")


@pytest.mark.parametrize(("what", "status"), [("stall", psutil.STATUS_SLEEPING), ("stop", psutil.STATUS_STOPPED)])
def test_what_holds_a_process_up(what: str, status: str) -> None:
    process = child(what)
    try:
        assert process.stderr is not None and process.stderr.readline() == f"fault on purpose: log.after:1={what}\n"
        give_up = time.monotonic() + 20
        while psutil.Process(process.pid).status() != status and time.monotonic() < give_up:
            time.sleep(0.01)
        assert psutil.Process(process.pid).status() == status
    finally:
        process.kill()
        process.wait()
