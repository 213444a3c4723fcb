"""The section `model.lora`: what it means, and what it refuses."""

from __future__ import annotations

import math

import pytest

from mindgspo.config import ModelSection, dump_config, load_config
from mindgspo.config.lora import LoraSection, lora_problems
from mindgspo.config.notes import notes
from mindgspo.errors import ConfigError

EXPERTS = ("model.architecture=qwen3_moe", "model.num_experts=8", "model.num_experts_per_tok=2",
           "model.moe_intermediate_size=48")  # fmt: skip
LATENTS = ("model.architecture=deepseek_v3", *EXPERTS[1:], "model.num_key_value_heads=4", "model.kv_lora_rank=16",
           "model.qk_nope_head_dim=8", "model.qk_rope_head_dim=8", "model.v_head_dim=8",
           "model.lora.rank=4")  # fmt: skip
TO_SERVERS = ("rollout.lora=separate", "rollout.servers.urls=[http://127.0.0.1:8000]")


# In the order of `LoraSection.projections`; a model has some of them.
ATTENTION = ("q_proj", "k_proj", "v_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


def test_scale_and_targets() -> None:
    assert LoraSection(rank=4, alpha=10).scale == 2.5
    assert LoraSection(rank=4, alpha=10, use_rslora=True).scale == 5
    assert LoraSection(targets=("down_proj", "attention")).projections == (
        *ATTENTION, "down_proj",
    )  # fmt: skip
    assert LoraSection(targets=("router", "experts")).projections == ("gate_proj", "up_proj", "down_proj", "gate")
    assert len(LoraSection().projections) == 11 and math.isclose(LoraSection().scale, 2)


def test_one_setting_makes_the_section_and_it_is_read_back(load, tmp_path) -> None:
    config = load("model.lora.rank=4")
    assert config.model.lora == LoraSection(rank=4) and config.model.base.lora is None
    (tmp_path / "dumped.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(tmp_path / "dumped.yaml") == config


@pytest.mark.parametrize(("overrides", "message"), [
    (("model.lora.targets=[q_prj]",), "model.lora.targets: no projection 'q_prj'; did you mean 'q_proj'"),
    ((*EXPERTS, "model.lora.targets=[gate]"), "model.lora.targets: no projection 'gate'; did you mean 'router'"),
    (("model.lora.targets=[embed_tokens]",), "embed_tokens; tables are no targets: a tied one is input and output"),
    (("model.lora.targets=[router,experts]",), "experts, router; qwen2 has no experts; set mlp or attention"),
    ((*EXPERTS, "model.lora.rank=9", "model.lora.targets=[router]"), "rank: 9; legal: 1 to 8, the width of the narrow"),
    ((*EXPERTS, "model.lora.rank=49", "model.lora.targets=[experts]"), "rank: 49; legal: 1 to 48, the width of the na"),
    (("model.architecture=glm4", "model.lora.targets=[up_proj]"),
     "targets: up_proj alone; files of glm4 have one gate_up_proj, whose adapter is that of both; name gate_proj and"),
    (("model.architecture=glm", "model.lora.init=pissa"),
     "init: pissa has no parts of glm.s gate_up_proj; set model.lora.targets=.attention,down_proj., or init=kai"),
    (("model.lora.rank=0",), "model.lora.rank: 0; legal: 1 to "),
    (("model.lora.dropout=0.1",), "model.lora.dropout: 0.1; with dropout .* only legal: 0"),
    (("model.lora.path=/no/adapter",), "model.lora.path: /no/adapter does not exist"),
    (("model.lora.rank=4", "algorithm.kl.placement=loss", "algorithm.kl.coef=0.1", "algorithm.kl.reference.mode=ema"),
     "mode: ema; the average of adapters' matrices is not that of their products"),
    (("rollout.lora=merged",), "rollout.lora: merged; there are no adapters; set model.lora, or remove it"),
    ((*LATENTS, "rollout.lora=merged"), "lora: merged; on CPU latent attention has no merged weights; set auto"),
    (("model.lora.init=pissa", *TO_SERVERS), "lora: separate; servers do not hold what .*pissa leaves .* set auto"),
    (("model.lora.train_norms=true", *TO_SERVERS, "rollout.servers.api=vllm"),
     "rollout.lora: separate; vllm takes no norms beside adapters .model.lora.train_norms.; set auto"),
    (("model.lora={rank: 4, use_rslora: true}", *TO_SERVERS, "rollout.servers.api=sglang"),
     "rollout.lora: separate; sglang scales by alpha / rank .*; set that to false and model.lora.alpha=64, or rollout"),
    (("model.lora.rank=4", "model.backend=mindformers"), "model.lora: the backend mindformers has no adapters"),
])  # fmt: skip
def test_what_it_cannot_be_is_refused_in_one_line(load, overrides, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*overrides)


def test_a_learning_rate_of_full_training_and_a_warm_up_are_noted(load) -> None:
    (note,) = notes(load("model.lora.rank=4", "optimizer.lr=1e-6"))
    assert note.startswith("optimizer.lr: 1e-06, the default, is for training every weight") and "ten times" in note
    assert notes(load("model.lora.rank=4", "optimizer.lr=1e-5")) == []
    (note,) = notes(load("model.lora.rank=4", "optimizer.lr=1e-5", "warmup={max_steps: 1, batch_size: 1, lr: 0.1}"))
    assert note.startswith("warmup: it trains the adapters and nothing else; warmup.lr is theirs")


def test_a_rank_is_at_most_the_narrowest_target() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
             "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip

    def problems(rank: int, *targets: str) -> list[str]:
        return list(lora_problems(ModelSection(**sizes, lora=LoraSection(rank=rank, targets=targets))))

    assert problems(16, "all") == [] == problems(32, "q_proj", "mlp")
    assert problems(17, "all") == ["model.lora.rank: 17; legal: 1 to 16, the width of the narrowest target"]  # of k, v
    assert problems(33, "mlp") == ["model.lora.rank: 33; legal: 1 to 32, the width of the narrowest target"]


def test_adapters_are_merged_where_generation_has_weights_of_its_own(load) -> None:
    from mindgspo.config.generation import generating_model, merges_adapters, reads_trained_weights

    lora = "model.lora.rank=4"
    servers = "rollout.servers.urls=[http://127.0.0.1:8000]"
    assert not merges_adapters(load()) and not merges_adapters(load(lora)) and not merges_adapters(load(servers))
    assert merges_adapters(load(lora, servers))
    merged = load(lora, "rollout.lora=merged")
    assert merges_adapters(merged) and reads_trained_weights(merged) and generating_model(merged) is merged.model
    other_plan = (lora, "plans.train.model_parallel=2", "plans.infer.data_parallel=2")
    assert merges_adapters(load(*other_plan)) and not merges_adapters(load(*other_plan, "rollout.lora=separate"))
    assert not merges_adapters(load(*LATENTS, *other_plan)) and merges_adapters(load(*LATENTS, servers))
    card = (lora, "device=Ascend", "model.hidden_size=64")
    assert not merges_adapters(load(*card)) and reads_trained_weights(load(*card))
    own = load(*card, "rollout.lora=merged")
    assert not reads_trained_weights(own) and generating_model(own) == own.model.base


def test_adapters_travel_alone_to_servers_that_hold_the_base(load) -> None:
    from mindgspo.config.cache import replica_config

    lora, servers, vllm = "model.lora.rank=4", TO_SERVERS[1], "rollout.servers.api=vllm"
    assert not load(servers).sends_adapters
    for choice in ("auto", "merged", "separate"):
        ours, theirs = (load(lora, servers, f"rollout.lora={choice}", *more) for more in ((), (vllm,)))
        assert ours.sends_adapters and theirs.sends_adapters == (choice == "separate")
        assert (replica_config(ours).model.lora is None) == (choice != "separate")
    assert not load("model.lora.init=pissa", servers).sends_adapters
    (note,) = notes(load(lora, "optimizer.lr=1e-5", servers, vllm))
    assert note == (
        "rollout.lora: auto; servers get whole merged weights at every hand-over; with rollout.lora=separate only "
        "adapters travel"
    )
