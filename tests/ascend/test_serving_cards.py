"""`mindgspo serve` on emulated cards: a replica of one card, and of two, draws what the engine on CPU draws."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import PROJECT, command, environment, sets

from mindgspo.config import load_config
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.types import Prompt

EXPERIMENT = PROJECT / "examples" / "arithmetic" / "gspo.yaml"
SETTINGS = (
    "model.num_hidden_layers=2",
    "model.initializer_range=0.05",
    "rollout.slots=6",
    "rollout.max_new_tokens=12",
    "rollout.cache_dtype=float16",
    "model.dtype=float32",
)
SAMPLES = [0, 1, 2]


def post(url: str, path: str, content: Any) -> dict[str, Any]:
    request = urllib.request.Request(url + path, json.dumps(content).encode())
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


@pytest.mark.parametrize("num_cards", [1, 2])
def test_a_replica_on_cards_draws_what_the_cpu_draws(
    cards: None, cpu_runtime: None, tmp_path: Path, num_cards: int
) -> None:
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import initialize_weights, weights_as_numpy
    from mindgspo.rollout.build import native_engine
    from mindgspo.rollout.weights_folder import write_weights
    from mindgspo.tokenization import load_tokenizer

    config = load_config(EXPERIMENT, SETTINGS, check_files=False)
    model = build_model(config.model)
    initialize_weights(model, config.model, seed=2)
    write_weights(tmp_path / "weights", weights_as_numpy(model, config.model), config.model, 6)
    engine = native_engine(config, model, load_tokenizer(config.tokenizer, config.model.vocab_size))
    engine.load_weights(6)
    random = np.random.default_rng(0)
    prompts = [
        Prompt(
            index=number,
            ids=random.integers(3, 300, 4 + 3 * number).astype(np.int32),
            text="",
            answer="",
            data_source="",
        )
        for number in range(4)
    ]
    stream = RandomStream(seed=3, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=3, temperature=1.0, max_new_tokens=12, stream=stream)
    expected = engine.generate(prompts, settings, weight_version=6)

    log, numbers = tmp_path / "server.log", ",".join(map(str, range(num_cards)))
    parallel = (f"plans.infer.model_parallel={num_cards}", "rollout.servers.urls=[http://elsewhere:1]")
    words = ["serve", EXPERIMENT, *sets(*SETTINGS, *parallel), "--port", "0", "--emulate-ascend", "--cards", numbers]
    with log.open("wb") as output:
        server = subprocess.Popen(
            command(*words, "--logs", tmp_path / "ranks"), cwd=tmp_path, env=environment(), stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        while not (found := re.search(r"serving at (http://\S+)", log.read_text())):
            assert server.poll() is None, log.read_text()[-5000:]
            time.sleep(0.2)
        url = found[1]
        for is_again in (False, True):
            weights = {"folder": str(tmp_path / "weights"), "version": 6}
            assert post(url, "/update_weights", weights) == {"weight_version": 6}
            num_equal = num_tokens = 0
            for prompt, responses in zip(prompts, expected.responses, strict=True):
                random_stream = {
                    "seed": 3, "purpose": 1, "step": 1, "draw": 0, "prompt_index": prompt.index, "samples": SAMPLES,
                    "start": 0,
                }  # fmt: skip
                body = {"prompt": prompt.ids.tolist(), "n": 3, "max_tokens": 12, "random_stream": random_stream}
                answer = post(url, "/v1/completions", body)
                assert answer["weight_version"] == 6
                for choice, response in zip(answer["choices"], responses, strict=True):
                    ids, length = np.array(choice["token_ids"]), min(len(choice["token_ids"]), response.length)
                    same = np.cumprod(ids[:length] == response.ids[:length]).astype(bool)
                    logprobs = np.array(choice["logprobs"]["token_logprobs"])[:length]
                    # Until one token lies on the other side of a uniform all log-probs are of the same sequence.
                    np.testing.assert_allclose(logprobs[same], response.logprobs[:length][same], rtol=0, atol=2e-3)
                    num_equal, num_tokens = num_equal + int(same.sum()), num_tokens + response.length
            assert num_equal >= 0.9 * num_tokens, f"{num_equal} of {num_tokens}"
            if not is_again:  # the memory goes and comes back
                post(url, "/sleep", {})
                post(url, "/wake_up", {})
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
