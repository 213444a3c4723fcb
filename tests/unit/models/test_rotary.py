"""Frequencies of the rotary embedding: by hand, by the equations of papers, and as transformers 5.24 has them."""

import math

import numpy as np
import pytest

from mindgspo.config.model import ModelSection, RopeScalingSection
from mindgspo.models.rope import attention_factor, rope_frequencies, rope_tables

# Wavelengths between 64 / 4 = 16 and 64 / 1 = 64 tokens are blended.
SCALING = RopeScalingSection(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SIZES = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
         "num_key_value_heads": 1}  # fmt: skip


def yarn(factor: float, length: int, **more: float | bool) -> RopeScalingSection:
    return RopeScalingSection(rope_type="yarn", factor=factor, original_max_position_embeddings=length, **more)


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


# Arguments, then what `ROPE_INIT_FUNCTIONS` of transformers 5.24 returns for a head of 16.
PUBLISHED = [
    (1e4, RopeScalingSection(rope_type="linear", factor=2.5), 1.0,
     [0.4, 0.1264911, 0.04, 0.012649111, 0.004, 0.0012649111, 0.0004, 0.00012649111]),
    (1e6, yarn(4.0, 32768), 1.138629436111989,  # Qwen2.5 and Qwen3
     [1.0, 0.17782794, 0.031622779, 0.0042175599, 0.0005, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06]),
    (1e6, yarn(4.0, 32768, truncate=False), 1.138629436111989,
     [1.0, 0.17782794, 0.031622779, 0.0055172704, 0.000607408, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06]),
    (1e4, yarn(40.0, 4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=0.707), 1.0857263992561355,
     [1.0, 0.31622776, 0.1, 0.023914725, 0.0051249997, 0.00084986218, 2.5e-05, 7.9056945e-06]),
    (1e4, yarn(2.0, 1024, attention_factor=1.25, beta_fast=8, beta_slow=2), 1.25,
     [1.0, 0.31622776, 0.1, 0.023717083, 0.005, 0.0015811389, 0.0005, 0.00015811389]),
    (1e4, yarn(2.0, 8), 1.0693147180559945,  # no pair turns 32 times within 8 tokens
     [1.0, 0.15811388, 0.05, 0.015811389, 0.005, 0.0015811389, 0.0005, 0.00015811389]),
    (5e5, RopeScalingSection(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=8192), 1.0,
     [1.0, 0.19392276, 0.037606031, 0.0072926651, 0.00052484602, 3.4281024e-05, 6.6478697e-06, 1.2891732e-06]),
    (1e4, RopeScalingSection(rope_type="dynamic", factor=2.0), 1.0,
     [1.0, 0.31622776, 0.1, 0.031622779, 0.01, 0.0031622779, 0.001, 0.00031622779]),
]  # fmt: skip


@pytest.mark.parametrize(("theta", "scaling", "factor", "expected"), PUBLISHED)
def test_stretched_frequencies_are_those_of_transformers(theta, scaling, factor, expected) -> None:
    np.testing.assert_allclose(rope_frequencies(16, theta, scaling), expected, rtol=1e-6)
    assert attention_factor(scaling) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(("factor", "length", "theta"), [(4.0, 32768, 1e6), (16.0, 4096, 1e4), (1.5, 100, 77.0)])
def test_yarn_by_the_equations_of_its_paper(factor: float, length: int, theta: float) -> None:
    """arXiv 2309.00071: the ramp lies between the pairs that turn 32 times and once within the original length."""
    head_dim, expected = 32, []
    first, last = (head_dim / 2 * math.log(length / (2 * math.pi * turns), theta) for turns in (32, 1))
    for i in range(head_dim // 2):
        plain = theta ** (-2 * i / head_dim)
        ramp = min(max((i - max(first, 0)) / (last - max(first, 0)), 0), 1)
        expected.append(plain * (1 - ramp) + plain / factor * ramp)
    found = rope_frequencies(head_dim, theta, yarn(factor, length, truncate=False))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("scaling", [scaling for _, scaling, _, _ in PUBLISHED])
def test_stretched_pairs_turn_at_most_so_many_times_slower(scaling: RopeScalingSection) -> None:
    plain, stretched = rope_frequencies(64, 1e4, None), rope_frequencies(64, 1e4, scaling)
    assert np.all(stretched <= plain * (1 + 1e-6)) and np.all(stretched >= plain / scaling.factor * (1 - 1e-6))
    assert np.all(np.diff(stretched) < 0)
    unstretched = scaling.model_copy(update={"factor": 1.0, "attention_factor": None})
    np.testing.assert_allclose(rope_frequencies(64, 1e4, unstretched), plain, rtol=2e-7)
    assert attention_factor(unstretched) == 1.0


def test_the_attention_factor_multiplies_both_tables() -> None:
    section = ModelSection(**SIZES, max_position_embeddings=64, rope_theta=1e4, rope_scaling=yarn(4.0, 16))
    cos, sin = rope_tables(section)
    assert cos.dtype == sin.dtype == np.float32 and cos.shape == sin.shape == (64, 16)
    np.testing.assert_allclose(cos**2 + sin**2, (0.1 * math.log(4) + 1) ** 2, rtol=1e-5)
    np.testing.assert_array_equal(cos[0], np.float32(0.1 * math.log(4) + 1))
    assert np.arctan2(sin[1, :8], cos[1, :8]) == pytest.approx(
        rope_frequencies(16, 1e4, section.rope_scaling), rel=1e-5
    )
