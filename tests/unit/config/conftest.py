"""A small legal experiment as a file, and the problems that a change to it causes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiment import WITH_MODEL

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import ConfigError


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Path of the small experiment."""
    path = tmp_path / "small.yaml"
    path.write_text(WITH_MODEL, encoding="utf-8")
    return path


@pytest.fixture
def load(experiment: Path) -> Callable[..., ExperimentConfig]:
    """load(*overrides): the small experiment with these overrides."""
    return lambda *overrides: load_config(experiment, overrides)


@pytest.fixture
def problems(experiment: Path) -> Callable[..., list[str]]:
    """problems(*overrides): the lines of the ConfigError that these overrides must cause, header left out."""

    def lines_of_error(*overrides: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_config(experiment, overrides)
        header, *lines = str(caught.value).split("\n  ")
        assert header.startswith(f"{experiment}: {len(lines)} problem"), str(caught.value)
        return lines

    return lines_of_error
