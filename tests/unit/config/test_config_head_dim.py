"""The width of one head: given, or derived from the model's width."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mindgspo.config import ModelSection, dump_config, load_config

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_what_is_not_given_is_the_quotient_also_for_a_section_that_python_code_builds():
    assert ModelSection(**SHAPE).head_dim == 24
    assert ModelSection(**SHAPE, head_dim=24) == ModelSection(**SHAPE)
    assert ModelSection(**SHAPE, architecture="qwen3", head_dim=128).head_dim == 128


def test_a_quotient_that_is_not_whole_stays_open():
    assert ModelSection(**{**SHAPE, "num_attention_heads": 10}).head_dim is None


@pytest.mark.parametrize("wrong", [0, -2, 24.5, "wide"])
def test_what_is_no_width_is_refused(wrong: object):
    with pytest.raises(ValidationError, match="head_dim"):
        ModelSection(**SHAPE, head_dim=wrong)


def test_an_override_of_the_heads_counts_before_the_quotient(load):
    assert load("model.num_attention_heads=8").model.head_dim == 12
    assert load("model.architecture=qwen3", "model.head_dim=64").model.head_dim == 64
    assert load("model.architecture=qwen3", "model.num_attention_heads=10", "model.head_dim=64").model.head_dim == 64


def test_it_is_written_down_and_read_back(load, tmp_path):
    config = load("model.architecture=qwen3", "model.head_dim=64")
    (tmp_path / "dumped.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(tmp_path / "dumped.yaml") == config
