"""How the ops of a logical graph are split: the words that models use, and the numbers of a plan behind them.

What enters: a plan. What leaves: into how many parts each word cuts an axis. Used through a `Placement` by everything
that holds ops; pure Python. MindSpore's rule: where the numbers of an op do not use up all ranks, several ranks compute
the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from mindgspo.config.plan import ParallelPlan


class Axis(Enum):
    """What splits one axis of an op's input."""

    WHOLE = auto()
    """Nothing."""
    DATA = auto()
    """data_parallel: rows of the batch, or their flattened tokens."""
    SEQUENCE = auto()
    """Flattened tokens between the layers' tensor-parallel regions: data_parallel, and model_parallel as well under
    use_seq_parallel."""
    MODEL = auto()
    """model_parallel: heads, features, vocabulary."""
    KEY_VALUE = auto()
    """Key/value heads: model_parallel, or the heads where they are fewer than that."""
    EXPERT = auto()
    """Experts: expert_parallel, which takes consecutive replicas of data_parallel."""


WHOLE, DATA, SEQUENCE, MODEL, KEY_VALUE, EXPERT = Axis
Axes = tuple[Axis, ...]


def parts_of(plan: ParallelPlan, num_kv_heads: int) -> Mapping[Axis, int]:
    """Into how many parts each word cuts an axis under a plan."""
    data, model = plan.data_parallel, plan.model_parallel
    return {
        WHOLE: 1,
        DATA: data,
        SEQUENCE: data * model if plan.use_seq_parallel else data,
        MODEL: model,
        KEY_VALUE: min(num_kv_heads, model),
        EXPERT: plan.expert_parallel,
    }
