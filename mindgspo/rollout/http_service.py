"""A client of completion servers over HTTP, which works in the background.

One thread with an event loop handles all requests. docs/rollout_servers.md lists what servers must offer. Their answers
are validated (`AnswerReader`). Requests of a server that is lost go to the others, and wait while there is none; it is
asked again once it has the present weights.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mindgspo.batches.routing import no_routing
from mindgspo.config import ExperimentConfig
from mindgspo.errors import ConfigError, RolloutError
from mindgspo.parallel.platform import heartbeat, worker_process
from mindgspo.rollout.protocol import Purpose, SamplingFilter
from mindgspo.rollout.server_apis import ADAPTER_APIS, SERVER_APIS, AnswerReader, Call, Expected, ServerAPI
from mindgspo.rollout.server_connection import (
    HEALTH_TIMEOUT_S,
    MORE_BYTES,
    Server,
    ServerLostError,
    ServiceOptions,
    open_session,
    parsed,
    process_at,
)
from mindgspo.rollout.server_key import server_key
from mindgspo.rollout.service import NO_TOKENS, Answer, Request
from mindgspo.text import counted, printable
from mindgspo.tokenization import Tokenizer

CallResult = TypeVar("CallResult")
_STARTS_WITHIN_S = 60.0
_ABORT_AGAIN_S = 0.2
_LOOK_S, _RETURN_S = 0.2, 1.0
_MOST_LOSSES = 20  # of servers that had one and the same request


class HTTPService:
    """Implements `CompletionService` over the servers at `urls`, which share the requests. Close it after use.

    processes: returns addresses and process ids of the servers that this run has started, in the order of `urls`; they
    change when one is started again.
    """

    def __init__(
        self,
        urls: Sequence[str],
        expected: Expected,
        options: ServiceOptions,
        processes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._expected, self._options, self._processes = expected, options, processes
        self._version: int | None = None
        self._folder = Path()
        self._none_since: float | None = None  # time at which the last server was lost
        # Only the event loop's thread uses these.
        self._waiting: deque[Request] = deque()
        self._homes: dict[Hashable, Server] = {}  # servers that may have the cache of an episode
        self._tasks: set[asyncio.Task] = set()
        self._losses: Counter[int] = Counter()  # servers lost while they had a request, by its number
        self._is_aborting = False
        # Passes answers and errors from the event loop's thread to the caller's.
        self._found: queue.SimpleQueue[Answer | RolloutError] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asks completion servers", daemon=True)
        self._thread.start()
        self._servers: list[Server] = []
        self._do(self._open(urls))

    answers_each_sample = False

    def submit(self, requests: Sequence[Request]) -> None:
        """See `CompletionService`."""
        assert self._version is not None or not requests, "no weights were loaded"
        self._loop.call_soon_threadsafe(self._enqueue, tuple(requests))

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """See `CompletionService`. Raises RolloutError if all servers are lost for longer than `patience_s`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
            try:
                return self._answers([self._found.get(timeout=max(left, 0.0))])
            except queue.Empty:
                self._check_any_left()
                if until is not None and time.monotonic() >= until:
                    return []

    def abort(self) -> list[Answer]:
        """See `CompletionService`."""
        self._do(self._abort())
        return self._answers([])

    def load_weights(self, folder: Path, version: int) -> None:
        """See `CompletionService`. Servers that are lost load the weights when they come back: `folder` stays until the
        next call."""
        self._check_any_left()
        self._do(self._load(folder, version))
        self._check_any_left()

    def idle_seconds(self) -> float:
        """See `CompletionService`."""
        return sum(server.idle_seconds() for server in self._servers) / len(self._servers)

    def await_servers(self, timeout_s: float) -> None:
        """Wait until all servers answer. Raises RolloutError."""
        until = time.monotonic() + timeout_s

        async def await_all() -> None:
            await asyncio.gather(*(self._meet(server, until) for server in self._servers))

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
            raise RolloutError(self._options.hidden(str(error))) from error.__cause__

    def _answers(self, found: list[Answer | RolloutError]) -> list[Answer]:
        while not self._found.empty():
            found.append(self._found.get())
        answers: list[Answer] = []
        for one in found:
            if isinstance(one, RolloutError):
                raise RolloutError(self._options.hidden(str(one)))
            answers.append(one)
        return answers

    def _check_any_left(self) -> None:
        """Raises RolloutError if no server has been left for `patience_s`."""
        since, patience_s = self._none_since, self._options.patience_s
        if since is None:
            return
        heartbeat.tick()
        if time.monotonic() - since >= patience_s:
            reasons = self._options.hidden("; ".join(server.reason for server in self._servers))
            limit = f"; no server has come back for {patience_s:g} s (rollout.servers.patience_s)" if patience_s else ""
            raise RolloutError(reasons + limit)

    # ---- in the event loop's thread

    async def _open(self, urls: Sequence[str]) -> None:
        processes = self._processes()
        found = [process_at(url, processes.get(url)) for url in urls]
        self._session = open_session()
        self._servers = [
            Server(url.rstrip("/"), self._options, self._session, process)
            for url, process in zip(urls, found, strict=True)
        ]
        self._watches = [
            self._loop.create_task(work) for server in self._servers for work in (server.watch(), self._keep(server))
        ]

    async def _meet(self, server: Server, until: float) -> None:
        """Wait until a server is ready, and compare what it tells of its model with the experiment's, and with what it
        told before. Raises RolloutError."""
        facts = await server.told(await server.await_ready(until))
        is_told = facts.get("vocab_size") is not None
        known = server.facts or {"vocab_size": self._expected.vocab_size if is_told else None}
        for name, value in known.items():
            if value is not None and facts[name] != value:
                raise RolloutError(
                    f"{server.url}: another model is served there: {name} {facts[name]!r:.40}, not {value!r:.40}"
                )
        server.facts = facts

    async def _keep(self, server: Server) -> None:
        """Bring a server back each time that it is lost."""
        while True:
            await server.loss()
            if all(one.is_away for one in self._servers) and self._none_since is None:
                self._none_since = time.monotonic()
            self._say(f"{server.reason}; this server is lost, {counted(self._num_left, 'server')} left")
            if self._none_since is not None and not self._options.patience_s:
                return
            while not (await self._is_ready(server) and server.return_now()):
                await asyncio.sleep(_RETURN_S)
            self._none_since = None
            self._say(f"{server.url}: the server has come back, with weights of version {self._version}")
            self._dispatch()

    async def _is_ready(self, server: Server) -> bool:
        """Whether a lost server is ready, with the same model and the present weights."""
        try:
            if processes := list(self._processes().items()):
                url, number = processes[self._servers.index(server)]
                server.move(url, process_at(url, number))
            server.connect_anew()
            await self._meet(server, time.monotonic() + HEALTH_TIMEOUT_S)
            await server.command(self._options.api.abort)  # it may hang on what it was asked for before
            while server.version != self._version:
                await self._fill(server)
        except ServerLostError:
            return False
        except RolloutError as error:
            if (reason := str(error)) != server.reason:
                server.reason = reason
                self._say(f"{reason}; this server stays lost")
            return False
        return True

    @property
    def _num_left(self) -> int:
        return sum(not server.is_away for server in self._servers)

    def _say(self, text: str) -> None:
        print(f"warning: {printable(self._options.hidden(text))}", flush=True)

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
            if server is None:
                return
            size = len(self._waiting[0].samples)
            if server.running and server.running + size > self._options.most_running:
                return
            server.begin(size)
            task = self._loop.create_task(self._ask(server, self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _server_for(self, request: Request) -> Server | None:
        """The server with the least to do; for an episode that goes on the one that has its cache, if that is free.
        None if all are lost."""
        present = (one for one in self._servers if not one.is_away)
        server = min(present, key=lambda one: one.running, default=None)
        if server is None or not request.may_continue:
            return server
        episode = request.settings.stream, request.prompt.index, request.samples
        home = self._homes.get(episode) if request.prefix.size else None
        if home is not None and not home.is_away and home.running < self._options.most_running:
            server = home
        self._homes[episode] = server
        return server

    async def _ask(self, server: Server, request: Request) -> None:
        try:
            self._found.put(await self._answered(server, request))
            self._losses.pop(request.number, None)
        except ServerLostError as error:
            self._ask_again(request, error)
        except RolloutError as error:
            self._found.put(error)
        except Exception as error:  # the caller waits, so a bug must reach it as well
            self._found.put(RolloutError(f"{server.url}: request {request.number}: {error!r}"))
        finally:
            server.end(len(request.samples))
            self._dispatch()

    def _ask_again(self, request: Request, error: ServerLostError) -> None:
        """Repeat a request whose server was lost, with the prefix that it has. One that ends every server, or takes too
        long on each, would be repeated forever."""
        is_timeout = isinstance(error.__cause__, asyncio.TimeoutError)
        self._losses[request.number] += _MOST_LOSSES // 2 if is_timeout else 1
        if self._is_aborting:
            assert self._version is not None
            self._found.put(_nothing(request, self._version))
        elif self._losses[request.number] < _MOST_LOSSES:
            self._waiting.appendleft(request)
        else:
            why = f"prompt {request.prompt.index} was asked for again and again, and each time its server was lost"
            self._found.put(RolloutError(f"{error}; {why}"))

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
                busy = [server for server in self._servers if server.running and not server.is_away]
                await _all(server.command(self._options.api.abort) for server in busy)
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=_ABORT_AGAIN_S)
        finally:
            self._is_aborting = False
            self._losses.clear()

    async def _load(self, folder: Path, version: int) -> None:
        self._homes.clear()
        assert not self._tasks and not self._waiting, "weights are loaded while requests run"
        self._folder, self._version = folder, version
        await _all(self._fill(server) for server in self._servers if not server.is_away)

    async def _fill(self, server: Server) -> None:
        """Make a server load the present weights."""
        api, version, former = self._options.api, self._version, server.version
        if version is None:
            return
        server.version = None
        unload = () if former is None else api.unload(former)
        # A trainer that was killed may have loaded other weights under this version.
        await server.command((*unload, *api.unload(version), *api.load(self._folder, version)))
        server.version = version


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do these of several servers; those that are lost meanwhile are left to come back. Raises RolloutError."""
    for found in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(found, BaseException) and not isinstance(found, ServerLostError):
            raise found


def open_service(config: ExperimentConfig, tokenizer: Tokenizer) -> HTTPService:
    """Connect to the servers of an experiment, and wait until all answer. Raises ConfigError and RolloutError."""
    servers, model = config.rollout.servers, config.model
    processes = dict if servers.urls else worker_process.rollout_servers
    urls = servers.urls or tuple(processes())
    if not urls:
        raise ConfigError(
            "trainer.schedule: `mindgspo run` starts the servers that generate; under msrun start them with "
            "`mindgspo serve`, and list them in rollout.servers.urls"
        )
    routing = None
    if config.rollout.record_experts:
        routing = no_routing(len(model.expert_layers), model.num_experts_per_tok, model.num_experts)
    expected = Expected(
        vocab_size=model.vocab_size,
        eos_ids=tokenizer.eos_ids,
        routing=routing,
        num_experts=model.num_experts or 0,
        dense_columns=model.expert_layers.start * (model.num_experts_per_tok or 0),
    )
    options = ServiceOptions(
        most_running=2 * -(-config.rollout.slots // len(urls)),  # twice its slots, so that none ever waits for requests
        timeout_s=servers.timeout_seconds,
        retries=servers.retries,
        api=(ADAPTER_APIS if config.rollout.lora == "separate" else SERVER_APIS)[servers.api],
        sampling_filter=SamplingFilter(config.rollout.top_k, config.rollout.top_p),
        key=server_key(servers.api_key_file),
        silent_s=config.watch.min_seconds,
        patience_s=servers.patience_s if servers.urls or servers.restart else 0.0,  # nobody else starts the run's own
    )
    service = HTTPService(urls, expected, options, processes)
    try:
        service.await_servers(_STARTS_WITHIN_S)
    except BaseException:
        service.close()
        raise
    return service


def _nothing(request: Request, version: int) -> Answer:
    """The answer to a request that was aborted before its first token."""
    return Answer(number=request.number, weight_version=version, pieces=(NO_TOKENS,) * len(request.samples))


def _most_bytes(request: Request, api: ServerAPI, expected: Expected) -> int:
    """Generous upper bound of an answer's size."""
    tokens = request.prompt.ids.size + request.settings.max_new_tokens
    per_token = api.bytes_per_token
    if expected.routing is not None:  # in base64, up to 4 bytes each
        per_token += 6 * (expected.dense_columns + expected.routing.shape[1])
    return MORE_BYTES + len(request.samples) * tokens * per_token
