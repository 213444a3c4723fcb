"""Strategy files for people: written for all ranks of a configuration, shown, compared and merged. Imports no
MindSpore."""

from mindgspo.strategies.commands import Differences, diff_lines, merge_files, show_lines
from mindgspo.strategies.compiled_files import place_compiled
from mindgspo.strategies.plan_files import GRAPHS, WrittenFolder, graph_layouts, write_plan_files

__all__ = [
    "GRAPHS",
    "Differences",
    "WrittenFolder",
    "diff_lines",
    "graph_layouts",
    "merge_files",
    "place_compiled",
    "show_lines",
    "write_plan_files",
]
