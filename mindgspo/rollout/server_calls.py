"""Calls to one completion server over HTTP: made again where that helps, signed where there is a key, and given up when
the server is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import psutil

from mindgspo.errors import RolloutError
from mindgspo.rollout.server_apis import Call, ServerAPI
from mindgspo.rollout.server_key import NONCE, ServerKey
from mindgspo.text import printable

MORE_BYTES = 1 << 16
"""Of an answer, beside its tokens."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_LOOK_S, _HEALTH_S = 1.0, 5.0  # from one look at a server that is waited for to the next; for its answer to one
_HEALTH = Call(path="/health", method="GET")
_BUSY = (429, 503)
_ENDED = psutil.STATUS_DEAD


class GivenUp(Exception):  # noqa: N818  (nothing went wrong)
    """A request that is not made again, because what runs is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How all servers are asked, see `HTTPService`."""

    api: ServerAPI
    key: ServerKey | None
    timeout_s: float
    retries: int
    silent_s: float


@dataclass(slots=True, eq=False)
class Server:
    """process: of a server that the run has started. running: responses asked for and not answered. idle_since: since
    when that is 0; None while it is not. lost: why nothing is expected any more. calls: not answered, of any kind."""

    url: str
    terms: Terms
    session: aiohttp.ClientSession
    lost: asyncio.Future[str]
    process: psutil.Process | None = None
    running: int = 0
    idle_s: float = 0.0
    idle_since: float | None = field(default_factory=time.perf_counter)
    calls: int = 0

    async def is_there(self, until: float) -> None:
        """Wait until it answers; until: on time.monotonic(). Raises RolloutError."""
        while True:
            try:
                left_s = max(until - time.monotonic(), 0.1)
                status, content = await asyncio.wait_for(self.once(_HEALTH, MORE_BYTES), left_s)
                if status == 200:
                    return
                reason = f"status {status}: {_message(content)}"
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                status, reason = 0, str(error) or type(error).__name__
            if time.monotonic() > until or status == 401:
                raise RolloutError(f"{self.url}: no server answers there ({reason}); look at rollout.servers.urls")
            await asyncio.sleep(0.1)

    async def watch(self) -> None:
        """Until it is lost."""
        heard = time.monotonic()
        while not self.lost.done():
            await asyncio.sleep(_LOOK_S)
            try:
                if (state := self._state()) == _ENDED:
                    self.lost.set_result("its process has ended; look at its log")
                elif self.calls:
                    await asyncio.wait_for(self.once(_HEALTH, MORE_BYTES), _HEALTH_S)
                heard = time.monotonic()
            except RolloutError as error:
                self.lost.set_result(str(error).removeprefix(f"{self.url}: "))
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                if (silent_s := time.monotonic() - heard) > self.terms.silent_s:
                    stopped = ": its process is stopped by a signal" if state == psutil.STATUS_STOPPED else ""
                    self.lost.set_result(
                        f"no answer for {silent_s:.0f} s, also not to GET /health{stopped}; look at the server's log; "
                        "where it compiles for longer, raise watch.min_seconds"
                    )

    def _state(self) -> str:
        """What the kernel says of its process; nothing where that is not known."""
        try:
            found = psutil.STATUS_RUNNING if self.process is None else self.process.status()
        except psutil.NoSuchProcess:
            return _ENDED
        return _ENDED if found == psutil.STATUS_ZOMBIE else found

    async def content(
        self, call: Call, most_bytes: int, is_given_up: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        """What it answers, None where it may lack the route and does. is_given_up: asked before a call is made again.
        Raises RolloutError, also as soon as the server is lost, and GivenUp."""
        self.calls += 1
        work = asyncio.ensure_future(self._tried(call, most_bytes, is_given_up))
        try:
            await asyncio.wait((work, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise RolloutError(f"{self.url}: {self.lost.result()}")
        finally:
            work.cancel()
            self.calls -= 1

    async def _tried(self, call: Call, most_bytes: int, is_given_up: Callable[[], bool]) -> bytes | None:
        what, pause_s = f"{self.url}{call.path}", _FIRST_PAUSE_S
        for attempt in range(self.terms.retries + 1):
            try:
                status, content = await self.once(call, most_bytes)
                if status == 200:
                    return content
                if status == 404 and call.may_lack:
                    return None
                reason = f"status {status}: {_message(content)}"
                if status not in _BUSY:
                    raise RolloutError(f"{what}: {reason}")
            except asyncio.TimeoutError:
                raise RolloutError(
                    f"{what}: no answer within {self.terms.timeout_s:g} s; look at the server's log, or raise "
                    "rollout.servers.timeout_seconds"
                ) from None
            except (aiohttp.ClientError, OSError) as error:
                reason = f"the connection broke ({error or type(error).__name__})"
            if is_given_up():
                raise GivenUp
            if attempt < self.terms.retries:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise RolloutError(f"{what}: {reason}, {self.terms.retries + 1} times; look at the server's log")

    async def once(self, call: Call, most_bytes: int) -> tuple[int, bytes]:
        """Status and content of the answer to one request. Raises RolloutError where it leads elsewhere, and for a
        right one of somebody who does not have the key."""
        body = b"" if call.method == "GET" else json.dumps(call.body).encode()
        headers, what = {"Content-Type": "application/json"} if body else {}, f"{self.url}{call.path}"
        key = self.terms.key
        signer = key if self.terms.api.signs else None
        if signer is not None:
            headers |= signer.signed(call.method, call.path, body)
        elif key is not None:
            headers["Authorization"] = key.bearer
        async with self.session.request(
            call.method, what, data=body or None, headers=headers, allow_redirects=False
        ) as response:
            content, status = await _read(response, most_bytes, what), response.status
        if 300 <= status < 400:
            place = printable(response.headers.get("Location", "nowhere"))[:200]
            raise RolloutError(f"{what}: leads to {place}; no other server is asked than those of rollout.servers.urls")
        is_believed = signer is None or signer.is_proven(response.headers, headers[NONCE], status, content)
        if status == 200 and not is_believed:
            raise RolloutError(
                f"{self.url}: what answers there does not have the key of this run's servers; look for another "
                "process that listens there"
            )
        return status, content


def _message(content: bytes) -> str:
    """Of an error, as OpenAI's servers give it, or whatever came."""
    try:
        return " ".join(printable(str(json.loads(content)["error"]["message"])[:500]).split())
    except (ValueError, RecursionError, TypeError, KeyError):
        return shown(content)


def process_at(url: str, number: int | None) -> psutil.Process | None:
    """Raises RolloutError where it has ended."""
    try:
        return None if number is None else psutil.Process(number)
    except psutil.NoSuchProcess:
        raise RolloutError(f"{url}: its process has ended; look at its log") from None


async def _read(response: aiohttp.ClientResponse, most_bytes: int, what: str) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > most_bytes:
            raise RolloutError(f"{what}: answers with more than {most_bytes} bytes, which no right answer has")
    return bytes(content)


def shown(content: bytes) -> str:
    """The beginning of what came, for an error."""
    text = content[:80].decode(errors="replace")
    return repr(text + ("..." if len(content) > 80 else ""))
