"""The section `warmup`: supervised fine-tuning before reinforcement learning.

What enters: plain values from `config.load`. What leaves: a frozen `WarmupSection`, read by `trainer.warmup`.
"""

from __future__ import annotations

from pydantic import Field

from mindgspo.config.data_section import DataSourceSection
from mindgspo.config.section import Section


class WarmupSection(Section):
    """Supervised fine-tuning on the data's worked solutions before reinforcement learning."""

    max_steps: int = Field(ge=1)
    """Upper bound on optimizer updates."""
    batch_size: int = Field(ge=1)
    """Rows per update."""
    lr: float = Field(gt=0)
    """Peak learning rate of the warm-up: linear rise over 5 % of max_steps, then a cosine down to
    optimizer.min_lr_ratio of it, so that the model ends settled and not in the middle of a jump."""
    stop_at_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Stop as soon as greedy accuracy on the rows of `check` reaches this. None: never early."""
    check_every: int = Field(default=10, ge=1)
    """Updates between two progress lines, each with the accuracy on `check` where that is set."""
    check: DataSourceSection | None = None
    """Rows for that accuracy; they must be neither training nor evaluation rows. Needed by
    stop_at_accuracy."""
