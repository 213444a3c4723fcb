"""What the tests of real compiles share: the toolchain, and a compile of a toy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_emulator.toolchain import Toolchain
from mindgspo.dryrun import GraphResult, find_toolchain, run_child
from mindgspo.errors import DryRunUnavailable

NUM_RANKS = 8


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of this session's own, so that the stand-ins are built at least once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def toolchain(cache: Path) -> Toolchain:
    """What graphs are compiled for Ascend with; skips where this machine cannot, fails where it should."""
    try:
        return find_toolchain(os.environ | {"XDG_CACHE_HOME": str(cache)})
    except DryRunUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def compile_toy(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GraphResult]:
    """compile_toy(graph, rank=0, module="toy_cells", ...): one graph of that module as one of 8 ranks."""
    folder = tmp_path_factory.mktemp("compiled")

    def compile_(graph: str, rank: int = 0, module: str = "toy_cells", **options: float) -> GraphResult:
        return run_child(
            toolchain, folder, config=None, graph=graph, rank=rank, world_size=NUM_RANKS, builder=f"{module}:build",
            import_folders=(Path(__file__).parent,), **options,
        )  # fmt: skip

    return compile_
