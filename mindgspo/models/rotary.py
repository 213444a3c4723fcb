"""Tables of the rotary position embedding (arXiv 2104.09864), with Llama 3.1's stretching.

What enters: the model section. What leaves: float32 cos and sin of every position. Called by the transformer; numpy
only.

Angles are formed in float32, as Hugging Face does, so that logits agree at long positions too.
"""

from __future__ import annotations

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.config.model import RopeScalingSection
from mindgspo.types import Float32Array


def rope_tables(model: ModelSection) -> tuple[Float32Array, Float32Array]:
    """cos and sin of position * frequency, [positions, D], the two halves of D repeated."""
    assert model.head_dim is not None, "config.validate refuses a width that its heads do not divide"
    frequencies = rope_frequencies(model.head_dim, model.rope_theta, model.rope_scaling)
    positions = np.arange(model.max_position_embeddings, dtype=np.float32)
    angle = np.outer(positions, frequencies).astype(np.float32)
    angle = np.concatenate([angle, angle], axis=1)
    return np.cos(angle), np.sin(angle)


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScalingSection | None) -> Float32Array:
    """theta^(-2i/D) for i < D/2 in radians per token, stretched as `RopeScalingSection` says."""
    frequencies = (1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)).astype(np.float32)
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)  # within the original length
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)  # 1: turns as it did; 0: `factor` times slower
    return ((1 - kept) * frequencies / scaling.factor + kept * frequencies).astype(np.float32)
