"""Random numbers of the sampler: one uniform per token, a pure function of where the token stands.

What enters: a stream (seed, purpose, step) and a sample's (prompt, sample index). What leaves: uniforms by token
position. Nothing else about the run matters: not the batch, the slot, the layout or a resume. numpy's Philox
4x64 is counter-based, so no state is kept anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from mindgspo.types import Float32Array


class Purpose(IntEnum):
    """Keeps the streams of training and evaluation apart."""

    TRAINING = 1
    EVALUATION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomStream:
    """seed: the run's. step: training step. Both are below 2**48. draw: how often prompts were drawn before in this
    step, so that a prompt that comes twice is answered anew."""

    seed: int
    purpose: Purpose
    step: int
    draw: int = 0

    def uniforms(self, prompt_index: int, sample_index: int, num_tokens: int) -> Float32Array:
        """float32 [num_tokens] in (0, 1]; entry t belongs to response token t, whatever num_tokens is.

        Zero is left out: an inverse CDF at 0 could pick a token of probability 0.
        """
        key = np.array([self.seed, (self.step << 8) | int(self.purpose)], dtype=np.uint64)
        counter = np.array([0, self.draw, prompt_index, sample_index], dtype=np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(num_tokens)
        return (1.0 - draws).astype(np.float32)
