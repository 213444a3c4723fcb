"""The steps of a run that are recorded for a profiler's timeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mindgspo.config.section import Section
from mindgspo.errors import ConfigError
from mindgspo.text import counted

TimedPhase = Literal[
    "step",
    "gen",
    "reward",
    "old_log_prob",
    "adv",
    "update_actor",
    "update_weights",
    "testing",
    "save_checkpoint",
]


class ProfileSection(Section):
    """Steps that are recorded in run_dir/profile: a Chrome trace of their phases on every device, and on Ascend what
    MindSpore's profiler collects, for MindStudio Insight."""

    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Training steps to record, such as [3, 4]. The first steps of a process compile graphs and say little about the
    others. Empty: none (verl: global_profiler.steps)."""
    ranks: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=(0,), min_length=1)
    """Ranks to record. None: all (verl: profiler.ranks, all_ranks)."""
    phases: tuple[TimedPhase, ...] = Field(default=("step",), min_length=1)
    """Phases to record, each with those inside it. step: the whole step, without testing and save_checkpoint, which
    follow it. On Ascend each has a collection of its own, so that one short phase takes little disk space (verl:
    discrete; MindRLHF: stage)."""
    limit_gb: float = Field(default=20.0, gt=0)
    """Disk space of run_dir/profile, in GB of 2^30 bytes. A step is not recorded if with as much as the largest one so
    far the folder would exceed it; the size of the first is not known beforehand. Nothing is deleted."""


def profile_problems(section: ProfileSection, *, world_size: int, num_steps: int | None) -> Iterator[str]:
    """Violated rules. num_steps: of the run; None while they depend on data that is not read yet."""
    last, beyond = max(section.steps, default=0), max(section.ranks or (), default=0)
    if num_steps is not None and last > num_steps:
        yield f"profile.steps: {last} comes after the run's {counted(num_steps, 'step')}; largest legal: {num_steps}"
    if beyond >= world_size:
        yield (
            f"profile.ranks: {beyond} is not among the {counted(world_size, 'rank')} of plans.train, which count from "
            f"0; largest legal: {world_size - 1}"
        )


def check_profile(section: ProfileSection, *, world_size: int, num_steps: int) -> None:
    """Check the section when the run's steps are known. Raises ConfigError."""
    for problem in profile_problems(section, world_size=world_size, num_steps=num_steps):
        raise ConfigError(problem)
