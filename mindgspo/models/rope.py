"""Frequencies and tables of the rotary embedding (arXiv 2104.09864), and how they are stretched for long contexts.

Needs no MindSpore. Frequencies and angles are float32, as in transformers.
"""

from __future__ import annotations

import math

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.config.model import FAMILIES, RopeScalingSection
from mindgspo.models.names import NO_HEAD_DIM
from mindgspo.types import Float32Array


def rope_tables(model: ModelSection) -> tuple[Float32Array, Float32Array]:
    """cos and sin of position * frequency, times `attention_factor`: [positions, R] for the R features of a head that
    turn, of which both of a pair have the same number."""
    frequencies = rope_frequencies(model.rotary_dim, model.rope_theta, model.rope_scaling)
    positions = np.arange(model.max_position_embeddings, dtype=np.float32)
    angle = np.outer(positions, frequencies).astype(np.float32)
    is_interleaved = FAMILIES[model.architecture].is_interleaved
    angle = np.repeat(angle, 2, axis=1) if is_interleaved else np.concatenate([angle, angle], axis=1)
    scale = np.float32(attention_factor(model.rope_scaling))
    return np.cos(angle) * scale, np.sin(angle) * scale


def rope_frequencies(rotary_dim: int, theta: float, scaling: RopeScalingSection | None) -> Float32Array:
    """theta^(-2i/R) for i < R/2 in radians per token, stretched as `RopeScalingSection` says."""
    frequencies = (1.0 / theta ** (np.arange(0, rotary_dim, 2, dtype=np.float32) / rotary_dim)).astype(np.float32)
    if scaling is None or scaling.rope_type == "dynamic":  # which changes only sequences longer than any here
        return frequencies
    kept = _kept(frequencies, theta, scaling)
    return ((1 - kept) * frequencies / scaling.factor + kept * frequencies).astype(np.float32)


def attention_factor(scaling: RopeScalingSection | None) -> float:
    """What cos and sin are multiplied by; 1 except for YaRN, whose products of queries and keys grow with the factor
    (arXiv 2309.00071, section 3.4)."""
    if scaling is None or scaling.rope_type != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    over, under = scaling.mscale, scaling.mscale_all_dim
    if not over or not under:
        over, under = 1.0, 0.0
    growth = 0.1 * math.log(scaling.factor)
    return (growth * over + 1) / (growth * under + 1)


def softmax_scale(model: ModelSection) -> float:
    """What products of queries and keys are multiplied by: 1 / sqrt(D). Latent attention has its share of YaRN's growth
    here, not in cos and sin, which turn only a part of a head (DeepSeek-V3, as in transformers)."""
    assert model.head_dim is not None, NO_HEAD_DIM
    scale, scaling = model.head_dim**-0.5, model.rope_scaling
    if model.kv_lora_rank is not None and scaling is not None and scaling.mscale_all_dim:
        scale *= (0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1) ** 2
    return scale


def _kept(frequencies: Float32Array, theta: float, scaling: RopeScalingSection) -> np.ndarray:
    """1 for each pair of features that turns as before stretching, 0 for one that turns `factor` times slower."""
    if scaling.rope_type == "linear":
        return np.zeros_like(frequencies)
    length, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
    assert length is not None, scaling
    if scaling.rope_type == "llama3":
        assert low is not None and high is not None, scaling
        return np.clip((length * frequencies / (2 * np.pi) - low) / (high - low), 0.0, 1.0)
    # Indices of the pairs that turn beta_fast and beta_slow times within the original length.
    rotary_dim, turns = 2 * frequencies.size, (scaling.beta_fast or 32.0, scaling.beta_slow or 1.0)
    first, last = (rotary_dim * math.log(length / (2 * math.pi * times)) / (2 * math.log(theta)) for times in turns)
    if scaling.truncate is not False:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)  # sic: of features, as published
    last += 0.001 * (first == last)
    return 1 - np.clip((np.arange(frequencies.size, dtype=np.float32) - first) / (last - first), 0.0, 1.0)
