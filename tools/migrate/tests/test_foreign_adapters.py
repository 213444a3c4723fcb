"""Targets of other suites' adapters: names, patterns, and what is no projection."""

from __future__ import annotations

from typing import Any

import pytest

from mindgspo_migrate.adapters import lora_targets
from mindgspo_migrate.tables import Row, Settings, Status
from mindgspo_migrate.verl import TABLE

ROW = TABLE.find("actor_rollout_ref.model.target_modules")


def outcome(value: Any):
    assert isinstance(ROW, Row)
    settings: Settings = None  # type: ignore[assignment]
    return lora_targets(value, settings, ROW)


@pytest.mark.parametrize(("value", "targets"), [
    ("all-linear", ["all"]), (["q_proj", "v_proj"], ["q_proj", "v_proj"]), (".*wq|.*wk|.*wv|.*wo", ["attention"]),
    (".*(wq|w1)", ["q_proj", "gate_proj"]), (".*wq | .*w2", ["q_proj", "down_proj"]),
    (["linear_qkv", "linear_fc1", "linear_fc2"], ["mlp", "q_proj", "k_proj", "v_proj"]),
    ("language_model.decoder.layers.*.self_attention.linear_qkv", ["q_proj", "k_proj", "v_proj"]),
    ("q_proj,k_proj", ["q_proj", "k_proj"]),
])  # fmt: skip
def test_projections(value: Any, targets: list[str]) -> None:
    found = outcome(value)
    assert (found.status, dict(found.values)) == (Status.MAPPED, {"model.lora.targets": targets})


@pytest.mark.parametrize(("value", "targets", "named"), [
    (".*word_embeddings|.*wq", ["q_proj"], ".*word_embeddings"), ("lm_head", None, "lm_head"),
    ("model.layers.3.self_attn.q_proj", None, "model.layers.3.self_attn.q_proj"), (".*w[qkv]", None, ".*w[qkv]"),
    (["q_proj", "(?!x)k_proj"], ["q_proj"], "(?!x)k_proj"), ("router", None, "router"),
])  # fmt: skip
def test_what_is_no_projection_is_named(value: Any, targets: list[str] | None, named: str) -> None:
    found = outcome(value)
    assert found.status is Status.NOT_IMPLEMENTED and f"no projection that has adapters here: {named};" in found.text
    assert found.values.get("model.lora.targets") == targets
