"""The side of a completion server that faces the network: connections, routes, and what becomes of a request before
anything else hears of it. docs/rollout_servers.md has the routes.

    connection (their number, their time) -> host and origin -> body (its size, its time) -> key -> route -> answer

Every exception on the way becomes an answer here.
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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.http_exceptions import HttpProcessingError

from mindgspo.launch.processes import is_loopback
from mindgspo.rollout.completions import Limits, RequestError, described, request_of
from mindgspo.rollout.server_key import NONCE, ServerKey

_LAST_ANSWERS_S = 0.5  # for what is asked while the server ends
_IDLE_S = 30.0  # of a connection, and of a request whose headers do not end; clients of ours keep one for 15 s
_BODY_S = 30.0
_LINGERING_S = 1.0  # for the rest of a body that nobody reads
_MORE_CONNECTIONS, _OTHER_FILES = 64, 128  # beside those of requests that run; open files that are no connections
NO_WEIGHTS = 503, "no weights yet: POST /update_weights first"

Order = Callable[[str, dict[str, Any]], Future]
"""What a request asks for, and its content -> (HTTP status, content of the answer), or a message where it is no 200."""


class ServerFront:
    """order: hands a request over. state: weight_version and is_sleeping. key: None: whoever reaches the server may
    ask. folders: in these alone weights are looked for."""

    def __init__(
        self,
        limits: Limits,
        order: Order,
        state: Callable[[], dict[str, Any]],
        *,
        key: ServerKey | None,
        folders: Sequence[Path],
    ) -> None:
        self._limits, self._order, self._state = limits, order, state
        self._key, self._folders = key, [Path(os.path.realpath(folder)) for folder in folders]
        self._num_asked = 0
        self._busy: set[Any] = set()  # connections whose request is being answered

    async def open(self, listener: socket.socket) -> None:
        """Answer at a bound socket."""
        self._host = listener.getsockname()[0]
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        most = self._limits.most_requests + _MORE_CONNECTIONS
        self._most_connections = most if files == resource.RLIM_INFINITY else max(1, min(most, files - _OTHER_FILES))
        silent = logging.getLogger("mindgspo.rollout.server_front")  # what a request has wrong is told to its sender
        silent.disabled = True
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=silent,
            auto_decompress=False,
            handler_cancellation=True,
            keepalive_timeout=_IDLE_S,
            lingering_time=_LINGERING_S,
            shutdown_timeout=_LAST_ANSWERS_S,
        )
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=listener)

    async def close(self) -> None:
        """Answer what is being answered, and no more."""
        self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        """A new one; where there are too many, in place of the first that asks for nothing."""
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
        # Control routes: those of trainers. Nothing below /v1 changes what others are answered.
        for path, kind in (("/abort_requests", "abort"), ("/sleep", "sleep"), ("/wake_up", "wake")):
            application.router.add_post(path, self._plain(kind))
        application.router.add_post("/update_weights", self._update)
        return application

    # ---- what every request passes

    @web.middleware
    async def _checked(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        answer = await self._answered(request, handler)
        if self._key is not None and NONCE in request.headers:
            answer.headers.update(self._key.proof(request.headers[NONCE], answer.status, answer.body or b""))
        return answer

    async def _answered(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.Response:
        try:
            self._check_sender(request)
            body = await _body(request)
            if self._key is not None and not self._key.allows(request.headers, request.method, request.raw_path, body):
                raise RequestError("a key is needed: Authorization: Bearer <key>, or a signature with it", 401)
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
            print(f"{request.method[:40]!r} {request.raw_path[:80]!r}: a defect of this server", file=sys.stderr)
            traceback.print_exc()
            return _error(500, f"a defect of this server: {type(error).__name__}; its log has more")

    def _check_sender(self, request: web.Request) -> None:
        """No page in a browser asks here: it would name its origin. A page that was led here by a name of its own
        names that as the host, which only a server of this machine alone can tell from a right one."""
        if "Origin" in request.headers:
            raise RequestError("Origin: pages of browsers are not served", 403)
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1:
            raise RequestError("Host: must be there once")
        if is_loopback(self._host) and not _is_own(hosts[0]):
            raise RequestError(f"Host: {hosts[0][:80]}: is not this machine; ask by its address or as localhost", 403)

    # ---- routes

    async def _health(self, request: web.Request) -> web.Response:
        return _json({**self._state(), **described(self._limits)})

    async def _models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": self._limits.name, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.Response:
        asked = await _object(request)
        asked.pop("number", None)
        found = request_of(asked, self._limits)
        if self._state()["weight_version"] is None:
            return _error(*NO_WEIGHTS)
        if self._num_asked >= self._limits.most_requests:
            return _error(429, f"{self._num_asked} requests wait or run, which is the most; ask again later")
        self._num_asked += 1
        try:
            status, content = await self._ordered("ask", asked | {"number": found.number})
        except asyncio.CancelledError:  # whoever asked has hung up
            self._order("forget", {"number": found.number})
            raise
        finally:
            self._num_asked -= 1
        if status != 200:
            return _error(status, content)
        return _json({"id": f"cmpl-{found.number}", "object": "text_completion", "model": self._limits.name, **content})

    async def _update(self, request: web.Request) -> web.Response:
        asked = await _object(request)
        folder, version = asked.get("folder"), asked.get("version")
        if not isinstance(folder, str) or type(version) is not int or not 0 <= version < 1 << 48:
            raise RequestError("folder, version: a path and a whole number from 0 are needed")
        return _response(*await self._ordered("load", {"folder": str(self._allowed(folder)), "version": version}))

    def _allowed(self, folder: str) -> Path:
        try:
            found = Path(os.path.realpath(folder))
        except (OSError, ValueError):  # a surrogate, a null byte
            raise RequestError("folder: is no path") from None
        if not any(root in found.parents for root in self._folders):
            roots = ", ".join(map(str, self._folders))
            raise RequestError(
                f"folder: {folder[:200]!r} is in none of the folders whose weights are taken: {roots}; start this "
                "server with --weights-dir for another one",
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
    """Whether a Host header is an address, or localhost: no name that a foreign DNS server may have made up."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.lower().rstrip(".") == "localhost"
    return True


async def _body(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RequestError("Content-Encoding: bodies are taken as they are", 415)
    try:
        return await asyncio.wait_for(request.read(), _BODY_S)
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestError(f"the body is larger than {request._client_max_size} bytes") from error
    except asyncio.TimeoutError as error:
        raise RequestError(f"the body has not come within {_BODY_S:g} s", 408) from error
    except (HttpProcessingError, ClientPayloadError, web.RequestPayloadError, ConnectionError) as error:
        raise RequestError("the body is not as long as its headers say, or its chunks are broken") from error


async def _object(request: web.Request) -> dict[str, Any]:
    """The body, which has been read."""
    try:
        found = json.loads(await request.read())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError("the body is no JSON object")
    return found


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=json.dumps(content, allow_nan=False).encode(), status=status, content_type="application/json"
    )


def _response(status: int, content: Any) -> web.Response:
    return _json(content) if status == 200 else _error(status, content)


def _error(status: int, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": "invalid_request", "code": status}}, status)
