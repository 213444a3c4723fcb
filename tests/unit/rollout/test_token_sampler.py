"""Inverse-CDF sampling against a float64 twin in numpy: the very same token, away from rounding edges."""

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("form")

NUM_SLOTS, VOCAB_SIZE = 400, 37
# Where a uniform lies closer than this to an edge of the CDF, float32 may rightly choose either neighbour.
EDGE = 1e-6
TINIEST = np.float32(2.0**-53)  # the smallest uniform a RandomStream can draw


def sample(
    logits, uniforms, temperatures=None, greedy=None, *, top_k: int = 0, top_p: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    from mindspore import Tensor, nn

    from mindgspo.parallel.plans.placement import ALONE
    from mindgspo.rollout.graphs import DecodeStep
    from mindgspo.rollout.protocol import SamplingFilter

    class Given(nn.Cell):
        """In the place of `NextLogits`: the logits that are fed."""

        def construct(self, logits_SV, *others):
            return (logits_SV,)

    step, size = DecodeStep(Given(), ALONE, SamplingFilter(top_k, top_p)), len(uniforms)
    greedy = np.zeros(size, bool) if greedy is None else greedy
    inverse = np.ones(size, np.float32) if temperatures is None else (1 / temperatures).astype(np.float32)
    every, unread = np.array([size], np.int32), np.zeros(size, np.int32)
    ids, logp = step(*map(Tensor, (logits, unread, unread, unread, uniforms, inverse, greedy, unread, every)))
    return ids.asnumpy(), logp.asnumpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def kept_tokens(probs: np.ndarray, top_k: int, top_p: float) -> tuple[np.ndarray, bool]:
    """bool [V], the tokens that stay, and whether float32 might see the cut elsewhere."""
    order = np.argsort(-probs)
    if top_k:
        order = order[:top_k]
    mass = np.cumsum(probs[order])
    goal = top_p * mass[-1]
    order = order[: 1 + int((mass < goal).sum())] if top_p < 1 else order
    kept = np.zeros(probs.size, bool)
    kept[order] = True
    return kept, top_p < 1 and bool((np.abs(mass - goal) < EDGE).any())


def make_inputs(seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(NUM_SLOTS, VOCAB_SIZE))).astype(np.float32)
    uniforms = (1 - rng.random(NUM_SLOTS)).astype(np.float32)
    uniforms[:20], uniforms[20:40] = 1.0, TINIEST
    return logits, uniforms, rng.choice([0.3, 0.7, 1.0, 2.5], NUM_SLOTS), (rng.random(NUM_SLOTS) < 0.2)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (1, 1.0), (0, 0.8), (0, 0.05), (7, 0.6), (1000, 1.0)])
def test_the_token_that_float64_draws(top_k: int, top_p: float) -> None:
    logits, uniforms, temperatures, greedy = make_inputs(seed=top_k)
    ids, logp = sample(logits, uniforms, temperatures, greedy, top_k=top_k, top_p=top_p)
    assert ids.dtype == np.int32 and logp.dtype == np.float32
    compared = 0
    for slot in range(NUM_SLOTS):
        expected_logp = log_softmax(logits[slot].astype(np.float64) / temperatures[slot])
        assert logp[slot] == pytest.approx(expected_logp[ids[slot]], rel=1e-5, abs=1e-5)
        if greedy[slot]:
            assert ids[slot] == logits[slot].argmax()
            continue
        kept, doubtful = kept_tokens(np.exp(expected_logp), top_k, top_p)
        cdf = np.cumsum(np.where(kept, np.exp(expected_logp), 0))
        cdf /= cdf[-1]
        # At the two ends of the interval the token may be one whose probability float32 does not see.
        if doubtful or np.abs(cdf - uniforms[slot]).min() < EDGE or uniforms[slot] < EDGE:
            assert np.exp(expected_logp[ids[slot]]) > 0
            assert doubtful or kept[ids[slot]]
            continue
        assert ids[slot] == (cdf < uniforms[slot]).sum(), f"slot {slot}"
        compared += 1
    assert compared > 0.65 * NUM_SLOTS


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (2, 1.0), (0, 0.9)])
def test_the_ends_of_the_interval_draw_tokens_that_can_be_drawn(top_k: int, top_p: float) -> None:
    # Tokens 0, 3 and 4 have probability 0 in float32; 1 and 2 have 3/4 and 1/4.
    logits = np.tile(np.array([-500, np.log(3), 0, -500, -1e9], np.float32), (6, 1))
    ids, logp = sample(logits, np.array([1.0, TINIEST, 0.7, 0.749, 0.751, 0.3], np.float32), top_k=top_k, top_p=top_p)
    assert ids.tolist() == [2, 1, 1, 1, 2, 1]
    np.testing.assert_allclose(np.exp(logp), [0.25, 0.75, 0.75, 0.75, 0.25, 0.75], rtol=1e-5)


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    # 0.5 + 0.3 < 0.85 <= 0.5 + 0.3 + 0.15: token 3 alone is cut; the rest is scaled to 1.
    logits = np.tile(np.log(np.array([0.5, 0.15, 0.3, 0.05])).astype(np.float32), (4, 1))
    uniforms = np.array([0.52, 0.53, 0.68, 0.69], np.float32)  # edges at 0.5/0.95 = 0.526, 0.65/0.95 = 0.684
    ids, logp = sample(logits, uniforms, top_k=0, top_p=0.85)
    assert ids.tolist() == [0, 1, 1, 2]
    # Log-probs are those before the cut.
    np.testing.assert_allclose(np.exp(logp), [0.5, 0.15, 0.15, 0.3], rtol=1e-5)


def test_tokens_tied_with_the_last_one_kept_stay() -> None:
    ids, _ = sample(np.zeros((4, 4), np.float32), np.array([0.2, 0.4, 0.6, 0.9], np.float32), top_k=2, top_p=1.0)
    assert ids.tolist() == [0, 1, 2, 3]


def test_a_flat_distribution_over_a_large_vocabulary_reaches_its_last_token() -> None:
    # The float32 sum of 150,000 probabilities is not 1: the draw is scaled by what the sum is.
    size = 150_000
    ids, _ = sample(np.zeros((3, size), np.float32), np.array([1.0, 0.5, TINIEST], np.float32))
    assert abs(int(ids[0]) - size) < 0.001 * size and ids[0] < size
    assert abs(int(ids[1]) - size // 2) < 0.001 * size
    assert ids[2] == 0
