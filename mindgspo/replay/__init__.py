"""A dumped step run again, on the same or on another device, and compared number by number (`mindgspo replay`)."""

from mindgspo.replay.compare import Comparison, Verdict
from mindgspo.replay.dump import Dump
from mindgspo.replay.run import replay

__all__ = ["Comparison", "Dump", "Verdict", "replay"]
