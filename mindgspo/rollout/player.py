"""Plays the turns of many episodes at once, in worker processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from mindgspo.config.environment import EnvironmentSection
from mindgspo.environments.tool_calls import style_of
from mindgspo.errors import RewardError
from mindgspo.io import Closing
from mindgspo.rewards.verification import JobOutcome, Reply, WorkerJob
from mindgspo.rewards.workers.pool import WorkerPool
from mindgspo.rewards.workers.worker import ENVIRONMENT
from mindgspo.rollout.answer_log import AnswerLog
from mindgspo.tokenization import Tokenizer
from mindgspo.tokenization.dialogue import Dialogue
from mindgspo.tokenization.tokenizer import JsonObject
from mindgspo.types import Prompt


class Player(Closing):
    """Runs the jobs of `environments.play`, each in the next free worker process.

    on_answer: called whenever a job has its reply, in a thread of its own.
    """

    def __init__(self, section: EnvironmentSection, on_answer: Callable[[], None] = lambda: None) -> None:
        self._section, self._on_answer = section, on_answer
        self._task = ENVIRONMENT + section.path
        self._threads = ThreadPoolExecutor(section.workers.count, thread_name_prefix="environment")
        self._of_thread = threading.local()
        self._rate, self._next_start, self._starts = section.workers.turns_per_second, 0.0, threading.Lock()
        self._is_closed = threading.Event()
        self._pools: list[WorkerPool] = []

    def close(self) -> None:
        """End the worker processes, whatever they do. Turns that wait for their time to begin are not played."""
        self._is_closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools:
            pool.close()

    def describe(self) -> dict[str, Any]:
        """{"tools": JSON schemas, "is_deterministic": bool}. Raises RewardError if the environment's file or class
        cannot be used."""
        reply = self.submit({"kind": "describe"}).result()
        if reply.outcome is not JobOutcome.DONE:
            raise RewardError(f"environment.path: {reply.message}")
        assert isinstance(reply.value, dict)
        return dict(reply.value)

    def try_out(self, rows: Sequence[Prompt]) -> None:
        """Begin episodes of a few rows. Raises RewardError if the environment fails on one of them: it would fail
        throughout the run."""
        for row in rows:
            reply = self.submit({"kind": "reset", "row": row_of(row), "seed": 0}).result()
            if reply.outcome is not JobOutcome.DONE:
                raise RewardError(f"environment.path: {reply.message} (tried on row {row.index})")

    def submit(self, arguments: Mapping[str, Any]) -> Future[Reply]:
        """Run a job; its reply is there once it is done."""
        return self._threads.submit(self._run, arguments)

    def _run(self, arguments: Mapping[str, Any]) -> Reply:
        if not hasattr(self._of_thread, "pool"):
            limits = self._section.workers.model_copy(update={"count": 1})
            self._of_thread.pool = WorkerPool([self._task], limits, self._on_answer)
            self._pools.append(self._of_thread.pool)
        if self._rate is not None:
            with self._starts:
                start = max(self._next_start, time.monotonic())
                self._next_start = start + 1 / self._rate
            if self._is_closed.wait(max(start - time.monotonic(), 0.0)):
                return Reply(outcome=JobOutcome.FAILED, message="the environment was closed")
        (reply,) = self._of_thread.pool.run([WorkerJob(task=self._task, arguments=arguments)])
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvironment:
    """An experiment's environment, ready to play."""

    section: EnvironmentSection
    player: Player
    """Has to be closed."""
    tools: tuple[JsonObject, ...]
    """JSON schemas that prompts present."""
    style: str
    """How the policy writes tool calls, see `tool_calls.STYLES`."""
    dialogue: Dialogue
    is_deterministic: bool = True
    answers: AnswerLog | None = None
    """Where answers are kept, of an environment that is not deterministic."""


def open_environment(
    section: EnvironmentSection, tokenizer: Tokenizer, on_answer: Callable[[], None] = lambda: None
) -> OpenEnvironment:
    """Load the environment's file in a worker process. Raises RewardError if it cannot be used, TokenizerError if the
    chat template cannot continue a conversation. on_answer: see `Player`."""
    with ExitStack() as on_error:
        player = on_error.enter_context(Player(section, on_answer))
        about = player.describe()
        tools = tuple(about["tools"])
        style = section.tool_style
        if style == "auto":
            style = _taught_style(tokenizer, tools)
        dialogue = Dialogue(tokenizer, tools=tools)
        on_error.pop_all()
    return OpenEnvironment(
        section=section,
        player=player,
        tools=tools,
        style=style,
        dialogue=dialogue,
        is_deterministic=about["is_deterministic"],
    )


def _taught_style(tokenizer: Tokenizer, tools: tuple[JsonObject, ...]) -> str:
    """Raises RewardError if there are tools, and the chat template shows no known style."""
    if not tools:
        return "none"
    style = style_of(tokenizer.render_chat([{"role": "user", "content": "?"}], tools=tools))
    if style == "none":
        raise RewardError(
            f"environment.tool_style: the chat template of {tokenizer.name} does not say how tools are called; set "
            "it to hermes or llama3, and let prompts or a warm-up teach it"
        )
    return style


def row_of(prompt: Prompt) -> dict[str, Any]:
    """The fields of `environments.Row`."""
    return {
        "prompt": prompt.text,
        "answer": prompt.answer,
        "solution": prompt.solution,
        "data_source": prompt.data_source,
        "extra_info": dict(prompt.extra_info),
    }
