"""Uniforms of the sampler: a pure function of (seed, purpose, step, prompt, sample, position)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.rollout.protocol import Purpose, RandomStream

STREAM = RandomStream(seed=7, purpose=Purpose.TRAINING, step=3)
BELOW_2_48 = st.integers(0, 2**48 - 1)


@given(
    stream=st.builds(RandomStream, seed=BELOW_2_48, purpose=st.sampled_from(Purpose), step=BELOW_2_48),
    prompt=st.integers(0, 2**40), sample=st.integers(0, 2**20), short=st.integers(1, 20), more=st.integers(0, 40),
)  # fmt: skip
def test_a_token_keeps_its_uniform_whatever_the_length(stream, prompt, sample, short, more) -> None:
    long = stream.uniforms(prompt, sample, short + more)
    assert long.dtype == np.float32 and long.shape == (short + more,)
    assert (long > 0).all() and (long <= 1).all()
    np.testing.assert_array_equal(stream.uniforms(prompt, sample, short), long[:short])


@pytest.mark.parametrize(
    "other",
    [
        replace(STREAM, seed=8).uniforms(5, 2, 16), replace(STREAM, purpose=Purpose.EVALUATION).uniforms(5, 2, 16),
        replace(STREAM, step=4).uniforms(5, 2, 16), STREAM.uniforms(6, 2, 16), STREAM.uniforms(5, 3, 16),
        STREAM.uniforms(2, 5, 16), RandomStream(seed=3, purpose=Purpose.TRAINING, step=7).uniforms(5, 2, 16),
    ],
    ids=["seed", "purpose", "step", "prompt", "sample", "prompt and sample swapped", "seed and step swapped"],
)  # fmt: skip
def test_each_coordinate_gives_another_stream(other: np.ndarray) -> None:
    assert not np.isin(other, STREAM.uniforms(5, 2, 16)).any()


def test_streams_of_neighbours_do_not_overlap() -> None:
    # A counter that advanced into its neighbour's would repeat values at another position.
    together = np.concatenate([STREAM.uniforms(prompt, sample, 1000) for prompt in range(4) for sample in range(4)])
    # 16,000 of 2^24 float32 values: about 8 pairs coincide by chance; one shared stretch would be hundreds.
    assert len(np.unique(together)) > together.size - 40


def test_uniforms_fill_the_interval_evenly() -> None:
    draws = np.concatenate([STREAM.uniforms(prompt, 0, 500) for prompt in range(200)])
    counts, _ = np.histogram(draws, bins=10, range=(0, 1))
    # 10,000 +- 95 per bin; the seed is fixed, so this never flickers.
    assert np.abs(counts - 10_000).max() < 400
