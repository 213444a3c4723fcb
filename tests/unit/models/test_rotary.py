"""Frequencies of the rotary embedding, worked out by hand; parity with Hugging Face is in tests/parity."""

import numpy as np
import pytest

from mindgspo.config.model import RopeScalingSection
from mindgspo.models.transformer import rope_frequencies

# Wavelengths between 64 / 4 = 16 and 64 / 1 = 64 tokens are blended.
SCALING = RopeScalingSection(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def test_unscaled_frequencies_are_powers_of_the_base() -> None:
    np.testing.assert_allclose(rope_frequencies(8, 10_000.0, None), [1, 1e-1, 1e-2, 1e-3], rtol=1e-6)


@pytest.mark.parametrize(("wavelength", "slower"), [
    (10.0, 1.0),  # short: as it was
    (16.0, 1.0),
    (100.0, 8.0),  # long: 8 times slower
    (64.0, 8.0),
    # 64 / 25.6 = 2.5 turns are half way from 1 to 4: half as it was, half 8 times slower.
    (25.6, 1 / (0.5 + 0.5 / 8)),
])  # fmt: skip
def test_long_waves_are_stretched_and_those_between_are_blended(wavelength: float, slower: float) -> None:
    # Of a head of two pairs the second turns by theta^(-1/2) per token.
    found = rope_frequencies(4, (wavelength / (2 * np.pi)) ** 2, SCALING)[1]
    assert found == pytest.approx(2 * np.pi / wavelength / slower, rel=1e-5)
