"""The connection to one completion server over HTTP, and when that server counts as lost.

A server is lost when its process has ended, nothing listens at its address, it is silent or busy for too long, or
whoever answers there cannot prove to have the key. Its calls then fail with `ServerLostError`, until it is connected
anew.
"""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil

from mindgspo.errors import RolloutError
from mindgspo.rollout.protocol import SamplingFilter
from mindgspo.rollout.server_apis import SERVER_APIS, Call, ServerAPI
from mindgspo.rollout.server_key import NONCE, ServerKey
from mindgspo.text import printable

MORE_BYTES = 1 << 16
"""Most bytes of an answer, apart from its tokens."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_WATCH_S, HEALTH_TIMEOUT_S = 1.0, 5.0
_HEALTH = Call(path="/health", method="GET")
_BUSY = (429, 503)
_NO_FILTER = SamplingFilter()


class ServerLostError(RolloutError):
    """A server is dead, hangs or is busy for too long; another one may answer in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Settings of an `HTTPService`."""

    most_running: int
    """Responses that one server is asked for at once."""
    timeout_s: float
    """Timeout of a request."""
    retries: int
    """Maximum number of retries of a request after broken connections or while the server is busy, before that is
    lost."""
    api: ServerAPI = SERVER_APIS["mindgspo"]
    sampling_filter: SamplingFilter = _NO_FILTER
    """For sampling settings without a filter of their own."""
    key: ServerKey | None = None
    silent_s: float = 300.0
    """A server that owes an answer and is silent for so long, also to GET /health, is lost."""
    patience_s: float = 0.0
    """Time for which requests wait for a server when all are lost. Above 0, a server at whose address nothing listens
    is lost at once, even if it owes no answer: another one may be started there."""
    setting: str = "rollout.servers.urls"
    """Setting that holds the servers' addresses, for messages."""

    def hidden(self, text: str) -> str:
        """Mask the key: a server that was sent it may quote it."""
        return text if self.key is None else self.key.hidden(text)


def open_session() -> aiohttp.ClientSession:
    """A session without a limit of connections, which the caller bounds by its requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,  # an answer's size is limited as it arrives, and a small one may unpack to gigabytes
        headers={"Accept-Encoding": "identity"},
    )


class Server:
    """One completion server. Lives in the event loop's thread."""

    def __init__(
        self, url: str, options: ServiceOptions, session: aiohttp.ClientSession, process: psutil.Process | None
    ) -> None:
        self.url = url
        self.version: int | None = None  # of the weights that it was given
        self.facts: dict[str, Any] | None = None  # that it told of its model at first
        self.reason = ""  # for which it is lost
        self.running = 0  # responses that it was asked for and has not answered
        self._options, self._session, self._process = options, session, process
        self._idle_s, self._idle_since = 0.0, time.perf_counter()
        self._num_calls = 0  # unanswered, of any kind
        self._is_returning = False
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_away(self) -> bool:
        """Whether it is lost, and has not come back."""
        return self._is_returning or self._lost.done()

    async def loss(self) -> None:
        """Wait until it is lost."""
        await asyncio.wait((self._lost,))

    def lose(self, reason: str) -> None:
        """Count it as lost; all calls to it fail at once."""
        if not self._lost.done():
            self._lost.set_result(None)
            self.version, self.reason = None, self.reason if self._is_returning else reason

    def connect_anew(self) -> None:
        """Allow calls to a lost server again; it stays away until `return_now`."""
        if self._lost.done():
            self._is_returning, self._lost = True, asyncio.get_running_loop().create_future()

    def move(self, url: str, process: psutil.Process | None) -> None:
        """It was started again, at another address."""
        self.url, self._process = url, process

    def return_now(self) -> bool:
        """Count it among those that are asked again, unless it was lost once more."""
        self._is_returning = self._lost.done()
        return not self._is_returning

    def begin(self, count: int) -> None:
        """Count responses that were requested from it."""
        if not self.running:
            self._idle_s += time.perf_counter() - self._idle_since
        self.running += count

    def end(self, count: int) -> None:
        """Count responses that were answered."""
        self.running -= count
        if not self.running:
            self._idle_since = time.perf_counter()

    def idle_seconds(self) -> float:
        """Time without a response to work on."""
        return self._idle_s + (0.0 if self.running else time.perf_counter() - self._idle_since)

    async def await_ready(self, until: float) -> bytes:
        """Wait until it answers GET /health, or until time.monotonic() reaches `until`; return the answer. Raises
        RolloutError."""
        while True:
            status = 0
            try:
                status, content = await self._once(_HEALTH, within_s=max(until - time.monotonic(), 0.1))
                if status == 200:
                    return content
                reason = f"status {status}: {_message(content)}"
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() > until or status == 401:
                kind = RolloutError if status == 401 else ServerLostError
                raise kind(f"{self.url}: no server answers there ({reason}); check {self._options.setting}")
            await asyncio.sleep(0.1)

    async def told(self, health: bytes) -> dict[str, Any]:
        """What it tells of its model, in its answer to GET /health or in that to `ServerAPI.about`; None for each fact
        that it keeps to itself."""
        api = self._options.api
        content = health if api.about is None else await self.content(api.about)
        try:
            found = json.loads(content or b"{}")
            found = (found.get("data") or [found])[0]
            return {name: found.get(name) for name in api.facts}
        except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
            return dict.fromkeys(api.facts)

    async def watch(self) -> None:
        """Until cancelled, notice that its process has ended, or that it is silent for too long."""
        heard = time.monotonic()
        while True:
            await asyncio.sleep(_WATCH_S)
            try:
                if not self._lost.done():
                    if _has_ended(self._process):
                        self.lose(f"{self.url}: its process has ended; see its log")
                    elif self._num_calls or (self._options.patience_s and self.facts is not None):
                        # Not by asyncio.wait_for, which before Python 3.12 may lose a cancellation.
                        await self._once(_HEALTH, within_s=HEALTH_TIMEOUT_S)
                heard = time.monotonic()
            except RolloutError as error:
                self.lose(str(error))
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                is_refused = isinstance(error, aiohttp.ClientConnectorError) and error.errno == errno.ECONNREFUSED
                if self._options.patience_s and is_refused:
                    self.lose(f"{self.url}: nothing listens there any more; see the server's log")
                elif (silent_s := time.monotonic() - heard) > self._options.silent_s:
                    self.lose(
                        f"{self.url}: no answer for {silent_s:.0f} s, not even to GET /health; see the server's log, "
                        "and raise watch.min_seconds if compilation takes longer"
                    )

    async def command(self, calls: Sequence[Call]) -> None:
        """Make these calls one after the other. Raises RolloutError if one fails."""
        for call in calls:
            content = await self.content(call)
            if content is None or call.is_text:
                continue
            answer = parsed(content, what := f"{self.url}{call.path}") if content else {}
            if not isinstance(answer, dict) or not call.is_right(answer):
                asked = f"was sent {json.dumps(call.body)}, and " if call.body else ""
                raise RolloutError(f"{what}: {asked}answers with {_shown(content)}")

    async def content(
        self, call: Call, most_bytes: int = MORE_BYTES, is_given_up: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        """Return the content of the answer, with retries; None where its status passes, or `is_given_up` before a
        retry. Raises RolloutError, and ServerLostError as soon as the server is lost."""
        self._num_calls += 1
        lost = self._lost
        work = asyncio.ensure_future(self._retried(call, most_bytes, is_given_up))
        try:
            await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise ServerLostError(self.reason)
        except ServerLostError as error:
            if lost is self._lost:  # it may have been connected anew
                self.lose(str(error))
            raise
        finally:
            work.cancel()
            self._num_calls -= 1

    async def _retried(self, call: Call, most_bytes: int, is_given_up: Callable[[], bool]) -> bytes | None:
        what, pause_s, tries = f"{self.url}{call.path}", _FIRST_PAUSE_S, self._options.retries + 1
        for attempt in range(tries):
            try:
                status, content = await self._once(call, most_bytes)
                if status == 200:
                    return content
                if status in call.passes:
                    return None
                reason = f"status {status}: {_message(content)}{call.needs}"
                if status not in _BUSY:
                    raise (ServerLostError if status == 401 else RolloutError)(f"{what}: {reason}")
            except asyncio.TimeoutError as error:
                raise ServerLostError(
                    f"{what}: no answer within {self._options.timeout_s:g} s; see the server's log, or raise "
                    "rollout.servers.timeout_seconds"
                ) from error
            except (aiohttp.ClientError, OSError) as error:
                reason = f"the connection broke ({error or type(error).__name__})"
            if is_given_up():
                return None
            if attempt + 1 < tries:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise ServerLostError(f"{what}: {reason}, {tries} times; see the server's log")

    async def _once(
        self, call: Call, most_bytes: int = MORE_BYTES, *, within_s: float | None = None
    ) -> tuple[int, bytes]:
        """Return status and content of the answer to one request. Raises RolloutError for a redirect, ServerLostError
        for an answer that is not signed with the key. within_s: None: the timeout of the options."""
        body = b"" if call.method == "GET" else json.dumps(call.body).encode()
        headers, what = {"Content-Type": "application/json"} if body else {}, f"{self.url}{call.path}"
        key = self._options.key
        signer = key if self._options.api.signs else None
        if signer is not None:
            headers |= signer.signed(call.method, call.path, body)
        elif key is not None:
            headers["Authorization"] = key.bearer
        timeout = aiohttp.ClientTimeout(total=within_s or self._options.timeout_s)
        sent = {"data": body or None, "headers": headers, "timeout": timeout, "allow_redirects": False}
        async with self._session.request(call.method, what, **sent) as response:
            content, status = await _read(response, most_bytes, what), response.status
        if 300 <= status < 400:
            place = printable(response.headers.get("Location", "nowhere"))[:200]
            raise RolloutError(f"{what}: redirects to {place}, which is not followed; check {self._options.setting}")
        is_proven = signer is None or signer.is_proven(response.headers, headers[NONCE], status, content)
        if status == 200 and not is_proven:
            raise ServerLostError(
                f"{self.url}: whatever answers there does not have the key of this run's servers; check whether "
                "another process listens there"
            )
        return status, content


def process_at(url: str, number: int | None) -> psutil.Process | None:
    """The process of the server at `url`; None without its number. Raises ServerLostError if it has ended."""
    process = None
    with suppress(psutil.NoSuchProcess):
        process = None if number is None else psutil.Process(number)
        if not _has_ended(process):
            return process
    raise ServerLostError(f"{url}: its process has ended; see its log")


def _has_ended(process: psutil.Process | None) -> bool:
    try:
        return process is not None and process.status() in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def _read(response: aiohttp.ClientResponse, most_bytes: int, what: str) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > most_bytes:
            raise RolloutError(f"{what}: answers with more than {most_bytes} bytes, which no valid answer has")
    return bytes(content)


def parsed(content: bytes, what: str) -> Any:
    """The JSON of an answer. Raises RolloutError, which begins with `what`."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise RolloutError(f"{what}: answers with {_shown(content)}, which is not JSON") from None


def _message(content: bytes) -> str:
    """The message of an error in OpenAI's format, or the beginning of whatever came."""
    try:
        return " ".join(printable(str(json.loads(content)["error"]["message"])[:500]).split())
    except (ValueError, RecursionError, TypeError, KeyError):
        return _shown(content)


def _shown(content: bytes) -> str:
    text = content[:80].decode(errors="replace")
    return repr(text + ("..." if len(content) > 80 else ""))
