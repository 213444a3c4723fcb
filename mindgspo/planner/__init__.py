"""Door of the memory planner: configuration in, expected memory out. Without MindSpore."""

from mindgspo.planner.expected import PHASES, expected_memory
from mindgspo.planner.memory_plan import GIB, MIB, Level, MemoryPlan, Part, PhaseMemory, RankMemory

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
]
