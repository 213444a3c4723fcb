"""trainer.require_exact_logprobs: refused where it does not hold, announced where it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiment import WITH_MODEL

from mindgspo.config import ExperimentConfig, batch_table, load_config, notes
from mindgspo.errors import ConfigError

ON = "trainer.require_exact_logprobs=true"
ROWS = "trainer.samples_per_micro_batch=6"
TWO = ("plans.train.data_parallel=2", "plans.infer.data_parallel=2", ROWS)
EXPERTS = ("model.architecture=qwen3_moe", "model.num_experts=8", "model.num_experts_per_tok=2",
           "model.moe_intermediate_size=48")  # fmt: skip
URLS = "rollout.servers.urls=[http://127.0.0.1:8000]"


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., ExperimentConfig]:
    path = tmp_path / "small.yaml"
    path.write_text(WITH_MODEL)
    return lambda *overrides: load_config(path, overrides)


@pytest.mark.parametrize(("overrides", "said"), [
    (("rollout.cache_dtype=float16",), "with rollout.cache_dtype float16, to which generation alone rounds keys and "
     "values; set rollout.cache_dtype=float32 (model.dtype) or float32"),
    (("plans.train.model_parallel=2", "plans.infer.model_parallel=2"), "with plans.train.model_parallel 2, because"),
    (("plans.train.data_parallel=2", "plans.infer.model_parallel=2", ROWS), "set plans.infer.model_parallel=1"),
    ((*EXPERTS, *TWO, "plans.train.expert_parallel=2"), "with plans.train.expert_parallel 2, because a token's experts "
     "are summed rank by rank; set plans.train.expert_parallel=1"),
    (("model.lora.rank=4", "rollout.lora=merged"), "because generation merges adapters into weights; set "
     "rollout.lora=separate"),
    (("model.lora.rank=4", URLS), "because servers and generation under another plan merge adapters"),
    ((URLS, "rollout.servers.api=vllm"), "with rollout.servers.api vllm, whose operators are its own"),
    ((URLS, "rollout.servers.api=sglang"), "with rollout.servers.api sglang, whose operators are its own"),
    (("model.backend=mindformers",), "with model.backend mindformers, whose operators train while ours sample"),
    (("trainer.schedule=one_step_off",), "those of trainer.schedule=one_step_off are a step old; set "
     "trainer.max_staleness=0, or trainer.schedule=bounded"),
])  # fmt: skip
def test_what_cannot_hold_is_refused_in_one_line(load, overrides: tuple[str, ...], said: str) -> None:
    load(*overrides)
    with pytest.raises(ConfigError) as error:
        load(ON, *overrides)
    lines = [line for line in str(error.value).splitlines() if "trainer.require_exact_logprobs: true" in line]
    assert any(said in line for line in lines) and len(lines) == (2 if said.startswith("with plans.train.m") else 1)


def test_mindspores_own_operators_are_refused(load, monkeypatch: pytest.MonkeyPatch) -> None:
    load(ON)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="with MindSpore's own operators, for want of g\\+\\+; apt-get install"):
        load(ON)


@pytest.mark.parametrize("overrides", [
    ("model.dtype=float16", "rollout.cache_dtype=float32"), ("model.dtype=bfloat16",), TWO, EXPERTS,
    ("rollout.temperature=0.7", "rollout.top_k=9", "rollout.top_p=0.9"), (URLS,), ("model.lora.rank=4",),
    ("plans.train={pipeline_stage: 2, micro_batch_num: 2}", "plans.infer.data_parallel=2", ROWS),
    ("plans.train.context_parallel=2", "plans.infer.data_parallel=2"),
    ("algorithm.rollout_correction.level=token",), ("trainer.schedule=bounded",),
])  # fmt: skip
def test_what_may_hold_is_not_refused(load, overrides: tuple[str, ...]) -> None:
    load(ON, *overrides)


def test_the_banner_and_the_notes_say_what_is_compared(load) -> None:
    assert "exact log-probs" not in dict(batch_table(load(), 96))
    said = dict(batch_table(load(ON), 96))["exact log-probs"]
    assert said == ("required: sampler and trainer are compared bit for bit before the first update of each step")
    assert dict(batch_table(load(ON, "trainer.exact_logprobs_every=10"), 96))["exact log-probs"].endswith(
        "of steps 1, 11, 21, ..."
    )
    told = [line for line in notes(load(ON, "trainer.schedule=bounded")) if "exact" in line]
    assert told == [
        "trainer.require_exact_logprobs: with trainer.max_staleness 1 earlier weights drew some tokens; these are not "
        "compared, and training/exact_logprobs_tokens counts those that are"
    ]
    assert any("exact_logprobs_every: not read" in line for line in notes(load("trainer.exact_logprobs_every=2")))
    card = load(ON, "device=Ascend", "model.hidden_size=64", "model.dtype=bfloat16")
    assert any("names the operator" in line for line in notes(card) if line.startswith("trainer.require_exact"))


def test_float16_is_noted_where_gradients_are_small(load) -> None:
    """24 responses of 32 tokens: 1 / 768 for each token; of 4,800 tokens 8.7e-6."""
    positions = "model.max_position_embeddings=5000"
    assert not any("loss scaling" in line for line in notes(load("model.dtype=float16")))
    (note,) = [line for line in notes(load("model.dtype=float16", positions, "rollout.max_new_tokens=4800"))
               if "loss scaling" in line]  # fmt: skip
    assert "of 24 responses of 4,800 tokens has a gradient of about 9e-06, and below 1e-05" in note
    assert not any("loss scaling" in line for line in notes(load("model.dtype=bfloat16", positions,
                                                                  "rollout.max_new_tokens=4800")))  # fmt: skip
