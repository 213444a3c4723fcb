"""A client of completion servers over HTTP, which works in the background.

One thread with an event loop handles all requests. docs/rollout_servers.md lists what servers must offer. Their answers
are validated (`AnswerReader`), requests are retried where that can help, and a server that falls silent is given up.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
import psutil

from mindgspo.batches.routing import no_routing
from mindgspo.config import ExperimentConfig
from mindgspo.errors import ConfigError, RolloutError
from mindgspo.parallel.platform import worker_process
from mindgspo.rollout.protocol import Purpose, SamplingFilter
from mindgspo.rollout.server_apis import ADAPTER_APIS, SERVER_APIS, AnswerReader, Call, Expected, ServerAPI
from mindgspo.rollout.server_key import NONCE, ServerKey, server_key
from mindgspo.rollout.service import NO_TOKENS, Answer, Request
from mindgspo.text import printable
from mindgspo.tokenization import Tokenizer

CallResult = TypeVar("CallResult")
_MORE_BYTES = 1 << 16  # of an answer, apart from its tokens
_STARTS_WITHIN_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_ABORT_AGAIN_S = 0.2
_WATCH_S, _HEALTH_TIMEOUT_S = 1.0, 5.0
_HEALTH = Call(path="/health", method="GET")
_BUSY = (429, 503)
_NO_FILTER = SamplingFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Settings of an `HTTPService`."""

    most_running: int
    """Responses that one server is asked for at once."""
    timeout_s: float
    """Timeout of a request."""
    retries: int
    """Maximum number of retries of a request after broken connections or while the server is busy."""
    api: ServerAPI = SERVER_APIS["mindgspo"]
    sampling_filter: SamplingFilter = _NO_FILTER
    """For sampling settings without a filter of their own."""
    key: ServerKey | None = None
    silent_s: float = 300.0
    """A server that owes an answer and is silent for so long, also to GET /health, is given up."""
    setting: str = "rollout.servers.urls"
    """Setting that holds the servers' addresses, for messages."""

    def without_key(self, error: RolloutError) -> RolloutError:
        """Mask the key: a server that was sent it may quote it."""
        return error if self.key is None else RolloutError(self.key.hidden(str(error)))


class HTTPService:
    """Implements `CompletionService` over the servers at `urls`, which share the requests. Close it after use.

    processes: process ids of servers that this run has started, by URL.
    """

    def __init__(
        self,
        urls: Sequence[str],
        expected: Expected,
        options: ServiceOptions,
        processes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._expected, self._options = expected, options
        self._version: int | None = None
        # Only the event loop's thread uses these.
        self._waiting: deque[Request] = deque()
        self._homes: dict[Hashable, Server] = {}  # servers that may have the cache of an episode
        self._tasks: set[asyncio.Task] = set()
        self._is_aborting = False
        # Passes answers and errors from the event loop's thread to the caller's.
        self._found: queue.SimpleQueue[Answer | RolloutError] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asks completion servers", daemon=True)
        self._thread.start()
        self._servers: list[Server] = []
        self._do(self._open(urls, processes))

    answers_each_sample = False

    def submit(self, requests: Sequence[Request]) -> None:
        """See `CompletionService`."""
        assert self._version is not None or not requests, "no weights were loaded"
        self._loop.call_soon_threadsafe(self._enqueue, tuple(requests))

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """See `CompletionService`."""
        try:
            return self._answers([self._found.get(timeout=timeout_s)])
        except queue.Empty:
            return []

    def abort(self) -> list[Answer]:
        """See `CompletionService`."""
        self._do(self._abort())
        return self._answers([])

    def load_weights(self, folder: Path, version: int) -> None:
        """See `CompletionService`."""
        api = self._options.api
        former = () if self._version is None else api.unload(self._version)
        # A trainer that was killed may have loaded other weights under this version.
        self._do(self._load((*former, *api.unload(version), *api.load(folder, version))))
        self._version = version

    def idle_seconds(self) -> float:
        """See `CompletionService`."""
        return sum(server.idle_seconds() for server in self._servers) / len(self._servers)

    def await_servers(self, timeout_s: float) -> None:
        """Wait until all servers answer. Raises RolloutError."""
        until = time.monotonic() + timeout_s

        async def await_all() -> None:
            await asyncio.gather(*(server.await_ready(until) for server in self._servers))

        self._do(await_all())

    def close(self) -> None:
        """End the client; the servers are left alone, and their unfinished work is not waited for."""
        if self._loop.is_closed():
            return
        self._do(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, CallResult]) -> CallResult:
        """Run a coroutine in the event loop's thread."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RolloutError as error:
            raise self._options.without_key(error) from error.__cause__

    def _answers(self, found: list[Answer | RolloutError]) -> list[Answer]:
        while not self._found.empty():
            found.append(self._found.get())
        answers: list[Answer] = []
        for one in found:
            if isinstance(one, RolloutError):
                raise self._options.without_key(one)
            answers.append(one)
        return answers

    # ---- in the event loop's thread

    async def _open(self, urls: Sequence[str], processes: Mapping[str, int]) -> None:
        found = [_process_at(url, processes.get(url)) for url in urls]
        self._session = open_session()
        self._servers = [
            Server(url.rstrip("/"), self._options, self._session, process)
            for url, process in zip(urls, found, strict=True)
        ]
        self._watches = [self._loop.create_task(server.watch()) for server in self._servers]

    async def _cancel(self) -> None:
        self._waiting.clear()
        tasks = [*self._tasks, *self._watches]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    def _enqueue(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)
        self._dispatch()

    def _dispatch(self) -> None:
        """Send waiting requests, in order, while a server has room; an idle server takes a request of any size."""
        while self._waiting and not self._is_aborting:
            server = self._server_for(self._waiting[0])
            size = len(self._waiting[0].samples)
            if server.running and server.running + size > self._options.most_running:
                return
            server.begin(size)
            task = self._loop.create_task(self._ask(server, self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _server_for(self, request: Request) -> Server:
        """The server with the least to do; for an episode that goes on the one that has its cache, if that is free."""
        server = min(self._servers, key=lambda one: one.running)
        if not request.may_continue:
            return server
        episode = request.settings.stream, request.prompt.index, request.samples
        home = self._homes.get(episode) if request.prefix.size else None
        if home is not None and home.running < self._options.most_running:
            server = home
        self._homes[episode] = server
        return server

    async def _ask(self, server: Server, request: Request) -> None:
        try:
            self._found.put(await self._answered(server, request))
        except RolloutError as error:
            self._found.put(error)
        except Exception as error:  # the caller waits, so a bug must reach it as well
            self._found.put(RolloutError(f"{server.url}: request {request.number}: {error!r}"))
        finally:
            server.end(len(request.samples))
            self._dispatch()

    async def _answered(self, server: Server, request: Request) -> Answer:
        api, expected, version = self._options.api, self._expected, self._version
        assert version is not None
        if request.settings.stream.purpose is not Purpose.TRAINING:
            expected = replace(expected, routing=None)  # experts are recorded for training alone
        body = api.ask(request, request.settings.sampling_filter or self._options.sampling_filter, expected)
        body |= api.naming(version)
        call = Call(path=api.completions, body=body)
        content = await server.content(call, _most_bytes(request, api, expected), lambda: self._is_aborting)
        if content is None:
            return _nothing(request, version)
        found = parsed(content, f"{server.url}{call.path}")
        return AnswerReader(api, request, expected, server.url).answer(found, version)

    async def _abort(self) -> None:
        self._is_aborting = True
        try:
            while self._waiting:
                assert self._version is not None
                self._found.put(_nothing(self._waiting.popleft(), self._version))
            while self._tasks:  # repeated, because a request may reach its server after the abort did
                busy = [server for server in self._servers if server.running]
                await asyncio.gather(*(server.command(self._options.api.abort) for server in busy))
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=_ABORT_AGAIN_S)
        finally:
            self._is_aborting = False

    async def _load(self, calls: Sequence[Call]) -> None:
        self._homes.clear()
        assert not self._tasks and not self._waiting, "weights are loaded while requests run"
        await asyncio.gather(*(server.command(calls) for server in self._servers))


def open_session() -> aiohttp.ClientSession:
    """A session without a limit of connections, which the caller bounds by its requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,  # an answer's size is limited as it arrives, and a small one may unpack to gigabytes
        headers={"Accept-Encoding": "identity"},
    )


def open_service(config: ExperimentConfig, tokenizer: Tokenizer) -> HTTPService:
    """Connect to the servers of an experiment, and wait until all answer. Raises ConfigError and RolloutError."""
    servers, model = config.rollout.servers, config.model
    processes = {} if servers.urls else worker_process.rollout_servers()
    urls = servers.urls or tuple(processes)
    if not urls:
        raise ConfigError(
            "trainer.schedule: `mindgspo run` starts the servers that generate; under msrun start them with "
            "`mindgspo serve`, and list them in rollout.servers.urls"
        )
    routing = None
    if config.rollout.record_experts:
        routing = no_routing(model.num_hidden_layers, model.num_experts_per_tok, model.num_experts)
    expected = Expected(
        vocab_size=model.vocab_size, eos_ids=tokenizer.eos_ids, routing=routing, num_experts=model.num_experts or 0
    )
    options = ServiceOptions(
        most_running=2 * -(-config.rollout.slots // len(urls)),  # twice its slots, so that none ever waits for requests
        timeout_s=servers.timeout_seconds,
        retries=servers.retries,
        api=(ADAPTER_APIS if config.rollout.lora == "separate" else SERVER_APIS)[servers.api],
        sampling_filter=SamplingFilter(config.rollout.top_k, config.rollout.top_p),
        key=server_key(servers.api_key_file),
        silent_s=config.watch.min_seconds,
    )
    service = HTTPService(urls, expected, options, processes)
    try:
        service.await_servers(_STARTS_WITHIN_S)
    except BaseException:
        service.close()
        raise
    return service


class Server:
    """One completion server. Lives in the event loop's thread."""

    def __init__(
        self, url: str, options: ServiceOptions, session: aiohttp.ClientSession, process: psutil.Process | None
    ) -> None:
        self.url = url
        self.running = 0  # responses that it was asked for and has not answered
        self._options, self._session, self._process = options, session, process
        self._idle_s, self._idle_since = 0.0, time.perf_counter()
        self._num_calls = 0  # unanswered, of any kind
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # the reason to give it up

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

    async def await_ready(self, until: float) -> None:
        """Wait until it answers, or until time.monotonic() reaches `until`. Raises RolloutError."""
        while True:
            status = 0
            try:
                status, content = await self._once(_HEALTH, within_s=max(until - time.monotonic(), 0.1))
                if status == 200:
                    return
                reason = f"status {status}: {_message(content)}"
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() > until or status == 401:
                raise RolloutError(f"{self.url}: no server answers there ({reason}); check {self._options.setting}")
            await asyncio.sleep(0.1)

    async def watch(self) -> None:
        """Give the server up as soon as its process has ended, or when it is silent for too long."""
        heard = time.monotonic()
        while not self._lost.done():
            await asyncio.sleep(_WATCH_S)
            try:
                if self._has_ended():
                    self._lost.set_result("its process has ended; see its log")
                elif self._num_calls:
                    # Not by asyncio.wait_for, which before Python 3.12 may lose a cancellation.
                    await self._once(_HEALTH, within_s=_HEALTH_TIMEOUT_S)
                heard = time.monotonic()
            except RolloutError as error:
                self._lost.set_result(str(error).removeprefix(f"{self.url}: "))
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
                if (silent_s := time.monotonic() - heard) > self._options.silent_s:
                    self._lost.set_result(
                        f"no answer for {silent_s:.0f} s, not even to GET /health; see the server's log, and raise "
                        "watch.min_seconds if compilation takes longer"
                    )

    def _has_ended(self) -> bool:
        try:
            return self._process is not None and self._process.status() in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

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
        self, call: Call, most_bytes: int = _MORE_BYTES, is_given_up: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        """Return the content of the answer, with retries; None where its status passes, or `is_given_up` before a
        retry. Raises RolloutError, also as soon as the server is lost."""
        self._num_calls += 1
        work = asyncio.ensure_future(self._retried(call, most_bytes, is_given_up))
        try:
            await asyncio.wait((work, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise RolloutError(f"{self.url}: {self._lost.result()}")
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
                    raise RolloutError(f"{what}: {reason}")
            except asyncio.TimeoutError:
                raise RolloutError(
                    f"{what}: no answer within {self._options.timeout_s:g} s; see the server's log, or raise "
                    "rollout.servers.timeout_seconds"
                ) from None
            except (aiohttp.ClientError, OSError) as error:
                reason = f"the connection broke ({error or type(error).__name__})"
            if is_given_up():
                return None
            if attempt + 1 < tries:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise RolloutError(f"{what}: {reason}, {tries} times; see the server's log")

    async def _once(
        self, call: Call, most_bytes: int = _MORE_BYTES, *, within_s: float | None = None
    ) -> tuple[int, bytes]:
        """Return status and content of the answer to one request. Raises RolloutError for a redirect, and for an answer
        that is not signed with the key. within_s: None: the timeout of the options."""
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
            raise RolloutError(
                f"{self.url}: whatever answers there does not have the key of this run's servers; check whether "
                "another process listens there"
            )
        return status, content


def _process_at(url: str, number: int | None) -> psutil.Process | None:
    try:
        return None if number is None else psutil.Process(number)
    except psutil.NoSuchProcess:
        raise RolloutError(f"{url}: its process has ended; see its log") from None


def _nothing(request: Request, version: int) -> Answer:
    """The answer to a request that was aborted before its first token."""
    return Answer(number=request.number, weight_version=version, pieces=(NO_TOKENS,) * len(request.samples))


def _most_bytes(request: Request, api: ServerAPI, expected: Expected) -> int:
    """Generous upper bound of an answer's size."""
    tokens = request.prompt.ids.size + request.settings.max_new_tokens
    per_token = api.bytes_per_token
    if expected.routing is not None:  # in base64, up to 4 bytes each
        per_token += 6 * expected.routing.shape[1]
    return _MORE_BYTES + len(request.samples) * tokens * per_token


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
