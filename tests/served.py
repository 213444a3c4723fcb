"""`mindgspo serve` in a process of its own, and what it answers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from running import command, environment

from mindgspo.config import ExperimentConfig, ModelSection
from mindgspo.rollout.protocol import SamplingSettings
from mindgspo.types import Prompt


def random_prompts(count: int) -> list[Prompt]:
    """Of 3, 8, ... ids, with indices that are not their places."""
    random = np.random.default_rng(3)
    return [
        Prompt(
            index=7 + 2 * n, ids=random.integers(3, 300, 3 + 5 * n).astype(np.int32), text="", answer="", data_source=""
        )
        for n in range(count)
    ]


def asked(
    prompt: Prompt, settings: SamplingSettings, samples: list[int], prefix: list[int] | None = None
) -> dict[str, Any]:
    """The body of a request, as the client of a run writes it."""
    stream, prefix = settings.stream, prefix or []
    body = {
        "model": "policy", "prompt": [*prompt.ids.tolist(), *prefix], "n": len(samples),
        "max_tokens": settings.max_new_tokens - len(prefix), "temperature": settings.temperature, "logprobs": 0,
        "return_token_ids": True, "return_routed_experts": False, "seed": 1,
        "random_stream": {
            "seed": stream.seed, "purpose": int(stream.purpose), "step": stream.step, "draw": stream.draw,
            "prompt_index": prompt.index, "samples": samples, "start": len(prefix),
        },
    }  # fmt: skip
    if settings.sampling_filter is not None:
        body |= {"top_k": settings.sampling_filter.top_k, "top_p": settings.sampling_filter.top_p}
    return body


def engine_with_weights(
    config: ExperimentConfig, folder: Path, version: int, *, seed: int = 1, adapted: ModelSection | None = None
) -> tuple[Any, Any]:
    """A model of random weights and its engine in this process; the same weights, handed over in `folder`. adapted: the
    section of the model whose adapters alone are; config's has them or gets them merged."""
    from mindgspo.checkpoint.adapted import base_digest, base_record
    from mindgspo.models.lora import merged_weights
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import initialize_weights, load_weights
    from mindgspo.rollout.build import native_engine
    from mindgspo.rollout.weight_transfer import weights_as_numpy
    from mindgspo.rollout.weights_folder import write_weights
    from mindgspo.tokenization import load_tokenizer

    section, base = adapted or config.model, None
    model = trained = build_model(section)
    initialize_weights(model, section, seed=seed)
    if adapted is not None:
        base = base_digest(base_record(adapted, seed) or {})
        for number, parameter in enumerate(model.get_parameters()):
            if parameter.name.endswith("lora_B.weight"):
                drawn = np.random.default_rng(number).standard_normal(parameter.shape, np.float32)
                parameter.asnumpy()[...] = np.float32(0.1) * drawn
    tensors = weights_as_numpy(trained, section)
    if section.lora != config.model.lora:
        model = build_model(config.model)
        load_weights(model, config.model, merged_weights(section, tensors), where=folder)
    engine = native_engine(config, model, load_tokenizer(config.tokenizer, config.model.vocab_size))
    engine.load_weights(version)
    write_weights(folder, tensors, section, version, base=base)
    return model, engine


class Server:
    """One that listens at `url`; words follow the configuration on its command line. It writes into `log`, and takes
    weights from all folders of the tests."""

    def __init__(self, config: Path, log: Path, *words: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command("serve", config, "--port", "0", "--weights-dir", log.parent.parent, *words),
                cwd=log.parent, env=environment(), stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        give_up = time.monotonic() + 300
        while not (found := re.search(r"serving at (http://\S+)", log.read_text())):
            assert self.process.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.1)
        self.url = found[1]

    def post(self, path: str, content: Any = None) -> tuple[int, Any]:
        """Status and JSON of the answer. content: the body as it is if it is bytes, else JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        request = urllib.request.Request(
            self.url + path, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        return self._answer(request)

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        return self._answer(urllib.request.Request(self.url + path))

    def _answer(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def end(self) -> int:
        """Ask it to end; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)
