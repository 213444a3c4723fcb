"""The HTTP side of a completion server: connections, routes, and the checks that every request passes.

    connection (count, time) -> host and origin -> body (size, time) -> key -> route -> answer

Every exception on the way becomes an answer here. docs/rollout_servers.md lists the routes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.http_exceptions import HttpProcessingError

from mindgspo.launch.processes import is_loopback
from mindgspo.rollout.completions import Limits, RequestError, request_of, scoring_request_of
from mindgspo.rollout.server_key import NONCE, ServerKey

_SHUTDOWN_S = 0.5  # for requests that are being answered while the server ends
_IDLE_S = 30.0  # of a connection, and for incomplete headers; our clients keep a connection for 15 s
_BODY_S = 30.0
_LINGERING_S = 1.0  # for the rest of a body that is not read
_MORE_CONNECTIONS, _OTHER_FILES = 64, 128  # beyond those of requests that run; open files that are not connections
NO_WEIGHTS = 503, "no weights yet: POST /update_weights first"

Order = Callable[[str, dict[str, Any]], Future]
"""(kind, content) -> a future of (HTTP status, content of the answer, or a message where the status is not 200)."""


class ServerFront:
    """Receives requests and passes them on as orders.

    order: passes one order on.
    state: returns weight_version and is_sleeping.
    decode: returns the text of ids.
    key: required of every request; None: anyone who reaches the server may send requests.
    folders: weights are accepted only from below these folders.
    """

    def __init__(
        self,
        limits: Limits,
        order: Order,
        state: Callable[[], dict[str, Any]],
        decode: Callable[[Iterable[int]], str],
        *,
        key: ServerKey | None,
        folders: Sequence[Path],
    ) -> None:
        self._limits, self._order, self._state = limits, order, state
        self._key, self._folders = key, [Path(os.path.realpath(folder)) for folder in folders]
        self._text = cache(lambda token: decode([int(token)]))
        self._num_asked = 0
        self._busy: set[Any] = set()  # connections whose request is being answered

    async def open(self, listener: socket.socket) -> None:
        """Start to answer at a bound socket."""
        self._host = listener.getsockname()[0]
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        most = self._limits.most_requests + _MORE_CONNECTIONS
        self._most_connections = most if files == resource.RLIM_INFINITY else max(1, min(most, files - _OTHER_FILES))
        silent = logging.getLogger("mindgspo.rollout.server_front")  # the sender is told what is wrong with its request
        silent.disabled = True
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=silent,
            auto_decompress=False,
            handler_cancellation=True,
            keepalive_timeout=_IDLE_S,
            lingering_time=_LINGERING_S,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=listener)

    async def close(self) -> None:
        """Finish the answers that are under way, then stop."""
        self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        """Accept a connection; where there are too many, close the oldest without a request for it."""
        connections = self._runner.server.connections  # type: ignore[union-attr]
        if len(connections) >= self._most_connections:
            idle = next((one for one in connections if one not in self._busy and one.transport is not None), None)
            if idle is None:
                return _Refused()
            idle.force_close()
        return self._runner.server()  # type: ignore[misc]

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=self._limits.most_body_bytes, middlewares=[self._checked])
        application.router.add_get("/health", self._health)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/completions", self._complete)
        # Control routes, for the trainer.
        for path, kind in (("/abort_requests", "abort"), ("/sleep", "sleep"), ("/wake_up", "wake")):
            application.router.add_post(path, self._plain(kind))
        application.router.add_post("/update_weights", self._update)
        return application

    # ---- what every request passes

    @web.middleware
    async def _checked(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        answer = await self._answered(request, handler)
        if self._key is not None and NONCE in request.headers:
            body = answer.body or b""
            assert isinstance(body, bytes), "answers are JSON"
            answer.headers.update(self._key.proof(request.headers[NONCE], answer.status, body))
        return answer

    async def _answered(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.Response:
        try:
            self._check_sender(request)
            body = await _body(request)
            if self._key is not None and not self._key.allows(request.headers, request.method, request.raw_path, body):
                raise RequestError("a key is needed: Authorization: Bearer <key>, or a signature made with it", 401)
            self._busy.add(request.protocol)
            try:
                return await handler(request)
            finally:
                self._busy.discard(request.protocol)
        except RequestError as error:
            return _error(error.status, str(error))
        except web.HTTPException as error:
            return _error(error.status, f"{request.method[:40]} {request.raw_path[:80]}: {error.reason}")
        except Exception as error:
            print(f"{request.method[:40]!r} {request.raw_path[:80]!r}: internal error", file=sys.stderr)
            traceback.print_exc()
            return _error(500, f"internal error of this server: {type(error).__name__}; see its log")

    def _check_sender(self, request: web.Request) -> None:
        """Refuse web pages: browsers send their origin. A page may also reach this server through a domain name of its
        own (DNS rebinding); then Host has that name, which a server on a loopback address can recognize."""
        if "Origin" in request.headers:
            raise RequestError("Origin: web pages are not served", 403)
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1:
            raise RequestError("Host: must occur once")
        if is_loopback(self._host) and not _is_own(hosts[0]):
            raise RequestError(f"Host: {hosts[0][:80]}: is not this machine; use its address or localhost", 403)

    # ---- routes

    async def _health(self, request: web.Request) -> web.Response:
        limits = self._limits
        bounds = ("vocab_size", "max_prompt_length", "max_new_tokens")
        return _json({**self._state(), "model": limits.name, **{name: getattr(limits, name) for name in bounds}})

    async def _models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": self._limits.name, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.Response:
        asked = await _object(request)
        asked.pop("number", None)
        is_given = asked.get("prompt_logprobs") is not None
        found = (scoring_request_of if is_given else request_of)(asked, self._limits)
        if self._state()["weight_version"] is None:
            return _error(*NO_WEIGHTS)
        if self._num_asked >= self._limits.most_requests:
            return _error(429, f"{self._num_asked} requests wait or run, which is the limit; try again later")
        self._num_asked += 1
        try:
            kind = "score" if is_given else "ask"
            status, content = await self._ordered(kind, asked | {"number": found.number})
            if is_given and status == 200:
                await asyncio.to_thread(self._add_texts, content["choices"][0]["prompt_logprobs"])
        except asyncio.CancelledError:  # the client has disconnected
            self._order("forget", {"number": found.number})
            raise
        finally:
            self._num_asked -= 1
        if status != 200:
            return _error(status, content)
        return _json({"id": f"cmpl-{found.number}", "object": "text_completion", "model": self._limits.name, **content})

    def _add_texts(self, entries: Sequence[dict[str, dict[str, Any]] | None]) -> None:
        for entry in filter(None, entries):
            for token, found in entry.items():
                found["decoded_token"] = self._text(token)

    async def _update(self, request: web.Request) -> web.Response:
        asked = await _object(request)
        folder, version = asked.get("folder"), asked.get("version")
        if not isinstance(folder, str) or type(version) is not int or not 0 <= version < 1 << 48:
            raise RequestError("folder, version: must be a path and a whole number from 0")
        return _response(*await self._ordered("load", {"folder": str(self._allowed(folder)), "version": version}))

    def _allowed(self, folder: str) -> Path:
        try:
            found = Path(os.path.realpath(folder))
        except (OSError, ValueError):  # a surrogate, a null byte
            raise RequestError("folder: is not a path") from None
        if not any(root in found.parents for root in self._folders):
            roots = ", ".join(map(str, self._folders))
            raise RequestError(
                f"folder: {folder[:200]!r} is in none of the folders that weights are accepted from: {roots}; to add "
                "one, start this server with --weights-dir",
                403,
            )
        return found

    def _plain(self, kind: str) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            return _response(*await self._ordered(kind, {}))

        return handle

    async def _ordered(self, kind: str, content: dict[str, Any]) -> tuple[int, Any]:
        return await asyncio.shield(asyncio.wrap_future(self._order(kind, content)))


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _is_own(host: str) -> bool:
    """Whether a Host header is an address or localhost, and not a name that any DNS server may resolve to this one."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.lower().rstrip(".") == "localhost"
    return True


async def _body(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RequestError("Content-Encoding: compressed bodies are not accepted", 415)
    try:
        return await asyncio.wait_for(request.read(), _BODY_S)
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestError(f"the body is larger than {request._client_max_size} bytes") from error
    except asyncio.TimeoutError as error:
        raise RequestError(f"the body did not arrive within {_BODY_S:g} s", 408) from error
    except (HttpProcessingError, ClientPayloadError, web.RequestPayloadError, ConnectionError) as error:
        raise RequestError("the body does not have the length that its headers say, or broken chunks") from error


async def _object(request: web.Request) -> dict[str, Any]:
    """Parse the body, which has been read before."""
    try:
        found = json.loads(await request.read())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError("the body is not a JSON object")
    return found


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=json.dumps(content, allow_nan=False).encode(), status=status, content_type="application/json"
    )


def _response(status: int, content: Any) -> web.Response:
    return _json(content) if status == 200 else _error(status, content)


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": "invalid_request", "code": status}}, status)
