"""Child processes for whatever may hang, crash or eat memory: symbolic comparison and users' own functions.

What enters: `Job`s. What leaves: `Reply`s in the same order, always: a job costs at most its own time limit.
"""

from __future__ import annotations

from mindgspo.rewards.workers.pool import WorkerPool

__all__ = ["WorkerPool"]
