"""The dry run: MindSpore's Ascend front end compiles any rank's graph of any cluster on a machine without Ascend.

Importing it needs no MindSpore: graphs are compiled in child processes, one per graph and rank.

    runner       one graph of one rank in a process of its own (child), with CANN or with stand-ins
    graph_text   MindSpore's text of a compiled graph -> `GraphFacts`
    report       lines for people, also where MindSpore refuses
    graphs       the cells of training and rollout, wrapped as they are compiled; needs MindSpore

Nothing here runs a graph.
"""

from mindgspo.dryrun.command import DryRun, DryRunRequest
from mindgspo.dryrun.runner import GraphResult, run_child
from mindgspo.parallel.platform.emulator import find_toolchain

__all__ = ["DryRun", "DryRunRequest", "GraphResult", "find_toolchain", "run_child"]
