"""Modules by one graph, or called one by one, make the log-probs of the policy's graph."""

from collections.abc import Iterator

import mindspore
import numpy as np
import pytest
from mindspore import Tensor
from small_plans import GLM4, LATENTS, MIXTURE, SHARED_EXPERTS, drawn_model, small_model

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.trace import trace_forward, trace_graph
from mindgspo.parallel.ops.device import policy_inputs
from mindgspo.parallel.platform.runtime import call_compiled
from mindgspo.types import Batch


def batch_of_four() -> Batch:
    """Two responses to each of two prompts."""
    random = np.random.default_rng(5)
    prompts = [random.integers(1, 61, size).astype(np.int32) for size in (3, 7)]
    samples = [
        TrainingSample(
            prompt_ids=prompts[number % 2], response_ids=random.integers(1, 61, 2 + 3 * number).astype(np.int32),
            rollout_logp=np.zeros(2 + 3 * number, np.float32), number=number,
        ) for number in range(4)
    ]  # fmt: skip
    return micro_batches(samples, BatchLayout(samples_per_micro_batch=4, length_multiple=8, pad_id=0))[0]


def policy_of(**model: object) -> PolicyLogProbs:
    section = small_model(**model, initializer_range=0.15)
    return PolicyLogProbs(drawn_model(section, seed=3), temperature=1.0, with_entropy=False)


@pytest.fixture
def pynative(cpu_runtime) -> Iterator[None]:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [({}, "float32"), ({}, "bfloat16")] + [(one, "float32") for one in (GLM4, MIXTURE, SHARED_EXPERTS, LATENTS)],
)
def test_traces_end_in_the_log_probs_of_the_graph(pynative, model: dict, dtype: str) -> None:
    policy = policy_of(**model, dtype=dtype)
    batch = batch_of_four()
    found = {}
    trace_forward(policy, batch, lambda module, operator, values: found.update({module: values}))
    arrays = policy_inputs(batch, is_packed=policy.is_packed).arrays
    logp_NK = call_compiled(policy, *map(Tensor, arrays))[0].asnumpy()
    np.testing.assert_array_equal(found["log_probs"], np.where(batch.mask_NK, logp_NK, np.float32(0)))
    graph = trace_graph(policy, batch)
    assert list(graph) == list(found)
    np.testing.assert_array_equal(graph.pop("log_probs").outputs[batch.mask_NK], logp_NK[batch.mask_NK])
    for name, (_, outputs) in graph.items():
        np.testing.assert_array_equal(outputs[: len(found[name])], found[name], err_msg=name)


def test_the_next_module_is_given_what_is_handed_back(pynative) -> None:
    """Hidden states of 0 give all 61 tokens the same log-prob."""
    found = {}

    def silence(module: str, operator: str, values: np.ndarray) -> np.ndarray | None:
        found[module] = values
        return np.zeros_like(values) if module == "norm" else None

    batch = batch_of_four()
    trace_forward(policy_of(), batch, silence)
    np.testing.assert_allclose(found["log_probs"][batch.mask_NK], -np.log(61), rtol=1e-6)
