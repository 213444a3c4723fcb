"""Collectives and their inputs. Imported by workers and by tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Ranks = tuple[int, ...]
USED = "all_gather_used"
SENT = ("float32", "bfloat16", "int32", "uint8")


@dataclass(frozen=True)
class Case:
    """shape: of a rank's input. axes: of all_to_all, split and concatenated."""

    name: str
    operation: str
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()


_CASES = (
    Case("sum", "all_reduce", "float32", (12, 5)),
    Case("sum_scalar", "all_reduce", "float32", ()),
    Case("sum_16", "all_reduce", "bfloat16", (12, 3001)),
    Case("sum_half", "all_reduce", "float16", (12, 5)),
    Case("sum_large", "all_reduce", "float32", (12, 50_007)),
    Case("sum_int32", "all_reduce", "int32", (12, 5)),
    Case("gather", "all_gather", "float32", (3, 5)),
    Case("gather_large", "all_gather", "bfloat16", (3, 200_001)),
    Case("gather_int64", "all_gather", "int64", (7,)),
    Case("gather_uint8", "all_gather", "uint8", (7, 2, 2)),
    Case("gather_int16", "all_gather", "int16", (7,)),
    Case("gather_used", USED, "float32", (6, 4)),
    Case("gather_used_16", USED, "bfloat16", (6, 100_001)),
    Case("scatter", "reduce_scatter", "float32", (12, 5)),
    Case("scatter_large", "reduce_scatter", "bfloat16", (24, 50_001)),
    Case("heads", "all_to_all", "bfloat16", (12, 12, 4), (1, 0)),
    Case("heads_large", "all_to_all", "float32", (24, 12, 1003), (1, 0)),
    Case("tokens", "all_to_all", "float32", (12, 12, 4), (0, 1)),
    Case("tokens_2", "all_to_all", "int32", (12, 12), (0, 1)),
)
_OVER_AND_OVER = tuple(Case(f"again_{number}", "all_reduce", "float32", (5,)) for number in range(24))


def graphs(size: int) -> list[list[tuple[Case, Ranks]]]:
    """Of each the cases, with the ranks that they are over: of the first one all, then a half, then by turns; of
    another one three. All ranks of a graph have one like it."""
    whole = tuple(range(size))
    if size < 4:
        return [[(case, whole) for case in (*_CASES, *_OVER_AND_OVER)]]
    halves = (0, 2), (1, 3)
    both = [(case, ranks) for ranks in (whole, *halves) for case in _CASES]
    for number, case in enumerate(_OVER_AND_OVER):
        both += [(case, ranks) for ranks in ((whole,) if number % 2 else halves)]
    return [both, [(case, (0, 1, 3)) for case in _CASES]]


def key(case: Case, ranks: Ranks) -> str:
    return f"{case.name} over {' '.join(map(str, ranks))}"


def own_input(case: Case, ranks: Ranks, rank: int, turn: int) -> tuple[np.ndarray, int]:
    """float32, or int64 for integers, and how many of its rows are in use: behind them are NaNs, where that matters."""
    random = np.random.default_rng([rank, turn, len(ranks), *case.name.encode()])
    if "float" not in case.dtype:
        return random.integers(0, 30, case.shape), 0
    x, used = np.asarray(random.standard_normal(case.shape), np.float32), 0
    if case.operation == USED:
        used = (rank + turn) % (case.shape[0] + 1)
        x[used:] = np.nan
    if case.operation in ("reduce_scatter", "all_to_all") and rank == ranks[0]:
        x[-1] = np.nan  # which goes nowhere else
    return x, used


def sent_values(dtype: str) -> np.ndarray:
    """[3, 5], with values that every dtype of its kind has."""
    return (np.arange(15).reshape(3, 5) * (0.25 if "float" in dtype else 1)).astype(np.float32)
