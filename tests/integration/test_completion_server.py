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
from running import mindgspo, sets, write_experiment
from served import Server, asked, engine_with_weights, random_prompts

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingFilter, SamplingSettings
from mindgspo.rollout.weights_folder import write_weights
from mindgspo.tensor_files.writer import read_safetensors
from mindgspo.tokenization import load_tokenizer

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
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("handed_over") / "version_3"


@pytest.fixture(scope="module")
def built(cpu_runtime: None, experiment: ExperimentConfig, weights: Path) -> Any:
    """Model and engine in this process, whose weights are in the folder `weights`."""
    return engine_with_weights(experiment, weights, 3, seed=5)


@pytest.fixture(scope="module")
def reference(built: Any) -> Any:
    return built[1]


@pytest.fixture(scope="module")
def server(config: Path, reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
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


def sampling(max_new_tokens: int = 96, **changes: Any) -> SamplingSettings:
    settings = SamplingSettings(num_samples=3, temperature=1.0, max_new_tokens=max_new_tokens, stream=STREAM)
    return replace(settings, **changes)


def assert_equal(choices: list[dict[str, Any]], expected: Any) -> None:
    for choice, response in zip(choices, expected, strict=True):
        assert choice["token_ids"] == response.ids.tolist()
        assert choice["logprobs"]["token_logprobs"] == response.logprobs.tolist(), "exactly the float32 values"
        assert choice["finish_reason"] == response.finish_reason.value


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
    several = random_prompts(5)
    with ThreadPoolExecutor(5) as threads:
        answers = list(
            threads.map(lambda prompt: loaded.post("/v1/completions", asked(prompt, settings, [0, 1, 2])), several)
        )
    expected = reference.generate(several, settings, weight_version=3)
    for prompt, (status, answer), responses in zip(several, answers, expected.responses, strict=True):
        assert status == 200 and answer["weight_version"] == 3 and answer["object"] == "text_completion"
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert all(choice["prompt_token_ids"] == prompt.ids.tolist() for choice in answer["choices"])
        assert_equal(answer["choices"], responses)
        tokens = sum(response.length for response in responses)
        assert answer["usage"]["completion_tokens"] == tokens


def given(server: Server, ids: list[int], top: int = 0) -> list[dict[str, Any] | None]:
    """The log-probs of given ids."""
    body = {"prompt": ids, "max_tokens": 1, "prompt_logprobs": top, "temperature": 0.5, "return_token_ids": True}
    status, answer = server.post("/v1/completions", body)
    assert status == 200 and answer["weight_version"] == 3, answer
    (choice,) = answer["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (ids, [])
    return choice["prompt_logprobs"]


def test_log_probs_of_given_ids_are_those_of_a_scorer_here(loaded: Server, built: Any, experiment) -> None:
    """At temperature 1, of rows of all lengths, while responses are generated beside them."""
    from mindgspo.batches.rows import TrainingSample, lay_out
    from mindgspo.models.scoring import PolicyScorer

    random, tokenizer = np.random.default_rng(2), load_tokenizer(experiment.tokenizer)
    rows = [random.integers(3, 300, length).tolist() for length in (2, 3, 17, 64, 65, 100, 128)]
    samples = [
        TrainingSample(
            prompt_ids=np.int32(row[:1]), response_ids=np.int32(row[1:]), number=number,
            rollout_logp=np.zeros(len(row) - 1, np.float32),
        ) for number, row in enumerate(rows)
    ]  # fmt: skip
    (batch,) = lay_out(samples, samples_per_micro_batch=7, length_multiple=32, pad_id=0)
    (scores,) = PolicyScorer(built[0], temperature=1.0).score([batch])
    expected = {int(n): scores.logp_NK[place, batch.mask_NK[place]] for place, n in enumerate(batch.samples_N)}
    with ThreadPoolExecutor(9) as threads:
        prompts = random_prompts(2)
        drawn = [threads.submit(loaded.post, "/v1/completions", asked(one, sampling(), [0, 1])) for one in prompts]
        found = list(threads.map(lambda row: given(loaded, row), rows))
        answers = [one.result() for one in drawn]
    for number, (row, entries) in enumerate(zip(rows, found, strict=True)):
        assert entries[0] is None and [list(entry) for entry in entries[1:]] == [[str(token)] for token in row[1:]]
        own = [entry[str(token)] for token, entry in zip(row[1:], entries[1:], strict=True)]
        np.testing.assert_allclose([one["logprob"] for one in own], expected[number], rtol=0, atol=1e-5)
        assert [one["decoded_token"] for one in own] == [tokenizer.decode([token]) for token in row[1:]]
    several = built[1].generate(prompts, replace(sampling(), num_samples=2), weight_version=3).responses
    for (status, answer), responses in zip(answers, several, strict=True):
        assert status == 200
        assert_equal(answer["choices"], responses)


def test_likeliest_ids_have_the_log_probs_that_they_have_as_given_ids(loaded: Server, experiment) -> None:
    row = np.random.default_rng(4).integers(3, 300, 20).tolist()
    entries, own = given(loaded, row, top=4), given(loaded, row)
    for place in (1, 7, 19):
        entry = entries[place]
        assert entry[str(row[place])]["logprob"] == pytest.approx(own[place][str(row[place])]["logprob"], abs=1e-5)
        by_rank = {found["rank"]: (token, found["logprob"]) for token, found in entry.items() if found["rank"]}
        assert sorted(by_rank) == [1, 2, 3, 4] and len(entry) == 4 + (entry[str(row[place])]["rank"] is None)
        values = [by_rank[rank][1] for rank in sorted(by_rank)]
        assert values == sorted(values, reverse=True)
        for token, value in by_rank.values():
            alone = given(loaded, [*row[:place], int(token)])[place][token]["logprob"]
            assert alone == pytest.approx(value, abs=1e-5)
        greedy = loaded.post("/v1/completions", {"prompt": row[:place], "max_tokens": 1, "temperature": 0})[1]
        assert by_rank[1][0] == str(greedy["choices"][0]["token_ids"][0])


@pytest.mark.parametrize(("body", "said"), [
    ({"prompt": [5]}, "prompt: 1 tokens; legal: 2 to 128"), ({"prompt": [5] * 129}, "prompt: 129 tokens; legal: 2 to"),
    ({"prompt": [5, 384]}, "prompt: token id 384"), ({"prompt_logprobs": 129}, "prompt_logprobs: 129; legal are whole"),
    ({"prompt_logprobs": -1}, "prompt_logprobs: -1; legal"), ({"n": 2}, "n: 2; legal"),
    ({"max_tokens": 2}, "max_tokens: 2; legal are whole numbers from 0 to 1"), ({"stop": ["x"]}, "stop: is not"),
])  # fmt: skip
def test_given_ids_that_cannot_be_scored(loaded: Server, body: dict[str, Any], said: str) -> None:
    status, answer = loaded.post("/v1/completions", {"prompt": [5, 6], "prompt_logprobs": 0} | body)
    assert status == 400 and said in answer["error"]["message"]


def test_weights_that_are_not_what_was_handed_over(
    loaded: Server, weights: Path, experiment: ExperimentConfig, tmp_path: Path
) -> None:
    tensors = read_safetensors(weights)
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
    prompt = random_prompts(1)[0]
    assert loaded.post("/v1/completions", asked(prompt, sampling(), [0]))[1]["weight_version"] == 4


def test_weights_are_not_changed_under_what_runs(loaded: Server, weights: Path, experiment) -> None:
    prompt = random_prompts(1)[0]
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
    prompt = random_prompts(1)[0]
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
    taken = mindgspo("serve", config, "--port", port, cwd=config.parent)
    assert taken.returncode == 1 and f"--port {port}: cannot listen there" in taken.stderr, taken.stderr
    assert server.post("/update_weights", {"folder": str(weights), "version": 3})[0] == 200
    prompt = random_prompts(1)[0]
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
    experiment = load_config(config, [*SERVER, *MIXTURE[1::2]], check_files=False)
    _, engine = engine_with_weights(experiment, tmp_path / "weights", 3, seed=5)
    several, settings = random_prompts(3), sampling(max_new_tokens=16)
    expected = engine.generate(several, settings, weight_version=3)
    server = Server(config, tmp_path / "server.log", *sets(*SERVER), *MIXTURE)
    try:
        assert server.post("/update_weights", {"folder": str(tmp_path / "weights"), "version": 3})[0] == 200
        for prompt, responses in zip(several, expected.responses, strict=True):
            body = asked(prompt, settings, [0, 1, 2]) | {"return_routed_experts": True}
            choices = server.post("/v1/completions", body)[1]["choices"]
            assert_equal(choices, responses)
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
