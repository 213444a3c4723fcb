"""The torture room: a run is killed again and again, and must end as if it never had been.

What enters: an experiment, a number of kills, a seed. What leaves: what was hit, what was lost. Called by
`tools/torture.py`. Runs are processes of their own; this room reads their folders and does not import MindSpore.

    experiment   the built-in experiment       kills     where and when, by seed
    life         one process, to its end       judge     what a run folder must hold after it
"""

from mindgspo.torture.command import Torture

__all__ = ["Torture"]
