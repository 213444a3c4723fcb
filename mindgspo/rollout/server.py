"""`mindgspo serve`: one replica of an experiment's infer plan, as a completion server over HTTP.

    event loop (rank 0, `ServerFront`): requests -> orders      main thread: orders -> decode steps, scores -> answers

Only the main threads touch MindSpore. Before each run of decode steps rank 0 broadcasts the new orders, so all ranks of
the replica do the same. docs/rollout_servers.md lists the routes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.config import ExperimentConfig, ModelSection
from mindgspo.errors import MindGSPOError, WeightsError
from mindgspo.models.initial_values import open_base
from mindgspo.models.model import Model
from mindgspo.models.policy import build_model
from mindgspo.models.weights import fill_model, hold_in_compute_type, load_adapters, load_tensors
from mindgspo.parallel.collectives.host import exchange
from mindgspo.parallel.platform import heartbeat, runtime, worker_process
from mindgspo.parallel.platform.cluster import infer_place, start_device
from mindgspo.reshard.verify import sampled_names
from mindgspo.rollout.build import native_engine
from mindgspo.rollout.completions import Limits, request_of, scoring_request_of
from mindgspo.rollout.engine import Decoding, NativeEngine
from mindgspo.rollout.given_rows import Entries, GivenRows
from mindgspo.rollout.protocol import Purpose, SamplingFilter
from mindgspo.rollout.sequences import EndedRequest
from mindgspo.rollout.server_front import NO_WEIGHTS, ServerFront
from mindgspo.rollout.server_key import ServerKey
from mindgspo.rollout.service import NO_TOKENS, Request
from mindgspo.rollout.weights_folder import open_weights
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.types import Routing

_IDLE_S = 5.0  # longest silence of rank 0 towards the other ranks of a replica


@dataclass(frozen=True, slots=True)
class Base:
    """The base that a server holds, for adapters that come alone."""

    model: ModelSection
    """That of the trainer, with adapters."""
    seed: int
    """What the base is drawn from where it has no files."""
    digest: str


def serve(
    config: ExperimentConfig,
    listener: socket.socket | None,
    *,
    key: ServerKey | None,
    folders: Sequence[Path],
    ready: Callable[[], None],
    base: Base | None = None,
    own_weights: bool = False,
) -> None:
    """Serve until a signal ends this process; on all ranks of the replica.

    config: see `replica_config`. base: where adapters come alone. own_weights: start with the model's own weights, as
    version 0. The others: see `CompletionServer.run`. Raises the errors of `mindgspo.errors`, and OSError where it
    cannot listen.
    """
    start_device(config)
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    model = build_model(config.model, infer_place(config))
    hold_in_compute_type(model)
    limits = Limits(
        name=config.experiment,
        vocab_size=config.model.vocab_size,
        max_prompt_length=config.data.max_prompt_length,
        max_new_tokens=config.rollout.max_new_tokens,
        max_samples=max(config.rollout.num_generations, config.eval.num_samples),
        most_requests=max(1024, 4 * config.rollout.slots),
        sampling_filter=SamplingFilter(config.rollout.top_k, config.rollout.top_p),
        records_experts=bool(config.rollout.record_experts),
    )
    engine = native_engine(config, model, tokenizer)
    server = CompletionServer(engine, model, tokenizer, limits, verify=config.reshard.verify, base=base)
    if own_weights:
        fill_model(model, config.model, config.seed)
        server.begin(0)
    if not worker_process.is_launched():
        # Not by an exception: one that is raised inside a callback of Python or MindSpore is lost.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
    server.run(listener, key=key, folders=folders, ready=ready)


@dataclass(frozen=True, slots=True)
class _Order:
    kind: str
    """ask, score, forget, abort, load, sleep, wake or stop."""
    content: dict[str, Any]
    """JSON."""
    done: Future = field(default_factory=Future)
    """Receives the answer on rank 0, see `server_front.Order`."""


class CompletionServer:
    """Answers the orders of a `ServerFront` with an engine.

    model: the one whose parameters the engine reads. verify: see `reshard.verify`. base: where adapters come alone.
    """

    def __init__(
        self,
        engine: NativeEngine,
        model: Model,
        tokenizer: Tokenizer,
        limits: Limits,
        *,
        verify: str,
        base: Base | None = None,
    ) -> None:
        self._engine, self._model, self._limits, self._verify = engine, model, limits, verify
        self._tokenizer, self._given = tokenizer, GivenRows(model)
        self._base, self._has_base = base, False
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._version: int | None = None
        self._num_loads = 0
        self._decoding: Decoding | None = None
        self._sampling: tuple | None = None
        self._later: deque[Request] = deque()  # they are sampled in another way than what runs
        self._asked: dict[int, Future] = {}
        self._is_asleep = False

    def run(
        self,
        listener: socket.socket | None,
        *,
        key: ServerKey | None,
        folders: Sequence[Path],
        ready: Callable[[], None],
    ) -> None:
        """Serve on all ranks until `stop`, or until a signal ends this process.

        listener: a bound socket on rank 0, None on the others.
        key, folders: see `ServerFront`.
        ready: called on rank 0 when requests are accepted.
        """
        if listener is None:
            self._work()
            return
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="answers over HTTP", daemon=True)
        thread.start()
        decode = self._tokenizer.decode
        front = ServerFront(self._limits, self._ordered, self._state, decode, key=key, folders=folders)
        asyncio.run_coroutine_threadsafe(front.open(listener), loop).result()
        ready()
        try:
            self._work()
        finally:
            asyncio.run_coroutine_threadsafe(front.close(), loop).result(timeout=5.0)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def begin(self, version: int) -> None:
        """Use the model's present weights, as version `version`."""
        self._decoding = None  # and with it the keys and values of responses that may be continued
        self._engine.load_weights(version)
        self._version, self._num_loads = version, self._num_loads + 1

    def stop(self) -> None:
        """End `run` of a replica with one rank; a signal handler may call it."""
        self._ordered("stop", {})

    def _ordered(self, kind: str, content: dict[str, Any]) -> Future:
        order = _Order(kind, content)
        self._orders.put(order)
        return order.done

    def _state(self) -> dict[str, Any]:
        return {"weight_version": self._version, "is_sleeping": self._is_asleep}

    # ---- the main thread

    def _work(self) -> None:
        while True:
            for order in self._broadcast(self._taken()):
                if order.kind == "stop":
                    return
                try:
                    answer = self._follow(order)
                except Exception as error:
                    answer = _failure(error)
                if answer is not None:
                    order.done.set_result(answer)
            try:
                self._generate()
                self._score()
            except Exception as error:
                self._give_up(_failure(error))
            heartbeat.tick()

    def _taken(self) -> list[_Order]:
        """New orders on rank 0; waits for one while nothing runs."""
        found: list[_Order] = []
        if runtime.rank() > 0:
            return found
        try:
            if not self._is_busy:
                found.append(self._orders.get(timeout=_IDLE_S))
            while True:
                found.append(self._orders.get_nowait())
        except queue.Empty:
            return found

    def _broadcast(self, orders: list[_Order]) -> list[_Order]:
        """Return the orders of rank 0 on all ranks."""
        if runtime.world_size() == 1:
            return orders
        message = json.dumps([[order.kind, order.content] for order in orders]).encode()
        (message,) = exchange(message if runtime.rank() == 0 else b"", senders=(0,))
        if runtime.rank() == 0:
            return orders
        return [_Order(kind, content) for kind, content in json.loads(message)]

    @property
    def _is_busy(self) -> bool:
        return bool(self._later) or bool(self._given) or (self._decoding is not None and not self._decoding.done)

    def _follow(self, order: _Order) -> tuple[int, Any] | None:
        """Return the answer to an order; None if it comes later."""
        kind, content = order.kind, order.content
        if kind in ("ask", "score"):
            if self._version is None:
                return NO_WEIGHTS
            if kind == "ask":
                self._later.append(request := request_of(content, self._limits))
            else:
                self._given.add(request := scoring_request_of(content, self._limits))
            self._asked[request.number] = order.done
            return None
        if kind in ("abort", "forget"):
            self._abort(None if kind == "abort" else {content["number"]})
            return 200, {}
        if self._is_busy:
            return 409, f"requests are running; POST /abort_requests before {kind}, or wait for them"
        if kind == "load":
            return self._load(Path(content["folder"]), content["version"])
        return self._set_asleep(kind == "sleep")

    def _generate(self) -> None:
        while self._later:
            settings = self._later[0].settings
            sampling = settings.temperature, settings.sampling_filter, settings.stream.purpose
            if self._decoding is None or sampling != self._sampling:
                if self._decoding is not None and not self._decoding.done:
                    break
                self._decoding, self._sampling = self._engine.begin(settings), sampling
            self._decoding.add(self._later.popleft())
        if self._decoding is not None and not self._decoding.done:
            self._decoding.advance()
            self._answer(self._decoding.ended())

    def _score(self) -> None:
        for request, entries in self._given.score() if self._given else ():
            answer: tuple[int, Any] = 422, self._not_finite
            if entries is not None:
                answer = 200, self._scored(request.ids.tolist(), entries)
            self._asked.pop(request.number).set_result(answer)

    def _give_up(self, answer: tuple[int, str]) -> None:
        """Answer all requests with an error."""
        self._decoding = None
        self._given.drop(None)
        self._later.clear()
        asked, self._asked = self._asked, {}
        for done in asked.values():
            done.set_result(answer)

    def _abort(self, numbers: Collection[int] | None) -> None:
        """Answer these requests, or all, with the tokens generated so far; rows that wait to be scored have none."""
        for row in self._given.drop(numbers):
            self._asked.pop(row.number).set_result((503, "aborted before it was scored; ask again"))
        if self._decoding is not None:
            self._answer(self._decoding.abort(numbers))
        later, self._later = self._later, deque()
        for request in later:
            if numbers is not None and request.number not in numbers:
                self._later.append(request)
                continue
            count = len(request.samples)
            self._answer([EndedRequest(request=request, pieces=(NO_TOKENS,) * count, seconds=(0.0,) * count)])

    def _answer(self, ended: list[EndedRequest]) -> None:
        for one in ended:
            answer: tuple[int, Any] = 200, self._described(one)
            if not all(np.isfinite(piece.logprobs).all() for piece in one.pieces):
                answer = 422, self._not_finite
            self._asked.pop(one.request.number).set_result(answer)

    def _described(self, ended: EndedRequest) -> dict[str, Any]:
        request = ended.request
        prompt = request.token_ids
        is_recorded = request.settings.stream.purpose is Purpose.TRAINING and self._limits.records_experts
        choices = [
            {
                "index": index,
                "token_ids": piece.ids.tolist(),
                "prompt_token_ids": prompt,
                # As float64, a float32 survives JSON bit for bit.
                "logprobs": {"token_logprobs": piece.logprobs.tolist()},
                "finish_reason": "abort" if piece.finish_reason is None else piece.finish_reason.value,
                "routed_experts": _encoded(piece.routing) if is_recorded else None,
            }
            for index, piece in enumerate(ended.pieces)
        ]
        tokens = sum(piece.ids.size for piece in ended.pieces)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": tokens, "total_tokens": len(prompt) + tokens}
        return {"weight_version": self._version, "choices": choices, "usage": usage}

    @property
    def _not_finite(self) -> str:
        return f"weights of version {self._version} give log-probs that are NaN or Inf"

    def _scored(self, ids: list[int], entries: Entries) -> dict[str, Any]:
        choice = {
            "index": 0,
            "token_ids": [],
            "prompt_token_ids": ids,
            "prompt_logprobs": entries,
            "finish_reason": "length",
        }
        usage = {"prompt_tokens": len(ids), "completion_tokens": 0, "total_tokens": len(ids)}
        return {"weight_version": self._version, "choices": [choice], "usage": usage}

    def _load(self, folder: Path, version: int) -> tuple[int, Any]:
        if self._is_asleep:
            return 409, "the server sleeps; POST /wake_up first"
        # All ranks of a replica continue with the same weights, or with none.
        before, self._version = self._version, None
        reports = [json.loads(message) for message in exchange(json.dumps(self._read(folder, version)).encode())]
        if problem := next((problem for problem, _ in reports if problem), None):
            if not any(is_touched for _, is_touched in reports):
                self._version = before
            return 400, problem
        self.begin(version)
        return 200, {"weight_version": version}

    def _read(self, folder: Path, version: int) -> tuple[str, bool]:
        """Fill this rank's parameters. Returns the problem in one line, or "", and whether any parameter was filled."""
        is_touched = False
        try:
            with open_weights(folder) as weights:
                if weights.version != version:
                    raise WeightsError(f"{folder}: holds version {weights.version}, not {version}")
                is_touched = True
                if self._base is None:
                    load_tensors(self._model, self._model.config, weights.tensors)
                else:
                    model, digest, is_first = self._base.model, self._base.digest, not self._has_base
                    with open_base(model, self._base.seed) as base:
                        load_adapters(self._model, model, folder, base=digest, weights=base, whole=is_first)
                    self._has_base = True
                names = list(weights.digests)
                for name in {"off": [], "sampled": sampled_names(names, self._num_loads), "full": names}[self._verify]:
                    weights.verify(name)
        except Exception as error:  # of any kind: the other ranks wait for this one's report
            if not isinstance(error, (MindGSPOError, OSError)):
                traceback.print_exc()
            return "; ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__, is_touched
        return "", True

    def _set_asleep(self, is_asleep: bool) -> tuple[int, Any]:
        """Release the card's memory, or take it back without its content."""
        if is_asleep != self._is_asleep and runtime.current_device() == "Ascend":
            move = runtime.offload_parameter if is_asleep else runtime.load_parameter
            for parameter in (*self._model.get_parameters(), *self._engine.cache):
                move(parameter)
        self._is_asleep, self._version, self._has_base = is_asleep, None, False
        return 200, {"is_sleeping": is_asleep}


def _failure(error: Exception) -> tuple[int, str]:
    """The answer to an unexpected exception. With several ranks it is raised again, because the others may already wait
    in a collective; the launcher then ends them."""
    if runtime.world_size() > 1:
        raise error
    traceback.print_exc()
    return 500, f"internal error of this server: {type(error).__name__}; see its log"


def _encoded(routing: Routing | None) -> dict[str, str]:
    """Base64 of the arrays [L, X]; the client knows their type from the model."""
    arrays = {} if routing is None else {"prompt": routing.prompt_LX, "response": routing.response_LX}
    encoded = {name: base64.b64encode(np.ascontiguousarray(array)).decode() for name, array in arrays.items()}
    return {"prompt": "", "response": ""} | encoded
