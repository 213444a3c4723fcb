"""The section `environment` and its rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from mindgspo.config.reward import WorkersSection, file_function
from mindgspo.config.section import Section


class EnvironmentWorkersSection(WorkersSection):
    """Child processes in which environments and their tools run."""

    key: ClassVar[str] = "environment.workers"
    count: int = Field(default=4, ge=1, le=1024)
    """Children, hence the turns that are answered at the same time; they start as they are needed. Tools that wait for
    a network want as many as there are slots."""
    timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    """Wall-clock seconds that the answer to one turn may take, all its tool calls included; then the child is killed,
    and the episode ends as failed."""
    startup_timeout_s: float = Field(default=120.0, gt=0, le=86_400)
    """Wall-clock seconds a child may take for its imports, those of your file included."""
    memory_mb: int = Field(default=4096, ge=256)
    """Memory a child may take (MiB); an episode that needs more ends as failed."""
    turns_per_second: float | None = Field(default=None, gt=0, le=1e6)
    """Turns per second that are given to the environment, at most, by each process that generates; for a service that
    allows no more. None: no limit."""


class EnvironmentSection(Section):
    """What answers the policy: a sample is then an episode of several turns, of which only what the policy said is
    trained."""

    path: str
    """path/to/file.py:Class, from this file's folder; a class derived from mindgspo.environments.Environment."""
    max_turns: int = Field(default=8, ge=1, le=1024)
    """Turns of the policy; an episode that is not at its end after them is cut (verl: max_assistant_turns)."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the policy may say in one turn; a turn that reaches them ends the episode. None: as many as the
    episode has left. The whole episode has rollout.max_new_tokens, observations included."""
    max_observation_tokens: int = Field(default=1024, ge=16)
    """Tokens of one message from the environment; of a longer one the first and the last half are kept, with a note
    between them (verl: max_tool_response_length)."""
    tool_style: Literal["auto", "hermes", "llama3", "none"] = "auto"
    """How the policy writes tool calls. hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Qwen2.5
    and Qwen3 do. llama3: {"name": ..., "parameters": {...}}. none: turns are text. auto: as the chat template shows
    it (verl: multi_turn.format)."""
    workers: EnvironmentWorkersSection = EnvironmentWorkersSection()
    """Child processes in which environments and their tools run."""


def environment_problems(section: EnvironmentSection, *, max_new_tokens: int) -> Iterator[str]:
    """Every violated rule that needs no file. max_new_tokens: of an episode."""
    file = file_function(section.path)
    if file is None or not file.name.isidentifier():
        yield f"environment.path: {section.path!r} names no class; write path/to/file.py:Class"
    if section.max_turn_tokens is not None and section.max_turn_tokens > max_new_tokens:
        yield (
            f"environment.max_turn_tokens: {section.max_turn_tokens} is more than the whole episode has "
            f"(rollout.max_new_tokens {max_new_tokens}); nearest legal: {max_new_tokens}"
        )
