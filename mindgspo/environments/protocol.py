"""The class that an environment's file defines.

    class Guess(Environment):
        def reset(self, row: Row, seed: int) -> None:
            self.secret = int(row.answer)

        def step(self, turn: Turn) -> str | End:
            if turn.text.strip() == str(self.secret):
                return End(reward=1.0)
            return "wrong, try again"

An object plays one sample, and lives in worker processes. Between two turns only its attributes are kept, as JSON: the
next turn may be played in another process, or after a restart of the run. Whatever is large and the same for all
samples (an index, a table) belongs in the module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindgspo.environments.tool_calls import ToolCall
from mindgspo.environments.tools import ToolError, call, find_tool, schema

Message = dict[str, str]
"""A message of the chat template: "role" ("user" or "tool") and "content"."""
TOOL_ERRORS = "_tool_errors"
"""Attribute with the kinds of a turn's errors until its answer is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The row of the data set that a sample is about."""

    prompt: str
    """The prompt as text, as the chat template rendered it."""
    answer: str
    solution: str = ""
    data_source: str = ""
    extra_info: Mapping[str, object] = field(default_factory=dict)
    """The row's other columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the policy said."""

    text: str
    """Without the token that ended it."""
    content: str
    """The text around tool calls."""
    calls: tuple[ToolCall, ...]
    """Tool calls that could be read."""
    problems: tuple[str, ...]
    """Tool calls that could not, one line each."""
    number: int
    """From 1."""
    is_last: bool
    """Whether the sample has no other turn: the limit of turns is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of an episode."""

    reward: float | None = None
    """Value of the reward function `environment`. None: other reward functions judge the last turn."""
    is_correct: bool | None = None
    """Whether the task is solved, which accuracies count. None: where the reward is above 0."""
    info: Mapping[str, float] = field(default_factory=dict)
    """Numbers that are logged with the sample."""


class Environment:
    """Answers the turns of one sample; made by a call without arguments.

    By itself it answers tool calls, and ends with the first turn that calls no tool, which reward functions then judge.
    A game overrides `step`.
    """

    tools: tuple[str, ...] = ()
    """Names of the methods that the policy may call. Their signature, type hints and docstring (with Google's "Args:")
    are shown to it by the chat template."""
    is_deterministic = True
    """Whether equal turns of samples with equal seeds have equal answers. False, for a service or a clock: a run keeps
    answers in its folder, and takes them from there if it is stopped and plays the same turns again."""

    @classmethod
    def prepare(cls) -> None:
        """Do what takes long, once in each worker process, before its first turn."""

    def schemas(self) -> list[dict[str, Any]]:
        """The tools' JSON schemas, as chat templates take them."""
        return [schema(getattr(self, name)) for name in self.tools]

    def reset(self, row: Row, seed: int) -> None:
        """Begin. The row's prompt is what the policy has been told. seed: equal for all samples of a group, whose
        rewards are compared, and another one each time that the row is drawn."""

    def step(self, turn: Turn) -> str | Sequence[Message] | End:
        """Answer a turn: with text, which becomes a user's message; with messages; or with the end."""
        if not turn.calls and not turn.problems:
            return End()
        problems = [{"role": "tool", "content": f"error: {problem}"} for problem in turn.problems]
        return [*problems, *(self.call(one) for one in turn.calls)]

    def cut(self, reason: str) -> End:
        """End an episode at a limit: "max_turns", "turn_tokens" or "episode_tokens". By itself it ends as if the policy
        had said nothing more, and reward functions judge the last turn."""
        return End()

    def call(self, asked: ToolCall) -> Message:
        """Run one of the tools. An error is told to the policy, and counted."""
        try:
            tool = find_tool({name: getattr(self, name) for name in self.tools}, asked.name)
            return {"role": "tool", "content": str(call(tool, asked.arguments))}
        except ToolError as error:
            vars(self).setdefault(TOOL_ERRORS, []).append(error.kind)
            return {"role": "tool", "content": f"error: {error}"}
