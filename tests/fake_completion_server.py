"""A completion server without a model, on a real port: it answers from a script in the way of `mindgspo serve`, vLLM or
SGLang, and misbehaves as it is told."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from aiohttp import web

from mindgspo.rollout.server_key import NONCE, ServerKey

EOS = 2
VOCAB = 50
LOGPROB = -0.25
NUM_EXPERTS, EXPERTS_PER_TOKEN = 4, 2


def given_logprob(token: int, place: int) -> float:
    """The log-prob of an id as the place-th of a row, from 0; the probabilities of 50 ids sum to less than 1."""
    return -4.0 - ((7 * token + 3 * place) % VOCAB) / 16


def script(sample: int) -> list[int]:
    """The whole response of a sample."""
    return [10 + sample, 11, 12, EOS]


class FakeServer:
    """spoil: what is sent in place of an answer to a completion: an object for JSON, bytes, a status. failures: of the
    next requests, "drop" or a status, before any is answered. held_at: tokens behind which responses wait until they
    are aborted. knows_versions: whether weights have one that is told, as in newer vLLMs. key: signs answers, and
    nothing else is answered than what is signed. headers: of all answers. adapters: names of those that are loaded;
    None: it was started without them. facts: what it tells of its model. port: where it listens, 0 for a free one.

    asked: bodies of completion requests. calls: paths and bodies of the others. most: requests answered at once.
    heard: headers of all requests.
    """

    def __init__(
        self,
        api: str = "mindgspo",
        *,
        spoil: Callable[[Any], Any] = lambda answer: answer,
        failures: tuple[str | int, ...] = (),
        held_at: int | None = None,
        knows_versions: bool = True,
        key: ServerKey | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        adapters: set[str] | None = None,
        facts: Mapping[str, Any] = MappingProxyType({}),
        port: int = 0,
    ) -> None:
        self.api, self.spoil, self.failures, self.held_at = api, spoil, list(failures), held_at
        self.knows_versions, self.key, self.headers, self.adapters = knows_versions, key, headers, adapters
        self.facts, self.port = facts, port
        self.heard: list[Mapping[str, str]] = []
        self.asked: list[dict[str, Any]] = []
        self.calls: list[tuple[str, Any]] = []
        self.most = 0
        self._running = 0
        self._version: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="a completion server", daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> str:
        self._aborted = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{self.port}"

    async def _end(self) -> None:
        await self._runner.cleanup()
        held = asyncio.all_tasks() - {asyncio.current_task()}
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        self.heard.append(dict(request.headers))
        if self.key is not None and not self.key.allows(request.headers, request.method, request.raw_path, content):
            return web.json_response({"error": {"message": "a key is needed"}}, status=401)
        answer = await self._answered(request, json.loads(content or b"{}"))
        answer.headers.update(self.headers)
        if self.key is not None:
            answer.headers.update(self.key.proof(request.headers[NONCE], answer.status, answer.body))
        return answer

    async def _answered(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.path in ("/v1/completions", "/generate"):
            return await self._completion(request, body)
        if request.path != "/health":
            self.calls.append((request.path_qs, body))
        return await self._call(request.path, body)

    async def _call(self, path: str, body: dict[str, Any]) -> web.Response:
        answer: Any = {}
        if path == "/health":
            answer = dict(self.facts)
        elif path == "/v1/models":
            answer = {"object": "list", "data": [dict(self.facts)]}
        elif path in ("/abort_requests", "/pause", "/abort_request"):
            self._aborted.set()
            self._aborted = asyncio.Event()
        elif path == "/update_weights":
            self._version = body["version"]
            answer = {"weight_version": self._version}
        elif path == "/update_weights_from_disk":
            self._version = body["weight_version"]
            answer = {"success": True, "message": "", "num_paused_requests": 0}
        elif path in ("/update_weight_version", "/weight_info"):
            if not self.knows_versions:
                return web.json_response({"detail": "Not Found"}, status=404)
            self._version = body.get("new_version", self._version)
            answer = {"weight_version": self._version}
        elif path == "/model_info":
            answer = {"weight_version": self._version}
        elif path == "/reset_prefix_cache":
            answer = {"success": True}
        elif path.endswith("load_lora_adapter"):
            return self._adapter(body["lora_name"], is_loaded="unload" not in path)
        if path == "/abort_request":
            return web.Response()
        return web.json_response(answer)

    def _adapter(self, name: str, *, is_loaded: bool) -> web.Response:
        is_vllm = self.api == "vllm"
        if self.adapters is None or (name in self.adapters) == is_loaded:
            status = 404 if is_vllm and (self.adapters is None or not is_loaded) else 400
            error = {"error": {"message": name}} if is_vllm else {"success": False, "error_message": name}
            return web.json_response(error, status=status)
        self.adapters ^= {name}
        if is_vllm:
            return web.Response(
                text=f"Success: LoRA adapter '{name}' {'added' if is_loaded else 'removed'} successfully."
            )
        return web.json_response({"success": True, "error_message": None, "loaded_adapters": {}})

    async def _completion(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.asked.append(body)
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            failure = self.failures.pop(0) if self.failures else None
            if failure == "drop":
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            if isinstance(failure, int):
                return web.json_response({"error": {"message": "not ready"}}, status=failure)
            named = body.get("lora_path", body.get("model", "policy"))
            if named != "policy" and named not in (self.adapters or ()):
                return web.json_response({"error": {"message": f"{named} is not loaded"}}, status=404)
            if self.api == "mindgspo" and self._version is None and "prompt_logprobs" not in body:
                return web.json_response({"error": {"message": "no weights yet"}}, status=503)
            if self.held_at is not None:
                await self._aborted.wait()
            answer = self.spoil(self._answer(body))
        finally:
            self._running -= 1
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "no such model"}}, status=answer)
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        return web.json_response(answer)

    def _answer(self, body: dict[str, Any]) -> Any:
        if "prompt_logprobs" in body:
            return self._scored(body["prompt"], body["prompt_logprobs"])
        if self.api == "sglang":
            pairs = zip(body["input_ids"], body["sampling_params"], strict=True)
            return [
                self._of_sglang(index, prompt, sampling, body["return_routed_experts"])
                for index, (prompt, sampling) in enumerate(pairs)
            ]
        stream = body.get("random_stream", {"samples": range(body["n"]), "start": 0})
        choices = []
        for index, sample in enumerate(stream["samples"]):
            ids, reason = self._drawn(sample, stream["start"], body["max_tokens"])
            choices.append(
                {
                    "index": index,
                    "token_ids": ids,
                    "prompt_token_ids": body["prompt"],
                    "logprobs": {"token_logprobs": [LOGPROB] * len(ids)},
                    "finish_reason": reason,
                    "routed_experts": None,
                }
            )
            if self.api == "vllm":
                choices[-1]["text"] = "text"
                choices[-1]["routed_experts"] = _npy(len(body["prompt"]) + len(ids) - 1) if ids else None
                if self.knows_versions:
                    span = {"version": self._version, "start": 0, "end": len(ids)}
                    choices[-1]["weight_versions"] = [span] if ids else None
        told = {"weight_version": self._version} if self.api == "mindgspo" else {}
        return {"choices": choices} | (told if self.adapters is None else {"model": body["model"]})

    def _scored(self, prompt: list[int], top: int) -> Any:
        """As vLLM answers (completion/protocol.py, logprobs.py): the likeliest ids, and the row's own beside them."""
        entries: list[Any] = [None]
        for place, own in enumerate(prompt[1:], start=1):
            in_order = sorted(range(VOCAB), key=lambda token: -given_logprob(token, place))
            named = [*in_order[:top], *([own] if own not in in_order[:top] else [])]
            entries.append({
                str(token): {
                    "logprob": given_logprob(token, place), "rank": in_order.index(token) + 1,
                    "decoded_token": f"t{token}",
                } for token in named
            })  # fmt: skip
        choice = {
            "index": 0, "text": " x", "logprobs": None, "finish_reason": "length", "stop_reason": None,
            "token_ids": [11], "prompt_logprobs": entries, "prompt_token_ids": prompt,
        }  # fmt: skip
        told = {"weight_version": self._version} if self.api == "mindgspo" else {"kv_transfer_params": None}
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]} | told

    def _of_sglang(self, sample: int, prompt: list[int], sampling: dict[str, Any], with_experts: bool) -> Any:
        ids, reason = self._drawn(sample, 0, sampling["max_new_tokens"])
        meta: dict[str, Any] = {
            "finish_reason": {"type": reason},
            "weight_version": self._version,
            "output_token_logprobs": [[LOGPROB, token, None] for token in ids],
        }
        if with_experts and ids:
            meta["routed_experts"] = base64.b64encode(experts(len(prompt) + len(ids) - 1).tobytes()).decode()
        return {"text": "text", "output_ids": ids, "prompt_token_ids": prompt, "meta_info": meta}

    def _drawn(self, sample: int, start: int, most: int) -> tuple[list[int], str]:
        rest = script(sample)[start:]
        if self.held_at is not None and len(rest[: self.held_at]) < min(len(rest), most):
            return rest[: self.held_at], "abort"
        return rest[:most], "stop" if len(rest) <= most else "length"


def experts(num_tokens: int) -> np.ndarray:
    """int32 [num_tokens, EXPERTS_PER_TOKEN]: different ones for each token."""
    return (np.arange(num_tokens * EXPERTS_PER_TOKEN, dtype=np.int32) % NUM_EXPERTS).reshape(num_tokens, -1)


def _npy(num_tokens: int) -> str:
    file = io.BytesIO()
    np.save(file, experts(num_tokens).astype(np.uint16)[:, None, :])  # of one layer
    return base64.b64encode(file.getvalue()).decode()
