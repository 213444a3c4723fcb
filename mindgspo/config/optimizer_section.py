"""The section `optimizer`: AdamW, clipping, schedule.

What enters: plain values from `config.load`. What leaves: a frozen `OptimizerSection`, which the update cell takes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mindgspo.config.section import Section


class OptimizerSection(Section):
    """AdamW with bias correction, global-norm clipping and the learning-rate schedule (counted in
    updates)."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate (TRL: learning_rate). 1e-6 is usual for models of billions of parameters."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment (common for language models; torch's default is 0.999)."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment (torch's convention: after bias correction)."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of matrices (0.1 is usual for language models); biases and norm weights are never
    decayed."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global L2 norm (verl: grad_clip)."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the rise."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Share of all updates over which the learning rate rises linearly."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Cosine only: last learning rate as a share of the peak."""
