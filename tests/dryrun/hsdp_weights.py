"""Weights of every kind, for `hsdp_cells` and the test that compiles it; no MindSpore."""

from __future__ import annotations

from typing import NamedTuple

KV_HEADS = 2


class Weight(NamedTuple):
    """kind: how model_parallel acts on it, and the op that uses it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    is_bfloat16: bool = False


WEIGHTS = (
    Weight("column", "column", (64, 64)),
    Weight("column_12", "column", (12, 64)),
    Weight("column_64_kb", "column", (256, 64)),
    Weight("column_60_kb", "column", (240, 64)),
    Weight("column_64_kb_of_bfloat16", "column", (512, 64), True),
    Weight("column_32_kb_of_bfloat16", "column", (256, 64), True),
    Weight("row", "row", (64, 64)),
    Weight("row_6", "row", (6, 64)),
    Weight("key_value", "key_value", (32, 64)),
    Weight("key_value_12", "key_value", (12, 64)),
    Weight("key_value_64_kb", "key_value", (128, 128)),
    Weight("whole", "whole", (64, 64)),
    Weight("whole_64_kb", "whole", (128, 128)),
    Weight("bias", "bias", (64,)),
    Weight("norm", "norm", (64,)),
    Weight("norm_6", "norm", (6,)),
    Weight("norm_63", "norm", (63,)),
    Weight("norm_64_kb", "norm", (16384,)),
)
