"""Tiny random Qwen2 models made and saved by Hugging Face transformers: same logits, same gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="extra `parity` is not installed")
transformers = pytest.importorskip("transformers", reason="extra `parity` is not installed")

pytestmark = pytest.mark.parity

SHAPES = {
    "tied": {"tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2},
    "untied": {"tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 1},
    "all heads": {"tie_word_embeddings": False, "num_attention_heads": 2, "num_key_value_heads": 2},
}


def make_model(folder: Path, seed: int = 0, **shape: object):  # noqa: ANN201
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        max_position_embeddings=256,
        rope_theta=12345.0,
        initializer_range=0.2,
        use_sliding_window=False,
        **shape,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():  # biases and norm weights start as constants: give them values that can be told apart
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_equal_transformers(shape: dict, tmp_path: Path, cpu_runtime: None) -> None:
    from mindspore import Tensor, ops

    from mindgspo.models.huggingface_config import read_model_section
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import load_huggingface

    reference = make_model(tmp_path, **shape)
    section = read_model_section(tmp_path)
    model = build_model(section)
    load_huggingface(model, section, tmp_path)
    ids_RT = np.random.default_rng(1).integers(0, 97, (2, 40)).astype(np.int32)
    positions_RT = np.tile(np.arange(40, dtype=np.int32), (2, 1))
    hidden = model(Tensor(ids_RT), Tensor(positions_RT), Tensor(np.ones_like(ids_RT)))
    logits = ops.matmul(hidden, model.output_weight().T).asnumpy().reshape(2, 40, 97)
    with torch.no_grad():
        expected = reference(torch.tensor(ids_RT, dtype=torch.long)).logits.numpy()
    assert np.abs(logits - expected).max() < 1e-4
    assert np.abs(expected).max() > 1, "the comparison needs logits away from zero"
