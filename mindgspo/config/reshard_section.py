"""Settings of the way that weights take from the training plan to the generating plan.

What enters: the `reshard` section of an experiment. What leaves: a frozen record, read by the parallel room.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mindgspo.config.section import Section


class ReshardSection(Section):
    """Weights travel in buckets; the whole can prove that it arrived bit for bit."""

    bucket_mb: int = Field(default=64, ge=1)
    """Largest buffer of one broadcast in MiB, hence the extra memory of a reshard. Larger ones cost fewer messages."""
    verify: Literal["off", "sampled", "full"] = "sampled"
    """Compare SHA-256 of the parameters on both sides after a reshard: of none, of a few that change from step to
    step, or of all (each rank then hashes everything it holds)."""
