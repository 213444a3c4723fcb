"""A completion server around the native engine: one replica of the infer plan, asked over HTTP.

    event loop (rank 0): requests -> orders        main thread: orders -> looks of the engine -> answers

The main thread of every rank alone touches MindSpore. Rank 0 tells the others before each look what has come, so that
all ranks of the replica run the same looks. docs/rollout_servers.md has the routes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from mindspore import nn

from mindgspo.config import ModelSection
from mindgspo.errors import MindGSPOError, WeightsError
from mindgspo.models.weights import load_tensors
from mindgspo.parallel import heartbeat, runtime
from mindgspo.parallel.collectives import exchange
from mindgspo.parallel.reshard.verify import sampled_names
from mindgspo.rollout.completions import Limits, RequestError, described, request_of
from mindgspo.rollout.engine import Decoding, NativeEngine
from mindgspo.rollout.protocol import Cut, Purpose
from mindgspo.rollout.sequences import EndedRequest
from mindgspo.rollout.service import NO_TOKENS, Request
from mindgspo.rollout.weights_folder import open_weights
from mindgspo.types import Routing

_IDLE_S = 5.0  # the other ranks of a replica hear from rank 0 at least so often
_LAST_ANSWERS_S = 0.5  # for what is asked while the server ends
_NO_WEIGHTS = "no weights yet: POST /update_weights first"
_MOST_CUTS = 8  # decode graphs; each way of cutting the vocabulary has one


@dataclass(frozen=True, slots=True)
class _Order:
    """kind: ask, forget, abort, load, sleep, wake, stop. content: JSON. done: of rank 0, the HTTP status and what is
    answered."""

    kind: str
    content: dict[str, Any]
    done: Future


class CompletionServer:
    """Call `run` on all ranks of the replica. verify: `reshard.verify`. model: whose parameters the engine reads."""

    def __init__(
        self, engine: NativeEngine, model: nn.Cell, section: ModelSection, limits: Limits, *, verify: str
    ) -> None:
        self._engine, self._model, self._section, self._limits, self._verify = engine, model, section, limits, verify
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._version: int | None = None
        self._loads = 0
        self._decoding: Decoding | None = None
        self._kind: tuple | None = None
        self._kinds: set[tuple] = set()
        self._later: deque[Request] = deque()  # sampled in another way than what runs
        self._asked: dict[int, Future] = {}
        self._is_asleep = False
        self._num_asked = 0  # of the event loop's thread

    def run(self, *, host: str, port: int, ready: Callable[[int], None]) -> None:
        """Serve until `stop`, or until a signal ends this process. ready: told the port, on rank 0."""
        if runtime.rank() > 0:
            self._work()
            return
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="answers over HTTP", daemon=True)
        thread.start()
        runner = web.AppRunner(
            self._application(), access_log=None, handler_cancellation=True, shutdown_timeout=_LAST_ANSWERS_S
        )

        async def start() -> int:
            await runner.setup()
            site = web.TCPSite(runner, host, port)
            await site.start()
            return site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

        ready(asyncio.run_coroutine_threadsafe(start(), loop).result())
        try:
            self._work()
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=5.0)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def stop(self) -> None:
        """Of a replica of one rank; a signal handler may call it."""
        self._orders.put(_Order("stop", {}, Future()))

    # ---- the main thread

    def _work(self) -> None:
        while True:
            for order in self._told(self._taken()):
                if order.kind == "stop":
                    return
                self._follow(order)
            self._begin()
            if self._decoding is not None and not self._decoding.done:
                self._decoding.look()
                self._answer(self._decoding.ended())
            heartbeat.tick()

    @property
    def _is_busy(self) -> bool:
        return bool(self._later) or (self._decoding is not None and not self._decoding.done)

    def _taken(self) -> list[_Order]:
        """What has come; waits a while where nothing else is to do."""
        if runtime.rank() > 0:
            return []
        found = []
        try:
            if not self._is_busy:
                # In parts, so that a signal is seen.
                found.append(self._orders.get(timeout=_IDLE_S))
            while True:
                found.append(self._orders.get_nowait())
        except queue.Empty:
            return found

    def _told(self, orders: list[_Order]) -> list[_Order]:
        """The same on all ranks."""
        if runtime.world_size() == 1:
            return orders
        message = json.dumps([[order.kind, order.content] for order in orders]).encode()
        (message,) = exchange(message if runtime.rank() == 0 else b"", speakers=(0,))
        if runtime.rank() == 0:
            return orders
        return [_Order(kind, content, Future()) for kind, content in json.loads(message)]

    def _follow(self, order: _Order) -> None:
        answer: tuple[int, dict[str, Any]] | None = None
        if order.kind == "ask" and self._version is None:
            answer = 503, {"error": _NO_WEIGHTS}
        elif order.kind == "ask":
            request = request_of(order.content, self._limits)
            self._later.append(request)
            self._asked[request.number] = order.done
        elif order.kind == "abort":
            self._stop()
            answer = 200, {}
        elif order.kind == "forget":
            self._stop({order.content["number"]})
            answer = 200, {}
        elif self._is_busy:
            answer = 409, {"error": f"requests run; POST /abort_requests first, or wait, before {order.kind}"}
        elif order.kind == "load":
            answer = self._load(Path(order.content["folder"]), order.content["version"])
        else:
            answer = self._turn(is_asleep=order.kind == "sleep")
        if answer is not None:
            order.done.set_result(answer)

    def _begin(self) -> None:
        """Add what waits and is sampled as what runs is, or, where nothing runs, what is sampled otherwise."""
        while self._later:
            settings = self._later[0].settings
            kind = settings.temperature, settings.cut, settings.stream.purpose
            if self._decoding is None or kind != self._kind:
                if self._decoding is not None and not self._decoding.done:
                    return
                self._decoding, self._kind = self._engine.begin(settings), kind
            self._decoding.add(self._later.popleft())

    def _stop(self, numbers: Collection[int] | None = None) -> None:
        """Answer these requests, or all, as far as they have come."""
        if self._decoding is not None:
            self._answer(self._decoding.cut(numbers))
        later, self._later = self._later, deque()
        for request in later:
            if numbers is None or request.number in numbers:
                nothing = tuple(NO_TOKENS for _ in request.samples)
                self._answer([EndedRequest(request=request, pieces=nothing, seconds=(0.0,) * len(nothing))])
            else:
                self._later.append(request)

    def _answer(self, ended: list[EndedRequest]) -> None:
        for one in ended:
            done = self._asked.pop(one.request.number)
            done.set_result((200, self._described(one)))

    def _described(self, ended: EndedRequest) -> dict[str, Any]:
        request = ended.request
        prompt = request.token_ids
        is_recorded = request.settings.stream.purpose is Purpose.TRAINING and self._limits.records_experts
        choices = [
            {
                "index": index,
                "token_ids": piece.ids.tolist(),
                "prompt_token_ids": prompt,
                # A float32 is a float64 as it is, and its digits give it back.
                "logprobs": {"token_logprobs": piece.logprobs.tolist()},
                "finish_reason": "abort" if piece.finish_reason is None else piece.finish_reason.value,
                "routed_experts": _encoded(piece.routing) if is_recorded else None,
            }
            for index, piece in enumerate(ended.pieces)
        ]
        tokens = sum(piece.ids.size for piece in ended.pieces)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": tokens, "total_tokens": len(prompt) + tokens}
        return {"weight_version": self._version, "choices": choices, "usage": usage}

    def _load(self, folder: Path, version: int) -> tuple[int, dict[str, Any]]:
        if self._is_asleep:
            return 409, {"error": "asleep; POST /wake_up first"}
        # The ranks of a replica go on with the same weights, or with none.
        problems = [told.decode() for told in exchange(self._read(folder, version).encode())]
        if any(problems):
            self._version = None
            return 400, {"error": next(filter(None, problems))}
        self._engine.load_weights(version)
        self._version, self._loads = version, self._loads + 1
        return 200, {"weight_version": version}

    def _read(self, folder: Path, version: int) -> str:
        """Fill this rank's parameters. Returns what is wrong, in one line, or nothing."""
        try:
            with open_weights(folder) as weights:
                if weights.version != version:
                    raise WeightsError(f"{folder}: holds version {weights.version}, not {version}")
                load_tensors(self._model, self._section, weights.tensors)
                names = list(weights.digests)
                chosen = {"off": [], "sampled": sampled_names(names, self._loads), "full": names}[self._verify]
                for name in chosen:
                    weights.verify(name)
        except (MindGSPOError, OSError) as error:
            return "; ".join(line.strip() for line in str(error).splitlines())
        return ""

    def _turn(self, *, is_asleep: bool) -> tuple[int, dict[str, Any]]:
        """Give the device's memory back, or take it again, without its content."""
        if is_asleep != self._is_asleep and runtime.current_device() == "Ascend":
            move = runtime.offload_parameter if is_asleep else runtime.load_parameter
            for parameter in (*self._model.get_parameters(), *self._engine.cache):
                move(parameter)
        self._is_asleep, self._version = is_asleep, None
        return 200, {"is_sleeping": is_asleep}

    # ---- the event loop's thread

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=self._limits.most_body_bytes)
        application.router.add_get("/health", self._health)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/completions", self._complete)
        for path, kind in (("/abort_requests", "abort"), ("/sleep", "sleep"), ("/wake_up", "wake")):
            application.router.add_post(path, self._plain(kind))
        application.router.add_post("/update_weights", self._update)
        return application

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"weight_version": self._version, "is_sleeping": self._is_asleep, **described(self._limits)}
        )

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._limits.name, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            asked = await _body(request)
            asked.pop("number", None)
            found = request_of(asked, self._limits)
            self._count_cut(found.settings.cut)
        except RequestError as error:
            return _error(400, str(error))
        if self._version is None:
            return _error(503, _NO_WEIGHTS)
        if self._num_asked >= self._limits.most_requests:
            return _error(429, f"{self._num_asked} requests wait or run, which is the most; ask again later")
        self._num_asked += 1
        try:
            status, content = await self._ordered("ask", asked | {"number": found.number})
        except asyncio.CancelledError:  # whoever asked has hung up
            self._orders.put(_Order("forget", {"number": found.number}, Future()))
            raise
        finally:
            self._num_asked -= 1
        return web.json_response(
            {"id": f"cmpl-{found.number}", "object": "text_completion", "model": self._limits.name, **content},
            status=status,
        )

    def _count_cut(self, cut: Cut | None) -> None:
        if cut not in self._kinds and len(self._kinds) == _MOST_CUTS:
            raise RequestError(
                f"top_k, top_p: {cut} is the {_MOST_CUTS + 1}th combination, each of which has a graph of its own; "
                f"at most {_MOST_CUTS} are served"
            )
        self._kinds.add(cut)

    async def _update(self, request: web.Request) -> web.Response:
        try:
            asked = await _body(request)
        except RequestError as error:
            return _error(400, str(error))
        folder, version = asked.get("folder"), asked.get("version")
        if not isinstance(folder, str) or type(version) is not int or not 0 <= version < 1 << 48:
            return _error(400, "folder, version: a path and a whole number from 0 are needed")
        return _response(*await self._ordered("load", {"folder": folder, "version": version}))

    def _plain(self, kind: str) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            return _response(*await self._ordered(kind, {}))

        return handle

    async def _ordered(self, kind: str, content: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        done: Future = Future()
        self._orders.put(_Order(kind, content, done))
        return await asyncio.shield(asyncio.wrap_future(done))


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        found = json.loads(await request.read())
    except (ValueError, RecursionError):
        found = None
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestError(f"the body is larger than {request._client_max_size} bytes") from error
    if not isinstance(found, dict):
        raise RequestError("the body is no JSON object")
    return found


def _response(status: int, content: dict[str, Any]) -> web.Response:
    return web.json_response(content) if status == 200 else _error(status, content["error"])


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "invalid_request", "code": status}}, status=status)


def _encoded(routing: Routing | None) -> dict[str, str]:
    """Bytes of both arrays, [tokens, X], of the type that the client knows from the model."""
    if routing is None:
        return {"prompt": "", "response": ""}
    return {
        "prompt": base64.b64encode(np.ascontiguousarray(routing.prompt_LX)).decode(),
        "response": base64.b64encode(np.ascontiguousarray(routing.response_LX)).decode(),
    }
