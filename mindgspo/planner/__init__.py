"""The planner: from a configuration to the memory and the time that a run is expected to need. Without MindSpore."""

from mindgspo.planner.cache_budget import most_slots, replica_with_cache_budget, with_cache_budget
from mindgspo.planner.command import plan_json, plan_of_file
from mindgspo.planner.expected import expected_memory, graph_memory
from mindgspo.planner.memory_plan import GIB, MIB, Part, SwapLevel
from mindgspo.planner.smallest_change import set_options, smallest_change

__all__ = [
    "GIB",
    "MIB",
    "Part",
    "SwapLevel",
    "expected_memory",
    "graph_memory",
    "most_slots",
    "plan_json",
    "plan_of_file",
    "replica_with_cache_budget",
    "set_options",
    "smallest_change",
    "with_cache_budget",
]
