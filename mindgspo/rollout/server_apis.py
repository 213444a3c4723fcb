"""How completion servers are asked: those of `mindgspo serve`, vLLM's and SGLang's have other routes and fields for the
same things. An answer is brought into the form of `mindgspo serve`, which `AnswerReader` then checks: nothing is
checked here. docs/rollout_servers.md says which versions were read.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mindgspo.rollout.protocol import SamplingFilter
from mindgspo.rollout.server_answers import Expected
from mindgspo.rollout.service import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One of those that hand weights over, or end what runs. path: with its query. body: JSON. is_right: whether the
    answer, {} where it is empty, says that it was done. may_lack: older servers do not know the route."""

    path: str
    method: Literal["GET", "POST"] = "POST"
    body: dict[str, Any] = field(default_factory=dict)
    is_right: Callable[[Mapping[str, Any]], bool] = lambda answer: True
    may_lack: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAPI:
    """completions: path. ask: its body. read: answer -> that of `mindgspo serve`; raises whatever Python does for
    another form. abort: ends what runs. load: takes the weights in a folder over, under a version. label: of a version,
    as the server tells it. always_tells: each answer has one. bytes_per_token: of an answer, at most. signs: both sides
    sign with a key where there is one; else it is sent."""

    completions: str
    ask: Callable[[Request, SamplingFilter, Expected], dict[str, Any]]
    read: Callable[[Any, Request, Expected], dict[str, Any]]
    abort: tuple[Call, ...]
    load: Callable[[Path, int], tuple[Call, ...]]
    label: Callable[[int], int | str]
    always_tells: bool
    bytes_per_token: int
    signs: bool = False


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
    """Of servers that draw in their own way; below 2**31."""
    return zlib.crc32(json.dumps(_stream(request)).encode()) >> 1


def _sampling(request: Request, sampling_filter: SamplingFilter) -> dict[str, Any]:
    """Under names that all servers share. Greedy sampling needs no filter."""
    settings = request.settings
    sampling: dict[str, Any] = {"temperature": settings.temperature}
    if settings.temperature > 0:
        sampling |= {"top_k": sampling_filter.top_k or -1, "top_p": sampling_filter.top_p}
    return sampling


def _most_tokens(request: Request) -> int:
    return request.settings.max_new_tokens - int(request.prefix.size)


def _completion(request: Request, sampling_filter: SamplingFilter) -> dict[str, Any]:
    """What OpenAI's servers share, for ids instead of text."""
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


def _ask_mindgspo(request: Request, sampling_filter: SamplingFilter, expected: Expected) -> dict[str, Any]:
    return _completion(request, sampling_filter) | {
        "return_routed_experts": expected.routing is not None,
        "random_stream": _stream(request),
    }


def _load_mindgspo(folder: Path, version: int) -> tuple[Call, ...]:
    body = {"folder": str(folder), "version": version}
    return (Call(path="/update_weights", body=body, is_right=_tells(version)),)


def _tells(version: int | str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda answer: answer.get("weight_version") == version


# ---- vLLM


def _ask_vllm(request: Request, sampling_filter: SamplingFilter, expected: Expected) -> dict[str, Any]:
    return _completion(request, sampling_filter) | {
        # Those of the model's generation_config.json would be taken otherwise, and so would its ends.
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
        choice["routed_experts"] = _experts(choice.get("routed_experts"), len(choice["token_ids"]), request, expected)
    return {"weight_version": _only(versions), "choices": choices}


def _load_vllm(folder: Path, version: int) -> tuple[Call, ...]:
    label, reload = str(version), {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    return (
        Call(path="/collective_rpc", body=reload),
        Call(path="/reset_prefix_cache", is_right=lambda answer: answer.get("success", True) is True),
        Call(path="/resume"),  # behind the pause of a trainer that was killed
        Call(path="/update_weight_version", body={"new_version": label}, may_lack=True),
        Call(path="/weight_info", method="GET", is_right=_tells(label), may_lack=True),
    )


# ---- SGLang


def _ask_sglang(request: Request, sampling_filter: SamplingFilter, expected: Expected) -> dict[str, Any]:
    # One entry per response, because siblings of one entry would share its seed.
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
            raise ValueError("output_token_logprobs are of other tokens than output_ids")
        reason = meta["finish_reason"]["type"]
        if reason == "abort" and ids:  # looked at before the ends are: what ended in that very step has ended
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
                "routed_experts": _experts(meta.get("routed_experts"), len(ids), request, expected),
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


# ---- what both have


def _only(versions: set[Any]) -> Any:
    """None where nothing tells one, all of them where there are several."""
    return next(iter(versions), None) if len(versions) < 2 else sorted(versions, key=str)


def _experts(found: Any, num_tokens: int, request: Request, expected: Expected) -> dict[str, str] | None:
    """found: base64, of vLLM in numpy's file format, of SGLang of int32; of all tokens of prompt and response but the
    last."""
    if expected.routing is None or (found is None and num_tokens):
        return None
    like, num_prompt = expected.routing, len(request.token_ids) - 1
    if not num_tokens:
        return {"prompt": "", "response": ""}
    content = base64.b64decode(found, validate=True)
    dtype, content = _npy(content) if content.startswith(_NPY_MAGIC) else (np.dtype(np.int32), content)
    whole = np.frombuffer(content, dtype).reshape(num_prompt + num_tokens, like.shape[1])
    if not (whole.min() >= 0 and whole.max() < expected.num_experts):
        raise ValueError(f"routed_experts name an expert beyond {expected.num_experts}")
    parts = {"prompt": whole[:num_prompt], "response": whole[num_prompt:]}
    return {name: base64.b64encode(part.astype(like.dtype).tobytes()).decode() for name, part in parts.items()}


_NPY_MAGIC = b"\x93NUMPY"


def _npy(content: bytes) -> tuple[np.dtype, bytes]:
    """Type and numbers of a small file; nothing is unpickled, and what the header says of a size is not believed."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("routed_experts are in another version of numpy's format")
    _, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or dtype.kind not in "iu":
        raise ValueError(f"routed_experts are of {dtype}, in another order or no whole numbers")
    return dtype, file.read()


SERVER_APIS: Mapping[str, ServerAPI] = {
    "mindgspo": ServerAPI(
        completions="/v1/completions",
        ask=_ask_mindgspo,
        read=lambda found, request, expected: found,
        abort=(Call(path="/abort_requests"),),
        load=_load_mindgspo,
        label=int,
        always_tells=True,
        bytes_per_token=96,
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
        bytes_per_token=512,  # the text as well, and each token's likeliest one
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
    ),
}
