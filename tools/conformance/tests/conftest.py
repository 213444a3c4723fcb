"""Small conformance files: real cases of the public file, and tools to change and write them."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindgspo_conformance.cases import Case, read_cases

PUBLIC = Path(__file__).resolve().parents[1] / "conformance_public.json"

Entry = dict[str, Any]


@pytest.fixture(scope="session")
def public_entries() -> dict[str, Entry]:
    """The public cases by name, as JSON."""
    return {entry["name"]: entry for entry in json.loads(PUBLIC.read_text(encoding="utf-8"))}


@pytest.fixture(scope="session")
def public_cases() -> list[Case]:
    """The public cases, read and checked once."""
    return read_cases(PUBLIC)


@pytest.fixture
def entry(public_entries: dict[str, Entry]) -> Entry:
    """A PPO loss of verl with clipped tokens and a dual clip, [6, 10], safe to change."""
    return copy.deepcopy(public_entries["base_large/ppo/verl-0.9.1"])


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Entries -> cases.json."""

    def write_entries(*entries: object) -> Path:
        path = tmp_path / "cases.json"
        path.write_text(json.dumps(list(entries)), encoding="utf-8")
        return path

    return write_entries
