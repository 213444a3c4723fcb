"""A real completion server in a process of its own, asked over HTTP: the same tokens as the engine in this process."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from hostile_requests import answered, hostile_request
from running import PROJECT, sets
from served import Server, engine_with_weights, random_prompts

from mindgspo.checkpoint.adapted import base_digest, base_record
from mindgspo.config import load_config
from mindgspo.models.lora import ADAPTER_WEIGHTS
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.rollout.service import Request

OVERRIDES = ("rollout.slots=6", "rollout.max_new_tokens=40", "model.max_position_embeddings=96")
EXAMPLE = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
STREAM = RandomStream(seed=5, purpose=Purpose.TRAINING, step=3, draw=1)


def settings(**changed) -> SamplingSettings:
    return SamplingSettings(**{"num_samples": 3, "temperature": 1.0, "max_new_tokens": 40, "stream": STREAM, **changed})


class Served(Server):
    """Of the example, with a replica of so many ranks and more settings."""

    def __init__(self, folder: Path, model_parallel: int, *more: str) -> None:
        self.config, self.is_exact = load_config(EXAMPLE, [*OVERRIDES, *more]), model_parallel == 1
        more = (f"plans.infer.model_parallel={model_parallel}", "rollout.servers.urls=[http://elsewhere:1]", *more)
        super().__init__(EXAMPLE, folder / "server.log", *sets(*OVERRIDES, *more), "--logs", str(folder / "ranks"))

    def service(self):
        from mindgspo.rollout.http_service import open_service
        from mindgspo.tokenization import load_tokenizer

        rollout = self.config.rollout
        servers = rollout.servers.model_copy(update={"urls": (self.url,)})
        config = self.config.model_copy(update={"rollout": rollout.model_copy(update={"servers": servers})})
        return open_service(config, load_tokenizer(config.tokenizer, config.model.vocab_size))


@pytest.fixture(scope="module")
def weights(cpu_runtime: None, tmp_path_factory: pytest.TempPathFactory):
    """(engine in this process, folder of the same weights)"""
    from mindgspo.config.cache import replica_config

    folder = tmp_path_factory.mktemp("weights") / "version_4"
    return engine_with_weights(replica_config(load_config(EXAMPLE, OVERRIDES)), folder, 4)[1], folder


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One rank, and a replica of two."""
    server = Served(tmp_path_factory.mktemp("served"), request.param)
    yield server
    assert server.end() in (0, 128 + signal.SIGTERM), server.log.read_text()


def test_without_weights_nothing_is_generated(served: Served) -> None:
    status, body = served.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 3})
    assert status == 503 and "POST /update_weights first" in body["error"]["message"]


def test_the_server_draws_what_the_engine_draws(served: Served, weights) -> None:
    assert_it_draws_what_is_drawn_here(served, *weights)


@pytest.mark.parametrize(("model_parallel", "choice"), [
    (1, "separate"), (1, "auto"), pytest.param(2, "separate", marks=pytest.mark.slow),
    pytest.param(2, "auto", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_server_that_holds_the_base_gets_adapters_alone(
    cpu_runtime: None, model_parallel: int, choice: str, tmp_path: Path
) -> None:
    """As the engine draws with the adapters beside the base, or merged into it: the first time, and when it has the
    base; those of another base are refused between."""
    from mindgspo.config.cache import replica_config

    more = ("model.num_hidden_layers=2", "model.lora.rank=4", f"rollout.lora={choice}", "reshard.verify=full")
    served = Served(tmp_path, model_parallel, *more)
    try:
        alone, folder, other = replica_config(served.config), tmp_path / "version_4", tmp_path / "other"
        assert (alone.model.lora is None) == (choice == "auto")
        adapted, seed = served.config.model, served.config.seed
        _, engine = engine_with_weights(alone, folder, 4, seed=seed, adapted=adapted)
        digest = base_digest(base_record(adapted, seed) or {}).encode()
        shutil.copytree(folder, other)
        content = (folder / ADAPTER_WEIGHTS).read_bytes()
        (other / ADAPTER_WEIGHTS).write_bytes(content.replace(digest, digest[::-1]))
        for _ in range(2):
            assert_it_draws_what_is_drawn_here(served, engine, folder)
            status, body = served.post("/update_weights", {"folder": str(other), "version": 4})
            message = body["error"]["message"]
            assert status == 400 and "another base than the random one" in message and "\n" not in message
            assert served.get("/health")[1]["weight_version"] is None
    finally:
        assert served.end() in (0, 128 + signal.SIGTERM), served.log.read_text()


def assert_it_draws_what_is_drawn_here(served: Served, engine, folder: Path) -> None:
    """With the weights in the folder, which are those of the engine."""
    service = served.service()
    try:
        service.load_weights(folder, 4)
        some = random_prompts(4)
        expected = engine.generate(some, settings(), weight_version=4)
        service.submit(
            [Request(number=n, prompt=one, samples=(0, 1, 2), settings=settings()) for n, one in enumerate(some)]
        )
        answers = {}
        while len(answers) < 4:
            answers |= {answer.number: answer for answer in service.wait()}
        for number, siblings in enumerate(expected.responses):
            assert answers[number].weight_version == 4
            for piece, response in zip(answers[number].pieces, siblings, strict=True):
                assert piece.ids.tolist() == response.ids.tolist() and piece.finish_reason is response.finish_reason
                np.testing.assert_allclose(
                    piece.logprobs, response.logprobs, atol=0 if served.is_exact else 1e-5, rtol=0
                )
    finally:
        service.close()


def test_what_is_cut_goes_on_as_if_nothing_had_happened(served: Served, weights) -> None:
    """Siblings together, then each by itself, cut at once and twice more: tokens and log-probs of one call."""
    engine, folder = weights
    service = served.service()
    try:
        service.load_weights(folder, 4)
        some = random_prompts(3)
        expected = engine.generate(some, settings(), weight_version=4).responses
        ids = {(p, s): [] for p in range(3) for s in range(3)}
        logprobs = {key: [] for key in ids}
        going, numbers, num_cut = [(p, (0, 1, 2)) for p in range(3)], iter(range(1000)), 0
        for cuts_left in (3, 2, 1, 0):
            asked = {next(numbers): one for one in going}
            for number, (p, samples) in asked.items():
                request = Request(number=number, prompt=some[p], samples=samples, settings=settings())
                service.submit([replace(request, prefix=np.array(ids[p, samples[0]], np.int32))])
            answers = service.wait(0.05 * (3 - cuts_left)) + service.abort() if cuts_left else []
            while len(answers) < len(asked):
                answers += service.wait()
            going = []
            for answer in answers:
                p, samples = asked[answer.number]
                for s, piece in zip(samples, answer.pieces, strict=True):
                    ids[p, s] += piece.ids.tolist()
                    logprobs[p, s] += piece.logprobs.tolist()
                    if piece.finish_reason is None:
                        going.append((p, (s,)))
            num_cut += len(going)
        assert going == [] and num_cut > 0
        for (p, s), found in ids.items():
            assert found == expected[p][s].ids.tolist()
            np.testing.assert_allclose(logprobs[p, s], expected[p][s].logprobs, atol=1e-5, rtol=0)
            if served.is_exact:
                assert logprobs[p, s] == expected[p][s].logprobs.tolist()
    finally:
        service.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not a JSON object"),
        ({"prompt": "2+2"}, "prompt: must be a list of token ids"),
        ({"prompt": []}, "prompt: 0 tokens; legal: 1 to 32"),
        ({"prompt": [1] * 33}, "prompt: 33 tokens; legal: 1 to 32"),
        ({"prompt": [999]}, "prompt: token id 999; the vocabulary has 512"),
        ({"prompt": [-1]}, "prompt: token id -1"),
        ({"prompt": [True]}, "prompt: must be a list of token ids"),
        ({"prompt": [5], "max_tokens": 41}, "max_tokens: 41; legal are whole numbers from 1 to 40"),
        ({"prompt": [5], "n": 9}, "n: 9; legal are whole numbers from 1 to 8"),
        ({"prompt": [5], "temperature": -1}, "temperature: -1; legal are numbers from 0.001 to 100, and 0"),
        (b'{"prompt": [5], "temperature": NaN}', "temperature: nan"),
        ({"prompt": [5], "top_p": 0}, "top_p: 0; legal are numbers from 1e-06 to 1"),
        ({"prompt": [5], "random_stream": [1]}, "random_stream: is not an object"),
        ({"prompt": [5], "random_stream": {"start": 1}}, "prompt: 1 tokens; legal: 2 to 33"),
        ({"prompt": [5], "random_stream": {"start": 0, "samples": [0, 1]}}, "random_stream.samples: must be n = 1"),
        ({"prompt": [5], "n": 10**9}, "n:"),
        ({"prompt": [5], "top_p": float("inf")}, "top_p"),
        ({"prompt": [5], "top_k": 2.5}, "top_k"),
        ({"prompt": [5], "stream": True}, "stream: is not supported"),
        ({"prompt": [5], "stop": ["x"]}, "stop: is not supported"),
        ({"prompt": [5], "temprature": 0.5}, "did you mean 'temperature'?"),
        ({"prompt": [5], "return_routed_experts": True}, "rollout.record_experts"),
        (b"[1, 2]", "object"),
        (b"[" * 60_000, "object"),
        (b"\xff", "object"),
        (b'{"prompt": [' + b"1" * 60_000 + b"]}", "object"),
        (b'{"prompt": [' + b"1," * 10_000_000 + b"1]}", "bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_served_is_said_in_one_line(served: Served, body, message: str) -> None:
    status, found = served.post("/v1/completions", body)
    said = found["error"]["message"]
    assert status == 400 and message in said and "\n" not in said and len(said) < 300, found


def test_weights_that_are_not_what_they_should_be(served: Served, weights, tmp_path: Path) -> None:
    _, folder = weights
    for asked, message in (
        ({"folder": str(folder), "version": 5}, "holds version 4, not 5"),
        ({"folder": str(tmp_path), "version": 4}, "weights.json: cannot be read"),
        ({"folder": 3, "version": 4}, "folder, version: must be a path and a whole number"),
    ):
        status, found = served.post("/update_weights", asked)
        assert status == 400 and message in found["error"]["message"], found
    assert served.post("/update_weights", {"folder": str(folder), "version": 4}) == (200, {"weight_version": 4})


NO_MANIFESTS = (
    '{"version": Infinity, "sha256": {}}', '{"version": 1e400, "sha256": {}}', '{"version": 4, "sha256": {}}',
    '{"version": 4, "sha256": {"\\ud800": ""}}', '{"version": ' + "1" * 5000 + ', "sha256": {}}', "[" * 100_000, None,
)  # fmt: skip


@pytest.mark.parametrize("manifest", NO_MANIFESTS)
def test_a_hand_over_that_is_none_changes_nothing(
    served: Served, weights, tmp_path: Path, manifest: str | None
) -> None:
    """The process goes on, and so do the weights that it has."""
    _, folder = weights
    assert served.post("/update_weights", {"folder": str(folder), "version": 4})[0] == 200
    if manifest is None:
        os.mkfifo(tmp_path / "weights.json")
    else:
        (tmp_path / "weights.json").write_text(manifest)
    for asked in (json.dumps({"folder": str(tmp_path), "version": 4}).encode(), b'{"folder": "\\ud800", "version": 4}'):
        status, found = served.post("/update_weights", asked)
        assert status == 400 and "\n" not in found["error"]["message"], found
    status, found = served.post("/v1/completions", {"prompt": [5], "max_tokens": 2, "seed": None})
    assert status == 200 and found["weight_version"] == 4
    assert "Traceback" not in served.log.read_text()


@pytest.mark.slow
def test_there_are_as_many_ways_to_cut_as_somebody_asks_for(served: Served, weights) -> None:
    _, folder = weights
    assert served.post("/update_weights", {"folder": str(folder), "version": 4})[0] == 200
    asked = {"prompt": [5], "max_tokens": 3}
    first = served.post("/v1/completions", asked | {"top_k": 40})[1]["choices"]
    for number in range(10):
        assert served.post("/v1/completions", asked | {"top_p": 0.5 + number / 100})[0] == 200
    assert served.post("/v1/completions", asked | {"top_k": 40})[1]["choices"] == first
    assert served.post("/v1/completions", asked)[0] == 200


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_requests_to_a_server_that_generates(served: Served, weights, count: int) -> None:
    """No death, no traceback, no status that is the server's fault but 503, and the same tokens behind them."""
    _, folder = weights
    address, rng = urlsplit(served.url), random.Random(11)
    for number in range(count):
        if number % 50 == 0:  # some of them put it to sleep
            served.post("/wake_up")
            assert served.post("/update_weights", {"folder": str(folder), "version": 4})[0] == 200
        content = hostile_request(rng, address.netloc)
        statuses, answer = answered((address.hostname, address.port), content, patience_s=0.05)
        assert all(status < 500 or status == 503 for status in statuses), (content[:500], answer[:500])
    assert served.process.poll() is None and "Traceback" not in served.log.read_text()
    served.post("/wake_up")
    assert served.post("/update_weights", {"folder": str(folder), "version": 4})[0] == 200
    assert served.post("/v1/completions", {"prompt": [5]})[0] == 200


def test_sleep_takes_the_weights(served: Served, weights) -> None:
    _, folder = weights
    assert served.post("/sleep", {})[0] == 200
    assert served.post("/v1/completions", {"prompt": [5]})[0] == 503
    assert served.post("/update_weights", {"folder": str(folder), "version": 4})[0] == 409
    assert served.post("/wake_up", {})[0] == 200
    assert served.post("/v1/completions", {"prompt": [5]})[0] == 503
    assert served.post("/update_weights", {"folder": str(folder), "version": 4})[0] == 200
    status, found = served.post("/v1/completions", {"prompt": [5], "max_tokens": 2, "seed": 1})
    assert status == 200 and 1 <= len(found["choices"][0]["token_ids"]) <= 2
