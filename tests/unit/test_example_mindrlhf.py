"""examples/mindrlhf against a fake of MindRLHF's policy and of the rows that its experience maker packs.

The fake knows only the interface: the ten positional inputs of `CausalLMHybrid`, its `dp` and its four monitors. What
it computes is small enough to be done again in float64, with the twin of the loss behind it.

Legend: R rows, T token slots, P samples per row, N samples, V vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from mindgspo.algorithms.losses.registry import loss_definition
from mindgspo.config import AlgorithmSection, KLSection, with_recipe
from mindgspo.errors import ConfigError
from mindgspo_conformance.twins.policy_loss import policy_loss

pytestmark = pytest.mark.usefixtures("cpu_runtime")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mindrlhf"
VOCAB, LENGTH, PAD = 13, 32, 12
WIDE = AlgorithmSection(clip_low=0.03, clip_high=0.05, allow_wide_clip=True)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """On the search path, as README.md has it: MindSpore imports the module again while it compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        yield importlib.import_module("gspo_model")


def config(**settings: object) -> SimpleNamespace:
    """The fields of MindRLHF's GRPOConfig that the cell reads, and two that it must not read."""
    own = {"beta": 0.0, "pack_num": 3, "seq_length": LENGTH, "enable_oldpolicy": True, "enable_full_monitor": False}
    return SimpleNamespace(rl_config=SimpleNamespace(**own | {"epsilon_low": 0.2, "epsilon_high": 0.2} | settings))


@dataclass(frozen=True)
class Sample:
    """One response with its prompt; the arrays are of the response's tokens."""

    prompt: list[int]
    response: list[int]
    advantage: float
    old: np.ndarray = field(repr=False)
    ref: np.ndarray = field(repr=False)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.response, PAD]


def samples_of(lengths: list[int], seed: int = 0) -> list[Sample]:
    """Responses of these lengths. Old log-probs are near those of the fake, as after one update."""
    rng = np.random.default_rng(seed)
    found = []
    for length in lengths:
        prompt, response = rng.integers(0, VOCAB, 3).tolist(), rng.integers(0, VOCAB, length).tolist()
        ids = np.array(prompt + response)
        logp = log_probs(table(), ids[2:-1], ids[3:])
        found.append(
            Sample(
                prompt=prompt, response=response, advantage=float(rng.normal()),
                old=logp + rng.normal(0, 0.05) + rng.normal(0, 0.02, length), ref=logp + rng.normal(0, 0.3, length),
            )
        )  # fmt: skip
    return found


def table() -> np.ndarray:
    """Logits of the next token by the present one, [V, V]."""
    return np.random.default_rng(99).normal(size=(VOCAB, VOCAB)).astype(np.float32)


def log_probs(logits_VV: np.ndarray, ids: np.ndarray, targets: np.ndarray) -> np.ndarray:
    rows = logits_VV.astype(np.float64)[ids]
    return rows[np.arange(len(ids)), targets] - np.log(np.exp(rows).sum(axis=1))


def packed(rows: list[list[Sample]], pack_num: int) -> list[np.ndarray]:
    """The eight inputs for rows of samples, as MindRLHF lays them: each sample followed by one padding token, dummies
    of one token behind the last sample, which is padded to fill the row; then all but ids, advantages and indices
    moved one slot to the left, to the slot that predicts."""
    columns: list[list[np.ndarray]] = [[] for _ in range(8)]
    for row in rows:
        dummies = pack_num - len(row)
        ids, mask = np.full(LENGTH + 1, PAD), np.zeros(LENGTH + 1, int)
        ref, old, advantages = np.zeros(LENGTH + 1), np.zeros(LENGTH + 1), np.zeros(LENGTH)
        index, ends, valid, start = np.zeros(LENGTH, int), [], [], 0
        for number, sample in enumerate(row):
            stop = start + len(sample.tokens)
            first, last = start + len(sample.prompt), stop - 1
            ids[start:stop], mask[first:last] = sample.tokens, 1
            ref[first:last], old[first:last] = sample.ref, sample.old
            advantages[start:stop], index[start:] = sample.advantage, number
            ends.append(stop if number < len(row) - 1 else LENGTH - dummies)
            valid.append(len(sample.response))
            start = stop
        assert start <= LENGTH - dummies, "the row is too short for its samples"
        for number in range(dummies):
            index[LENGTH - dummies + number] = len(row) + number
            ends.append(ends[-1] + 1)
            valid.append(1)
        made = (ids, mask[1:], ref[1:], advantages, ends, index, valid, old[1:])
        for column, array in zip(columns, made, strict=True):
            column.append(np.array(array))
    kinds = (np.int32, np.int32, np.float32, np.float32, np.int32, np.int32, np.int32, np.float32)
    return [np.stack(column).astype(kind) for column, kind in zip(columns, kinds, strict=True)]


def fake_policy(num_replicas: int = 1):
    """Log-probs of a bigram table. The flat ends of samples must be right: a slot whose sample, found by them, does not
    begin with a whole prompt in the same row shifts the log-prob."""
    import mindspore as ms
    from mindspore import Parameter, Tensor, nn, ops

    class FakePolicy(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dp = num_replicas
            self.logits = Parameter(Tensor(table()), name="logits")
            for name in ("old_log_ratio", "kl_loss", "actor_loss", "clipfrac"):
                setattr(self, name, Parameter(Tensor(0, ms.float32), name=name, requires_grad=False))

        def construct(
            self,
            input_ids,
            input_position,
            batch_valid_length,
            slot_mapping,
            is_first_iteration,
            use_past,
            samples,
            actual_sequence_length,
            return_full_logit,
            is_ref,
        ):
            num_rows, width = input_ids.shape
            all_logp = ops.log_softmax(ops.gather(self.logits, input_ids.reshape(-1), 0), -1)
            logp = ops.gather_elements(all_logp, 1, samples.reshape(-1, 1)).reshape(num_rows, width)
            # Number of samples of the replica that end at or before a slot: 0, 1, ... over its rows laid end to end.
            slots = ops.arange(0, num_rows * width // self.dp).reshape(1, -1, 1)
            number = (actual_sequence_length.reshape(self.dp, 1, -1) <= slots).astype(ms.float32).sum(axis=2)
            return logp + 0.01 * number.reshape(num_rows, width)

    return FakePolicy()


def expected(rows: list[list[Sample]], algorithm: AlgorithmSection, *, pack_num: int, num_replicas=1, **settings):
    """Twin result of the samples, and the gradient by the table, float64."""
    num_rows = len(rows)
    flat = [
        (sample, row % (num_rows // num_replicas) * pack_num + number)
        for row, samples in enumerate(rows)
        for number, sample in enumerate(samples)
    ]
    width = max(len(sample.response) for sample, _ in flat)
    arrays = {name: np.zeros((len(flat), width)) for name in ("logp_NK", "old_logp_NK", "ref_logp_NK")}
    mask_NK, ids_NK, targets_NK = (np.zeros((len(flat), width), int) for _ in range(3))
    for n, (sample, number) in enumerate(flat):
        length, whole = len(sample.response), np.array(sample.prompt + sample.response)
        ids, targets = whole[len(sample.prompt) - 1 : -1], whole[len(sample.prompt) :]
        mask_NK[n, :length], ids_NK[n, :length], targets_NK[n, :length] = 1, ids, targets
        logp = log_probs(table(), ids, targets) + 0.01 * number
        for name, values in zip(arrays, (logp, sample.old, sample.ref), strict=True):
            arrays[name][n, :length] = values
    if settings.get("on_policy"):
        arrays["old_logp_NK"] = arrays["logp_NK"]
    result = policy_loss(
        loss_definition(with_recipe(algorithm, max_new_tokens=LENGTH)),
        advantages_NK=np.array([sample.advantage for sample, _ in flat]), mask_NK=mask_NK,
        kl_coef=settings.get("beta", 0.0), num_sequences=settings.get("num_sequences"), **arrays,
    )  # fmt: skip
    probabilities = np.exp(table().astype(np.float64))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    gradient = np.zeros((VOCAB, VOCAB))
    for n, k in zip(*np.nonzero(mask_NK), strict=True):
        gradient[ids_NK[n, k]] -= result.grad_logp_NK[n, k] * probabilities[ids_NK[n, k]]
        gradient[ids_NK[n, k], targets_NK[n, k]] += result.grad_logp_NK[n, k]
    return result, gradient


def found(cell, inputs: list[np.ndarray]) -> tuple[float, np.ndarray]:
    """Loss, and gradient by the fake's table, through the graph that a train cell would make."""
    import mindspore as ms
    from mindspore import Tensor

    weights = cell.trainable_params()
    assert [weight.shape for weight in weights] == [(VOCAB, VOCAB)]
    loss, (gradient,) = ms.value_and_grad(cell, None, weights)(*(Tensor(array) for array in inputs))
    return float(loss.asnumpy()), gradient.asnumpy()


ROWS = [[5, 1, 7], [9, 4], [20]]  # lengths of responses; the second and the third row have dummies


def rows_of(lengths: list[list[int]]) -> list[list[Sample]]:
    flat = iter(samples_of([length for row in lengths for length in row]))
    return [[next(flat) for _ in row] for row in lengths]


def agree(result: tuple[float, np.ndarray], twin) -> None:
    (loss, gradient), (expected_result, expected_gradient) = result, twin
    assert loss == pytest.approx(expected_result.loss, rel=1e-5, abs=1e-6)  # what samples add is of size 1 and cancels
    largest = np.abs(expected_gradient).max()
    assert largest > 0
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-5 * largest)


def test_packed_rows_of_one_and_of_two_replicas(example) -> None:
    # One ratio per sample and not per row; the response of one token counts; dummies do not.
    rows = rows_of(ROWS)
    twin = expected(rows, WIDE, pack_num=3)
    assert 0 < twin[0].metrics["pg_clipfrac_seq"] < 1, "some samples must be clipped, others not"
    agree(found(example.GSPOModel(config(), fake_policy(), WIDE), packed(rows, 3)), twin)
    # Ends of samples are counted within a replica's rows.
    rows = rows_of([[5, 1], [9, 4], [8], [3, 3, 3]])
    cell = example.GSPOModel(config(), fake_policy(num_replicas=2), WIDE)
    agree(found(cell, packed(rows, 3)), expected(rows, WIDE, pack_num=3, num_replicas=2))


def test_one_sample_per_row_and_nothing_read_outside_of_responses(example) -> None:
    rows = rows_of([[5], [1], [17], [9]])
    cell = example.GSPOModel(config(pack_num=1), fake_policy(), WIDE)
    agree(found(cell, packed(rows, 1)), expected(rows, WIDE, pack_num=1))
    rows = rows_of(ROWS)
    inputs = packed(rows, 3)
    for position in (2, 3, 7):
        inputs[position][inputs[1] == 0] = np.nan
    agree(found(example.GSPOModel(config(), fake_policy(), WIDE), inputs), expected(rows, WIDE, pack_num=3))


def test_the_kl_term_of_mindrlhf_and_no_old_policy(example) -> None:
    rows = rows_of(ROWS)
    term = KLSection(
        placement="loss", estimator="k3", exponent_clamp=None, value_clamp=None, agg_mode="seq-mean-token-mean"
    )
    twin = expected(rows, WIDE.model_copy(update={"kl": term}), pack_num=3, beta=0.7)
    assert abs(twin[0].kl_loss) > 1e-3
    agree(found(example.GSPOModel(config(beta=0.7), fake_policy(), WIDE), packed(rows, 3)), twin)
    rows = rows_of(ROWS)
    cell = example.GSPOModel(config(enable_oldpolicy=False), fake_policy())
    agree(found(cell, packed(rows, 3)), expected(rows, AlgorithmSection(), pack_num=3, on_policy=True))


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo_token", "gmpo"])
def test_other_losses_of_this_project(example, name: str) -> None:
    rows, algorithm = rows_of(ROWS), AlgorithmSection(name=name)
    cell = example.GSPOModel(config(), fake_policy(), algorithm)
    agree(found(cell, packed(rows, 3)), expected(rows, algorithm, pack_num=3))


def test_micro_batches_add_up_and_dummies_alone_are_zero(example) -> None:
    # Two calls whose mean is one update: with a common divisor every sample weighs the same.
    rows = rows_of(ROWS[:1] + ROWS[2:])
    twin = expected(rows, WIDE, pack_num=3, num_replicas=2)
    losses, gradients = [], []
    for row in rows:
        cell = example.GSPOModel(config(), fake_policy(), WIDE, samples_per_call=4 / 2)
        loss, gradient = found(cell, packed([row], 3))
        losses.append(loss)
        gradients.append(gradient)
    agree((np.mean(losses), np.mean(gradients, axis=0)), twin)
    inputs = packed(rows_of([[3]]), 3)
    inputs[1][:] = 0
    loss, gradient = found(example.GSPOModel(config(beta=0.5), fake_policy(), WIDE), inputs)
    assert loss == 0 and not gradient.any()


def test_the_train_cell_and_its_monitors(example) -> None:
    """As MindRLHF's train worker uses it: attribute chain, parameter names, numbers read and reset after a call."""
    rows = rows_of(ROWS)
    grpo_config = config(beta=0.7, enable_full_monitor=True)
    cell = example.GSPOModelTrain(grpo_config, fake_policy())
    assert [weight.name for weight in cell.trainable_params()] == ["grpo_model_train.policy_model.logits"]
    loss, _ = found(cell, packed(rows, 3))
    model = cell.grpo_model_train
    policy_loss, kl_loss = (float(tensor.asnumpy()) for tensor in (model.get_actor_loss(), model.get_klloss()))
    assert policy_loss != 0 and kl_loss > 0 and policy_loss + 0.7 * kl_loss == pytest.approx(loss, rel=1e-5)
    result, _ = expected(rows, AlgorithmSection(), pack_num=3)
    assert float(model.get_clipfrac().asnumpy()) == pytest.approx(result.metrics["pg_clipfrac_seq"])
    assert float(model.get_ratio().asnumpy()) == pytest.approx(np.exp(result.metrics["log_ratio_mean"]), rel=1e-5)
    for reset in (model.set_ratio, model.set_clipfrac, model.set_klloss, model.set_actor_loss):
        reset()
    values = (model.get_ratio(), model.get_clipfrac(), model.get_klloss(), model.get_actor_loss())
    assert [float(value.asnumpy()) for value in values] == [0, 0, 0, 0]


def test_settings_that_mindrlhf_cannot_feed_are_refused(example) -> None:
    with pytest.raises(ConfigError, match="algorithm.kl: .* rl_config.beta"):
        example.GSPOModel(config(), fake_policy(), AlgorithmSection(kl=KLSection(placement="loss")))
    with pytest.raises(ConfigError, match="algorithm.entropy_coef: 0.1"):
        example.GSPOModel(config(), fake_policy(), AlgorithmSection(entropy_coef=0.1))
