"""Our model section in MindFormers' words, what is said where MindFormers is not there, and the cell around a network
that stands in for its own. MindFormers is never imported."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import numpy as np
import pytest

from mindgspo.config import ModelSection
from mindgspo.errors import ConfigError
from mindgspo.integrations.mindformers import chosen_logprobs, llama_settings, require_mindformers

SIZES = {"vocab_size": 11, "hidden_size": 12, "intermediate_size": 13, "num_hidden_layers": 14,
         "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
         "rope_theta": 77.0}  # fmt: skip


def test_sizes_of_a_qwen2() -> None:
    settings = llama_settings(ModelSection(**SIZES), longest_row=32)
    same = ("vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps")
    expected = {key: SIZES[key] for key in same} | {
        "num_layers": 14, "num_heads": 6, "n_kv_heads": 3, "seq_length": 32, "max_position_embedding": 64,
        "theta": 77.0, "qkv_has_bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
    assert {key: settings[key] for key in expected} == expected
    assert "extend_method" not in settings
    assert settings["pad_token_id"] not in range(SIZES["vocab_size"]), "no token is ever taken for padding"


def test_a_llama_has_no_biases_and_its_rope_may_be_stretched() -> None:
    scaling = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 16}
    section = ModelSection(**SIZES, architecture="llama", rope_scaling=scaling, tie_word_embeddings=True)
    settings = llama_settings(section, longest_row=8)
    assert settings["qkv_has_bias"] is False and settings["tie_word_embeddings"] is True
    assert (settings["extend_method"], settings["scaling_factor"]) == ("LLAMA3", scaling)
    assert isinstance(settings["scaling_factor"]["factor"], float), "MindFormers refuses a whole number"


def test_other_families_are_refused() -> None:
    with pytest.raises(ConfigError, match="model.architecture: qwen3 .* qwen2, llama"):
        llama_settings(ModelSection(**SIZES, architecture="qwen3"), longest_row=8)


def test_other_rules_for_stretching_are_refused() -> None:
    section = ModelSection(**SIZES, rope_scaling={"rope_type": "linear", "factor": 2})
    with pytest.raises(ConfigError, match="rope_scaling.rope_type: linear is not tested .* legal .*: llama3"):
        llama_settings(section, longest_row=8)


def test_the_absent_package_is_named_with_its_pair_and_its_extra() -> None:
    try:
        importlib.metadata.version("mindformers")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        pytest.skip("MindFormers is installed here")
    with pytest.raises(ConfigError, match=r"mindformers 1.9.0 and mindspore 2.9.0.*\[mindformers\]"):
        require_mindformers()


def test_the_judges_softmax_by_hand() -> None:
    logits = np.zeros((300, 4), np.float32)
    logits[299] = [0.0, np.log(2.0), 1e4, np.log(4.0)]  # more rows than one block; nothing overflows
    logits[298, 1] = np.log(5.0)
    targets = np.zeros(300, np.int32)
    targets[298:] = (1, 2)
    found = chosen_logprobs(logits, targets)
    np.testing.assert_allclose(found[:298], np.log(1 / 4), rtol=1e-6)
    np.testing.assert_allclose(found[298:], [np.log(5 / 8), 0.0], atol=1e-7)
    assert chosen_logprobs(logits[:0], targets[:0]).shape == (0,)


def test_the_door_opens_without_mindspore() -> None:
    program = "import sys, mindgspo.integrations.mindformers as m; print(sum('mindspore' in n for n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "0", done.stderr


def test_the_cell_is_scored_as_our_model_is(cpu_runtime) -> None:
    from mindspore import Parameter, Tensor, nn, ops

    from mindgspo.batches.rows import TrainingSample, lay_out
    from mindgspo.integrations.mindformers.model import MindFormersModel
    from mindgspo.models.scoring import PolicyScorer

    class Table(nn.Cell):
        """The rows of a table, in place of the layers."""

        def __init__(self, rows: np.ndarray) -> None:
            super().__init__(auto_prefix=False)
            self.weight = Parameter(Tensor(rows), name="model.norm.weight")
            self.gather = ops.Gather()

        def construct(self, ids_RT):
            return self.gather(self.weight, ids_RT, 0)

    class Network(nn.Cell):
        def __init__(self, hidden: np.ndarray, output: np.ndarray) -> None:
            super().__init__(auto_prefix=False)
            self.model, self.lm_head = Table(hidden), Table(output)
            self.lm_head.weight.name = "lm_head.weight"

    rng = np.random.default_rng(0)
    hidden_VH, output_VH = rng.normal(size=(2, 11, 12)).astype(np.float32)
    model = MindFormersModel(ModelSection(**SIZES), Network(hidden_VH, output_VH))
    ids = np.array([3, 1, 4, 1, 5], np.int32)
    sample = TrainingSample(prompt_ids=ids[:2], response_ids=ids[2:], rollout_logp=np.zeros(3, np.float32), number=0)
    batch = lay_out([sample], samples_per_micro_batch=1, length_multiple=8, pad_id=0)[0]
    (scores,) = PolicyScorer(model, temperature=1.0).score([batch])
    expected = chosen_logprobs(hidden_VH[ids[1:4]] @ output_VH.T, ids[2:])
    np.testing.assert_allclose(scores.logp_NK[batch.mask_NK], expected, atol=1e-5)
