"""Fixtures that more than one folder of tests needs, and the choice of what the default tier runs."""

from __future__ import annotations

import fcntl
import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest

import mindgspo.parallel.platform.runtime  # noqa: F401  sets MindSpore's environment variables, before a test imports MindSpore
from mindgspo import progress

# Nothing asserts on time: a worker may wait for its neighbour. "ci" finds the same things in every session.
hypothesis.settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

progress._QUIET_S = float("inf")  # a busy machine must not add lines to what a test's command prints

TESTS = Path(__file__).resolve().parent / "tests"
SHARED_DATA = TESTS.parent / ".." / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the published data sets beside the project; skips without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"needs the shared data folder, absent at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def shared_rows() -> Callable[[str], list[dict]]:
    """shared_rows(name): the rows of a JSON Lines file of the published data beside the project; skips without it."""

    def rows(name: str) -> list[dict]:
        path = SHARED_DATA / name
        if not path.is_file():
            pytest.skip(f"needs {name} of the shared data folder, absent at {SHARED_DATA}")
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return rows


@pytest.fixture(scope="session")
def cpu_runtime() -> None:
    """MindSpore on the CPU; ask for it in every test that builds or runs a cell. In graph mode, where cells that a test
    calls as they are become graphs; `runtime.call_compiled`, which the product calls them by, makes graphs in any."""
    import mindspore

    from mindgspo.parallel.platform.runtime import set_up_runtime

    set_up_runtime("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    gc.freeze()  # every compile collects garbage: it need not go through all that was imported


@pytest.fixture(scope="module")
def composed_runtime(cpu_runtime) -> Iterator[None]:
    """Cells of the module's tests are composed of MindSpore's small ops, as they are without g++."""
    from mindgspo.parallel.ops.device import composed_ops

    with composed_ops():
        yield


@pytest.fixture(scope="session")
def cards() -> None:
    """Skips where emulated cards cannot be had: no compiler, another processor, a MindSpore without the plugin."""
    from mindgspo.errors import DryRunUnavailable
    from mindgspo.parallel.platform.emulator import find_toolchain

    try:
        find_toolchain(emulated=True)
    except DryRunUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["kernels", "composed"])
def form(request: pytest.FixtureRequest, cpu_runtime) -> Iterator[str]:
    """Of the operators that a test builds: both, one after the other."""
    from mindgspo.parallel.ops.device import composed_ops

    with composed_ops() if request.param == "composed" else nullcontext():
        yield request.param


@pytest.fixture(scope="session")
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """once(name, make): a folder that make(folder) has filled, a single time for all workers of this session. Tests
    must not change anything in it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if hasattr(request.config, "workerinput") else base) / "once"

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        folder.mkdir(parents=True, exist_ok=True)
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return made


# ----- the default tier leaves out what is marked slow: in the code, in a list, or for a fixture that is

SLOW_TESTS = TESTS / "slow_tests.txt"
SLOW_FIXTURES = {"cards", "outcome", "start_launcher", "stopped_at", "toolchain", "whole_run"}
"""What takes processes, compiles or runs of its own: one test of each kind is marked `smoke` and stays."""


def slow_tests() -> frozenset[str]:
    """The lines of `slow_tests.txt`, without comments."""
    lines = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest selects by marker."""
    slow = slow_tests()
    for item in items:
        name = f"{item.path.parent.relative_to(TESTS.parent)}::{item.name}"
        takes_long = not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        if name in slow or name.split("[")[0] in slow or (takes_long and not item.get_closest_marker("smoke")):
            item.add_marker(pytest.mark.slow)
