"""Which tokens Clip-Cov and KL-Cov select."""

from dataclasses import replace

import numpy as np
import pytest

from mindgspo.algorithms.losses.covariance import covariances, select_tokens
from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config.algorithm import CovarianceSection
from mindgspo.types import Batch


def batches_of(numbers: list[int], per_micro_batch: int, multiple: int = 1) -> list[Batch]:
    """Samples of 2 + number % 5 response tokens, whose log-probs and advantages are functions of number and slot."""
    samples = [
        TrainingSample(
            prompt_ids=np.array([1], np.int32), response_ids=np.full(2 + number % 5, 2, np.int32),
            rollout_logp=np.zeros(2 + number % 5, np.float32), number=number,
        ) for number in numbers
    ]  # fmt: skip
    laid_out = lay_out(samples, samples_per_micro_batch=per_micro_batch, length_multiple=multiple, pad_id=0)
    return [filled(batch) for batch in laid_out]


def filled(batch: Batch) -> Batch:
    slot_NK = np.arange(batch.mask_NK.shape[1]) + 10 * batch.samples_N[:, None]
    logp_NK = np.where(batch.mask_NK, -2 - 2 * np.sin(slot_NK), np.nan).astype(np.float32)
    advantages_NK = np.where(batch.mask_NK, 2 * np.cos(batch.samples_N * 1.7)[:, None], np.nan).astype(np.float32)
    return replace(batch, old_logp_NK=logp_NK, advantages_NK=advantages_NK)


def chosen(
    batches: list[Batch], *, at_random: bool, section: CovarianceSection, seed=(1, 2, 3)
) -> set[tuple[int, int]]:
    """(sample, slot) of the selected tokens."""
    found = select_tokens(section, batches, at_random=at_random, seed=seed)
    assert all((~selected_NK | batch.mask_NK).all() for batch, selected_NK in zip(batches, found, strict=True))
    return {
        (int(batch.samples_N[row]), int(slot))
        for batch, selected_NK in zip(batches, found, strict=True)
        for row, slot in np.argwhere(selected_NK)
    }


def test_the_covariance_of_a_token_by_hand():
    # Means 1 and -2: (1, -1), (-1, 1), (0, 0).
    np.testing.assert_array_equal(covariances(np.array([2.0, 0.0, 1.0]), np.array([-1.0, -3.0, -2.0])), [1, 1, 0])


@pytest.mark.parametrize("at_random", [True, False])
def test_the_selection_does_not_depend_on_the_cut_the_order_or_padding(at_random):
    section = CovarianceSection(share=0.1, low=0.2, high=3.0)
    usual = chosen(batches_of(list(range(20)), 20), at_random=at_random, section=section)
    assert len(usual) == int(0.1 * sum(2 + number % 5 for number in range(20)))
    for per_micro_batch, multiple, numbers in ((3, 1, range(20)), (20, 16, range(20)), (7, 4, reversed(range(20)))):
        again = chosen(batches_of(list(numbers), per_micro_batch, multiple), at_random=at_random, section=section)
        assert again == usual


def test_kl_cov_takes_the_largest_and_clip_cov_draws_between_its_bounds():
    (batch,) = batches_of(list(range(20)), 20)
    real = batch.mask_NK
    covariance_NK = np.full(real.shape, -np.inf)
    covariance_NK[real] = covariances(batch.advantages_NK[real], batch.old_logp_NK[real])
    of_token = {(int(batch.samples_N[n]), int(k)): covariance_NK[n, k] for n, k in np.argwhere(real)}
    largest = chosen([batch], at_random=False, section=CovarianceSection(share=0.1))
    assert largest == set(sorted(of_token, key=of_token.__getitem__)[-len(largest) :])
    section = CovarianceSection(share=0.1, low=0.2, high=3.0)
    drawn = chosen([batch], at_random=True, section=section)
    assert all(0.2 < of_token[token] < 3.0 for token in drawn)
    assert drawn != chosen([batch], at_random=True, section=section, seed=(1, 2, 4))


def test_one_token_at_least_and_none_without_candidates():
    (batch,) = batches_of([0, 1, 2], 3)
    assert len(chosen([batch], at_random=False, section=CovarianceSection(share=1e-6))) == 1
    assert not chosen([batch], at_random=True, section=CovarianceSection(share=0.5, low=1e3, high=1e4))
