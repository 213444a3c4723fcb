"""Door of the memory planner: a configuration in, the memory that a run is expected to need out. Without MindSpore."""

from mindgspo.planner.cache_budget import with_cache_budget
from mindgspo.planner.command import plan_of_file
from mindgspo.planner.expected import PHASES, expected_memory, graph_memory
from mindgspo.planner.memory_plan import GIB, MIB, Level, MemoryPlan, Part, PhaseMemory, RankMemory
from mindgspo.planner.smallest_change import set_options, smallest_change

__all__ = [
    "GIB",
    "MIB",
    "PHASES",
    "Level",
    "MemoryPlan",
    "Part",
    "PhaseMemory",
    "RankMemory",
    "expected_memory",
    "graph_memory",
    "plan_of_file",
    "set_options",
    "smallest_change",
    "with_cache_budget",
]
