"""`mindgspo serve` as a process: its answers are those of the engine here, bit for bit, whatever is cut in between."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import command, environment, sets, write_experiment
from served import Server

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.rollout.protocol import Purpose, RandomStream, Rollout, SamplingFilter, SamplingSettings
from mindgspo.types import Prompt

pytestmark = pytest.mark.usefixtures("cpu_runtime")

SERVER = (
    "rollout.max_new_tokens=96",
    "rollout.slots=8",
    "model.initializer_range=0.3",
    "model.max_position_embeddings=128",
    "reshard.verify=full",
)
STREAM = RandomStream(seed=11, purpose=Purpose.TRAINING, step=4, draw=2)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def experiment(config: Path) -> ExperimentConfig:
    return load_config(config, list(SERVER), check_files=False)


@pytest.fixture(scope="module")
def model(cpu_runtime: None, experiment: ExperimentConfig) -> Any:
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import initialize_weights

    built = build_model(experiment.model)
    initialize_weights(built, experiment.model, seed=5)
    return built


@pytest.fixture(scope="module")
def weights(model: Any, experiment: ExperimentConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mindgspo.rollout.weight_transfer import weights_as_numpy
    from mindgspo.rollout.weights_folder import write_weights

    folder = tmp_path_factory.mktemp("handed_over") / "version_3"
    write_weights(folder, weights_as_numpy(model, experiment.model), experiment.model, 3)
    return folder


@pytest.fixture(scope="module")
def reference(model: Any, experiment: ExperimentConfig) -> Any:
    """The engine in this process."""
    from mindgspo.rollout.build import native_engine
    from mindgspo.tokenization import load_tokenizer

    engine = native_engine(experiment, model, load_tokenizer(experiment.tokenizer, experiment.model.vocab_size))
    engine.load_weights(3)
    return engine


@pytest.fixture(scope="module")
def server(config: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    server = Server(config, log, *sets(*SERVER))
    assert server.get("/health")[1]["weight_version"] is None
    status, answer = server.post("/v1/completions", {"prompt": [1]})
    assert status == 503 and "weights" in answer["error"]["message"]
    yield server
    assert server.end() == 0, log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.fixture
def loaded(server: Server, weights: Path) -> Server:
    assert server.post("/update_weights", {"folder": str(weights), "version": 3}) == (200, {"weight_version": 3})
    return server


def prompts(vocab_size: int, count: int) -> list[Prompt]:
    random = np.random.default_rng(3)
    return [
        Prompt(
            index=7 + 2 * number, ids=random.integers(0, vocab_size, 3 + 5 * number).astype(np.int32), text="",
            answer="", data_source="",
        )
        for number in range(count)
    ]  # fmt: skip


def asked(
    prompt: Prompt, settings: SamplingSettings, samples: list[int], prefix: list[int] | None = None
) -> dict[str, Any]:
    """The body of a request, as the client of a run writes it."""
    stream, prefix = settings.stream, prefix or []
    body = {
        "model": "policy",
        "prompt": [*prompt.ids.tolist(), *prefix],
        "n": len(samples),
        "max_tokens": settings.max_new_tokens - len(prefix),
        "temperature": settings.temperature,
        "logprobs": 0,
        "return_token_ids": True,
        "return_routed_experts": False,
        "seed": 1,
        "random_stream": {
            "seed": stream.seed, "purpose": int(stream.purpose), "step": stream.step, "draw": stream.draw,
            "prompt_index": prompt.index, "samples": samples, "start": len(prefix),
        },
    }  # fmt: skip
    if settings.sampling_filter is not None:
        body |= {"top_k": settings.sampling_filter.top_k, "top_p": settings.sampling_filter.top_p}
    return body


def sampling(max_new_tokens: int = 96, **changes: Any) -> SamplingSettings:
    settings = SamplingSettings(num_samples=3, temperature=1.0, max_new_tokens=max_new_tokens, stream=STREAM)
    return replace(settings, **changes)


def in_this_process(reference: Any, asked_for: list[Prompt], settings: SamplingSettings) -> Rollout:
    return reference.generate(asked_for, settings, weight_version=3)


def assert_equal(choices: list[list[dict[str, Any]]], expected: Any) -> None:
    """choices: the pieces of each sample, one after the other."""
    for pieces, response in zip(choices, expected, strict=True):
        assert [token for piece in pieces for token in piece["token_ids"]] == response.ids.tolist()
        logprobs = [value for piece in pieces for value in piece["logprobs"]["token_logprobs"]]
        assert np.array_equal(np.array(logprobs, np.float32), response.logprobs)
        assert logprobs == response.logprobs.tolist(), "exactly the float32 values"
        assert pieces[-1]["finish_reason"] == response.finish_reason.value


@pytest.mark.parametrize(
    "settings",
    [
        sampling(),
        sampling(max_new_tokens=9, temperature=0.6),
        sampling(temperature=0.0),
        sampling(max_new_tokens=20, sampling_filter=SamplingFilter(top_k=5, top_p=0.8)),
    ],
)
def test_answers_are_those_of_the_engine_here(loaded: Server, reference: Any, experiment, settings) -> None:
    several = prompts(experiment.model.vocab_size, 5)
    with ThreadPoolExecutor(5) as threads:
        answers = list(
            threads.map(lambda prompt: loaded.post("/v1/completions", asked(prompt, settings, [0, 1, 2])), several)
        )
    expected = in_this_process(reference, several, settings)
    for prompt, (status, answer), responses in zip(several, answers, expected.responses, strict=True):
        assert status == 200 and answer["weight_version"] == 3 and answer["object"] == "text_completion"
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert all(choice["prompt_token_ids"] == prompt.ids.tolist() for choice in answer["choices"])
        assert_equal([[choice] for choice in answer["choices"]], responses)
        tokens = sum(response.length for response in responses)
        assert answer["usage"]["completion_tokens"] == tokens


def test_what_was_cut_goes_on_with_the_same_tokens(loaded: Server, reference: Any, experiment) -> None:
    settings, several = sampling(), prompts(experiment.model.vocab_size, 6)
    samples, num_cuts = [0, 1, 2], 0
    found: dict[tuple[int, int], list[dict[str, Any]]] = {(p, s): [] for p in range(6) for s in samples}

    def ask(place: int, chosen: list[int]) -> None:
        prefix = [token for piece in found[place, chosen[0]] for token in piece["token_ids"]]
        body = asked(several[place], settings, chosen, prefix)
        status, answer = loaded.post("/v1/completions", body)
        assert status == 200 and answer["weight_version"] == 3, answer
        for sample, choice in zip(chosen, answer["choices"], strict=True):
            assert choice["prompt_token_ids"] == body["prompt"]
            found[place, sample].append(choice)

    going = [(place, samples) for place in range(6)]
    with ThreadPoolExecutor(20) as threads:
        while going:
            running = [threads.submit(ask, *one) for one in going]
            if num_cuts < 3:
                time.sleep(0.05 * num_cuts)
                assert loaded.post("/abort_requests")[0] == 200
                num_cuts += 1
            for one in running:
                one.result()
            going = [
                (place, [sample]) for (place, sample), pieces in found.items() if pieces[-1]["finish_reason"] == "abort"
            ]
    assert any(len(pieces) > 1 for pieces in found.values()), "nothing was cut"
    expected = in_this_process(reference, several, settings)
    for place in range(6):
        assert_equal([found[place, sample] for sample in samples], expected.responses[place])


REFUSED = [
    ({"prompt": [1], "n": 10**9}, "n:"),
    ({"prompt": [1], "top_p": float("inf")}, "top_p"),
    ({"prompt": [1], "top_k": 2.5}, "top_k"),
    ({"prompt": [1], "stream": True}, "stream: is not supported"),
    ({"prompt": [1], "stop": ["x"]}, "stop: is not supported"),
    ({"prompt": [1], "temprature": 0.5}, "did you mean 'temperature'?"),
    ({"prompt": [1], "return_routed_experts": True}, "rollout.record_experts"),
    (b"[1, 2]", "object"),
    (b"[" * 60_000, "object"),
    (b"\xff", "object"),
    (b'{"prompt": [' + b"1" * 60_000 + b"]}", "object"),
]


@pytest.mark.parametrize(("body", "what"), REFUSED)
def test_what_is_refused(loaded: Server, body: Any, what: str) -> None:
    status, answer = loaded.post("/v1/completions", body)
    message = answer["error"]["message"]
    assert status == 400 and what in message and "\n" not in message and len(message) < 300, answer


def test_a_body_is_bounded(loaded: Server) -> None:
    status, answer = loaded.post("/v1/completions", b'{"prompt": [' + b"1," * 10_000_000 + b"1]}")
    assert status == 400 and "bytes" in answer["error"]["message"]


def test_weights_that_are_not_what_was_handed_over(
    loaded: Server, reference: Any, model: Any, experiment: ExperimentConfig, tmp_path: Path
) -> None:
    from mindgspo.rollout.weight_transfer import weights_as_numpy
    from mindgspo.rollout.weights_folder import write_weights

    tensors = weights_as_numpy(model, experiment.model)
    write_weights(tmp_path / "changed", tensors, experiment.model, 4)
    file = tmp_path / "changed" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    write_weights(tmp_path / "less", dict(list(tensors.items())[1:]), experiment.model, 4)
    write_weights(tmp_path / "right", tensors, experiment.model, 4)
    for folder, what in (("less", "missing"), ("changed", "SHA-256")):
        status, answer = loaded.post("/update_weights", {"folder": str(tmp_path / folder), "version": 4})
        message = answer["error"]["message"]
        assert status == 400 and what in message and "\n" not in message, answer
        assert loaded.get("/health")[1]["weight_version"] is None, "nobody goes on with half of them"
    status, answer = loaded.post("/update_weights", {"folder": str(tmp_path / "right"), "version": 4})
    assert (status, answer) == (200, {"weight_version": 4})
    assert loaded.get("/health")[1]["weight_version"] == 4
    prompt = prompts(experiment.model.vocab_size, 1)[0]
    assert loaded.post("/v1/completions", asked(prompt, sampling(), [0]))[1]["weight_version"] == 4


def test_weights_are_not_changed_under_what_runs(loaded: Server, weights: Path, experiment) -> None:
    prompt = prompts(experiment.model.vocab_size, 1)[0]
    with ThreadPoolExecutor(8) as threads:
        bodies = [asked(prompt, replace(sampling(), stream=replace(STREAM, step=step)), [0, 1, 2]) for step in range(8)]
        running = [threads.submit(loaded.post, "/v1/completions", body) for body in bodies]
        time.sleep(0.1)
        statuses = [
            loaded.post(path, {"folder": str(weights), "version": 3})[0]
            for path in ("/update_weights", "/sleep", "/wake_up")
        ]
        assert all(one.result()[0] == 200 for one in running)
    assert statuses == [409, 409, 409]


def test_whoever_hangs_up_is_forgotten(loaded: Server, weights: Path, experiment) -> None:
    """A trainer that was killed leaves nothing behind that the next one would have to wait for."""
    prompt = prompts(experiment.model.vocab_size, 1)[0]
    children = [
        subprocess.Popen(
            ["curl", "-s", "-H", "Content-Type: application/json", "-d", json.dumps(
                asked(prompt, replace(sampling(), stream=replace(STREAM, step=step)), list(range(3)))
            ), f"{loaded.url}/v1/completions"], stdout=subprocess.DEVNULL,
        ) for step in range(40)
    ]  # fmt: skip
    time.sleep(0.3)
    for child in children:
        child.kill()
        child.wait()
    time.sleep(0.5)
    assert loaded.post("/update_weights", {"folder": str(weights), "version": 3})[0] == 200


def test_it_ends_at_once_with_requests_that_run(config: Path, weights: Path, experiment, tmp_path: Path) -> None:
    server = Server(config, tmp_path / "server.log", *sets(*SERVER))
    port = server.url.rpartition(":")[2]
    taken = subprocess.run(
        command("serve", config, "--port", port), cwd=config.parent, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert taken.returncode == 1 and f"--port {port}: cannot listen there" in taken.stderr, taken.stderr
    assert server.post("/update_weights", {"folder": str(weights), "version": 3})[0] == 200
    prompt = prompts(experiment.model.vocab_size, 1)[0]
    with ThreadPoolExecutor(20) as threads:
        for step in range(20):
            body = asked(prompt, replace(sampling(), stream=replace(STREAM, step=step)), [0, 1, 2])
            threads.submit(server.post, "/v1/completions", body)
        time.sleep(0.2)
        assert server.end() == 0 and "Traceback" not in server.log.read_text(), server.log.read_text()


MIXTURE = sets(
    "model.architecture=qwen3_moe", "model.head_dim=8", "model.num_experts=6", "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=16", "model.norm_topk_prob=true", "rollout.record_experts=true",
)  # fmt: skip


def test_a_mixture_tells_its_experts(config: Path, tmp_path: Path) -> None:
    """In one go, and in two of which the second goes on behind the first: the same routing as in this process."""
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import initialize_weights
    from mindgspo.rollout.build import native_engine
    from mindgspo.rollout.weight_transfer import weights_as_numpy
    from mindgspo.rollout.weights_folder import write_weights
    from mindgspo.tokenization import load_tokenizer

    experiment = load_config(config, [*SERVER, *MIXTURE[1::2]], check_files=False)
    model = build_model(experiment.model)
    initialize_weights(model, experiment.model, seed=5)
    engine = native_engine(experiment, model, load_tokenizer(experiment.tokenizer, experiment.model.vocab_size))
    engine.load_weights(3)
    several, settings = prompts(experiment.model.vocab_size, 3), sampling(max_new_tokens=16)
    expected = in_this_process(engine, several, settings)
    write_weights(tmp_path / "weights", weights_as_numpy(model, experiment.model), experiment.model, 3)
    server = Server(config, tmp_path / "server.log", *sets(*SERVER), *MIXTURE)
    try:
        assert server.post("/update_weights", {"folder": str(tmp_path / "weights"), "version": 3})[0] == 200
        for prompt, responses in zip(several, expected.responses, strict=True):
            body = asked(prompt, settings, [0, 1, 2]) | {"return_routed_experts": True}
            choices = server.post("/v1/completions", body)[1]["choices"]
            assert_equal([[choice] for choice in choices], responses)
            for sample, (choice, response) in enumerate(zip(choices, responses, strict=True)):
                assert_routed(choice, response.routing.prompt_LX, response.routing.response_LX)
                if response.length < 2:
                    continue
                half = response.length // 2
                body = asked(prompt, settings, [sample], response.ids[:half].tolist())
                (rest,) = server.post("/v1/completions", body | {"return_routed_experts": True})[1]["choices"]
                assert rest["token_ids"] == response.ids[half:].tolist()
                whole = response.routing.whole
                split = prompt.ids.size + half - 1
                assert_routed(rest, whole[:split], whole[split:])
    finally:
        assert server.end() == 0, server.log.read_text()


def assert_routed(choice: dict[str, Any], prompt_LX: np.ndarray, response_LX: np.ndarray) -> None:
    for key, wanted in (("prompt", prompt_LX), ("response", response_LX)):
        found = np.frombuffer(base64.b64decode(choice["routed_experts"][key]), wanted.dtype)
        assert np.array_equal(found.reshape(wanted.shape), wanted), key
