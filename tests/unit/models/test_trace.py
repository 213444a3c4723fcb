"""Modules that are called one by one make the log-probs of the policy's graph."""

from collections.abc import Iterator

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample
from mindgspo.config import ModelSection
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.trace import trace_forward
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.ops.device import policy_inputs
from mindgspo.parallel.platform.runtime import call_compiled
from mindgspo.types import Batch

DENSE = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.15,
}  # fmt: skip
EXPERTS = DENSE | {
    "architecture": "qwen3_moe", "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "norm_topk_prob": True,
}  # fmt: skip


def batch_of_four() -> Batch:
    """Two responses to each of two prompts."""
    random = np.random.default_rng(5)
    prompts = [random.integers(1, 61, size).astype(np.int32) for size in (3, 7)]
    samples = [
        TrainingSample(
            prompt_ids=prompts[number % 2],
            response_ids=random.integers(1, 61, 2 + 3 * number).astype(np.int32),
            rollout_logp=np.zeros(2 + 3 * number, np.float32),
            number=number,
        )
        for number in range(4)
    ]
    return micro_batches(samples, BatchLayout(samples_per_micro_batch=4, length_multiple=8, pad_id=0))[0]


@pytest.fixture
def pynative(cpu_runtime) -> Iterator[None]:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


@pytest.mark.parametrize(("model", "dtype"), [(DENSE, "float32"), (DENSE, "bfloat16"), (EXPERTS, "float32")])
def test_the_trace_ends_in_the_log_probs_of_the_graph(pynative, model: dict, dtype: str) -> None:
    section = ModelSection(**model, dtype=dtype)
    net = build_model(section)
    initialize_weights(net, section, seed=3)
    policy, batch = PolicyLogProbs(net, temperature=1.0, with_entropy=False), batch_of_four()
    found = {}
    trace_forward(policy, batch, lambda module, operator, values: found.update({module: values}))
    arrays = policy_inputs(batch, is_packed=policy.is_packed).arrays
    logp_NK = call_compiled(policy, *map(Tensor, arrays))[0].asnumpy()
    np.testing.assert_array_equal(found["log_probs"], np.where(batch.mask_NK, logp_NK, np.float32(0)))
