"""Bodies of POST /v1/completions: OpenAI's defaults, and numbers that nothing can be drawn with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mindgspo.rollout.completions import Limits, RequestError, request_of
from mindgspo.rollout.protocol import SamplingFilter
from mindgspo.rollout.service import Request

LIMITS = Limits(
    name="m", vocab_size=512, max_prompt_length=32, max_new_tokens=40, max_samples=8, most_requests=16,
    sampling_filter=SamplingFilter(0, 0.9), records_experts=False,
)  # fmt: skip


def asked(**more: Any) -> Request:
    return request_of({"prompt": [5], **more, "number": 1}, LIMITS)


def test_null_is_the_default() -> None:
    for key in ("n", "max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "random_stream", "logprobs", "user",
                "model", "stream", "return_routed_experts", "best_of", "logit_bias"):  # fmt: skip
        assert asked(**{key: None}).settings == asked().settings, key


def test_the_end_of_a_prompt_may_be_the_begin_of_its_response() -> None:
    stream = {"seed": 1, "purpose": 1, "step": 2, "draw": 0, "prompt_index": 3, "samples": [0], "start": 2}
    request = asked(prompt=[5, 6, 7, 8], n=1, max_tokens=10, random_stream=stream)
    assert (request.prompt.ids.tolist(), request.prefix.tolist()) == ([5, 6], [7, 8])
    assert (request.prompt.index, request.settings.max_new_tokens) == (3, 12)


def test_the_defaults_are_openais() -> None:
    settings = asked(n=None, max_tokens=None, temperature=None, seed=None).settings
    assert (settings.num_samples, settings.max_new_tokens, settings.temperature) == (1, 16, 1.0)
    assert settings.sampling_filter == SamplingFilter(0, 0.9)  # of the server
    assert asked(top_p=0.5, top_k=None).settings.sampling_filter == SamplingFilter(0, 0.5)
    assert asked(top_p=None, top_k=3).settings.sampling_filter == SamplingFilter(3, 1.0)
    sent_by_some = {"best_of": 1, "echo": False, "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}}
    assert asked(**sent_by_some, stop=[], suffix="", stream=False, user="me").settings == asked().settings


@pytest.mark.parametrize(("body", "said"), [
    ('{"prompt": null}', "prompt: must be a list of token ids"),
    ('{"temperature": 1e-40}', "temperature: 1e-40; legal are numbers from 0.001 to 100, and 0 (the likeliest"),
    ('{"temperature": 1e-320}', "temperature: 1e-320; legal are"),
    ('{"temperature": 0.0009}', "temperature: 0.0009; legal are"),
    ('{"temperature": -1e-40}', "temperature: -1e-40; legal are"),
    ('{"temperature": NaN}', "temperature: nan; legal are"),
    ('{"temperature": 1' + "0" * 400 + "}", "temperature: 1000000000000000000000000000000000000000; legal are"),
    ('{"temperature": true}', "temperature: True; legal are"),
    ('{"top_p": 1e-45}', "top_p: 1e-45; legal are numbers from 1e-06 to 1"),
    ('{"top_p": 0}', "top_p: 0; legal are numbers from 1e-06 to 1"),
    ('{"top_p": 1' + "0" * 400 + "}", "top_p: 1000000000000000000000000000000000000000; legal are"),
    ('{"top_p": Infinity}', "top_p: inf; legal are"),
    ('{"n": -Infinity}', "n: -inf; legal are whole numbers from 1 to 8"),
    ('{"seed": 18446744073709551616}', "seed: 18446744073709551616; legal are"),
    ('{"max_tokens": 1e1}', "max_tokens: 10.0; legal are whole numbers from 1 to 40"),
    ('{"best_of": 2}', "best_of: is not supported"),
    ('{"stop": ["\\n"]}', "stop: is not supported"),
    ('{"n": 2, "may_continue": true}', "may_continue: 2 samples"),
    ('{"temprature": 1}', "temprature: is not supported; did you mean 'temperature'?"),
])  # fmt: skip
def test_what_cannot_be_is_one_line_with_what_is_legal(body: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(**json.loads(body))
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_the_coldest_that_is_legal_and_greedy() -> None:
    assert asked(temperature=0.001).settings.temperature == 0.001 and asked(temperature=0).settings.temperature == 0
