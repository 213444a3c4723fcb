"""The planner: a configuration in; out come the memory and the time that a run is expected to need, and
the seconds that each schedule is expected to take. Without MindSpore."""

from mindgspo.planner.cache_budget import replica_with_cache_budget, with_cache_budget
from mindgspo.planner.command import TimeOptions, plan_json, plan_of_file
from mindgspo.planner.expected import PHASES, expected_memory, graph_memory
from mindgspo.planner.forecast import forecasts, timeline_json, timeline_lines
from mindgspo.planner.memory_plan import GIB, MIB, Level, MemoryPlan, Part, PhaseMemory, RankMemory
from mindgspo.planner.probe import probe_machine
from mindgspo.planner.simulated_replicas import Rates
from mindgspo.planner.smallest_change import set_options, smallest_change
from mindgspo.planner.speedup import most_slots
from mindgspo.planner.timeline import StepTimes, Timeline, simulate

__all__ = [
    "GIB",
    "MIB",
    "PHASES",
    "Level",
    "MemoryPlan",
    "Part",
    "PhaseMemory",
    "RankMemory",
    "Rates",
    "StepTimes",
    "TimeOptions",
    "Timeline",
    "expected_memory",
    "forecasts",
    "graph_memory",
    "most_slots",
    "plan_json",
    "plan_of_file",
    "probe_machine",
    "replica_with_cache_budget",
    "set_options",
    "simulate",
    "smallest_change",
    "timeline_json",
    "timeline_lines",
    "with_cache_budget",
]
