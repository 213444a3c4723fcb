"""The dry run: MindSpore's Ascend front end compiles any rank's graph of any cluster on a machine without Ascend.

Importing it needs no MindSpore: graphs are compiled in child processes, one per graph and rank.

    runner       one graph of one rank in a process of its own (job, child), with CANN or with stand-ins
    graph_text   MindSpore's text of a compiled graph -> facts
    report       lines for people; messages where MindSpore refuses
    graphs       the cells of training and rollout, wrapped as they are compiled; needs MindSpore

`Answer` and `Failure` are in job, `GraphFacts` in facts. Nothing here runs a graph.
"""

from mindgspo.dryrun.command import DryRun, DryRunRequest
from mindgspo.dryrun.runner import Result, run_child
from mindgspo.parallel.platform.emulator import find_toolchain

__all__ = ["DryRun", "DryRunRequest", "Result", "find_toolchain", "run_child"]
