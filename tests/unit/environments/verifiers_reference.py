"""Plays tasks of verifiers as verifiers does, with planned answers; run by a Python that has verifiers 0.4.

    python verifiers_reference.py PLAN.json

The harness `null` runs in a process of its own, tools are served by processes of their own, and the model is a server
of the chat completions API. Only `uv`, which would install what that harness needs, is left out: this Python has it.
plan: {"taskset": ..., "args": {...}, "tasks": [{"task": {...}, "turns": [assistant message, ...]}, ...]}
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.runtimes.base import Runtime


class Planned(BaseHTTPRequestHandler):
    turns: ClassVar[list[dict]] = []
    asked: ClassVar[list[list[dict]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = len(self.asked)
        self.asked.append(body["messages"])
        said = self.turns[number]
        calls = [{"index": place, **call} for place, call in enumerate(said.get("tool_calls") or ())]
        delta = {"role": "assistant", "content": said["content"]} | ({"tool_calls": calls} if calls else {})
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "policy"}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for one in (choice, last):
            self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [one]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


async def prepared(self: Runtime, script: str | bytes, env: object = None, *, activate: bool = True) -> list[str]:
    await self.write("chat.py", script.encode() if isinstance(script, str) else script)
    return [sys.executable, "chat.py"]


async def play(plan: dict, address: str) -> list[dict]:
    Runtime.prepare_uv_script = prepared
    chosen = {"taskset": {**plan["args"], "id": plan["taskset"]}}
    (role,) = agent_config_fields(vf.resolve_env_config(chosen))
    chosen[role] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = vf.load_environment(vf.resolve_env_config(chosen))
    client = vf.EvalClientConfig(base_url=address, api_key_var="NO_KEY")
    context = vf.ModelContext(model="policy", client=client)
    task_type = env.taskset.task_type()
    played = []
    async with env.serving():
        for one in plan["tasks"]:
            Planned.turns, Planned.asked = one["turns"], []
            task = task_type(task_type.data_type().model_validate(one["task"]), env.taskset.config.task)
            episode = await env.run_episode(task, context)
            (trace,) = episode.traces
            info = dict(trace.metrics) | {name: reward.score for name, reward in trace.rewards.items()}
            errors = [error.message for error in [*episode.errors, *trace.errors]]
            messages = [{"role": message.role, "content": message.content or ""} for message in trace.messages]
            told = {"reward": trace.reward, "info": info, "errors": errors, "messages": messages}
            played.append(told | {"asked": len(Planned.asked)})
    return played


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Planned)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    planned = json.loads(Path(sys.argv[1]).read_text())
    sys.path.insert(0, planned["folder"])
    print(json.dumps(asyncio.run(play(planned, f"http://127.0.0.1:{server.server_port}/v1"))))
