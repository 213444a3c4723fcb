"""What a check says, and what the experiment asks of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from mindgspo.doctor.machine import Machine


class Level(str, Enum):
    """BROKEN: a run will fail, or compute something else. RISK: it may fail later, or be slow."""

    BROKEN = "broken"
    RISK = "risk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """name: of the check. what: was found, with its value. why: it hurts. fix: the one thing to do."""

    name: str
    level: Level
    what: str
    why: str
    fix: str


def broken(name: str, what: str, *, why: str, fix: str) -> Finding:
    """A finding of this level."""
    return Finding(name=name, level=Level.BROKEN, what=what, why=why, fix=fix)


def risk(name: str, what: str, *, why: str, fix: str) -> Finding:
    """A finding of this level."""
    return Finding(name=name, level=Level.RISK, what=what, why=why, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Of an experiment, on this node. device; ranks: processes that train here. cards: these and the ones that serve.
    nodes: machines. run_dir: absolute. has_config: whether an experiment was named; without one the least is asked
    for."""

    device: Literal["CPU", "Ascend"]
    ranks: int = 1
    cards: int = 1
    nodes: int = 1
    run_dir: Path = Path("/")
    has_config: bool = False

    @property
    def is_cluster(self) -> bool:
        """Whether ranks talk to each other."""
        return self.ranks * self.nodes > 1


Check = Callable[[Machine, Needs], Iterator[Finding]]
