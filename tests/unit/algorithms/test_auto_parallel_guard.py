"""The update in one graph, where nobody looks at the norm before the step: what it refuses leaves no trace; and its
moments are those of `RankUpdate`. On a bigram policy, which compiles in a moment."""

from dataclasses import replace

import numpy as np
import pytest

from mindgspo.config import AlgorithmSection, OptimizerSection, ParallelPlan
from mindgspo.config.algorithm import KLSection
from mindgspo.config.load import with_recipe
from mindgspo.errors import TrainingError
from mindgspo.types import Batch

pytestmark = pytest.mark.usefixtures("composed_runtime")

VOCAB, HIDDEN, NUM_MICRO_BATCHES = 11, 4, 2
OPTIMIZER = OptimizerSection(lr=1e-2, weight_decay=0.1, max_grad_norm=0.1)
KL = KLSection(placement="loss")
ALGORITHM = with_recipe(
    AlgorithmSection(name="gspo", clip_low=0.2, clip_high=0.2, allow_wide_clip=True, kl=KL), max_new_tokens=5
)


def make_policy():
    """logits of the next token = head @ embedding[token] + bias."""
    from mindspore import Parameter, Tensor, nn, ops

    from mindgspo.parallel.placement import auto_parallel_placement

    class Placed(nn.Cell):
        place = auto_parallel_placement(ParallelPlan(), 1)

    class Bigram(nn.Cell):
        def __init__(self):
            super().__init__()
            self.model = Placed()
            random = np.random.default_rng(0)
            for name, shape in {"embedding": (VOCAB, HIDDEN), "head": (VOCAB, HIDDEN), "bias": (VOCAB,)}.items():
                setattr(self, name, Parameter(Tensor(random.normal(size=shape).astype(np.float32)), name=name))

        def construct(self, ids_RT, positions_RT, segments, predict_P, targets_P, place_NK):
            hidden = ops.gather(self.embedding, ops.gather(ids_RT.reshape(-1), predict_P, 0), 0)
            log_probs = ops.log_softmax(ops.matmul(hidden, self.head.T) + self.bias, -1)
            logp = ops.gather_elements(log_probs, 1, targets_P.reshape(-1, 1))
            entropy = -(ops.exp(log_probs) * log_probs).sum(-1)
            return ops.gather(logp.reshape(-1), place_NK, 0), ops.gather(entropy, place_NK, 0)

    return Bigram()


def make_batches(seed: int) -> list[Batch]:
    """Two micro-batches of two rows, each a prompt token and five response tokens; token 0 is not among them."""
    random = np.random.default_rng(seed)
    return [make_batch(random) for _ in range(NUM_MICRO_BATCHES)]


def make_batch(random: np.random.Generator) -> Batch:
    ids = random.integers(1, VOCAB, (2, 6)).astype(np.int32)
    shape = ids[:, 1:].shape
    old, ref = random.uniform(-4, -2, (2, *shape)).astype(np.float32)
    return Batch(
        ids_RT=ids, positions_RT=np.zeros_like(ids), segments_RT=np.ones_like(ids),
        predict_P=(np.arange(5, dtype=np.int32) + np.array([[0], [6]], np.int32)).reshape(-1),
        targets_P=ids[:, 1:].reshape(-1), place_NK=np.arange(old.size, dtype=np.int32).reshape(old.shape),
        mask_NK=np.ones(shape, bool), samples_N=np.arange(2, dtype=np.int32), rollout_logp_NK=old, old_logp_NK=old,
        ref_logp_NK=ref, advantages_NK=random.normal(size=shape).astype(np.float32),
        correction_NK=np.ones(shape, np.float32), num_sequences=4, num_tokens=20,
    )  # fmt: skip


class Trained:
    """A policy with its updater, which can go back to where it began."""

    def __init__(self, *, logical: bool) -> None:
        from mindgspo.algorithms.losses.registry import build_policy_loss
        from mindgspo.algorithms.optim.auto_parallel import AutoParallelUpdate
        from mindgspo.algorithms.optim.update import RankUpdate

        self.policy, loss = make_policy(), build_policy_loss(ALGORITHM)
        self.updater = (
            AutoParallelUpdate(self.policy, loss, OPTIMIZER, num_micro_batches=NUM_MICRO_BATCHES)
            if logical
            else RankUpdate(self.policy, loss, OPTIMIZER)
        )
        self._start = self.values()

    def update(self, batches: list[Batch]):
        return self.updater.update(batches, lr=1e-2, kl_coef=0.3)

    def values(self) -> dict[str, np.ndarray]:
        """Weights, moments and the number of updates."""
        weights = {weight.name: weight.asnumpy().copy() for weight in self.policy.get_parameters()}
        return weights | self.updater.state()

    def take(self, values: dict[str, np.ndarray]) -> None:
        """Go on from what `values` returned."""
        from mindgspo.parallel.parameter_memory import set_values

        for weight in self.policy.get_parameters():
            set_values(weight, values[weight.name])
        self.updater.load_state({name: array for name, array in values.items() if name.startswith("adamw.")})

    def begin(self):
        self.take(self._start)
        return self


@pytest.fixture(scope="module")
def compiled(composed_runtime) -> dict[bool, Trained]:
    return {logical: Trained(logical=logical) for logical in (True, False)}


@pytest.fixture
def trained(compiled: dict[bool, Trained]):
    """On the auto_parallel path."""
    return compiled[True].begin()


@pytest.fixture
def own(compiled: dict[bool, Trained]):
    return compiled[False].begin()


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize(("field", "value", "message"), [
    pytest.param("advantages_NK", np.nan, "loss of micro-batch 2 of 2 is nan", id="loss and gradient"),
    pytest.param("advantages_NK", 1e30, "gradient norm is inf, although the loss is", id="gradient alone"),
    # Only the part of the loss that the clip holds is infinite, and it has no gradient.
    pytest.param("advantages_NK", -np.inf, "loss of micro-batch 2 of 2 is inf", id="loss alone"),
])  # fmt: skip
def test_a_non_finite_update_changes_no_bit(trained, own, field, value, message):
    for seed in (1, 3):
        trained.update(make_batches(seed))
    undisturbed = trained.values()
    trained.begin().update(make_batches(1))
    poisoned = make_batches(2)
    poisoned[1] = replace(poisoned[1], **{field: np.full((2, 5), value, np.float32)})
    before = trained.values()
    for path in (trained, own):
        with pytest.raises(TrainingError, match=message):
            path.update(poisoned)
    assert_same_bits(trained.values(), before)
    # The next update is as if the refused one had never been.
    trained.update(make_batches(3))
    assert_same_bits(trained.values(), undisturbed)
    assert np.abs(undisturbed["head"] - before["head"]).max() > 1e-3


def test_an_infinite_loss_has_a_finite_gradient_where_it_is_clipped(own: Trained) -> None:
    """Or else the case above would show nothing: the log-ratios lie beyond the range for these advantages."""
    batches = make_batches(2)
    batches[1] = replace(batches[1], advantages_NK=np.full((2, 5), -np.inf, np.float32))
    norms = []
    own.updater._refuse_non_finite = lambda losses, norm: norms.append((losses[1], norm))
    own.updater._apply(batches, kl_coef=0.3, lr=0.0)
    del own.updater._refuse_non_finite
    ((loss, norm),) = norms
    assert loss == np.inf and np.isfinite(norm)


def test_log_probs_that_are_not_finite_are_found_in_their_micro_batch(trained: Trained) -> None:
    broken = trained.values()
    broken["embedding"][0] = np.nan
    trained.take(broken)
    batches = make_batches(1)
    ids = batches[1].ids_RT.copy()
    ids[1, 2] = 0
    batches[1] = replace(batches[1], ids_RT=ids)
    with pytest.raises(TrainingError, match="loss of micro-batch 2 of 2 is nan"):
        trained.update(batches)
    assert_same_bits(trained.values(), broken)


@pytest.mark.parametrize("is_to_own", [True, False], ids=["to own", "from own"])
def test_moments_move_between_the_paths(trained: Trained, own: Trained, is_to_own: bool) -> None:
    first, second = (trained, own) if is_to_own else (own, trained)
    for seed in (1, 2):
        first.update(make_batches(seed))
    second.take(first.values())
    assert_same_bits(second.values(), first.values())
    results = [path.update(make_batches(3)) for path in (first, second)]
    assert results[1].loss == pytest.approx(results[0].loss, rel=1e-5)
    assert results[1].grad_norm == pytest.approx(results[0].grad_norm, rel=1e-5)
    expected, found = first.values(), second.values()
    assert found["adamw.updates"] == 3 and found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5 * np.abs(array).max(), err_msg=name)


@pytest.fixture(scope="module")
def stepped(composed_runtime):
    """stepped(guarded, is_good, updates): weights and moments behind so many steps of AdamW from one start."""
    from mindspore import Parameter, ParameterTuple, Tensor, nn

    from mindgspo.algorithms.optim.adamw import AdamW

    class Step(nn.Cell):
        def __init__(self, optimizer, guarded):
            super().__init__()
            self.optimizer, self.guarded = optimizer, guarded

        def construct(self, gradients, is_good, clip_scale, step_size, root_eps, decay):
            if self.guarded:
                return self.optimizer.guarded(gradients, is_good, clip_scale, step_size, root_eps, decay)
            return self.optimizer(gradients, clip_scale, step_size, root_eps, decay)

    def run(*, guarded: bool, goods: list[bool], bad_value: float = np.nan) -> dict[str, bytes]:
        random = np.random.default_rng(0)
        shapes = {"matrix": (17, 13), "bias": (13,)}
        start = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        start["matrix"][:3, 0] = [0.0, 1e-40, 3e38]
        weights = ParameterTuple([Parameter(Tensor(array), name=name) for name, array in start.items()])
        optimizer = AdamW(weights, OPTIMIZER)
        step, number = Step(optimizer, guarded), 0
        for good in goods:
            found = [random.normal(size=shape).astype(np.float32) for shape in shapes.values()] if good else []
            number += good
            scalars = optimizer.scalars(max(number, 1), 1e-2, 0.7)
            given = found or [np.full(shape, bad_value, np.float32) for shape in shapes.values()]
            step(tuple(Tensor(array) for array in given), Tensor(good), *scalars)
        kept = (*weights, *optimizer.first_moments, *optimizer.second_moments)
        return {parameter.name: parameter.asnumpy().tobytes() for parameter in kept}

    return run


def test_a_good_guarded_step_is_the_plain_step(stepped) -> None:
    assert stepped(guarded=True, goods=[True] * 3) == stepped(guarded=False, goods=[True] * 3)


@pytest.mark.parametrize("bad_value", [np.nan, np.inf, 1e30])
def test_a_refused_step_keeps_every_bit(stepped, bad_value: float) -> None:
    refused_between = stepped(guarded=True, goods=[False, True, False, True, False], bad_value=bad_value)
    assert refused_between == stepped(guarded=False, goods=[True, True])
