"""`mindgspo serve` on emulated cards: a replica of one card, and of two, draws what the engine on CPU draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import PROJECT, sets
from served import Server, asked, engine_with_weights, random_prompts

from mindgspo.config import load_config
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings

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


@pytest.mark.parametrize("num_cards", [1, 2])
def test_a_replica_on_cards_draws_what_the_cpu_draws(
    cards: None, cpu_runtime: None, tmp_path: Path, num_cards: int
) -> None:
    config = load_config(EXPERIMENT, SETTINGS, check_files=False)
    _, engine = engine_with_weights(config, tmp_path / "weights", 6, seed=2)
    prompts = random_prompts(4)
    stream = RandomStream(seed=3, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=3, temperature=1.0, max_new_tokens=12, stream=stream)
    expected = engine.generate(prompts, settings, weight_version=6)

    numbers = ",".join(map(str, range(num_cards)))
    parallel = (f"plans.infer.model_parallel={num_cards}", "rollout.servers.urls=[http://elsewhere:1]")
    words = [*sets(*SETTINGS, *parallel), "--emulate-ascend", "--cards", numbers, "--logs", str(tmp_path / "ranks")]
    server = Server(EXPERIMENT, tmp_path / "server.log", *words)
    try:
        for is_again in (False, True):
            weights = {"folder": str(tmp_path / "weights"), "version": 6}
            assert server.post("/update_weights", weights) == (200, {"weight_version": 6})
            num_equal = num_tokens = 0
            for prompt, responses in zip(prompts, expected.responses, strict=True):
                _, answer = server.post("/v1/completions", asked(prompt, settings, SAMPLES))
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
                assert server.post("/sleep")[0] == server.post("/wake_up")[0] == 200
    finally:
        server.end()
