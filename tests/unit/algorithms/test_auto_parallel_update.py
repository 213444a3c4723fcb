"""The update whose graph the compiler divides, in one process that divides nothing: the numbers of `RankUpdate`,
under every plan, micro-batch by micro-batch."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from mindgspo.algorithms.loss_metrics import UpdateTelemetry
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection, ParallelPlan
from mindgspo.config.algorithm import KLSection
from mindgspo.config.load import with_recipe
from mindgspo.data.rows import TrainingSample, lay_out
from mindgspo.types import Batch

pytestmark = pytest.mark.usefixtures("composed_runtime")

SECTION = ModelSection(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True, initializer_range=0.2,
)  # fmt: skip
OPTIMIZER = OptimizerSection(lr=2e-4, max_grad_norm=0.05, weight_decay=0.1)
LR, NUM_UPDATES, KL_COEF = 2e-4, 3, 0.3
# Clips some tokens and not others, and has a term for every input of a loss.
ALGORITHM = with_recipe(
    AlgorithmSection(name="grpo", clip_low=0.1, clip_high=0.1, kl=KLSection(placement="loss")), max_new_tokens=12
)
SEQUENCE_SPLIT = ParallelPlan(data_parallel=2, model_parallel=2, use_seq_parallel=True)
SHARDED = ParallelPlan(data_parallel=2, pipeline_stage=2, micro_batch_num=2, optimizer_shard=True, vocab_emb_dp=False)
# Plans, and micro-batches per replica and round. There are four in all, so that some updates take several rounds.
CASES = [
    pytest.param((ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=4), 4), id="1x4x2"),
    pytest.param((ParallelPlan(data_parallel=2, model_parallel=2), 2), id="2x2x1"),
    pytest.param((ParallelPlan(data_parallel=3), 1), id="3x1x1 in two rounds, one filled up"),
    pytest.param((ParallelPlan(), 4), id="1x1x1", marks=pytest.mark.slow),
    pytest.param((ParallelPlan(data_parallel=4), 1), id="4x1x1", marks=pytest.mark.slow),
    pytest.param((SEQUENCE_SPLIT, 1), id="2x2x1 with the sequence split, in two rounds", marks=pytest.mark.slow),
    pytest.param((SHARDED, 2), id="2x1x2 with sharded moments", marks=pytest.mark.slow),
]


def make_batches(seed: int) -> list[Batch]:
    """Four micro-batches of three rows, of lengths that differ among them and not by seed; the last has a filler."""
    random = np.random.default_rng(seed)
    samples = [
        TrainingSample(
            prompt_ids=random.integers(1, SECTION.vocab_size, 2 + number % 5).astype(np.int32),
            response_ids=random.integers(1, SECTION.vocab_size, 1 + number).astype(np.int32),
            rollout_logp=np.zeros(1 + number, np.float32), number=number,
        ) for number in range(11)
    ]  # fmt: skip
    laid_out = lay_out(samples, samples_per_micro_batch=3, length_multiple=12, pad_id=0)
    assert len({batch.ids_RT.shape for batch in laid_out}) == 2 and not laid_out[-1].mask_NK[-1].any()
    return [_judged(batch, random) for batch in laid_out]


def _judged(batch: Batch, random: np.random.Generator) -> Batch:
    """With old and reference policies, advantages and corrections, none of them trivial."""
    mask = batch.mask_NK

    def drawn(low: float, high: float, masked: float) -> np.ndarray:
        return np.where(mask, random.uniform(low, high, mask.shape), masked).astype(np.float32)

    return replace(
        batch, old_logp_NK=drawn(-4.0, -3.0, 0), ref_logp_NK=drawn(-4.0, -3.0, 0), advantages_NK=drawn(-1, 1, 0),
        correction_NK=drawn(0.5, 1.5, 1),
    )  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What updates left."""

    figures: list[dict[str, float]]
    telemetry: list[tuple[UpdateTelemetry, ...]]
    results: list[list[tuple[np.ndarray, ...]]]
    weights: dict[str, np.ndarray]
    moments: dict[str, np.ndarray]


def recorded(backend) -> list[list[tuple[np.ndarray, ...]]]:
    """Filled with what each update's graphs return, micro-batch by micro-batch."""
    results, apply = [], backend._apply

    def listening(batches, **settings):
        found, norm = apply(batches, **settings)
        results.append(found)
        return found, norm

    backend._apply = listening
    return results


def updated(plan: ParallelPlan | None, num_micro_batches: int = 0) -> Found:
    """Three updates; plan: of auto_parallel, None for `RankUpdate`."""
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.auto_parallel import AutoParallelUpdate
    from mindgspo.algorithms.optim.update import RankUpdate
    from mindgspo.models.policy import PolicyLogProbs, build_model
    from mindgspo.models.weights import initialize_weights
    from mindgspo.parallel.placement import ALONE, auto_parallel_placement

    model = build_model(SECTION, ALONE if plan is None else auto_parallel_placement(plan, SECTION.num_key_value_heads))
    initialize_weights(model, SECTION, seed=3)
    policy = PolicyLogProbs(model, temperature=0.9, with_entropy=True)
    loss = build_policy_loss(ALGORITHM)
    if plan is None:
        updater = RankUpdate(policy, loss, OPTIMIZER)
    else:
        updater = AutoParallelUpdate(policy, loss, OPTIMIZER, num_micro_batches=num_micro_batches)
    micro_results = recorded(updater)
    results = [updater.update(make_batches(number), LR, kl_coef=KL_COEF) for number in range(NUM_UPDATES)]
    return Found(
        figures=[
            {"loss": found.loss, "grad_norm": found.grad_norm, "entropy": found.entropy, **found.metrics}
            for found in results
        ],
        telemetry=[found.telemetry for found in results],
        results=micro_results,
        weights={weight.name: weight.asnumpy().copy() for weight in model.get_parameters()},
        moments=updater.state(),
    )


@pytest.fixture(scope="module")
def alone(composed_runtime) -> Found:
    return updated(None)


@pytest.fixture(scope="module", params=CASES)
def found(request: pytest.FixtureRequest, composed_runtime) -> Found:
    return updated(*request.param)


def test_updates_are_those_of_one_process(alone: Found, found: Found) -> None:
    for expected, figures in zip(alone.figures, found.figures, strict=True):
        assert figures == pytest.approx(expected, rel=1e-5, abs=1e-5)
    names = ("loss", "metrics", "log-ratios", "entropy", "log-probs", "d loss / d logp")
    for expected_update, own_update in zip(alone.results, found.results, strict=True):
        for expected, own in zip(expected_update, own_update, strict=True):
            assert len(own) == len(expected) == len(names)
            for name, array, own_array in zip(names, expected, own, strict=True):
                assert own_array.shape == array.shape and own_array.dtype == array.dtype, name
                np.testing.assert_allclose(own_array, array, rtol=1e-5, atol=1e-5, err_msg=name)
    for expected, own in zip(alone.telemetry, found.telemetry, strict=True):
        for micro, own_micro in zip(expected, own, strict=True):
            np.testing.assert_array_equal(own_micro.log_ratio_counts, micro.log_ratio_counts)
            np.testing.assert_array_equal(own_micro.responses_L, micro.responses_L)
            np.testing.assert_allclose(own_micro.gradient_L, micro.gradient_L, rtol=0, atol=1e-5)
    assert found.weights.keys() == alone.weights.keys() and found.moments.keys() == alone.moments.keys()
    for name, weight in alone.weights.items():
        np.testing.assert_allclose(found.weights[name], weight, rtol=0, atol=1e-5, err_msg=name)
    for name, moment in alone.moments.items():
        np.testing.assert_allclose(found.moments[name], moment, rtol=0, atol=1e-5 * np.abs(moment).max(), err_msg=name)


def test_the_common_case_shows_something(alone: Found) -> None:
    """Clipped tokens, a norm that is clipped, weights that move by a hundred times the bound, unequal updates."""
    assert all(0.1 < figures["pg_clipfrac"] < 0.9 and figures["entropy"] > 1 for figures in alone.figures)
    assert min(figures["grad_norm"] for figures in alone.figures) > OPTIMIZER.max_grad_norm
    assert len({figures["loss"] for figures in alone.figures}) == NUM_UPDATES
    assert all(figures["kl_loss"] > 1e-3 for figures in alone.figures)
    moved = sum(np.abs(moment).max() > 1e-4 for name, moment in alone.moments.items() if ".m." in name)
    assert moved > 20, "most first moments are well away from zero"
