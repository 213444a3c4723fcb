"""The log-prob head of an auto_parallel graph against a float64 twin in numpy, values and gradients, and against the
head of one process."""

from typing import NamedTuple

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("composed_runtime")

NUM_TOKENS, VOCAB_SIZE, HIDDEN_SIZE = 12, 24, 6


class Inputs(NamedTuple):
    """Slopes are the gradients of the loss with respect to log-probs and entropies."""

    hidden: np.ndarray
    weight: np.ndarray
    targets: np.ndarray
    logp_slopes: np.ndarray
    entropy_slopes: np.ndarray


class Outputs(NamedTuple):
    logp: np.ndarray
    entropy: np.ndarray
    hidden_gradient: np.ndarray
    weight_gradient: np.ndarray


def make_inputs(scale: float = 1.0) -> Inputs:
    random = np.random.default_rng(0)
    targets = random.integers(0, VOCAB_SIZE, NUM_TOKENS).astype(np.int32)
    # The same token in several chunks, and both ends of the vocabulary.
    targets[[1, 2, 9]], targets[3], targets[4] = 7, 0, VOCAB_SIZE - 1
    return Inputs(
        (scale * random.normal(size=(NUM_TOKENS, HIDDEN_SIZE))).astype(np.float32),
        random.normal(size=(VOCAB_SIZE, HIDDEN_SIZE)).astype(np.float32), targets,
        random.normal(size=NUM_TOKENS).astype(np.float32), random.normal(size=NUM_TOKENS).astype(np.float32),
    )  # fmt: skip


def twin(inputs: Inputs, temperature: float, *, with_entropy: bool) -> Outputs:
    hidden, weight = inputs.hidden.astype(np.float64), inputs.weight.astype(np.float64)
    rows = np.arange(NUM_TOKENS)
    logits = hidden @ weight.T / temperature
    log_probs = logits - logits.max(axis=1, keepdims=True)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    probs = np.exp(log_probs)
    entropy = -(probs * log_probs).sum(axis=1) * with_entropy
    slope = inputs.logp_slopes[:, None] * (np.eye(VOCAB_SIZE)[inputs.targets] - probs)
    slope -= with_entropy * inputs.entropy_slopes[:, None] * probs * (log_probs + entropy[:, None])
    return Outputs(
        log_probs[rows, inputs.targets], entropy, slope @ weight / temperature, slope.T @ hidden / temperature
    )


def logical_head(temperature: float, with_entropy: bool, chunk: int, *, num_replicas: int = 1, model_parallel: int = 1):
    """A head whose chunks hold so many tokens of a replica."""
    from mindgspo.config import ParallelPlan
    from mindgspo.models.log_prob import AutoParallelLogProb
    from mindgspo.parallel.placement import auto_parallel_placement

    place = auto_parallel_placement(ParallelPlan(data_parallel=num_replicas, model_parallel=model_parallel), 2)
    chunk_bytes = 4 * VOCAB_SIZE // model_parallel * chunk
    return AutoParallelLogProb(place, temperature=temperature, with_entropy=with_entropy, chunk_bytes=chunk_bytes)


def run(head, inputs: Inputs) -> Outputs:
    from mindspore import Tensor, nn, ops

    class WeightedSum(nn.Cell):
        def __init__(self):
            super().__init__()
            self.head = head

        def construct(self, hidden, weight, targets, logp_slopes, entropy_slopes):
            logp, entropy = self.head(hidden, weight, targets)
            return (logp * logp_slopes).sum() + (entropy * entropy_slopes).sum(), logp, entropy

    class WithGradients(nn.Cell):
        def __init__(self):
            super().__init__()
            self.run = ops.value_and_grad(WeightedSum(), grad_position=(0, 1), has_aux=True)

        def construct(self, hidden, weight, targets, logp_slopes, entropy_slopes):
            (_, logp, entropy), gradients = self.run(hidden, weight, targets, logp_slopes, entropy_slopes)
            return logp, entropy, gradients[0], gradients[1]

    return Outputs(*(output.asnumpy() for output in WithGradients()(*map(Tensor, inputs))))


def assert_near(found: Outputs, expected: Outputs, bound: float = 1e-5) -> None:
    for name, output, reference in zip(Outputs._fields, found, expected, strict=True):
        assert output.dtype == np.float32 and output.shape == reference.shape, name
        scale = max(1, np.abs(reference).max())
        np.testing.assert_allclose(output, reference, rtol=0, atol=bound * scale, err_msg=name)


# One token at a time; uneven chunks; all at once; room for more than there are.
@pytest.mark.parametrize(("chunk", "temperature"), [(1, 0.7), (5, 1.7), (NUM_TOKENS, 0.7), (100, 1.0)])
@pytest.mark.parametrize("with_entropy", [False, True], ids=["log-probs", "entropies"])
def test_values_and_gradients(with_entropy: bool, chunk: int, temperature: float) -> None:
    inputs = make_inputs()
    found = run(logical_head(temperature, with_entropy, chunk), inputs)
    assert_near(found, twin(inputs, temperature, with_entropy=with_entropy))
    if not with_entropy:
        assert (found.entropy == 0).all()


@pytest.mark.parametrize("chunk", [4, 5, 100])
def test_replicas_chunk_their_own_tokens_and_find_the_same(chunk: int) -> None:
    inputs = make_inputs()
    expected = twin(inputs, 0.7, with_entropy=True)
    one, two = (run(logical_head(0.7, True, chunk, num_replicas=count), inputs) for count in (1, 2))
    assert_near(two, expected)
    assert_near(one, two, 1e-6)


def test_a_split_vocabulary_makes_chunks_longer_and_changes_nothing() -> None:
    inputs = make_inputs()
    found = run(logical_head(1.3, True, 5, num_replicas=2, model_parallel=4), inputs)
    assert_near(found, twin(inputs, 1.3, with_entropy=True))


@pytest.mark.parametrize("with_entropy", [False, True], ids=["log-probs", "entropies"])
def test_the_head_of_one_process_finds_the_same(with_entropy: bool) -> None:
    from mindgspo.models.log_prob import ChunkedLogProb, ChunkedLogProbEntropy

    inputs = make_inputs()
    alone = ChunkedLogProbEntropy if with_entropy else ChunkedLogProb
    expected = run(alone(temperature=0.8, chunk_bytes=4 * VOCAB_SIZE * 5), inputs)
    assert_near(run(logical_head(0.8, with_entropy, 5), inputs), expected)


def section_of(**changes: int):
    from mindgspo.config import ModelSection

    sizes = {"hidden_size": HIDDEN_SIZE, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return ModelSection(**{"vocab_size": VOCAB_SIZE, "num_key_value_heads": 1, **sizes, **changes})


@pytest.mark.parametrize("with_entropy", [False, True], ids=["log-probs", "entropies"])
@pytest.mark.parametrize(
    "is_divided", [pytest.param(False, marks=pytest.mark.slow), True], ids=["one process", "by the compiler"]
)
def test_padding_of_the_table_changes_nothing(is_divided: bool, with_entropy: bool) -> None:
    """Also where the padding's logits, which are 0, would be the largest; its gradient is exactly zero."""
    from mindgspo.config import ParallelPlan
    from mindgspo.models.log_prob import log_prob_head
    from mindgspo.parallel.placement import ALONE, auto_parallel_placement

    place = auto_parallel_placement(ParallelPlan(model_parallel=2), 0) if is_divided else ALONE
    inputs = make_inputs()
    inputs.hidden[:, 0], inputs.weight[:, 0] = 1.0, inputs.weight[:, 0] - 4
    head = log_prob_head(section_of(table_rows=VOCAB_SIZE + 4), place, temperature=0.8, with_entropy=with_entropy)
    found = run(head, inputs._replace(weight=np.pad(inputs.weight, ((0, 4), (0, 0)))))
    assert (found.weight_gradient[VOCAB_SIZE:] == 0).all()
    kept = found._replace(weight_gradient=found.weight_gradient[:VOCAB_SIZE])
    assert_near(kept, twin(inputs, 0.8, with_entropy=with_entropy))


def test_the_placement_decides_about_the_head() -> None:
    from mindgspo.config import ParallelPlan
    from mindgspo.models.log_prob import AutoParallelLogProb, log_prob_head
    from mindgspo.parallel.placement import ALONE, auto_parallel_placement

    section = section_of()
    place = auto_parallel_placement(ParallelPlan(data_parallel=2), 2)
    assert isinstance(log_prob_head(section, place, temperature=1.0, with_entropy=True), AutoParallelLogProb)
    assert not isinstance(log_prob_head(section, ALONE, temperature=1.0, with_entropy=True), AutoParallelLogProb)


def test_a_nearly_certain_distribution_stays_finite() -> None:
    inputs = make_inputs(scale=300.0)
    expected = twin(inputs, 1.0, with_entropy=True)
    assert expected.logp.min() < -500, "probabilities must underflow in float32"
    found = run(logical_head(1.0, True, 5), inputs)
    for name, output, reference in zip(Outputs._fields, found, expected, strict=True):
        assert np.isfinite(output).all(), name
        np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-3, err_msg=name)
