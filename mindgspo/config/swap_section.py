"""The section `swap`: whether weights, moments and caches leave the device while no graph reads them.

What enters: plain values from `config.load`. What leaves: part of an `ExperimentConfig`, see `schema`. Read by
`parallel.swap.swap`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mindgspo.config.section import Section


class SwapSection(Section):
    """Heterogeneous memory: only what the present phase of a step reads is resident. On Ascend the rest waits in host
    memory, on CPU on disk."""

    enabled: bool = False
    """False: everything stays where it is; the ledger of bytes is kept all the same."""
    path: Path | None = None
    """CPU only: folder on a disk that takes what is evicted (its files bear no name and vanish with the process). None:
    a folder of the run."""
    reshard_level: Literal[0, 1] = 0
    """While weights go from the actor to the rollout. 0: both whole sets are resident. 1: one step of the reshard at a
    time, its parameters of both sides (MindRLHF: reshard_mem_opt_level)."""
    prefetch: bool = False
    """CPU only: page in what the next phase reads while the present one computes, if that much memory is free. It
    hides a slow disk, at the price of the memory of two phases at once."""
