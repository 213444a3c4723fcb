"""Environments of the package `verifiers` (0.4) for mindgspo; run by the Python that has that package.

    python verifiers_bridge.py export TASKSET --out data/x.jsonl [--eval-out data/x_eval.jsonl]
    python verifiers_bridge.py serve TASKSET

`export` writes the tasks as rows. `serve` answers turns: the program of a `mindgspo.environments.ProgramEnvironment`.
TASKSET is a taskset that verifiers can import, its own or a module beside this file; `--args` are its settings in JSON.

All of an episode is verifiers' own: its environment, its rollout with hooks, limits and scoring, and the chat loop of
its harness `null`. Only the model is not there: calls wait for what the policy said. A coroutine that waits cannot be
kept as JSON, so nothing is kept but what the policy said so far; each question plays the episode again up to there,
with seeded random numbers. An episode that goes another way when it is played again fails, and says so. Tools run in
this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import random
import sys
import types
from pathlib import Path
from typing import Any

try:
    import verifiers.v1 as vf
    from mcp import Client as McpClient
    from mcp.server.mcpserver import MCPServer
    from openai import AsyncOpenAI
    from verifiers.v1 import rollout
    from verifiers.v1.clients.train import serialize_completion
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.null import NullHarness
    from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
    from verifiers.v1.interception import InterceptionServer
    from verifiers.v1.mcp.server import ServerBase, _call_state
except ImportError as error:
    sys.exit(f"verifiers_bridge: {sys.executable} cannot import verifiers 0.4 ({error}); pip install verifiers==0.4.0")

__all__ = ["PolicyHarness"]  # verifiers looks for a harness by this

PROTOCOL = 1
HARNESS = "mindgspo_policy"
sys.modules[HARNESS] = sys.modules[__name__]

# The chat loop as verifiers runs it in a process of its own.
chat_loop = types.ModuleType("chat_loop")
exec(compile(CHAT_PROGRAM_SOURCE, "CHAT_PROGRAM_SOURCE", "exec"), vars(chat_loop))


class PolicyHarness(NullHarness):
    """The harness `null`, in this process."""

    async def setup(self, runtime: Any) -> None:
        """There is nothing to install."""

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, Any],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """Run the chat loop; `mcp_urls` are `_Tools` by the names of their servers, see `_tools_in_memory`."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(one) for one in prompt or ()]
        schemas, dispatch = _dispatch(mcp_urls)
        asked = argparse.Namespace(
            tool_interception_url=tool_interception_url, api_key=secret, bash=False, edit=False, search=False
        )
        async with (
            AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=_http(), max_retries=0) as client,
            _http() as gate,
        ):
            compactor = chat_loop.Compactor(client, ctx.model, schemas, False, None)
            try:
                await chat_loop.run_chat_loop(asked, compactor, messages, dispatch, mcp_urls, gate)
            except SystemExit as error:  # how a program of its own tells of a lost connection
                raise RuntimeError("the connection within this process was lost") from error
        return vf.ProgramResult(0, "", "")


def _http() -> Any:
    return chat_loop.httpx.AsyncClient(verify=False, timeout=None, trust_env=False)  # to this process alone


class _Tools:
    """A tool server in this process, for one episode; stands where the chat loop has a connection.

    client: of MCP, connected. schemas: of its tools, as that server lists them.
    """

    def __init__(self, client: Any, schemas: list[Any], errors: list[str]) -> None:
        self._client, self.schemas, self._errors = client, schemas, errors

    async def run(self, operation: Any) -> Any:
        """As `MCPConnection.run` of verifiers."""
        result = await operation(self._client)
        if result.is_error:
            self._errors.append("failed")
        return result


def _dispatch(servers: dict[str, _Tools]) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]]]:
    """Schemas for the model, and (server, tool) by the name that the model calls; as `connect_mcp` of verifiers."""
    schemas, dispatch = [], {}
    for server, tools in servers.items():
        for tool in tools.schemas:
            name = f"{server}_{tool.name}" if server else tool.name
            if name in dispatch:
                raise ValueError(f"two tools are called {name!r}")
            function = {"name": name, "description": tool.description or "", "parameters": tool.input_schema}
            schemas.append({"type": "function", "function": function})
            dispatch[name] = server, tool.name
    return schemas, dispatch


@contextlib.asynccontextmanager
async def _served(toolset: Any, errors: list[str]) -> Any:
    server = MCPServer(toolset.server_name or type(toolset).__name__, log_level="ERROR")
    toolset.register(server)
    async with McpClient(server) as client:
        yield _Tools(client, (await client.list_tools()).tools, errors)


class _Model(vf.Client):
    """Stands where verifiers has its client of a model: hands each call to its episode, which has the answer."""

    def __init__(self, episodes: dict[str, _Episode]) -> None:
        self._episodes = episodes

    async def get_response(self, dialect: Any, body: dict[str, Any], *_: Any, **about: Any) -> Any:
        """What the policy said."""
        message = await self._episodes[about["session_id"]].say(body)
        said = vf.Response(
            id="policy",
            created=0,
            model=body["model"],
            message=message,
            finish_reason="tool_calls" if message.tool_calls else "stop",
        )
        said.raw = serialize_completion(said, body["model"])
        return said


class _Interception(InterceptionServer):
    """Verifiers' server of model calls, on the loopback, with that client."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: dict[str, _Episode] = {}
        self._model = _Model(self.episodes)

    def _client(self, config: Any) -> _Model:
        return self._model


class _Episode:
    """One play of a task. turns: what the policy said, as it comes with the questions."""

    def __init__(self, turns: list[dict[str, Any]]) -> None:
        self.turns = turns
        self.body: dict[str, Any] = {}  # the model call that waits: the conversation so far, and tools
        self.errors: list[str] = []  # of the tool calls of the last turn
        self.waits = asyncio.Event()
        self.ended_by: str | None = None
        self._may_end = asyncio.Event()
        self._num_said = 0
        self.trace: Any = None

    async def say(self, body: dict[str, Any]) -> Any:
        """The answer to the next model call. Without one left the call waits until the episode is ended."""
        if self.body and _num_said(body) != _num_said(self.body) + 1:
            raise RuntimeError("the environment begins another conversation, which one episode cannot have")
        self.body = body
        if self._num_said == len(self.turns):
            self.waits.set()
            await self._may_end.wait()
            return vf.AssistantMessage(content="")  # is not seen: the trace has been stopped
        turn = self.turns[self._num_said]
        self._num_said += 1
        self.errors.clear()
        known = {one["function"]["name"] for one in body.get("tools") or ()}
        calls = []
        for number, call in enumerate(turn["calls"]):
            if call["name"] not in known:
                self.errors.append("unknown_tool")
            name = f"call_{self._num_said}_{number + 1}"
            calls.append(vf.ToolCall(id=name, name=call["name"], arguments=json.dumps(call["arguments"])))
        return vf.AssistantMessage(content=turn["content"] or None, tool_calls=calls or None)

    def end(self, reason: str) -> None:
        """Stop it as verifiers does at a limit; it is scored."""
        self.trace.stop(reason)
        self._may_end.set()


class Bridge:
    """A taskset's environment, with a policy in the place of its one agent. Raises ValueError if it has several."""

    def __init__(self, taskset: str, settings: dict[str, Any]) -> None:
        chosen = {"taskset": {**settings, "id": taskset}}
        roles = list(agent_config_fields(vf.resolve_env_config(chosen)))
        if len(roles) != 1:
            raise ValueError(f"{taskset} has the agents {', '.join(roles)}; only an environment with one can be played")
        chosen[roles[0]] = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
        self._env = vf.load_environment(vf.resolve_env_config(chosen))
        self._model = vf.ModelContext(model="policy", client=vf.TrainClientConfig())
        self._shared: list[Any] = []
        rollout.serve_tools = self._tools_in_memory  # verifiers starts a process for each, and waits for it

    async def start(self) -> None:
        """Begin to serve model calls, and set up the tools that all tasks share."""
        self._calls = await _Interception().__aenter__()
        self._env._interception = self._calls
        self._shared = self._env.taskset.toolsets(self._env.taskset.config)
        for toolset in self._shared:
            await toolset.setup()

    @property
    def tasks(self) -> Any:
        """The taskset's tasks."""
        return iter(self._env.taskset)

    async def tools(self) -> list[dict[str, Any]]:
        """The schemas that a task's model is shown."""
        own = self._env.taskset.task_type().toolsets(self._env.taskset.config.task)
        async with contextlib.AsyncExitStack() as stack:
            every = [*self._shared, *own]
            served = {one.server_name: await stack.enter_async_context(_served(one, [])) for one in every}
            return _dispatch(served)[0]

    @contextlib.asynccontextmanager
    async def _tools_in_memory(self, toolsets: list[Any], runtime: Any, shared: Any = None, **channel: Any) -> Any:
        """As `serve_tools` of verifiers, with `_Tools` in the place of addresses."""
        trace = self._calls.state_routes[channel["state_route"]].trace
        errors = self._calls.episodes[trace.id].errors
        async with contextlib.AsyncExitStack() as stack:
            served = {}
            for given in [*self._shared, *toolsets]:
                if given.config.url:
                    raise ValueError(f"the tools {given.server_name!r} are at {given.config.url}; only those here run")
                is_shared = any(given is one for one in self._shared)
                toolset = copy.copy(given) if is_shared else type(given)(given.config)
                _share_state(toolset, trace)
                if not is_shared:
                    await stack.enter_async_context(toolset._exit_stack)
                    await toolset.setup()
                    await toolset.setup_task(trace.task.data)
                served[toolset.server_name] = await stack.enter_async_context(_served(toolset, errors))
            yield served

    @contextlib.asynccontextmanager
    async def played(self, task: Any, turns: list[dict[str, Any]], seed: int) -> Any:
        """The task played up to where the policy is asked for another turn, or to its end. Gives (episode, future of
        verifiers' own episode), and ends it."""
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        episode = _Episode(turns)

        def begun(trace: Any) -> None:
            episode.trace = trace
            self._calls.episodes[trace.id] = episode

        running = asyncio.create_task(self._env.run_episode(task, self._model, on_trace=begun))
        waiting = asyncio.create_task(episode.waits.wait())
        try:
            await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
            yield episode, running
        finally:
            for job in (running, waiting):
                job.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)
            self._calls.episodes.clear()

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question of the protocol. Raises what the environment raises."""
        what = question["ask"]
        if what == "hello":
            if question["protocol"] != PROTOCOL:
                raise ValueError(f"mindgspo speaks protocol {question['protocol']}, this bridge {PROTOCOL}")
            return {"protocol": PROTOCOL, "tools": await self.tools()}
        if what == "reset":
            told = question["row"]["extra_info"]
            if not {"task", "seen"} <= set(told):
                raise ValueError("the row has no columns task and seen; write rows by: verifiers_bridge.py export")
            state = {"task": told["task"], "seen": told["seen"], "seed": question["seed"], "turns": []}
        else:
            state = question["state"]
        turns = list(state["turns"])
        if what == "step":
            turns.append(_turn(question["turn"]))
        task_type = self._env.taskset.task_type()
        task = task_type(task_type.data_type().model_validate(state["task"]), self._env.taskset.config.task)
        async with self.played(task, turns, state["seed"]) as (episode, running):
            if what == "cut":
                if running.done():
                    raise RuntimeError("it ended earlier when it was played again; its tasks do not determine it")
                episode.end(question["reason"])
                await running
            if running.done():
                return {"end": _end(running.result()), "errors": episode.errors}
            messages = episode.body["messages"]
            before = _last_turn(messages) if what == "step" else len(messages)
            if _digest(messages[:before]) != state["seen"]:
                raise RuntimeError(
                    "it said something else when it was played again; what it draws must come from its task, or from "
                    "the module random"
                )
            kept = state | {"turns": turns, "seen": _digest(messages)}
            said = [_message(one) for one in messages[before + 1 :]]
            return {"state": kept, "messages": said, "errors": episode.errors}


def _share_state(toolset: ServerBase, trace: Any) -> None:
    """Let a tool server read and write the trace's state, as it does over HTTP elsewhere."""
    adapter = toolset._state_adapter

    async def pull() -> Any:
        return adapter.validate_json(trace.state.model_dump_json())

    async def push(before: bytes) -> None:
        after = adapter.dump_json(_call_state.get())
        if after != before:
            trace.state = type(trace.state).model_validate_json(after)

    toolset._pull_state, toolset._push_state = pull, push


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a turn. Calls that cannot be read are text, as for verifiers."""
    return {"content": turn["content"] if turn["calls"] else turn["text"], "calls": turn["calls"]}


def _num_said(body: dict[str, Any]) -> int:
    return sum(one["role"] == "assistant" for one in body["messages"])


def _last_turn(messages: list[dict[str, Any]]) -> int:
    return max(place for place, one in enumerate(messages) if one["role"] == "assistant")


def _digest(messages: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:32]


def _message(one: dict[str, Any]) -> dict[str, str]:
    content = one.get("content") or ""
    if not isinstance(content, str):
        others = {part.get("type") for part in content} - {"text"}
        if others:
            raise ValueError(f"a message has parts of type {', '.join(map(str, others))}; only text can be told")
        content = "\n".join(part["text"] for part in content)
    return {"role": one["role"], "content": content}


def _end(episode: Any) -> dict[str, Any]:
    """The reward, and as info what it is made of, and metrics. Raises RuntimeError if the episode failed."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors or not episode.ok:
        told = errors[0] if errors else None
        raise RuntimeError(f"{told.type}: {told.message}" if told else "verifiers calls the episode not ok")
    (trace,) = episode.traces
    unscored = [name for name, reward in trace.rewards.items() if reward is None]
    if unscored:
        raise RuntimeError(f"the reward {unscored[0]!r} was not scored")
    info = {name: value for name, value in trace.metrics.items() if value is not None}
    info |= {name: reward.score for name, reward in trace.rewards.items()}
    return {"reward": trace.reward, "info": {name: value for name, value in info.items() if math.isfinite(value)}}


def _fields(data: Any) -> dict[str, Any]:
    """A task's data as JSON. Raises ValueError for a field that would come back as something else."""
    fields = data.model_dump(mode="json", exclude_defaults=True)
    back = type(data).model_validate(json.loads(json.dumps(fields)))
    for name in type(data).model_fields:
        if getattr(back, name) != getattr(data, name):
            raise ValueError(f"task {data.idx}: {name} = {getattr(data, name)!r:.80} cannot be kept as JSON")
    return fields


async def export(bridge: Bridge, places: list[tuple[Path, int]]) -> None:
    """Write tasks as rows: what the model is told first, and the task for `reset`. places: files, and how many rows."""
    await bridge.start()
    tasks = bridge.tasks
    for path, number in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for task in itertools.islice(tasks, number):
            async with bridge.played(task, [], 0) as (episode, running):
                if running.done():
                    raise RuntimeError(f"task {task.data.idx} ends before its first turn: {_end(running.result())}")
                messages = episode.body["messages"]
            row = {"messages": [_message(one) for one in messages], "answer": str(getattr(task.data, "answer", ""))}
            lines.append(json.dumps(row | {"task": _fields(task.data), "seen": _digest(messages)}) + "\n")
        path.write_text("".join(lines))
        print(f"{path}: {len(lines)} rows", file=sys.stderr)


def serve(bridge: Bridge) -> None:
    """Answer questions until there are no more. Standard output has answers alone; prints go to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with asyncio.Runner() as runner:
        runner.run(bridge.start())
        for line in sys.stdin:
            question = json.loads(line)
            try:
                said = runner.run(bridge.answer(question))
            except Exception as error:
                said = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps({"id": question["id"], **said}) + "\n")
            answers.flush()


def main() -> None:
    """Read the command line, and do what it says."""
    parser = argparse.ArgumentParser(description="Environments of verifiers for mindgspo")
    parser.add_argument("what", choices=("serve", "export"))
    parser.add_argument("taskset")
    parser.add_argument("--args", type=json.loads, default={}, help="settings of the taskset, as a JSON object")
    parser.add_argument("--out", type=Path, help="export: the file of the training rows")
    parser.add_argument("--rows", type=int, default=1000, help="export: at most so many of them")
    parser.add_argument("--eval-out", type=Path, help="export: the file of held-out rows, the tasks before them")
    parser.add_argument("--eval-rows", type=int, default=100)
    asked = parser.parse_args()
    if not importlib.metadata.version("verifiers").startswith("0.4."):
        sys.exit(f"verifiers_bridge: made for verifiers 0.4, and this is {importlib.metadata.version('verifiers')}")
    bridge = Bridge(asked.taskset, asked.args)
    if asked.what == "serve":
        serve(bridge)
        return
    if asked.out is None:
        parser.error("export needs --out")
    places = [(asked.eval_out, asked.eval_rows)] if asked.eval_out else []
    asyncio.run(export(bridge, [*places, (asked.out, asked.rows)]))


if __name__ == "__main__":
    main()
