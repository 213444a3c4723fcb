"""A dumped step run again, on the same or on another device, and compared number by number (`mindgspo replay`)."""

from mindgspo.replay.compare import Comparison, Verdict
from mindgspo.replay.run import Dump, replay

__all__ = ["Comparison", "Dump", "Verdict", "replay"]
