"""What must not matter: how a mini-batch is cut, padded, packed, ordered, or spread over ranks.

Loss and gradient of the float32 cells are equal within 1e-6 of the largest element, those of the float64 twins within
1e-12. Denominators are global and passed in, as the trainer does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.config import AlgorithmSection, with_recipe
from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo_conformance.twins.policy_loss import policy_loss

pytestmark = pytest.mark.usefixtures("cpu_runtime")

ROWS, SLOTS, KL_COEF = 8, 9, 0.1
NAMES = sorted(POLICY_LOSSES)
ALL = [*NAMES, "gspo + kl + entropy"]


def definition_of(name: str) -> LossDefinition:
    from mindgspo.algorithms.losses.registry import loss_definition

    if name in NAMES:
        return loss_definition(with_recipe(AlgorithmSection(name=name), max_new_tokens=SLOTS))
    term = KLTerm(kind="k3", aggregation=Aggregation(mode="token-mean"), arg_clamp=(-20.0, 20.0))
    return replace(definition_of("gspo"), kl=term, entropy_coef=0.3)


@dataclass(frozen=True)
class Inputs:
    """Arrays [N, K]; mask last."""

    arrays: tuple[np.ndarray, ...]

    @property
    def mask(self) -> np.ndarray:
        return self.arrays[-1]

    def rows(self, index):
        return Inputs(tuple(array[index] for array in self.arrays))

    def padded(self, rows: int, slots: int):
        """Filler rows below and slots to the right, full of garbage."""
        shape = ((0, rows), (0, slots))
        values = (-7.0, np.nan, np.inf, 5.0, 9.0, -3.0, False)
        return Inputs(
            tuple(np.pad(array, shape, constant_values=v) for array, v in zip(self.arrays, values, strict=True))
        )


def random_inputs(definition: LossDefinition, seed: int, dtype: type = np.float32):
    """Lengths 1 .. K; some ratios clipped."""
    rng = np.random.default_rng(seed)
    mask = np.arange(SLOTS) < rng.integers(1, SLOTS + 1, size=(ROWS, 1))
    old_logp = -rng.exponential(size=mask.shape)
    logp = old_logp + (2e-3 if definition.ratio_level.startswith("sequence") else 0.3) * rng.normal(size=mask.shape)
    arrays = (
        logp, rng.exponential(size=mask.shape), old_logp, logp + 0.1 * rng.normal(size=mask.shape),
        rng.normal(size=(ROWS, 1)) * np.ones(mask.shape), np.exp(0.1 * rng.normal(size=mask.shape)),
    )  # fmt: skip
    return Inputs((*(array.astype(dtype) for array in arrays), mask))


class Cells:
    """Loss and gradient of compiled cells, by definition."""

    tolerance, dtype = 1e-6, np.float32

    def __init__(self) -> None:
        self._graphs = {}

    def __call__(self, definition: LossDefinition, inputs: Inputs, num_sequences: int, num_tokens: int):
        from mindspore import Tensor, ops

        from mindgspo.algorithms.losses.registry import policy_loss_cell

        if definition not in self._graphs:
            self._graphs[definition] = ops.value_and_grad(policy_loss_cell(definition), 0, None, has_aux=True)
        scalars = (np.float32(num_sequences), np.float32(num_tokens), np.float32(KL_COEF))
        (loss, _, _), gradient = self._graphs[definition](*(Tensor(array) for array in (*inputs.arrays, *scalars)))
        return float(loss.asnumpy()), gradient.asnumpy()


class Twins:
    """The same of the twins."""

    tolerance, dtype = 1e-12, np.float64

    def __call__(self, definition: LossDefinition, inputs: Inputs, num_sequences: int, num_tokens: int):
        names = ("logp_NK", "entropy_NK", "old_logp_NK", "ref_logp_NK", "advantages_NK", "correction_NK", "mask_NK")
        result = policy_loss(
            definition, **dict(zip(names, inputs.arrays, strict=True)), kl_coef=KL_COEF, num_sequences=num_sequences,
            num_tokens=num_tokens,
        )  # fmt: skip
        return result.loss, result.grad_logp_NK


@pytest.fixture(scope="module", params=[Cells, Twins], ids=["cells", "twins"])
def judge(request, cpu_runtime):
    return request.param()


def assert_same(judge, definition: LossDefinition, whole: Inputs, parts: Sequence[Inputs], restore) -> None:
    """The losses of `parts` add up to that of `whole`, and restore(gradients) is its gradient."""
    denominators = {"num_sequences": int(whole.mask.any(axis=1).sum()), "num_tokens": int(whole.mask.sum())}
    loss, gradient = judge(definition, whole, **denominators)
    found = [judge(definition, part, **denominators) for part in parts]
    # The loss is a sum whose terms cancel: what it is judged by is the largest of them, one response's share.
    shares = [abs(Twins()(definition, whole.rows([row]), **denominators)[0]) for row in range(ROWS)]
    assert sum(part_loss for part_loss, _ in found) == pytest.approx(loss, rel=0, abs=judge.tolerance * max(shares))
    largest = np.abs(gradient).max()
    assert largest > 0
    np.testing.assert_allclose(restore([g for _, g in found]), gradient, rtol=0, atol=judge.tolerance * largest)


@pytest.mark.parametrize("name", ALL)
def test_every_micro_batch_size(judge, name):
    definition = definition_of(name)
    # Every size costs a compilation per definition: all of them for the project's own loss, divisors for the others.
    sizes = range(1, ROWS) if name == "gspo" else (1, 4)
    for seed, size in enumerate(sizes):
        inputs = random_inputs(definition, seed, judge.dtype)
        parts = [inputs.rows(slice(start, start + size)) for start in range(0, ROWS, size)]
        assert_same(judge, definition, inputs, parts, np.concatenate)


@pytest.mark.parametrize("name", ALL)
def test_padding_with_slots_and_filler_rows(judge, name):
    definition = definition_of(name)
    inputs = random_inputs(definition, 20, judge.dtype)
    for rows, slots in ((0, 7), (8, 0), (8, 7)):
        restore = lambda gradients: gradients[0][:ROWS, :SLOTS]  # noqa: E731
        assert_same(judge, definition, inputs, [inputs.padded(rows, slots)], restore)


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_rows(judge, name):
    definition = definition_of(name)
    for seed in range(3):
        inputs = random_inputs(definition, 30 + seed, judge.dtype)
        order = np.random.default_rng(seed).permutation(ROWS)
        assert_same(judge, definition, inputs, [inputs.rows(order)], lambda g, order=order: g[0][np.argsort(order)])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_split_over_data_parallel_ranks(judge, name, ranks):
    """Rank r takes rows r, r + ranks, ...; the sum over ranks is the all-reduce. Lengths differ between ranks."""
    definition = definition_of(name)
    inputs = random_inputs(definition, 40, judge.dtype)

    def restore(gradients):
        whole = np.zeros((ROWS, SLOTS))
        for rank, gradient in enumerate(gradients):
            whole[rank::ranks] = gradient
        return whole

    shares = [inputs.rows(slice(rank, None, ranks)) for rank in range(ranks)]
    assert len({int(share.mask.sum()) for share in shares}) == ranks, "equal shares would hide a local denominator"
    assert_same(judge, definition, inputs, shares, restore)


VOCAB = 13


def bigram_objective(definition: LossDefinition):
    """A policy whose logits are a row of a table, so that only `predict_P` knows where a token stands."""
    import mindspore as ms
    from mindspore import Parameter, Tensor, nn, ops

    from mindgspo.algorithms.losses.registry import policy_loss_cell
    from mindgspo.algorithms.optim.gradients import Objective

    class Bigram(nn.Cell):
        def __init__(self):
            super().__init__()
            table = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
            self.table = Parameter(Tensor(table), name="table")

        def construct(self, ids_RT, positions_RT, segments_RT, predict_P, targets_P, place_NK):
            log_probs = ops.log_softmax(ops.gather(self.table, ops.gather(ids_RT.reshape(-1), predict_P, 0), 0), -1)
            logp = ops.gather_elements(log_probs, 1, targets_P.reshape(-1, 1))
            entropy = -(ops.exp(log_probs) * log_probs).sum(-1)
            return ops.gather(logp.reshape(-1), place_NK, 0), ops.gather(entropy, place_NK, 0)

    policy = Bigram()
    weights = ms.ParameterTuple(policy.trainable_params())
    return ops.value_and_grad(Objective(policy, policy_loss_cell(definition)), 0, weights, has_aux=True)


def packed_rows(samples: Sequence[tuple[list[int], list[int]]], per_row: int, width: int) -> tuple[np.ndarray, ...]:
    """ids, positions, segments [R, T] with `per_row` samples behind one another, and predict, targets, mask [N, K]."""
    rows = -(-len(samples) // per_row)
    ids, positions, segments = (np.zeros((rows, width), np.int32) for _ in range(3))
    predict, targets = (np.zeros((len(samples), SLOTS), np.int32) for _ in range(2))
    mask = np.zeros((len(samples), SLOTS), bool)
    for number, (prompt, response) in enumerate(samples):
        row, place = divmod(number, per_row)
        start = int((segments[row] > 0).sum())
        length = len(prompt) + len(response)
        ids[row, start : start + length] = [*prompt, *response]
        positions[row, start : start + length] = np.arange(length)
        segments[row, start : start + length] = place + 1
        predict[number, : len(response)] = (row * width + start + len(prompt) - 1) + np.arange(len(response))
        targets[number, : len(response)] = response
        mask[number, : len(response)] = True
    return ids, positions, segments, predict, targets, mask


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "dapo", "gmpo", "gspo + kl + entropy"])
def test_packed_rows(cpu_runtime, name):
    """Two and four samples per row against one: same loss, same gradient of the log-probs and of the weights."""
    from mindspore import Tensor

    definition = definition_of(name)
    inputs = random_inputs(definition, 50)
    rng = np.random.default_rng(50)
    lengths = inputs.mask.sum(axis=1)
    samples = [
        (rng.integers(0, VOCAB, 1 + n % 3).tolist(), rng.integers(0, VOCAB, lengths[n]).tolist()) for n in range(ROWS)
    ]
    # old and reference policy near the table's own log-probs, so that ratios stay near 1
    gradient = bigram_objective(definition)
    _, _, old_logp, ref_logp, advantages, correction, _ = inputs.arrays
    scalars = (np.float32(ROWS), np.float32(lengths.sum()), np.float32(KL_COEF))
    found = {}
    for per_row in (1, 2, 4):
        ids, positions, segments, predict, targets, mask = packed_rows(samples, per_row, width=64)
        np.testing.assert_array_equal(mask, inputs.mask)
        place = np.arange(mask.size, dtype=np.int32).reshape(mask.shape)
        rows = (ids, positions, segments, predict.reshape(-1), targets.reshape(-1), place)
        arrays = (np.zeros(mask.shape, np.float32), *rows, old_logp, ref_logp, advantages, correction, mask)
        (loss, _, _, _, _), (by_logp, by_weight) = gradient(*[Tensor(a) for a in (*arrays, *scalars)])
        found[per_row] = (float(loss.asnumpy()), by_logp.asnumpy(), by_weight[0].asnumpy())
    for per_row in (2, 4):
        assert found[per_row][0] == pytest.approx(found[1][0], rel=1e-6)
        for array, expected in zip(found[per_row][1:], found[1][1:], strict=True):
            assert np.abs(expected).max() > 0
            np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
