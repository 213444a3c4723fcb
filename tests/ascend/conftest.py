"""Starts scripts and commands on emulated cards, each in processes of its own."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from running import python

WORKERS = Path(__file__).parent / "workers"
sys.path[:0] = [str(WORKERS), str(WORKERS.parents[1] / "distributed" / "workers")]


Figures = Callable[..., dict[str, dict[str, np.ndarray]]]


@pytest.fixture(scope="session")
def figures_of_ranks(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """(device, number of ranks, cases of `plan_figures`) -> {name of a case: its figures}, by one job.

    package_folder: of another copy of the package. A job that fails raises AssertionError with the end of its output.
    """

    def run(
        device: str, num_ranks: int, cases: Sequence[Mapping], package_folder: Path | None = None
    ) -> dict[str, dict[str, np.ndarray]]:
        folder = tmp_path_factory.mktemp(f"ranks{num_ranks}")
        (folder / "job.json").write_text(json.dumps(list(cases)))
        command = [str(WORKERS / "plan_figures.py"), str(folder), device]
        if num_ranks > 1:
            command = [str(WORKERS / "launch_cards.py"), str(num_ranks), str(folder / "logs"), *command]
        environment = os.environ | {"DEVICE": device}
        if package_folder is not None:
            environment["PYTHONPATH"] = str(package_folder)
        done = python(*command, env=environment)
        assert done.returncode == 0, (done.stdout + done.stderr)[-20000:]
        found = {}
        for case in cases:
            with np.load(folder / f"{case['name']}.npz") as arrays:
                found[case["name"]] = dict(arrays)
        return found

    return run


@pytest.fixture(scope="session")
def figures_of_cards(cards: None, figures_of_ranks: Figures) -> Figures:
    """`figures_of_ranks` on emulated cards."""
    return partial(figures_of_ranks, "Ascend")


@pytest.fixture(scope="session")
def figures_on_cpu(cpu_runtime: None) -> Callable[[str | Mapping], dict[str, np.ndarray]]:
    """A model of `plan_figures`, by name or section, its type, and how its experts are looked at -> the figures of one
    process on CPU, without an emulated card."""
    from plan_figures import figures

    made: dict[str, dict[str, np.ndarray]] = {}

    def of_model(
        model: str | Mapping, *, dtype: str = "float32", replays: bool = False, tells: bool = False
    ) -> dict[str, np.ndarray]:
        key = json.dumps([model, dtype, replays, tells], sort_keys=True)
        if key not in made:
            kind = {"replays": replays, "tells": tells} if replays or tells else {"infer": {}}
            if dtype != "float32":
                kind = {"dtype": dtype}  # sampled tokens are compared in float32
            made[key] = figures({"model": model, "train": {}, **kind}, "CPU")
        return made[key]

    return of_model
