"""Responses from completion servers over HTTP, in the background: one thread with an event loop, whatever the number of
requests. What servers must offer is in docs/rollout_servers.md; what they answer is believed only as far as it can be
checked.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import queue
import threading
import time
import zlib
from collections import deque
from collections.abc import Collection, Coroutine, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import numpy as np

from mindgspo.config import ExperimentConfig
from mindgspo.data.routing import no_routing
from mindgspo.errors import ConfigError, RolloutError
from mindgspo.parallel import runtime
from mindgspo.rollout.protocol import Cut
from mindgspo.rollout.service import Answer, Piece, Request
from mindgspo.tokenization import Tokenizer
from mindgspo.types import FinishReason, Routing

Result = TypeVar("Result")
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": None}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_CUT_AGAIN_S = 0.2
_BUSY = (429, 503)
_NO_CUT = Cut()
# Of an answer: digits of a token's id, echo and log-prob, and what stands around them.
_BYTES_PER_TOKEN, _MORE_BYTES = 96, 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a right answer keeps to. vocab_size, eos_ids: of the tokenizer. routing: an array [0, X] of the type of
    experts' numbers, where they are recorded, of which there are num_experts."""

    vocab_size: int
    eos_ids: Collection[int]
    routing: np.ndarray | None = None
    num_experts: int = 0


@dataclass(slots=True, eq=False)
class _Server:
    """running: responses asked for and not answered. idle_since: since when that is 0; None while it is not."""

    url: str
    running: int = 0
    idle_s: float = 0.0
    idle_since: float | None = field(default_factory=time.perf_counter)


class HTTPService:
    """Implements `CompletionService` over the servers at `urls`, which share the requests.

    most_running: responses that one server is asked for at once. timeout_s: within which a request is answered.
    retries: how often one is made again after its connection broke or its server was busy. cut: of settings that bring
    none. Close it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        expected: Expected,
        *,
        most_running: int,
        timeout_s: float,
        retries: int,
        cut: Cut = _NO_CUT,
    ) -> None:
        self._servers = [_Server(url.rstrip("/")) for url in urls]
        self._expected, self._most_running = expected, most_running
        self._timeout_s, self._retries, self._own_cut = timeout_s, retries, cut
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
        self._session: aiohttp.ClientSession = self._do(self._opened())

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

    def cut(self) -> list[Answer]:
        """See `CompletionService`."""
        self._do(self._cut())
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

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """In the loop's thread. A signal reaches this one between two looks."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=1.0)
            except NotYet:
                if future.done():
                    raise

    def _answers(self, found: list[Answer | RolloutError]) -> list[Answer]:
        while not self._found.empty():
            found.append(self._found.get())
        for one in found:
            if isinstance(one, RolloutError):
                raise one
        return found

    # ---- in the thread of the event loop

    async def _opened(self) -> aiohttp.ClientSession:
        # The servers are few, and each is asked for as much as it can do: the number of connections has no bound.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=self._timeout_s)
        )

    async def _ended(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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

    async def _ask(self, server: _Server, request: Request) -> None:
        try:
            version = self._version
            asked = _body(request, self._own_cut, with_experts=self._expected.routing is not None)
            answer = await self._post(server, "/v1/completions", asked, _most_bytes(request, self._expected))
            self._found.put(_Reader(request, self._expected, server.url).answer(answer, version))
        except RolloutError as error:
            self._found.put(error)
        except Exception as error:  # a defect of ours must reach the caller, who waits
            self._found.put(RolloutError(f"{server.url}: request {request.number}: {error!r}"))
        finally:
            server.running -= len(request.samples)
            if not server.running:
                server.idle_since = time.perf_counter()
            self._dispatch()

    async def _cut(self) -> None:
        self._is_cut = True
        for request in self._waiting:
            pieces = tuple(_NOTHING for _ in request.samples)
            assert self._version is not None
            self._found.put(Answer(number=request.number, weight_version=self._version, pieces=pieces))
        self._waiting.clear()
        while self._tasks:  # again where a request reached its server behind the abort
            await asyncio.gather(
                *(self._post(server, "/abort_requests", {}, _MORE_BYTES) for server in self._servers if server.running)
            )
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CUT_AGAIN_S)
        self._is_cut = False

    async def _load(self, folder: Path, version: int) -> None:
        assert not self._tasks and not self._waiting, "weights are loaded while requests run"
        asked = {"folder": str(folder), "version": version}
        await asyncio.gather(*(self._load_one(server, asked) for server in self._servers))

    async def _load_one(self, server: _Server, asked: dict[str, Any]) -> None:
        body = await self._post(server, "/update_weights", asked, _MORE_BYTES)
        found = body.get("weight_version")
        if found != asked["version"]:
            raise RolloutError(
                f"{server.url}: was told to load weights of version {asked['version']} from {asked['folder']}, and "
                f"answers with version {found!r}"
            )

    async def _all_are_there(self, timeout_s: float) -> None:
        await asyncio.gather(*(self._is_there(server, time.monotonic() + timeout_s) for server in self._servers))

    async def _is_there(self, server: _Server, until: float) -> None:
        while True:
            try:
                async with self._session.get(f"{server.url}/health") as response:
                    if response.status == 200:
                        return
                    reason = f"status {response.status}"
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() > until:
                raise RolloutError(f"{server.url}: no server answers there ({reason}); look at rollout.servers.urls")
            await asyncio.sleep(0.1)

    async def _post(self, server: _Server, path: str, asked: dict[str, Any], most_bytes: int) -> dict[str, Any]:
        """The JSON that a server answers. Raises RolloutError."""
        what, pause_s = f"{server.url}{path}", _FIRST_PAUSE_S
        for attempt in range(self._retries + 1):
            try:
                async with self._session.post(what, json=asked) as response:
                    content = await _read(response, most_bytes, what)
                if response.status == 200:
                    return _object(content, what)
                reason = f"status {response.status}: {_message(content)}"
                if response.status not in _BUSY:
                    raise RolloutError(f"{what}: {reason}")
            except asyncio.TimeoutError:
                raise RolloutError(
                    f"{what}: no answer within {self._timeout_s:g} s; look at the server's log, or raise "
                    "rollout.servers.timeout_seconds"
                ) from None
            except (aiohttp.ClientError, OSError) as error:
                reason = f"the connection broke ({error or type(error).__name__})"
            if attempt < self._retries:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise RolloutError(f"{what}: {reason}, {self._retries + 1} times; look at the server's log")


def open_service(config: ExperimentConfig, tokenizer: Tokenizer) -> HTTPService:
    """Over the servers of an experiment, all of which answer. Raises RolloutError."""
    servers, model = config.rollout.servers, config.model
    urls = servers.urls or runtime.rollout_servers()
    if not urls:
        raise ConfigError(
            "trainer.schedule: servers that generate are started by `mindgspo run`; under msrun start them with "
            "`mindgspo serve`, and name them in rollout.servers.urls"
        )
    routing = no_routing(model) if config.rollout.record_experts else None
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
        cut=Cut(config.rollout.top_k, config.rollout.top_p),
    )
    try:
        service.await_servers(_STARTS_WITHIN_S)
    except BaseException:
        service.close()
        raise
    return service


_STARTS_WITHIN_S = 60.0
_NOTHING = Piece(ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), finish_reason=None)


def _body(request: Request, own_cut: Cut, *, with_experts: bool) -> dict[str, Any]:
    """What is asked. own_cut: of settings that bring none. random_stream: for servers that draw as this suite does;
    seed: for the others."""
    settings, start = request.settings, int(request.prefix.size)
    stream = {
        "seed": settings.stream.seed,
        "purpose": int(settings.stream.purpose),
        "step": settings.stream.step,
        "draw": settings.stream.draw,
        "prompt_index": request.prompt.index,
        "samples": list(request.samples),
        "start": start,
    }
    body: dict[str, Any] = {
        "model": "policy",
        "prompt": [*request.prompt.ids.tolist(), *request.prefix.tolist()],
        "n": len(request.samples),
        "max_tokens": settings.max_new_tokens - start,
        "temperature": settings.temperature,
        "logprobs": 0,
        "return_token_ids": True,
        "return_routed_experts": with_experts,
        "seed": zlib.crc32(json.dumps(stream).encode()) >> 1,
        "random_stream": stream,
    }
    if settings.temperature > 0:
        cut = settings.cut or own_cut
        body |= {"top_k": cut.top_k or -1, "top_p": cut.top_p}
    return body


def _most_bytes(request: Request, expected: Expected) -> int:
    """Of an answer to it, generously."""
    tokens = request.prompt.ids.size + request.settings.max_new_tokens
    per_token = _BYTES_PER_TOKEN
    if expected.routing is not None:
        per_token += 2 * expected.routing.shape[1] * expected.routing.itemsize
    return _MORE_BYTES + len(request.samples) * tokens * per_token


async def _read(response: aiohttp.ClientResponse, most_bytes: int, what: str) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > most_bytes:
            raise RolloutError(f"{what}: answers with more than {most_bytes} bytes, which no right answer has")
    return bytes(content)


def _object(content: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RolloutError(f"{what}: answers with {_shown(content)}, which is no JSON object")
    return found


def _message(content: bytes) -> str:
    """Of an error, as OpenAI's servers give it, or whatever came."""
    try:
        return str(json.loads(content)["error"]["message"])[:500]
    except (ValueError, RecursionError, TypeError, KeyError):
        return _shown(content)


def _shown(content: bytes) -> str:
    text = content[:80].decode(errors="replace")
    return repr(text + ("..." if len(content) > 80 else ""))


class _Reader:
    """Reads a server's answer to one request. Raises RolloutError for whatever it cannot be."""

    def __init__(self, request: Request, expected: Expected, url: str) -> None:
        self._request, self._expected, self._url = request, expected, url
        self._prompt = [*request.prompt.ids.tolist(), *request.prefix.tolist()]

    def answer(self, found: dict[str, Any], version: int | None) -> Answer:
        """version: of the weights that the servers were given."""
        told = found.get("weight_version")
        if told != version or isinstance(told, bool):
            raise self._error(
                f"was generated with weights of version {told!r}, the servers were given version {version}; look for "
                "somebody else who updates this server"
            )
        choices, samples = found.get("choices"), self._request.samples
        if not isinstance(choices, list) or len(choices) != len(samples):
            count = len(choices) if isinstance(choices, list) else "no list of"
            raise self._error(f"has {count} choices, n was {len(samples)}")
        pieces = tuple(self._piece(index, choice) for index, choice in enumerate(choices))
        assert version is not None
        return Answer(number=self._request.number, weight_version=version, pieces=pieces)

    def _piece(self, index: int, choice: Any) -> Piece:
        if not isinstance(choice, dict) or choice.get("index") != index:
            raise self._error(f"choice {index} is not where it belongs, or no object")
        if choice.get("prompt_token_ids") != self._prompt:
            raise self._error(
                f"choice {index} answers other prompt_token_ids than it was asked; the server must take ids as they are"
            )
        ids = self._ids(index, choice.get("token_ids"))
        logprobs = self._logprobs(index, choice.get("logprobs"), ids.size)
        reason = choice.get("finish_reason")
        if reason not in _REASONS:
            raise self._error(f"choice {index} has finish_reason {reason!r}; legal: {', '.join(_REASONS)}")
        most = self._request.settings.max_new_tokens - self._request.prefix.size
        ends = ids.size > 0 and int(ids[-1]) in self._expected.eos_ids
        if reason == "stop" and not ends:
            last = int(ids[-1]) if ids.size else "no token"
            raise self._error(
                f"choice {index} stopped at {last}, which is none of the end tokens {sorted(self._expected.eos_ids)}; "
                "the server must stop at these alone, and return the last one"
            )
        if reason == "length" and ids.size != most:
            raise self._error(f"choice {index} ended at {ids.size} tokens for its length, max_tokens was {most}")
        return Piece(
            ids=ids,
            logprobs=logprobs,
            finish_reason=_REASONS[reason],
            routing=self._routing(index, choice.get("routed_experts"), ids.size),
        )

    def _ids(self, index: int, found: Any) -> np.ndarray:
        most, size = self._request.settings.max_new_tokens - self._request.prefix.size, self._expected.vocab_size
        if not isinstance(found, list) or not all(type(token) is int for token in found):
            raise self._error(f"choice {index} has no list of token_ids; the server must know return_token_ids")
        if len(found) > most:
            raise self._error(f"choice {index} has {len(found)} tokens, max_tokens was {most}")
        wrong = next((token for token in found if not 0 <= token < size), None)
        if wrong is not None:
            raise self._error(f"choice {index} has token id {wrong}; the vocabulary has {size}")
        return np.array(found, np.int32)

    def _logprobs(self, index: int, found: Any, num_tokens: int) -> np.ndarray:
        values = found.get("token_logprobs") if isinstance(found, dict) else None
        if not isinstance(values, list) or len(values) != num_tokens:
            count = len(values) if isinstance(values, list) else "no"
            raise self._error(f"choice {index} has {count} log-probs for {num_tokens} tokens")
        wrong = next(
            (one for one in values if type(one) not in (float, int) or not math.isfinite(one) or one > _ROUNDING), None
        )
        if wrong is not None:
            raise self._error(f"choice {index} has the log-prob {wrong!r}; legal are finite numbers up to 0")
        return np.array(values, np.float32)

    def _routing(self, index: int, found: Any, num_tokens: int) -> Routing | None:
        like = self._expected.routing
        if like is None:
            return None
        if not isinstance(found, dict):
            raise self._error(
                f"choice {index} has no routed_experts, which rollout.record_experts asks for; set it to false, or "
                "take a server that returns them"
            )
        num_prompt = len(self._prompt) - 1 if num_tokens else 0
        return Routing(
            prompt_LX=self._experts(index, found, "prompt", num_prompt, like),
            response_LX=self._experts(index, found, "response", num_tokens, like),
        )

    def _experts(self, index: int, found: dict[str, Any], key: str, rows: int, like: np.ndarray) -> np.ndarray:
        try:
            content = base64.b64decode(found[key], validate=True)
            experts = np.frombuffer(content, like.dtype).reshape(rows, like.shape[1])
        except (KeyError, TypeError, ValueError):
            raise self._error(
                f"choice {index}: routed_experts.{key} is not base64 of {like.dtype.name} [{rows}, {like.shape[1]}]"
            ) from None
        if experts.size and not (experts.min() >= 0 and experts.max() < self._expected.num_experts):
            raise self._error(
                f"choice {index}: routed_experts.{key} names an expert beyond {self._expected.num_experts}"
            )
        return experts.copy()

    def _error(self, what: str) -> RolloutError:
        return RolloutError(f"{self._url}: the answer to request {self._request.number} {what}")


# Log-probs of tokens that are certain may come out above 0 by the rounding of a float32 sum.
_ROUNDING = 1e-4
