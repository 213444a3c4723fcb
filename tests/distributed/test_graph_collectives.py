"""Collectives in compiled graphs of CPU ranks against numpy, over groups of any size, bit for bit."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from running import run_workers

from mindgspo.tensor_files.tensors import bfloat16_bits, widen_bfloat16

sys.path.append(str(Path(__file__).parent / "workers"))

from collective_cases import SENT, USED, Case, Ranks, graphs, key, own_input, sent_values

WORKER = Path(__file__).parent / "workers" / "graph_collectives.py"


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow), 4])
def test_every_collective_is_numpys(tmp_path: Path, size: int):
    run_workers(WORKER, tmp_path, size)
    for turn in range(2):
        found = [dict(np.load(tmp_path / f"{rank}_{turn}.npz")) for rank in range(size)]
        for case, ranks in chain(*graphs(size)):
            for rank, array in zip(ranks, results(case, ranks, turn), strict=True):
                name = key(case, ranks)
                np.testing.assert_array_equal(found[rank].pop(name), array, err_msg=f"{name} on {rank}", strict=True)
        if turn == 0:
            for dtype in SENT:
                np.testing.assert_array_equal(found[-1].pop(f"sent {dtype}"), sent_values(dtype), err_msg=dtype)
        assert not any(found)


def results(case: Case, ranks: Ranks, turn: int) -> list[np.ndarray]:
    """By rank of the group."""
    given = [own_input(case, ranks, rank, turn) for rank in ranks]
    xs, size = [rounded(x, case.dtype) for x, _ in given], len(ranks)
    if case.operation == "all_gather":
        return [np.concatenate(xs)] * size
    if case.operation == USED:
        for x, (_, used) in zip(xs, given, strict=True):
            x[used:] = 0.0
        return [np.concatenate(xs)] * size
    if case.operation == "all_to_all":
        split, concat = case.axes
        blocks = [np.split(x, size, split) for x in xs]
        return [np.concatenate([blocks[sender][own] for sender in range(size)], concat) for own in range(size)]
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    total = rounded(np.asarray(total), case.dtype)
    return [total] * size if case.operation == "all_reduce" else np.split(total, size)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return widen_bfloat16(bfloat16_bits(x))
    return x.astype(np.float16).astype(np.float32) if dtype == "float16" else x
