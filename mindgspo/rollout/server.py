"""A completion server around the native engine: one replica of the infer plan, asked over HTTP.

    event loop (rank 0, `server_front`): requests -> orders      main thread: orders -> looks of the engine -> answers

The main thread of every rank alone touches MindSpore. Rank 0 tells the others before each look what has come, so that
all ranks of the replica run the same looks. docs/rollout_servers.md has the routes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from mindgspo.config import ModelSection
from mindgspo.errors import MindGSPOError, WeightsError
from mindgspo.models.weights import load_tensors
from mindgspo.parallel.collectives.host import exchange
from mindgspo.parallel.platform import heartbeat, runtime
from mindgspo.reshard.verify import sampled_names
from mindgspo.rollout.completions import Limits, request_of
from mindgspo.rollout.engine import Decoding, NativeEngine
from mindgspo.rollout.protocol import Purpose
from mindgspo.rollout.sequences import EndedRequest
from mindgspo.rollout.server_front import NO_WEIGHTS, ServerFront
from mindgspo.rollout.server_key import ServerKey
from mindgspo.rollout.service import NO_TOKENS, Request
from mindgspo.rollout.weights_folder import open_weights
from mindgspo.types import Routing

_IDLE_S = 5.0  # the other ranks of a replica hear from rank 0 at least so often


@dataclass(frozen=True, slots=True)
class _Order:
    """kind: ask, forget, abort, load, sleep, wake, stop. content: JSON. done: of rank 0, see `server_front.Order`."""

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
        self._later: deque[Request] = deque()  # sampled in another way than what runs
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
        """Serve until `stop`, or until a signal ends this process. listener: a bound socket, of rank 0. key, folders:
        see `ServerFront`. ready: called on rank 0."""
        if listener is None:
            self._work()
            return
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="answers over HTTP", daemon=True)
        thread.start()
        front = ServerFront(self._limits, self._ordered, self._state, key=key, folders=folders)
        asyncio.run_coroutine_threadsafe(front.open(listener), loop).result()
        ready()
        try:
            self._work()
        finally:
            asyncio.run_coroutine_threadsafe(front.close(), loop).result(timeout=5.0)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def stop(self) -> None:
        """Of a replica of one rank; a signal handler may call it."""
        self._orders.put(_Order("stop", {}, Future()))

    def _ordered(self, kind: str, content: dict[str, Any]) -> Future:
        order = _Order(kind, content, Future())
        self._orders.put(order)
        return order.done

    def _state(self) -> dict[str, Any]:
        return {"weight_version": self._version, "is_sleeping": self._is_asleep}

    # ---- the main thread

    def _work(self) -> None:
        while True:
            for order in self._told(self._taken()):
                if order.kind == "stop":
                    return
                try:
                    self._follow(order)
                except Exception as error:
                    order.done.set_result(_defect(error))
            try:
                self._generate()
            except Exception as error:
                self._give_up(_defect(error))
            heartbeat.tick()

    def _generate(self) -> None:
        self._begin()
        if self._decoding is not None and not self._decoding.done:
            self._decoding.advance()
            self._answer(self._decoding.ended())

    def _give_up(self, answer: tuple[int, str]) -> None:
        """What runs and waits."""
        self._decoding = None
        self._later.clear()
        asked, self._asked = self._asked, {}
        for done in asked.values():
            done.set_result(answer)

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
        (message,) = exchange(message if runtime.rank() == 0 else b"", senders=(0,))
        if runtime.rank() == 0:
            return orders
        return [_Order(kind, content, Future()) for kind, content in json.loads(message)]

    def _follow(self, order: _Order) -> None:
        answer: tuple[int, Any] | None = None
        if order.kind == "ask" and self._version is None:
            answer = NO_WEIGHTS
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
            answer = 409, f"requests run; POST /abort_requests first, or wait, before {order.kind}"
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
            kind = settings.temperature, settings.sampling_filter, settings.stream.purpose
            if self._decoding is None or kind != self._kind:
                if self._decoding is not None and not self._decoding.done:
                    return
                self._decoding, self._kind = self._engine.begin(settings), kind
            self._decoding.add(self._later.popleft())

    def _stop(self, numbers: Collection[int] | None = None) -> None:
        """Answer these requests, or all, as far as they have come."""
        if self._decoding is not None:
            self._answer(self._decoding.abort(numbers))
        later, self._later = self._later, deque()
        for request in later:
            if numbers is None or request.number in numbers:
                nothing = tuple(NO_TOKENS for _ in request.samples)
                self._answer([EndedRequest(request=request, pieces=nothing, seconds=(0.0,) * len(nothing))])
            else:
                self._later.append(request)

    def _answer(self, ended: list[EndedRequest]) -> None:
        for one in ended:
            is_finite = all(np.isfinite(piece.logprobs).all() for piece in one.pieces)
            self._asked.pop(one.request.number).set_result(
                (200, self._described(one))
                if is_finite
                else (422, f"weights of version {self._version} give log-probs that are no finite numbers")
            )

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

    def _load(self, folder: Path, version: int) -> tuple[int, Any]:
        if self._is_asleep:
            return 409, "asleep; POST /wake_up first"
        # The ranks of a replica go on with the same weights, or with none.
        before, self._version = self._version, None
        told = [json.loads(message) for message in exchange(json.dumps(self._read(folder, version)).encode())]
        if problem := next((problem for problem, _ in told if problem), None):
            if not any(is_touched for _, is_touched in told):
                self._version = before
            return 400, problem
        self._engine.load_weights(version)
        self._version, self._loads = version, self._loads + 1
        return 200, {"weight_version": version}

    def _read(self, folder: Path, version: int) -> tuple[str, bool]:
        """Fill this rank's parameters. Returns what is wrong, in one line, or nothing; whether any was filled."""
        is_touched = False
        try:
            with open_weights(folder) as weights:
                if weights.version != version:
                    raise WeightsError(f"{folder}: holds version {weights.version}, not {version}")
                is_touched = True
                load_tensors(self._model, self._section, weights.tensors)
                names = list(weights.digests)
                chosen = {"off": [], "sampled": sampled_names(names, self._loads), "full": names}[self._verify]
                for name in chosen:
                    weights.verify(name)
        except Exception as error:  # whatever is in the folder: the other ranks wait for what this one says
            if not isinstance(error, (MindGSPOError, OSError)):
                traceback.print_exc()
            return "; ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__, is_touched
        return "", True

    def _turn(self, *, is_asleep: bool) -> tuple[int, Any]:
        """Give the device's memory back, or take it again, without its content."""
        if is_asleep != self._is_asleep and runtime.current_device() == "Ascend":
            move = runtime.offload_parameter if is_asleep else runtime.load_parameter
            for parameter in (*self._model.get_parameters(), *self._engine.cache):
                move(parameter)
        self._is_asleep, self._version = is_asleep, None
        return 200, {"is_sleeping": is_asleep}


def _defect(error: Exception) -> tuple[int, str]:
    """What is answered in place of what cannot be done. Raised again with several ranks: the others of them may wait in
    a collective, which the launcher ends."""
    if runtime.world_size() > 1:
        raise error
    traceback.print_exc()
    return 500, f"a defect of this server: {type(error).__name__}; its log has more"


def _encoded(routing: Routing | None) -> dict[str, str]:
    """Bytes of both arrays, [tokens, X], of the type that the client knows from the model."""
    if routing is None:
        return {"prompt": "", "response": ""}
    return {
        "prompt": base64.b64encode(np.ascontiguousarray(routing.prompt_LX)).decode(),
        "response": base64.b64encode(np.ascontiguousarray(routing.response_LX)).decode(),
    }
