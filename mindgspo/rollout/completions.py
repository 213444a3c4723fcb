"""Requests to a completion server: validates the body of POST /v1/completions and turns it into a `Request`."""

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
_MOST_LIKELIEST = 128  # per token of a scored row; its answer has some 90 bytes of each
# model, logprobs, return_token_ids and user have no effect.
_KEYS = (
    *("prompt", "n", "max_tokens", "temperature", "top_k", "top_p", "seed", "random_stream", "number"),
    *("model", "logprobs", "return_token_ids", "return_routed_experts", "user", "may_continue", "prompt_logprobs"),
)
# OpenAI's defaults of unsupported keys, which some clients send.
_DEFAULTS = {
    **{"best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "presence_penalty": 0, "stop": []},
    **{"stream": False, "suffix": ""},
}


class RequestError(ValueError):
    """A refused request. Its text names key, value and limits; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the requests to one server."""

    name: str
    """Name of the model."""
    vocab_size: int
    max_prompt_length: int
    """In tokens."""
    max_new_tokens: int
    """Tokens of a whole response, prefix and EOS included."""
    max_samples: int
    """Per request."""
    most_requests: int
    """Waiting and running."""
    sampling_filter: SamplingFilter
    """For requests without top_k and top_p."""
    records_experts: bool
    """Training responses have `Routing`."""

    @property
    def most_body_bytes(self) -> int:
        """Upper bound of a request's size."""
        return _MORE_BYTES + _BYTES_PER_TOKEN * (self.max_prompt_length + self.max_new_tokens) + 16 * self.max_samples


def request_of(asked: Mapping[str, Any], limits: Limits) -> Request:
    """Validate a body. Raises RequestError. `number`, where present, is the server's own; else the next one is used."""
    _check_keys(asked, limits)
    stream = asked.get("random_stream")
    if stream is not None and not isinstance(stream, Mapping):
        raise RequestError("random_stream: is not an object")
    start = 0 if stream is None else _number(stream, "start", 0, limits.max_new_tokens - 1)
    ids = _ids(asked.get("prompt"), start + 1, limits.max_prompt_length + start, limits)
    samples, random = _samples(asked, stream, limits)
    if start and len(samples) > 1:
        raise RequestError(f"n: {len(samples)} samples cannot continue one prefix; request each of them on its own")
    most = limits.max_new_tokens - start
    temperature = _number(asked, "temperature", LEAST_TEMPERATURE, 100, default=1.0, or_zero="the likeliest token")
    settings = SamplingSettings(
        num_samples=len(samples),
        temperature=float(temperature),
        max_new_tokens=start + _number(asked, "max_tokens", 1, most, default=min(16, most)),
        stream=random,
        sampling_filter=_sampling_filter(asked, limits),
    )
    prompt = Prompt(
        index=0 if stream is None else _number(stream, "prompt_index", 0, 1 << 48),
        ids=ids[: ids.size - start],
        text="",
        answer="",
        data_source="",
    )
    if (may_continue := bool(asked.get("may_continue"))) and len(samples) > 1:
        raise RequestError(f"may_continue: {len(samples)} samples; request each of them on its own")
    return Request(
        number=asked["number"] if "number" in asked else next(_numbers),
        prompt=prompt,
        samples=samples,
        settings=settings,
        prefix=ids[ids.size - start :],
        may_continue=may_continue,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoringRequest:
    """Asks for the log-probs of given ids."""

    number: int
    """Unique among the requests that run."""
    ids: np.ndarray
    """int32 [L], at least 2."""
    top_k: int
    """Number of likeliest ids whose log-probs are wanted as well."""


def scoring_request_of(asked: Mapping[str, Any], limits: Limits) -> ScoringRequest:
    """Validate a body with prompt_logprobs. Raises RequestError. Nothing is generated: what other keys say of that has
    no effect, but those of the number of tokens and responses are checked."""
    _check_keys(asked, limits)
    top_k = _number(asked, "prompt_logprobs", 0, min(_MOST_LIKELIEST, limits.vocab_size))
    _number(asked, "max_tokens", 0, 1, default=0)
    _number(asked, "n", 1, 1, default=1)
    ids = _ids(asked.get("prompt"), 2, limits.max_prompt_length + limits.max_new_tokens, limits)
    return ScoringRequest(number=asked["number"] if "number" in asked else next(_numbers), ids=ids, top_k=top_k)


def _check_keys(asked: Mapping[str, Any], limits: Limits) -> None:
    for key, value in asked.items():
        if key not in _KEYS and value is not None and value is not False and value != _DEFAULTS.get(key):
            raise RequestError(f"{key:.40}: is not supported{did_you_mean(key[:40], _KEYS)}")
    if asked.get("return_routed_experts") and not limits.records_experts:
        raise RequestError("return_routed_experts: not recorded here; serve with rollout.record_experts=true")


def _samples(
    asked: Mapping[str, Any], stream: Mapping[str, Any] | None, limits: Limits
) -> tuple[tuple[int, ...], RandomStream]:
    count = _number(asked, "n", 1, limits.max_samples, default=1)
    if stream is None:
        seed = _number(asked, "seed", 0, (1 << 64) - 1, default=0)
        return tuple(range(count)), RandomStream(seed=seed, purpose=Purpose.EVALUATION, step=0)
    samples = stream.get("samples")
    if (
        not isinstance(samples, list)
        or len(samples) != count
        or not all(type(one) is int and 0 <= one < 1 << 32 for one in samples)
    ):
        raise RequestError(f"random_stream.samples: must be n = {count} whole numbers")
    return tuple(samples), RandomStream(
        seed=_number(stream, "seed", 0, (1 << 64) - 1),
        purpose=Purpose(_number(stream, "purpose", min(Purpose).value, max(Purpose).value)),
        step=_number(stream, "step", 0, (1 << 48) - 1),
        draw=_number(stream, "draw", 0, (1 << 48) - 1),
    )


def _ids(found: Any, least: int, most: int, limits: Limits) -> np.ndarray:
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise RequestError("prompt: must be a list of token ids; text is not supported")
    if not least <= len(found) <= most:
        raise RequestError(f"prompt: {len(found)} tokens; legal: {least} to {most}")
    if wrong := [token for token in found if not 0 <= token < limits.vocab_size]:
        raise RequestError(f"prompt: token id {wrong[0]}; the vocabulary has {limits.vocab_size}")
    return np.array(found, np.int32)


def _sampling_filter(asked: Mapping[str, Any], limits: Limits) -> SamplingFilter:
    if asked.get("top_k") is None and asked.get("top_p") is None:
        return limits.sampling_filter
    top_k = _number(asked, "top_k", -1, limits.vocab_size, default=-1)
    return SamplingFilter(max(top_k, 0), float(_number(asked, "top_p", LEAST_TOP_P, 1, default=1.0)))


def _number(
    asked: Mapping[str, Any], key: str, least: float, most: int, *, default: float | None = None, or_zero: str = ""
) -> Any:
    """Return a whole number; where the default is a float, any number. or_zero: the meaning of 0, where it is legal
    beside the range."""
    value = asked.get(key)
    if value is None:
        value = default
    is_float = isinstance(default, float)
    # Compared before any conversion: an int may be too large for a float. Every comparison with NaN is false.
    if (
        value is None
        or type(value) not in ((int, float) if is_float else (int,))
        or not (least <= value <= most or (or_zero and value == 0))
    ):
        kind, also = "" if is_float else "whole ", f", and 0 ({or_zero})" if or_zero else ""
        raise RequestError(f"{key}: {value!r:.40}; legal are {kind}numbers from {least} to {most}{also}")
    return value
