"""Responses from completion servers over HTTP, in the background: one thread with an event loop, whatever the number of
requests. What servers must offer is in docs/rollout_servers.md; what they answer is believed only as far as it can be
checked, and a server that says nothing is not waited for without end.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp

from mindgspo.batches.routing import no_routing
from mindgspo.config import ExperimentConfig
from mindgspo.errors import ConfigError, RolloutError
from mindgspo.parallel.platform import worker_process
from mindgspo.rollout.protocol import Purpose, SamplingFilter
from mindgspo.rollout.server_answers import AnswerReader, Expected
from mindgspo.rollout.server_apis import SERVER_APIS, Call, ServerAPI
from mindgspo.rollout.server_calls import MORE_BYTES, GivenUp, Server, Terms, process_at, shown
from mindgspo.rollout.server_key import ServerKey, server_key
from mindgspo.rollout.service import NO_TOKENS, Answer, Request
from mindgspo.tokenization import Tokenizer

CallResult = TypeVar("CallResult")
_CUT_AGAIN_S = 0.2
_STARTS_WITHIN_S = 60.0
_NO_FILTER = SamplingFilter()


class HTTPService:
    """Implements `CompletionService` over the servers at `urls`, which share the requests.

    most_running: responses that one server is asked for at once. timeout_s: within which a request is answered.
    retries: how often one is made again after its connection broke or its server was busy. api: how they are asked.
    sampling_filter: of settings that bring none. key: that the servers share. processes: ids of those of some servers,
    by URL. silent_s: after so long a silence, also to GET /health, a server that is waited for is lost. Close it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        expected: Expected,
        *,
        most_running: int,
        timeout_s: float,
        retries: int,
        api: ServerAPI = SERVER_APIS["mindgspo"],
        sampling_filter: SamplingFilter = _NO_FILTER,
        key: ServerKey | None = None,
        processes: Mapping[str, int] = MappingProxyType({}),
        silent_s: float = 300.0,
    ) -> None:
        self._expected, self._most_running = expected, most_running
        self._api, self._own_filter, self._key = api, sampling_filter, key
        self._version: int | None = None
        # Of the event loop's thread alone:
        self._waiting: deque[Request] = deque()
        self._tasks: set[asyncio.Task] = set()
        self._is_cut = False
        # Between the threads: answers, or what went wrong.
        self._found: queue.SimpleQueue[Answer | RolloutError] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asks completion servers", daemon=True)
        self._thread.start()
        terms = Terms(api=api, key=key, timeout_s=timeout_s, retries=retries, silent_s=silent_s)
        self._servers: list[Server] = []
        self._do(self._open(urls, terms, processes))

    def submit(self, requests: Sequence[Request]) -> None:
        """See `CompletionService`."""
        assert self._version is not None or not requests, "no weights were loaded"
        self._loop.call_soon_threadsafe(self._enqueue, tuple(requests))

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """See `CompletionService`."""
        try:
            found = [self._found.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        return self._answers(found)

    def abort(self) -> list[Answer]:
        """See `CompletionService`."""
        self._do(self._abort())
        return self._answers([])

    def load_weights(self, folder: Path, version: int) -> None:
        """See `CompletionService`."""
        self._do(self._load(folder, version))
        self._version = version

    def idle_seconds(self) -> float:
        """See `CompletionService`."""
        now = time.perf_counter()
        idle = [one.idle_s + (0.0 if (since := one.idle_since) is None else now - since) for one in self._servers]
        return sum(idle) / len(idle)

    def await_servers(self, timeout_s: float) -> None:
        """Until all servers answer. Raises RolloutError."""
        self._do(self._all_are_there(timeout_s))

    def close(self) -> None:
        """Leave the servers alone; what they still do is not waited for."""
        if self._loop.is_closed():
            return
        self._do(self._ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, CallResult]) -> CallResult:
        """In the loop's thread. A signal reaches this one between two looks."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=1.0)
            except NotYet:
                if future.done():
                    raise
            except RolloutError as error:
                raise self._without_key(error) from error.__cause__

    def _answers(self, found: list[Answer | RolloutError]) -> list[Answer]:
        while not self._found.empty():
            found.append(self._found.get())
        for one in found:
            if isinstance(one, RolloutError):
                raise self._without_key(one)
        return found

    def _without_key(self, error: RolloutError) -> RolloutError:
        """Servers that were sent the key may quote it."""
        return error if self._key is None else RolloutError(self._key.hidden(str(error)))

    # ---- in the thread of the event loop

    async def _open(self, urls: Sequence[str], terms: Terms, processes: Mapping[str, int]) -> None:
        found = [process_at(url, processes.get(url)) for url in urls]
        # The servers are few, and each is asked for as much as it can do: the number of connections has no bound.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=terms.timeout_s),
            auto_decompress=False,  # what is counted is what comes
            headers={"Accept-Encoding": "identity"},
        )
        self._servers = [
            Server(url.rstrip("/"), terms, self._session, self._loop.create_future(), process)
            for url, process in zip(urls, found, strict=True)
        ]
        self._watches = [self._loop.create_task(server.watch()) for server in self._servers]

    async def _ended(self) -> None:
        self._waiting.clear()
        everything = [*self._tasks, *self._watches]
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
        await self._session.close()

    def _enqueue(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)
        self._dispatch()

    def _dispatch(self) -> None:
        """Ask for what waits, in its order, while a server has room; one that has nothing to do takes any request."""
        while self._waiting and not self._is_cut:
            server = min(self._servers, key=lambda one: one.running)
            size = len(self._waiting[0].samples)
            if server.running and server.running + size > self._most_running:
                return
            request = self._waiting.popleft()
            if server.idle_since is not None:
                server.idle_s += time.perf_counter() - server.idle_since
                server.idle_since = None
            server.running += size
            task = self._loop.create_task(self._ask(server, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _expected_of(self, request: Request) -> Expected:
        """Of evaluation's responses no routing is recorded."""
        is_trained = request.settings.stream.purpose is Purpose.TRAINING
        return self._expected if is_trained else replace(self._expected, routing=None)

    async def _ask(self, server: Server, request: Request) -> None:
        api, expected, version = self._api, self._expected_of(request), self._version
        assert version is not None
        try:
            body = api.ask(request, request.settings.sampling_filter or self._own_filter, expected)
            call = Call(path=api.completions, body=body)
            content = await server.content(call, _most_bytes(request, api, expected), lambda: self._is_cut)
            found = _json(content, what := f"{server.url}{call.path}")
            try:
                answer = api.read(found, request, expected)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise RolloutError(
                    f"{what}: answers in another form than rollout.servers.api says ({error!r})"
                ) from error
            if not api.always_tells and answer["weight_version"] is None:
                answer["weight_version"] = api.label(version)
            self._found.put(AnswerReader(request, expected, server.url).answer(answer, version, api.label(version)))
        except GivenUp:
            self._found.put(_cut_before(request, version))
        except RolloutError as error:
            self._found.put(error)
        except Exception as error:  # a defect of ours must reach the caller, who waits
            self._found.put(RolloutError(f"{server.url}: request {request.number}: {error!r}"))
        finally:
            server.running -= len(request.samples)
            if not server.running:
                server.idle_since = time.perf_counter()
            self._dispatch()

    async def _abort(self) -> None:
        self._is_cut = True
        try:
            await self._stopped()
        finally:
            self._is_cut = False

    async def _stopped(self) -> None:
        for request in self._waiting:
            assert self._version is not None
            self._found.put(_cut_before(request, self._version))
        self._waiting.clear()
        while self._tasks:  # again where a request reached its server behind the abort
            await asyncio.gather(*(self._done(server, self._api.abort) for server in self._servers if server.running))
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CUT_AGAIN_S)

    async def _load(self, folder: Path, version: int) -> None:
        assert not self._tasks and not self._waiting, "weights are loaded while requests run"
        calls = self._api.load(folder, version)
        await asyncio.gather(*(self._done(server, calls) for server in self._servers))

    async def _done(self, server: Server, calls: Sequence[Call]) -> None:
        """One call after the other. Raises RolloutError."""
        for call in calls:
            content = await server.content(call, MORE_BYTES)
            if content is None:
                continue
            answer = _object(content, what := f"{server.url}{call.path}") if content else {}
            if not call.is_right(answer):
                asked = f"was told {json.dumps(call.body)}, and " if call.body else ""
                raise RolloutError(f"{what}: {asked}answers with {shown(content)}")

    async def _all_are_there(self, timeout_s: float) -> None:
        await asyncio.gather(*(server.is_there(time.monotonic() + timeout_s) for server in self._servers))


def open_service(config: ExperimentConfig, tokenizer: Tokenizer) -> HTTPService:
    """Over the servers of an experiment, all of which answer. Raises RolloutError."""
    servers, model = config.rollout.servers, config.model
    processes = {} if servers.urls else worker_process.rollout_servers()
    urls = servers.urls or tuple(processes)
    if not urls:
        raise ConfigError(
            "trainer.schedule: servers that generate are started by `mindgspo run`; under msrun start them with "
            "`mindgspo serve`, and name them in rollout.servers.urls"
        )
    routing = None
    if config.rollout.record_experts:
        routing = no_routing(model.num_hidden_layers, model.num_experts_per_tok, model.num_experts)
    service = HTTPService(
        urls,
        Expected(
            vocab_size=model.vocab_size,
            eos_ids=tokenizer.eos_ids,
            routing=routing,
            num_experts=model.num_experts or 0,
        ),
        most_running=2 * -(-config.rollout.slots // len(urls)),  # as many again wait there, so that no slot does
        timeout_s=servers.timeout_seconds,
        retries=servers.retries,
        api=SERVER_APIS[servers.api],
        sampling_filter=SamplingFilter(config.rollout.top_k, config.rollout.top_p),
        key=server_key(servers.api_key_file),
        processes=processes,
        silent_s=config.watch.min_seconds,
    )
    try:
        service.await_servers(_STARTS_WITHIN_S)
    except BaseException:
        service.close()
        raise
    return service


def _cut_before(request: Request, version: int) -> Answer:
    """Its first tokens were drawn."""
    return Answer(number=request.number, weight_version=version, pieces=tuple(NO_TOKENS for _ in request.samples))


def _most_bytes(request: Request, api: ServerAPI, expected: Expected) -> int:
    """Of an answer to it, generously."""
    tokens = request.prompt.ids.size + request.settings.max_new_tokens
    per_token = api.bytes_per_token
    if expected.routing is not None:  # in base64, of up to 4 bytes each
        per_token += 6 * expected.routing.shape[1]
    return MORE_BYTES + len(request.samples) * tokens * per_token


def _json(content: bytes | None, what: str) -> Any:
    try:
        return json.loads(content or b"")
    except (ValueError, RecursionError):
        raise RolloutError(f"{what}: answers with {shown(content or b'')}, which is not JSON") from None


def _object(content: bytes, what: str) -> dict[str, Any]:
    found = _json(content, what)
    if not isinstance(found, dict):
        raise RolloutError(f"{what}: answers with {shown(content)}, which is no JSON object")
    return found
