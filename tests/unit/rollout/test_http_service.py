from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from fake_completion_server import EOS, EXPERTS_PER_TOKEN, LOGPROB, NUM_EXPERTS, VOCAB, FakeServer, experts, script

from mindgspo.errors import RolloutError
from mindgspo.rollout import server_apis, server_connection
from mindgspo.rollout.http_service import HTTPService
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingFilter, SamplingSettings
from mindgspo.rollout.server_apis import ADAPTER_APIS, SERVER_APIS, Expected
from mindgspo.rollout.server_connection import ServiceOptions
from mindgspo.rollout.server_key import ServerKey
from mindgspo.rollout.service import Answer, Request
from mindgspo.types import FinishReason, Prompt

APIS = sorted(SERVER_APIS)
EXPECTED = Expected(vocab_size=VOCAB, eos_ids=(EOS,))
ROUTED = Expected(
    vocab_size=VOCAB, eos_ids=(EOS,), routing=np.zeros((0, EXPERTS_PER_TOKEN), np.uint8), num_experts=NUM_EXPERTS
)


def connected(*urls: str, expected: Expected = EXPECTED, processes: dict[str, int] | None = None, **options: Any):
    chosen = {"most_running": 8, "timeout_s": 60.0, "retries": 1} | options
    return HTTPService(urls, expected, ServiceOptions(**chosen), lambda: processes or {})


@contextmanager
def asking(*servers: FakeServer, **options: Any) -> Iterator[HTTPService]:
    """A service over the servers, which have weights of version 3."""
    service = connected(*(server.url for server in servers), **{"api": SERVER_APIS[servers[0].api]} | options)
    try:
        service.load_weights(Path("/weights/version_3"), 3)
        yield service
    finally:
        service.close()


def request(number: int = 7, *, samples: Sequence[int] = (0, 1), longest: int = 8, **more: Any) -> Request:
    prompt = Prompt(index=40, ids=np.array([5, 6, 7], np.int32), text="2+2=", answer="4", data_source="arithmetic")
    stream = RandomStream(seed=9, purpose=Purpose.TRAINING, step=2, draw=1)
    settings = SamplingSettings(num_samples=2, temperature=0.5, max_new_tokens=longest, stream=stream)
    return Request(number=number, prompt=prompt, samples=tuple(samples), settings=settings, **more)


def answered(service: HTTPService, *requests: Request) -> list[Answer]:
    """All answers, by the number of the request."""
    service.submit(requests)
    answers: list[Answer] = []
    while len(answers) < len(requests):
        answers += service.wait()
    return sorted(answers, key=lambda answer: answer.number)


@pytest.mark.parametrize(("api", "knows_versions"), [*((api, True) for api in APIS), ("vllm", False)])
def test_responses_come_with_their_log_probs_and_their_version(api: str, knows_versions: bool) -> None:
    with FakeServer(api, knows_versions=knows_versions) as server, asking(server) as service:
        answer, longest = answered(service, request(), request(8, longest=3))
    assert [piece.ids.tolist() for piece in longest.pieces] == [[10, 11, 12], [11, 11, 12]]
    assert [piece.finish_reason for piece in longest.pieces] == [FinishReason.LENGTH] * 2
    assert (answer.number, answer.weight_version) == (7, 3)
    assert [piece.ids.tolist() for piece in answer.pieces] == [script(0), script(1)]
    assert [piece.finish_reason for piece in answer.pieces] == [FinishReason.STOP] * 2
    assert answer.pieces[0].logprobs.tolist() == [LOGPROB] * 4 and answer.pieces[0].ids.dtype == np.int32


@pytest.mark.parametrize("api", APIS)
def test_routing_is_that_of_prompt_and_response(api: str) -> None:
    def tell(answer: Any) -> Any:
        if api == "mindgspo":
            whole = experts(6).astype(np.uint8)
            for choice in answer["choices"]:
                choice["routed_experts"] = {"prompt": _base64(whole[:2]), "response": _base64(whole[2:])}
        return answer

    with FakeServer(api, spoil=tell) as server, asking(server, expected=ROUTED) as service:
        (answer,) = answered(service, request())
    routing = answer.pieces[1].routing
    assert routing is not None and routing.prompt_LX.dtype == np.uint8
    np.testing.assert_array_equal(routing.prompt_LX, experts(6)[:2])
    np.testing.assert_array_equal(routing.response_LX, experts(6)[2:])


def test_neither_routing_of_evaluation_nor_a_filter_of_greedy_responses_is_asked_for() -> None:
    settings = SamplingSettings(
        num_samples=1, temperature=0, max_new_tokens=8, sampling_filter=SamplingFilter(5, 0.9),
        stream=RandomStream(seed=9, purpose=Purpose.EVALUATION, step=2),
    )  # fmt: skip
    with FakeServer() as server, asking(server, expected=ROUTED) as service:
        (answer,) = answered(service, replace(request(), samples=(0,), settings=settings))
    assert answer.pieces[0].routing is None and server.asked[0]["return_routed_experts"] is False
    assert not {"top_k", "top_p"} & server.asked[0].keys()


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def test_what_mindgspo_serve_is_asked() -> None:
    with FakeServer() as server, asking(server) as service:
        answered(service, request(samples=[4], prefix=np.array([14], np.int32)))
    (asked,) = server.asked
    assert asked.pop("seed") < 2**31
    stream = {"seed": 9, "purpose": 1, "step": 2, "draw": 1, "prompt_index": 40, "samples": [4], "start": 1}
    assert asked == {
        "model": "policy", "prompt": [5, 6, 7, 14], "n": 1, "max_tokens": 7, "logprobs": 0, "return_token_ids": True,
        "temperature": 0.5, "top_k": -1, "top_p": 1.0, "return_routed_experts": False, "random_stream": stream,
        "may_continue": False,
    }  # fmt: skip
    assert server.calls == [("/update_weights", {"folder": "/weights/version_3", "version": 3})]


def test_what_vllm_is_asked() -> None:
    with FakeServer("vllm") as server, asking(server) as service:
        answered(service, request())
    (asked,) = server.asked
    assert (asked["prompt"], asked["n"], asked["max_tokens"]) == ([5, 6, 7], 2, 8)
    assert (asked["stop_token_ids"], asked["ignore_eos"], asked["logprobs"]) == ([EOS], True, 0)
    reload = {"method": "reload_weights", "kwargs": {"weights_path": "/weights/version_3"}}
    assert server.calls == [
        ("/collective_rpc", reload), ("/reset_prefix_cache", {}), ("/resume", {}),
        ("/update_weight_version", {"new_version": "3"}), ("/weight_info", {}),
    ]  # fmt: skip


def test_what_sglang_is_asked() -> None:
    with FakeServer("sglang") as server, asking(server) as service:
        answered(service, request())
    (asked,) = server.asked
    assert asked["input_ids"] == [[5, 6, 7]] * 2
    first, second = asked["sampling_params"]
    assert second["sampling_seed"] == first["sampling_seed"] + 1
    assert (first["max_new_tokens"], first["temperature"], first["stop_token_ids"]) == (8, 0.5, [EOS])
    body = {"model_path": "/weights/version_3", "weight_version": "3", "flush_cache": True}
    assert server.calls == [("/update_weights_from_disk", body), ("/model_info", {})]


@pytest.mark.parametrize(("api", "routes", "field"), [("vllm", "/v1/", "model"), ("sglang", "/", "lora_path")])
def test_adapters_have_a_name_per_version_which_requests_give(api: str, routes: str, field: str) -> None:
    with FakeServer(api, adapters={"policy-3"}) as server:  # loaded by a trainer that was killed
        with asking(server, api=ADAPTER_APIS[api]) as service:
            (first,) = answered(service, request())
            service.load_weights(Path("/weights/version_5"), 5)
            (second,) = answered(service, request(8))
        assert server.adapters == {"policy-5"}
    assert (first.weight_version, second.weight_version) == (3, 5)
    assert [asked[field] for asked in server.asked] == ["policy-3", "policy-5"]
    unload, load = f"{routes}unload_lora_adapter", f"{routes}load_lora_adapter"
    assert [call for call in server.calls if "lora" in call[0]] == [
        (unload, {"lora_name": "policy-3"}),
        (load, {"lora_name": "policy-3", "lora_path": "/weights/version_3"}),
        (unload, {"lora_name": "policy-3"}),
        (unload, {"lora_name": "policy-5"}),
        (load, {"lora_name": "policy-5", "lora_path": "/weights/version_5"}),
    ]
    if api == "vllm":  # the keys of its cache hold names
        assert server.calls[-2:] == [("/reset_prefix_cache", {}), ("/resume", {})]


@pytest.mark.parametrize(("api", "status"), [("vllm", 404), ("sglang", 400)])
def test_a_server_that_takes_no_adapters_or_answers_with_other_ones(api: str, status: int) -> None:
    said = f"/load_lora_adapter: status {status}: .*; it must be started with .*--enable-lora.* --max-lora-rank"
    with FakeServer(api) as server, pytest.raises(RolloutError, match=said), asking(server, api=ADAPTER_APIS[api]):
        pass
    if api == "vllm":
        server = FakeServer(api, adapters=set(), spoil=lambda answer: answer | {"model": "policy-2"})
        said = refusal(server, api=ADAPTER_APIS[api])
        assert said.startswith(": the answer to request 7 was generated with weights of version 'policy-2', but the")


def test_siblings_of_other_samples_are_drawn_from_other_seeds() -> None:
    with FakeServer() as server, asking(server) as service:
        answered(service, request(1, samples=[0]), request(2, samples=[1]))
        answered(service, request(3, samples=[0]))
    seeds = {asked["random_stream"]["samples"][0]: asked["seed"] for asked in server.asked}
    assert seeds[0] != seeds[1]
    assert sum(asked["seed"] == seeds[0] for asked in server.asked) == 2


# ---- many requests, several servers


@pytest.mark.parametrize(("most_running", "count"), [(6, 200), (400, 2000)])
def test_two_servers_share_the_requests_and_neither_is_flooded(most_running: int, count: int) -> None:
    with FakeServer() as one, FakeServer() as other, asking(one, other, most_running=most_running) as service:
        before = threading.active_count()
        answers = answered(service, *(request(number) for number in range(count)))
        assert threading.active_count() == before, "one thread handles them all"
    assert [answer.number for answer in answers] == list(range(count))
    assert min(len(one.asked), len(other.asked)) >= count / 4
    assert max(one.most, other.most) <= most_running / 2  # of two responses each


def test_an_episode_goes_on_where_its_cache_is() -> None:
    with FakeServer() as one, FakeServer() as other, asking(one, other) as service:
        samples = range(8)
        answered(service, *(request(number, samples=[number], may_continue=True) for number in samples))
        at_one = {asked["random_stream"]["samples"][0] for asked in one.asked}
        assert 0 < len(at_one) < 8, "the least busy server gets a fresh one"
        one.asked.clear(), other.asked.clear()
        prefix = np.array([14, 15], np.int32)
        answered(service, *(request(n, samples=[n], prefix=prefix, may_continue=True) for n in reversed(samples)))
        assert {asked["random_stream"]["samples"][0] for asked in one.asked} == at_one
        assert len(other.asked) == 8 - len(at_one) and all(asked["may_continue"] for asked in other.asked)


def test_idle_seconds_count_up_while_nothing_runs() -> None:
    with FakeServer() as server, asking(server) as service:
        answered(service, request())
        first = service.idle_seconds()
        assert service.idle_seconds() > first > 0
        server.held_at = 1
        service.submit([request(8)])
        while not server.most or len(server.asked) < 2:
            assert service.wait(timeout_s=0.01) == []
        busy = service.idle_seconds()
        assert service.idle_seconds() == busy
        service.abort()


# ---- cut


@pytest.mark.parametrize("api", APIS)
def test_what_runs_comes_back_as_far_as_it_has_come(api: str) -> None:
    with FakeServer(api, held_at=2) as server, asking(server, most_running=4) as service:
        service.submit([request(number) for number in range(5)])  # two run at a time
        while len(server.asked) < 2:
            assert service.wait(timeout_s=0.01) == []
        answers = sorted(service.abort(), key=lambda answer: answer.number)
        assert [answer.number for answer in answers] == list(range(5))
        assert [answer.pieces[0].ids.tolist() for answer in answers] == [[10, 11]] * 2 + [[]] * 3
        assert all(piece.finish_reason is None for answer in answers for piece in answer.pieces)
        assert len(server.asked) == 2
        server.held_at = None
        (answer,) = answered(service, request(9))
        calls = len(server.calls)
        assert service.abort() == [] and len(server.calls) == calls, "nothing runs"
    assert answer.pieces[0].ids.tolist() == script(0)


def test_a_cut_while_a_server_is_busy_asks_no_more() -> None:
    with FakeServer(failures=(503,) * 1000) as server, asking(server, retries=1000) as service:
        service.submit([request()])
        while not server.asked:
            assert service.wait(timeout_s=0.01) == []
        (answer,) = service.abort()
    assert [piece.ids.size for piece in answer.pieces] == [0, 0]


def test_an_aborted_response_of_sglang_that_has_ended_all_the_same() -> None:
    def abort(answer: Any) -> Any:
        for one in answer:
            one["meta_info"]["finish_reason"] = {"type": "abort"}
        return answer

    with FakeServer("sglang", spoil=abort) as server, asking(server) as service:
        (whole,) = answered(service, request())
        (longest,) = answered(service, request(8, longest=3))
    assert [piece.finish_reason for piece in whole.pieces] == [FinishReason.STOP] * 2
    assert [piece.finish_reason for piece in longest.pieces] == [FinishReason.LENGTH] * 2


# ---- what goes wrong


@pytest.mark.parametrize("failures", [("drop",), (503,), (429, "drop")])
def test_a_request_is_made_again(failures: tuple[str | int, ...]) -> None:
    with FakeServer(failures=failures) as server, asking(server, retries=2) as service:
        (answer,) = answered(service, request())
    assert answer.pieces[0].ids.tolist() == script(0)
    assert len(server.asked) == len(failures) + 1
    assert all(asked == server.asked[0] for asked in server.asked)


def refusal(server: FakeServer, **options: Any) -> str:
    """What is said of the answer to one request, without the server's address."""
    with server, asking(server, **options) as service, pytest.raises(RolloutError) as caught:
        answered(service, request())
    message = str(caught.value)
    assert "\n" not in message and message.startswith(server.url)
    return message.removeprefix(server.url)


@pytest.mark.parametrize(("failure", "said"), [("drop", "the connection broke ("), (503, "status 503: not ready, ")])
def test_a_server_that_fails_for_good(failure: str | int, said: str) -> None:
    message = refusal(FakeServer(failures=(failure,) * 9))
    assert message.startswith(f"/v1/completions: {said}") and message.endswith(", 2 times; see the server's log")


def test_a_server_that_is_gone() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    service = connected(url, retries=0)
    with pytest.raises(RolloutError, match=f"{url}: no server answers there .*; check rollout.servers.urls"):
        service.await_servers(0.1)
    service.close()


def test_a_slow_server() -> None:
    said = refusal(FakeServer(held_at=1), timeout_s=0.3)
    assert said.startswith("/v1/completions: no answer within 0.3 s; see the server's log, or raise rollout.servers")


def test_weights_that_a_server_does_not_take() -> None:
    class Stubborn(FakeServer):
        async def _call(self, path: str, body: dict[str, Any]) -> Any:
            return await super()._call(path, body | {"version": 2})

    said = r'/update_weights: was sent \{"folder": .*, "version": 3\}, and answers with .\{"weight_version": 2\}'
    with Stubborn() as server, pytest.raises(RolloutError, match=said), asking(server):
        pass


def change(**fields: Any) -> Callable[[Any], Any]:
    """Of the second choice."""

    def spoil(answer: Any) -> Any:
        answer["choices"][1] |= fields
        return answer

    return spoil


def set_logprobs(values: list[Any]) -> Callable[[Any], Any]:
    return change(logprobs={"token_logprobs": values})


def with_tokens(ids: list[int], reason: str) -> Callable[[Any], Any]:
    return change(token_ids=ids, finish_reason=reason, logprobs={"token_logprobs": [LOGPROB] * len(ids)})


REFUSALS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "other version": (lambda answer: answer | {"weight_version": 2}, "was generated with weights of version 2, but"),
    "no version": (lambda answer: {"choices": answer["choices"]}, "was generated with weights of version None, but"),
    "version as text": (lambda answer: answer | {"weight_version": "3"}, "was generated with weights of version '3',"),
    "other prompt": (change(prompt_token_ids=[5, 6, 8]), "choice 1 has other prompt_token_ids than"),
    "id beyond the vocabulary": (with_tokens([11, 50, EOS], "stop"), "choice 1 has token id 50; the vocabulary has 50"),
    "negative id": (with_tokens([11, -1, EOS], "stop"), "choice 1 has token id -1; the vocabulary has 50"),
    "no ids": (change(token_ids=None), "is invalid: choices.1.token_ids: Input should be a valid list, not"),
    "ids of another type": (change(token_ids=[True, 11.0, EOS]), "is invalid: choices.1.token_ids.0: Input"),
    "no log-probs": (change(logprobs=None), "is invalid: choices.1.logprobs: Input should be"),
    "too few log-probs": (set_logprobs([LOGPROB] * 3), "choice 1 has 3 log-probs for 4 tokens"),
    **{
        f"log-prob {value!r:.9}": (
            set_logprobs([LOGPROB, value, LOGPROB, LOGPROB]), "is invalid: choices.1.logprobs.token_logprobs.1: Input",
        )
        for value in (float("nan"), -float("inf"), -3.45e38, -(10**400), 0.5, "-1", True)
    },
    "too few choices": (lambda answer: answer | {"choices": answer["choices"][:1]}, "has 1 choices, n was 2"),
    "no choices": (lambda answer: answer | {"choices": None}, "is invalid: choices: Input should be a valid list, not"),
    "other order": (lambda answer: answer | {"choices": answer["choices"][::-1]}, "has choice 1 in place 0"),
    "no objects": (lambda answer: answer | {"choices": [1, 2]}, "is invalid: choices.0: Input should be"),
    "more tokens than asked for": (with_tokens([11] * 9, "length"), "choice 1 has 9 tokens, max_tokens was 8"),
    "fewer tokens": (with_tokens([11] * 3, "length"), "choice 1 ended by length at 3, max_tokens was 8"),
    "unknown reason": (change(finish_reason="tool_calls"), "is invalid: choices.1.finish_reason: Input"),
    "stop without an end": (with_tokens([11, 12], "stop"), "choice 1 has finish_reason 'stop' and end tokens at []"),
    "stop without a token": (with_tokens([], "stop"), "choice 1 has finish_reason 'stop' and end tokens at []"),
    "no stop at an end": (with_tokens([11, EOS, 12, EOS], "stop"), "choice 1 has finish_reason 'stop' and end"),
    "end at its longest": (with_tokens([11] * 7 + [EOS], "length"), "choice 1 has finish_reason 'length' and end"),
    "no object": (lambda answer: [answer], "is invalid: all of it: Input should be"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_answer_that_cannot_be_right(kind: str) -> None:
    spoil, said = REFUSALS[kind]
    assert refusal(FakeServer(spoil=spoil)).startswith(f": the answer to request 7 {said}")


_GOOD = {"prompt": _base64(experts(2).astype(np.uint8)), "response": _base64(experts(4).astype(np.uint8))}
_SHORT = _GOOD | {"response": _base64(experts(3).astype(np.uint8))}
_UNKNOWN = _GOOD | {"prompt": _base64(np.full((2, 2), 4, np.uint8))}


@pytest.mark.parametrize(("found", "said"), [
    (None, "choice 1 has routed_experts of shape None instead of (6, 2); set rollout.record_experts"),
    (_SHORT, "choice 1 has routed_experts of shape (5, 2) instead of (6, 2); set rollout.record_experts to false"),
    (_GOOD | {"prompt": "*"}, "form that rollout.servers.api says (Error("),
    (_UNKNOWN, "choice 1: routed_experts name an expert beyond 4"),
])  # fmt: skip
def test_routing_that_cannot_be_right(found: Any, said: str) -> None:
    def spoil(answer: Any) -> Any:
        answer["choices"][0]["routed_experts"] = _GOOD
        return change(routed_experts=found)(answer)

    assert said in refusal(FakeServer(spoil=spoil), expected=ROUTED)


@pytest.mark.parametrize(("content", "said"), [
    (b"", "answers with '', which is not JSON"),
    (b"<html>" + b"x" * 100, f"answers with '<html>{'x' * 74}...', which is not JSON"),
    (b"[" * 60_000, f"answers with '{'[' * 80}...', which is not JSON"),
    (b"\xff\xfe", "answers with '\ufffd\ufffd', which is not JSON"),
    (b" " * 200_000, "answers with more than 67648 bytes, which no valid answer has"),
    (400, "status 400: no such model"), (500, "status 500: no such model"),
])  # fmt: skip
def test_garbage(content: bytes | int, said: str) -> None:
    # 65,536 bytes and 96 for each of 2 * (3 + 8) tokens
    server = FakeServer(spoil=lambda answer: content)
    assert refusal(server) == f"/v1/completions: {said}"
    assert len(server.asked) == 1  # it would come again


def test_an_answer_in_the_form_of_another_server() -> None:
    said = ": the answer to request 7 does not have the form that rollout.servers.api says (TypeError("
    assert refusal(FakeServer("vllm", spoil=lambda answer: [1])).startswith(said)
    assert refusal(FakeServer("sglang", spoil=lambda answer: {"choices": []})).startswith(said)


def test_a_vllm_whose_weights_changed_meanwhile() -> None:
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 4}]
    said = refusal(FakeServer("vllm", spoil=change(weight_versions=spans)))
    assert said.startswith(": the answer to request 7 was generated with weights of version '3, 4', but")


@pytest.mark.parametrize("api", ["vllm", "sglang"])
def test_columns_of_dense_layers_are_left_out(api: str) -> None:
    """One expert per token; three layers, of which the first is dense."""
    whole = np.array([[0, 3, 1], [0, 2, 2]], np.int32)
    file = io.BytesIO()
    np.save(file, whole)
    encoded = _base64(whole if api == "sglang" else np.frombuffer(file.getvalue(), np.uint8))
    expected = Expected(vocab_size=8, eos_ids=(), routing=np.zeros((0, 2), np.uint8), num_experts=4, dense_columns=1)
    assert server_apis._experts(encoded, expected).tolist() == [[3, 1], [2, 2]]


def test_a_file_of_pickled_experts_is_not_read() -> None:
    file = io.BytesIO()
    np.save(file, np.array([[{}]] * 6, object), allow_pickle=True)
    spoil = change(routed_experts=_base64(np.frombuffer(file.getvalue(), np.uint8)))
    said = refusal(FakeServer("vllm", spoil=spoil), expected=ROUTED)
    assert "routed_experts are object, not integers in C order" in said


_ODD = (
    *(None, True, 0, -1, 1e400, -3.45e38, 10**400, float("nan"), "", "\ud800", "x" * 99, [], [[]], {}, {"version": []}),
    *([None], ["stop"], {"index": True}, [1e3], [True], "AAAA", "\n\x1b[31m"),
)


@pytest.mark.parametrize("api", APIS)
def test_answers_that_were_changed_at_random(api: str) -> None:
    """Each is an answer that can be right, or one line about the server; nothing else, and nobody waits."""
    rng = random.Random(5)

    def spoil(found: Any) -> Any:
        place, key = found, None
        while isinstance(place, (dict, list)) and place and (key is None or rng.random() < 0.8):
            parent, key = place, rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            place = place[key]
        parent[key] = rng.choice(_ODD)
        return found

    refused = 0
    with FakeServer(api, spoil=spoil) as server, asking(server) as service:
        for number in range(150):
            try:
                (answer,) = answered(service, request(number))
            except RolloutError as error:
                refused += 1
                assert "\n" not in str(error) and str(error).startswith(server.url), str(error)
                assert "\x1b" not in str(error)
            else:
                assert all(np.isfinite(piece.logprobs).all() for piece in answer.pieces)
                assert all(((piece.ids >= 0) & (piece.ids < VOCAB)).all() for piece in answer.pieces)
    assert refused > 75


@pytest.mark.parametrize("message", ["two\nlines", "a colour \x1b[31m", {"deep": ["\n"]}, "x" * 9000])
def test_what_a_server_says_is_one_line(message: Any) -> None:
    class Rude(FakeServer):
        async def _completion(self, request: Any, body: dict[str, Any]) -> Any:
            return web.json_response({"error": {"message": message}}, status=400)

    said = refusal(Rude())
    assert said.startswith("/v1/completions: status 400: ") and "\x1b" not in said and len(said) < 600


# ---- strangers


KEY = ServerKey("s3cret-of-a-run")


def test_the_key_of_mindgspo_serve_is_never_sent() -> None:
    with FakeServer(key=KEY) as server, asking(server, key=KEY) as service:
        service.await_servers(10)
        (answer,) = answered(service, request())
    assert answer.pieces[0].ids.tolist() == script(0)
    assert len(server.heard) == 3 and "s3cret" not in str(server.heard)


@pytest.mark.parametrize("api", ["vllm", "sglang"])
def test_other_servers_are_sent_the_key_as_their_clients_do(api: str) -> None:
    with FakeServer(api) as server, asking(server, key=KEY) as service:
        service.await_servers(10)
        answered(service, request())
    assert {heard["Authorization"] for heard in server.heard} == {"Bearer s3cret-of-a-run"}


class Echo(FakeServer):
    """Another process at a server's port, which answers rightly but for what it cannot know: it sends back what it
    was sent."""

    async def _answered(self, request: Any, body: dict[str, Any]) -> Any:
        answer = await super()._answered(request, body)
        answer.headers.update({name: text for name, text in request.headers.items() if name.startswith("X-Mind")})
        return answer


@pytest.mark.parametrize(("impostor", "said"), [
    (FakeServer(), "does not have the key of this run's servers"), (Echo(), "does not have the key of this run's"),
    (FakeServer(key=ServerKey("another")), r"(no server answers there \()?status 401: a key is needed"),
])  # fmt: skip
def test_an_impostor_is_not_believed(impostor: FakeServer, said: str) -> None:
    with impostor as server:
        service = connected(server.url, retries=0, key=KEY)
        for ask in (lambda: service.await_servers(600), lambda: service.load_weights(Path("/weights"), 3)):
            with pytest.raises(RolloutError, match=said):
                ask()
        service.close()


def test_an_answer_that_was_changed_on_its_way_is_not_believed() -> None:
    class Changed(FakeServer):
        async def _handle(self, request: Any) -> Any:
            answer = await super()._handle(request)
            if request.path == "/v1/completions":
                answer.body = answer.body.replace(b"[10, ", b"[13, ")
            return answer

    with Changed(key=KEY) as server, asking(server, key=KEY) as service, pytest.raises(RolloutError) as caught:
        answered(service, request())
    assert "does not have the key of this run's servers" in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_other_address_gets_the_prompt(status: int) -> None:
    with FakeServer() as other:
        spoilt = FakeServer(spoil=lambda answer: status, headers={"Location": f"{other.url}/v1/completions"})
        said = refusal(spoilt)
        assert other.heard == []
    assert said.startswith(f"/v1/completions: redirects to {other.url}/v1/completions, which is not followed; check")


@pytest.mark.parametrize(
    "spoil", [lambda answer: b"Authorization: Bearer s3cret-of-a-run", change(finish_reason="s3cret-of-a-run")]
)
def test_a_key_that_is_quoted_is_not_told(spoil: Callable[[Any], Any]) -> None:
    said = refusal(FakeServer("vllm", spoil=spoil), key=KEY)
    assert "s3cret" not in said and "***" in said


def test_a_packed_answer_is_not_unpacked() -> None:
    content = gzip.compress(b"{}".ljust(50_000_000))
    said = refusal(FakeServer(spoil=lambda answer: content, headers={"Content-Encoding": "gzip"}))
    assert "which is not JSON" in said


# ---- servers that say nothing


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "_WATCH_S", 0.05)
    monkeypatch.setattr(server_connection, "HEALTH_TIMEOUT_S", 0.2)


@pytest.mark.usefixtures("looks_often")
def test_a_server_that_says_nothing_is_named_long_before_its_time_is_over() -> None:
    """It listens, and answers neither requests nor GET /health: its process is stopped, or hangs."""
    with FakeServer(held_at=1) as server, asking(server, silent_s=0.5, timeout_s=3600) as service:
        service.submit([request()])
        assert service.wait(timeout_s=1.0) == []  # it is slow, but answers GET /health
        server._loop.call_soon_threadsafe(time.sleep, 1.5)
        with pytest.raises(RolloutError, match=rf"{server.url}: no answer for \d+ s, not even to GET /health; see"):
            service.wait()


@pytest.mark.usefixtures("looks_often")
def test_the_end_of_a_servers_process_is_noticed_whoever_listens_there() -> None:
    """The port answers on; the run asks its own server alone."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with FakeServer(held_at=1, key=KEY) as server:
        with asking(server, key=KEY, processes={server.url: child.pid}, timeout_s=3600) as service:
            service.submit([request()])
            assert service.wait(timeout_s=0.3) == []
            child.kill()  # and nobody waits for it
            with pytest.raises(RolloutError, match=rf"{server.url}: its process has ended; see its log"):
                service.wait()
            with pytest.raises(RolloutError, match="its process has ended"):
                service.load_weights(Path("/weights/version_4"), 4)
        child.wait()
        with pytest.raises(RolloutError, match="its process has ended"):
            connected(server.url, processes={server.url: child.pid})


def test_an_error_leaves_the_service_to_be_closed() -> None:
    with FakeServer(spoil=lambda answer: json.dumps(1).encode()) as server, asking(server) as service:
        service.submit([request(number) for number in range(20)])
        with pytest.raises(RolloutError):
            service.wait()


def test_the_least_float32_is_a_log_prob() -> None:
    least = float(np.finfo(np.float32).min)
    with FakeServer(spoil=set_logprobs([least] * 4)) as server, asking(server) as service:
        (answer,) = answered(service, request())
    assert np.isfinite(answer.pieces[1].logprobs).all()


def test_a_watch_ends_although_its_server_answers_as_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "_WATCH_S", 0)

    async def cancelled() -> bool:
        health = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(server_connection.Server, "_once", lambda *call, **kinds: health)
        server = server_connection.Server(
            "http://nowhere", ServiceOptions(most_running=1, timeout_s=1, retries=0), None, None
        )
        server._num_calls = 1
        watching = asyncio.create_task(server.watch())
        await asyncio.sleep(0.05)
        health.set_result((200, b""))
        watching.cancel()
        await asyncio.wait([watching], timeout=5)
        return watching.cancelled()

    assert asyncio.run(cancelled())
