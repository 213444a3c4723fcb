"""The APIs of `mindgspo serve`, vLLM and SGLang: how each is asked, and how its answers are read.

An answer is first brought into the form of `mindgspo serve`, then `AnswerReader` validates it against the request:
servers are not trusted. docs/rollout_servers.md lists the versions that this was written against.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mindgspo.errors import RolloutError
from mindgspo.rollout.protocol import SamplingFilter
from mindgspo.rollout.service import Answer, Piece, Request
from mindgspo.types import FinishReason, Routing

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": None}
# Below every float32; and above 0, because a float32 sum may round the log-prob of a certain token up.
LEAST_LOGPROB, MOST_LOGPROB = float(np.finfo(np.float32).min), 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Bounds that a valid answer keeps to."""

    vocab_size: int
    eos_ids: Collection[int]
    routing: np.ndarray | None = None
    """Empty array [0, X] of the integer type that stores expert numbers; None if experts are not recorded."""
    num_experts: int = 0
    dense_columns: int = 0
    """Columns that vLLM and SGLang put before those of `routing`, for dense layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request to a server."""

    path: str
    """With its query."""
    method: Literal["GET", "POST"] = "POST"
    body: dict[str, Any] = field(default_factory=dict)
    """Sent as JSON."""
    is_right: Callable[[Mapping[str, Any]], bool] = lambda answer: True
    """Whether the answer, {} where it is empty, confirms success."""
    is_text: bool = False
    """The answer is no JSON; its status alone counts."""
    passes: Container[int] = ()
    """Statuses beside 200 that are no failure, e.g. of a route that older servers lack."""
    needs: str = ""
    """What is said of the server where the call fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAPI:
    """The routes and fields of one kind of server."""

    completions: str
    """Path of the completions route."""
    ask: Callable[[Request, SamplingFilter, Expected], dict[str, Any]]
    """Returns the body of a completion request."""
    read: Callable[[Any, Request, Expected], dict[str, Any]]
    """Returns an answer in the form of `mindgspo serve`, with `routed_experts` decoded to int [L, X]. Whatever Python
    raises for an answer of another form passes through."""
    abort: tuple[Call, ...]
    """Ends all requests that are running."""
    load: Callable[[Path, int], tuple[Call, ...]]
    """Makes the server load the weights of a folder under a version."""
    label: Callable[[int], int | str]
    """Version as the server reports it."""
    always_tells: bool
    """Every answer reports its version."""
    bytes_per_token: int
    """Upper bound of an answer's size."""
    unload: Callable[[int], tuple[Call, ...]] = lambda version: ()
    """Takes away what was loaded under a version, where it is still there."""
    naming: Callable[[int], Mapping[str, str]] = lambda version: {}
    """Fields by which a completion request names its weights."""
    about: Call | None = Call(path="/v1/models", method="GET", passes=(404,))
    """Tells which model a server has; None: GET /health does."""
    facts: tuple[str, ...] = ()
    """What it tells of that model, and what stays as it is while weights change."""
    signs: bool = False
    """Both sides sign their messages with the key; otherwise the key itself is sent."""


class _Logprobs(BaseModel):
    token_logprobs: list[Annotated[float, Field(ge=LEAST_LOGPROB, le=MOST_LOGPROB)]]


class _Choice(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: Literal["stop", "length", "abort"]
    routed_experts: np.ndarray | None = None


class _Completion(BaseModel):
    weight_version: int | str | None = None
    choices: list[_Choice]


class AnswerReader:
    """Validates a server's answers to one request. Raises RolloutError, which names what came and what was expected."""

    def __init__(self, api: ServerAPI, request: Request, expected: Expected, url: str) -> None:
        self._api, self._request, self._expected, self._url = api, request, expected, url
        self._prompt = request.token_ids
        self._most_tokens = _most_tokens(request)

    def answer(self, content: Any, version: int) -> Answer:
        """content: parsed JSON. version: that of the weights which the servers were given."""
        try:
            found = _Completion.model_validate(self._api.read(content, self._request, self._expected), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "all of it"
            raise self._error(f"is invalid: {place}: {first['msg']}, not {first['input']!r:.40}") from None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise self._error(f"does not have the form that rollout.servers.api says ({error!r:.200})") from error
        is_untold = found.weight_version is None and not self._api.always_tells
        if not is_untold and found.weight_version != self._api.label(version):
            raise self._error(
                f"was generated with weights of version {found.weight_version!r:.40}, but the servers were given "
                f"version {version}; check whether someone else updates this server"
            )
        if len(found.choices) != len(self._request.samples):
            raise self._error(f"has {len(found.choices)} choices, n was {len(self._request.samples)}")
        pieces = tuple(self._piece(index, choice) for index, choice in enumerate(found.choices))
        return Answer(number=self._request.number, weight_version=version, pieces=pieces)

    def _piece(self, index: int, choice: _Choice) -> Piece:
        if choice.index != index:
            raise self._error(f"has choice {choice.index} in place {index}")
        if choice.prompt_token_ids != self._prompt:
            raise self._error(f"choice {index} has other prompt_token_ids than it was asked for")
        size, vocab_size = len(choice.token_ids), self._expected.vocab_size
        if size > self._most_tokens:
            raise self._error(f"choice {index} has {size} tokens, max_tokens was {self._most_tokens}")
        if wrong := [token for token in choice.token_ids if not 0 <= token < vocab_size]:
            raise self._error(f"choice {index} has token id {wrong[0]}; the vocabulary has {vocab_size}")
        logprobs = choice.logprobs.token_logprobs
        if len(logprobs) != size:
            raise self._error(f"choice {index} has {len(logprobs)} log-probs for {size} tokens")
        reason, eos_ids = choice.finish_reason, sorted(self._expected.eos_ids)
        ends = [place for place, token in enumerate(choice.token_ids) if token in eos_ids]
        if ends != [size - 1] * (reason == "stop"):
            raise self._error(
                f"choice {index} has finish_reason {reason!r} and end tokens at {ends[:9]} of {size}; the server must "
                f"stop at each of {eos_ids} and at nothing else, and return it"
            )
        if reason == "length" and size != self._most_tokens:
            raise self._error(f"choice {index} ended by length at {size}, max_tokens was {self._most_tokens}")
        return Piece(
            ids=np.array(choice.token_ids, np.int32),
            logprobs=np.array(logprobs, np.float32),
            finish_reason=_REASONS[reason],
            routing=self._routing(index, choice.routed_experts, size),
        )

    def _routing(self, index: int, found: np.ndarray | None, num_tokens: int) -> Routing | None:
        like, num_experts = self._expected.routing, self._expected.num_experts
        if like is None:
            return None
        # The last token is not fed to the model, so it has no experts; nor has the prompt of a response that never ran.
        num_prompt = len(self._prompt) - 1 if num_tokens else 0
        shape = (num_prompt + num_tokens, like.shape[1])
        if found is None or found.shape != shape:
            raise self._error(
                f"choice {index} has routed_experts of shape {None if found is None else found.shape} instead of "
                f"{shape}; set rollout.record_experts to false, or use a server that returns them"
            )
        if found.size and not (found.min() >= 0 and found.max() < num_experts):
            raise self._error(f"choice {index}: routed_experts name an expert beyond {num_experts}")
        experts = found.astype(like.dtype)
        return Routing(prompt_LX=experts[:num_prompt], response_LX=experts[num_prompt:])

    def _error(self, what: str) -> RolloutError:
        return RolloutError(f"{self._url}: the answer to request {self._request.number} {what}")


def _stream(request: Request) -> dict[str, Any]:
    stream = request.settings.stream
    return {
        "seed": stream.seed,
        "purpose": int(stream.purpose),
        "step": stream.step,
        "draw": stream.draw,
        "prompt_index": request.prompt.index,
        "samples": list(request.samples),
        "start": int(request.prefix.size),
    }


def _seed(request: Request) -> int:
    """Seed for servers with a random generator of their own; below 2**31."""
    return zlib.crc32(json.dumps(_stream(request)).encode()) >> 1


def _sampling(request: Request, sampling_filter: SamplingFilter) -> dict[str, Any]:
    """Fields that all APIs share. Greedy sampling needs no filter."""
    settings = request.settings
    sampling: dict[str, Any] = {"temperature": settings.temperature}
    if settings.temperature > 0:
        sampling |= {"top_k": sampling_filter.top_k or -1, "top_p": sampling_filter.top_p}
    return sampling


def _most_tokens(request: Request) -> int:
    return request.settings.max_new_tokens - int(request.prefix.size)


def _completion(request: Request, sampling_filter: SamplingFilter) -> dict[str, Any]:
    """Body in OpenAI's format, with token ids instead of text."""
    return {
        "model": "policy",
        "prompt": request.token_ids,
        "n": len(request.samples),
        "max_tokens": _most_tokens(request),
        **_sampling(request, sampling_filter),
        "logprobs": 0,
        "return_token_ids": True,
        "seed": _seed(request),
    }


# ---- mindgspo serve


def _read_mindgspo(found: Any, request: Request, expected: Expected) -> Any:
    if expected.routing is not None:
        for choice in found["choices"]:
            if parts := choice["routed_experts"]:
                content = b"".join(base64.b64decode(parts[name], validate=True) for name in ("prompt", "response"))
                choice["routed_experts"] = _rows(content, expected.routing.dtype, expected.routing.shape[1])
    return found


def _ask_mindgspo(request: Request, sampling_filter: SamplingFilter, expected: Expected) -> dict[str, Any]:
    return _completion(request, sampling_filter) | {
        "return_routed_experts": expected.routing is not None,
        "random_stream": _stream(request),
        "may_continue": request.may_continue,
    }


def _load_mindgspo(folder: Path, version: int) -> tuple[Call, ...]:
    body = {"folder": str(folder), "version": version}
    return (Call(path="/update_weights", body=body, is_right=_tells(version)),)


def _tells(version: int | str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda answer: answer.get("weight_version") == version


# ---- vLLM


def _ask_vllm(request: Request, sampling_filter: SamplingFilter, expected: Expected) -> dict[str, Any]:
    return _completion(request, sampling_filter) | {
        # Override the model's generation_config.json, including its end tokens.
        "repetition_penalty": 1.0,
        "min_p": 0.0,
        "ignore_eos": True,
        "stop_token_ids": sorted(expected.eos_ids),
        "return_tokens_as_token_ids": True,
        "return_weight_versions": True,
    }


def _read_vllm(found: Any, request: Request, expected: Expected) -> dict[str, Any]:
    choices = [dict(choice) for choice in found["choices"]]
    versions = {span["version"] for choice in choices for span in choice.get("weight_versions") or ()}
    for choice in choices:
        choice["routed_experts"] = _experts(choice.get("routed_experts"), expected)
    return {"weight_version": _only(versions), "choices": choices}


_RESUMED = (
    Call(path="/reset_prefix_cache", is_right=lambda answer: answer.get("success", True) is True),
    Call(path="/resume"),  # a trainer may have been killed after its pause
)


def _load_vllm(folder: Path, version: int) -> tuple[Call, ...]:
    label, reload = str(version), {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    return (
        Call(path="/collective_rpc", body=reload),
        *_RESUMED,
        Call(path="/update_weight_version", body={"new_version": label}, passes=(404,)),
        Call(path="/weight_info", method="GET", is_right=_tells(label), passes=(404,)),
    )


# ---- SGLang


def _ask_sglang(request: Request, sampling_filter: SamplingFilter, expected: Expected) -> dict[str, Any]:
    # One entry per response, because all samples of an entry would share its seed.
    samples, seed = range(len(request.samples)), _seed(request)
    sampling = {
        "max_new_tokens": _most_tokens(request),
        **_sampling(request, sampling_filter),
        "stop_token_ids": sorted(expected.eos_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }
    return {
        "input_ids": [request.token_ids for _ in samples],
        "sampling_params": [sampling | {"sampling_seed": seed + sample} for sample in samples],
        "return_logprob": True,
        "return_prompt_token_ids": True,
        "return_routed_experts": expected.routing is not None,
    }


def _read_sglang(found: Any, request: Request, expected: Expected) -> dict[str, Any]:
    choices, versions = [], set()
    for index, one in enumerate(found):
        meta, ids = one["meta_info"], one["output_ids"]
        pairs = [(logprob, token) for logprob, token, *_ in meta.get("output_token_logprobs") or ()]
        if [token for _, token in pairs] != ids:
            raise ValueError("output_token_logprobs and output_ids have different tokens")
        reason = meta["finish_reason"]["type"]
        if reason == "abort" and ids:  # SGLang reports this also for a response that ended in the very same step
            reason = "stop" if ids[-1] in expected.eos_ids else reason
            reason = "length" if reason == "abort" and len(ids) == _most_tokens(request) else reason
        spans = meta.get("weight_versions") or ()
        versions |= {span["version"] for span in spans} or {meta["weight_version"]}
        choices.append(
            {
                "index": index,
                "token_ids": ids,
                "prompt_token_ids": one["prompt_token_ids"],
                "logprobs": {"token_logprobs": [logprob for logprob, _ in pairs]},
                "finish_reason": reason,
                "routed_experts": _experts(meta.get("routed_experts"), expected),
            }
        )
    return {"weight_version": _only(versions), "choices": choices}


def _load_sglang(folder: Path, version: int) -> tuple[Call, ...]:
    label = str(version)
    body = {"model_path": str(folder), "weight_version": label, "flush_cache": True}
    return (
        Call(path="/update_weights_from_disk", body=body, is_right=lambda answer: answer.get("success") is True),
        Call(path="/model_info", method="GET", is_right=_tells(label)),
    )


# ---- shared by vLLM and SGLang


def _only(versions: set[Any]) -> Any:
    """The one version; None if none is reported, a text of all where there are several."""
    return next(iter(versions), None) if len(versions) < 2 else ", ".join(sorted(map(str, versions)))


def _experts(found: Any, expected: Expected) -> np.ndarray | None:
    """Decode the experts [L, X] of all tokens but the last. found: base64 of a .npy file (vLLM) or of int32
    (SGLang); missing for a response without tokens."""
    if expected.routing is None:
        return None
    content = base64.b64decode(found or "", validate=True)
    dtype, content = _npy(content) if content.startswith(_NPY_MAGIC) else (np.dtype(np.int32), content)
    return _rows(content, dtype, expected.dense_columns + expected.routing.shape[1])[:, expected.dense_columns :]


def _rows(content: bytes, dtype: np.dtype, width: int) -> np.ndarray:
    return np.frombuffer(content, dtype).reshape(-1, width)


_NPY_MAGIC = b"\x93NUMPY"


def _npy(content: bytes) -> tuple[np.dtype, bytes]:
    """Parse a .npy file into its type and raw numbers. Nothing is unpickled, and the header's shape is ignored."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("routed_experts use an unsupported version of the .npy format")
    _, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or dtype.kind not in "iu":
        raise ValueError(f"routed_experts are {dtype}, not integers in C order")
    return dtype, file.read()


SERVER_APIS: Mapping[str, ServerAPI] = {
    "mindgspo": ServerAPI(
        completions="/v1/completions",
        ask=_ask_mindgspo,
        read=_read_mindgspo,
        abort=(Call(path="/abort_requests"),),
        load=_load_mindgspo,
        label=int,
        always_tells=True,
        bytes_per_token=96,
        about=None,
        facts=("model", "vocab_size", "max_prompt_length", "max_new_tokens"),
        signs=True,
    ),
    "vllm": ServerAPI(
        completions="/v1/completions",
        ask=_ask_vllm,
        read=_read_vllm,
        abort=(Call(path="/pause?mode=abort"), Call(path="/resume")),
        load=_load_vllm,
        label=str,
        always_tells=False,  # from 0.33 on
        bytes_per_token=512,  # includes the text, and the most likely token of each position
        facts=("id", "root", "max_model_len"),
    ),
    "sglang": ServerAPI(
        completions="/generate",
        ask=_ask_sglang,
        read=_read_sglang,
        abort=(Call(path="/abort_request", body={"rid": "", "abort_all": True}),),
        load=_load_sglang,
        label=str,
        always_tells=True,
        bytes_per_token=256,
        facts=("max_model_len",),  # the model's name becomes that of the folder that weights were loaded from
    ),
}


def _adapter(version: int) -> str:
    return f"policy-{version}"


def _adapter_call(path: str, version: int, folder: Path | None = None, **more: Any) -> Call:
    body = {"lora_name": _adapter(version)} | ({} if folder is None else {"lora_path": str(folder)})
    return Call(path=path, body=body, is_text=True, **more)


_OF_VLLM = "; it must be started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and --max-lora-rank"
_OF_SGLANG = "; it must be started with --enable-lora, --max-lora-rank and --lora-target-modules"

ADAPTER_APIS: Mapping[str, ServerAPI] = {
    **SERVER_APIS,
    "vllm": replace(
        SERVER_APIS["vllm"],
        read=lambda *answer: _read_vllm(*answer) | {"weight_version": answer[0]["model"]},
        load=lambda folder, version: (
            _adapter_call("/v1/load_lora_adapter", version, folder, needs=_OF_VLLM),
            *_RESUMED,
        ),
        unload=lambda version: (_adapter_call("/v1/unload_lora_adapter", version, passes=(404,)),),
        naming=lambda version: {"model": _adapter(version)},
        label=_adapter,
        always_tells=True,
    ),
    "sglang": replace(
        SERVER_APIS["sglang"],
        read=lambda *answer: _read_sglang(*answer) | {"weight_version": None},  # which is that of the base
        load=lambda folder, version: (_adapter_call("/load_lora_adapter", version, folder, needs=_OF_SGLANG),),
        unload=lambda version: (_adapter_call("/unload_lora_adapter", version, passes=(400,)),),
        naming=lambda version: {"lora_path": _adapter(version)},
        always_tells=False,
    ),
}
"""With `rollout.lora: separate`, for servers that hold the base. The adapters of each version have a name of their own,
which requests give, so that no other ones answer."""
