"""What may be asked of a completion server: the body of a request, checked, as a `Request`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgspo.config.data import LEAST_TEMPERATURE, LEAST_TOP_P
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingFilter, SamplingSettings
from mindgspo.rollout.service import Request
from mindgspo.text import did_you_mean
from mindgspo.types import Prompt

_numbers = itertools.count(1)
_BYTES_PER_TOKEN, _MORE_BYTES = 16, 1 << 16
# Of these, model, logprobs, return_token_ids and user change nothing.
_KEYS = (
    *("prompt", "n", "max_tokens", "temperature", "top_k", "top_p", "seed", "random_stream", "number"),
    *("model", "logprobs", "return_token_ids", "return_routed_experts", "user"),
)
# What OpenAI takes where another key is absent, which some clients send; null is that for every key.
_DEFAULTS = {
    **{"best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "presence_penalty": 0, "stop": []},
    **{"stream": False, "suffix": ""},
}


class RequestError(ValueError):
    """A request that is not served; its text names key, value and limit. status: of HTTP."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one server. name: of its model. max_prompt_length, max_new_tokens: tokens of a prompt and of a whole response,
    prefix and end included. max_samples: of one request. most_requests: that wait or run. sampling_filter: where a
    request names none. records_experts: of training responses."""

    name: str
    vocab_size: int
    max_prompt_length: int
    max_new_tokens: int
    max_samples: int
    most_requests: int
    sampling_filter: SamplingFilter
    records_experts: bool

    @property
    def most_body_bytes(self) -> int:
        """Of a request."""
        return _MORE_BYTES + _BYTES_PER_TOKEN * (self.max_prompt_length + self.max_new_tokens) + 16 * self.max_samples


def described(limits: Limits) -> dict[str, Any]:
    """What a client may want to know."""
    return {
        "model": limits.name,
        "vocab_size": limits.vocab_size,
        "max_prompt_length": limits.max_prompt_length,
        "max_new_tokens": limits.max_new_tokens,
    }


def request_of(asked: Mapping[str, Any], limits: Limits) -> Request:
    """Raises RequestError. `number`, where it is given, is the server's own; else the next one is taken."""
    _check_keys(asked, limits)
    stream = asked.get("random_stream")
    if stream is not None and not isinstance(stream, Mapping):
        raise RequestError("random_stream: is no object")
    start = 0 if stream is None else _whole(stream, "start", 0, limits.max_new_tokens - 1)
    ids = _ids(asked.get("prompt"), start, limits)
    samples, random = _samples(asked, stream, limits)
    if start and len(samples) > 1:
        raise RequestError(f"n: {len(samples)} samples cannot go on behind one prefix; ask for each of them")
    most = limits.max_new_tokens - start
    settings = SamplingSettings(
        num_samples=len(samples),
        temperature=_number(asked, "temperature", 1.0, LEAST_TEMPERATURE, 100.0, or_zero="the likeliest token"),
        max_new_tokens=start + _whole(asked, "max_tokens", 1, most, default=min(16, most)),
        stream=random,
        sampling_filter=_sampling_filter(asked, limits),
    )
    prompt = Prompt(
        index=0 if stream is None else _whole(stream, "prompt_index", 0, 1 << 48),
        ids=ids[: ids.size - start],
        text="",
        answer="",
        data_source="",
    )
    number = asked["number"] if "number" in asked else next(_numbers)
    return Request(number=number, prompt=prompt, samples=samples, settings=settings, prefix=ids[ids.size - start :])


def _check_keys(asked: Mapping[str, Any], limits: Limits) -> None:
    for key, value in asked.items():
        if key not in _KEYS and value is not None and value is not False and value != _DEFAULTS.get(key):
            raise RequestError(f"{key:.40}: is not served{did_you_mean(key[:40], _KEYS)}")
    if asked.get("return_routed_experts") and not limits.records_experts:
        raise RequestError("return_routed_experts: none are recorded here; serve with rollout.record_experts=true")


def _samples(
    asked: Mapping[str, Any], stream: Mapping[str, Any] | None, limits: Limits
) -> tuple[tuple[int, ...], RandomStream]:
    count = _whole(asked, "n", 1, limits.max_samples, default=1)
    if stream is None:
        seed = _whole(asked, "seed", 0, (1 << 64) - 1, default=0)
        return tuple(range(count)), RandomStream(seed=seed, purpose=Purpose.EVALUATION, step=0)
    samples = stream.get("samples")
    if (
        not isinstance(samples, list)
        or len(samples) != count
        or not all(type(one) is int and 0 <= one < 1 << 32 for one in samples)
    ):
        raise RequestError(f"random_stream.samples: are not n = {count} whole numbers")
    legal = [int(purpose) for purpose in Purpose]
    purpose = _whole(stream, "purpose", min(legal), max(legal))
    return tuple(samples), RandomStream(
        seed=_whole(stream, "seed", 0, (1 << 64) - 1),
        purpose=Purpose(purpose),
        step=_whole(stream, "step", 0, (1 << 48) - 1),
        draw=_whole(stream, "draw", 0, (1 << 48) - 1),
    )


def _ids(found: Any, start: int, limits: Limits) -> np.ndarray:
    most = limits.max_prompt_length + start
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise RequestError("prompt: is no list of token ids; text is not served")
    if not start < len(found) <= most:
        raise RequestError(f"prompt: {len(found)} tokens; legal: {start + 1} to {most}")
    wrong = next((token for token in found if not 0 <= token < limits.vocab_size), None)
    if wrong is not None:
        raise RequestError(f"prompt: token id {wrong}; the vocabulary has {limits.vocab_size}")
    return np.array(found, np.int32)


def _sampling_filter(asked: Mapping[str, Any], limits: Limits) -> SamplingFilter:
    if asked.get("top_k") is None and asked.get("top_p") is None:
        return limits.sampling_filter
    top_k = _whole(asked, "top_k", -1, limits.vocab_size, default=-1)
    top_p = _number(asked, "top_p", 1.0, LEAST_TOP_P, 1.0)
    return SamplingFilter(max(top_k, 0), top_p)


def _whole(asked: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None) -> int:
    value = _given(asked, key, default)
    if type(value) is not int or not least <= value <= most:
        raise RequestError(f"{key}: {_shown(value)}; legal are whole numbers from {least} to {most}")
    return value


def _number(
    asked: Mapping[str, Any], key: str, default: float, least: float, most: float, *, or_zero: str = ""
) -> float:
    """or_zero: what 0 means, where it is legal too."""
    value = _given(asked, key, default)
    # Compared as it is: a whole number may be too large for a float. No comparison holds for NaN.
    if type(value) not in (int, float) or not (least <= value <= most or (or_zero and value == 0)):
        also = f", and 0 ({or_zero})" if or_zero else ""
        raise RequestError(f"{key}: {_shown(value)}; legal are numbers from {least:g} to {most:g}{also}")
    return float(value)


def _given(asked: Mapping[str, Any], key: str, default: float | None) -> Any:
    value = asked.get(key)
    return default if value is None else value


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.40}"
    except ValueError:  # Python writes no whole number of thousands of digits
        return f"a whole number of {value.bit_length()} bits"
