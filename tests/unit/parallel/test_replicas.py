"""Arrays come out of a parcel as they went in, and results of replicas in the order of the items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from mindgspo.config import ParallelPlan
from mindgspo.parallel.collectives.replicas import Arrays, Replicas, pack_arrays, unpack_arrays
from mindgspo.parallel.plans.placement import Placement

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", ">f4", ">i8"),
]


def assert_same(found: Arrays, expected: Arrays) -> None:
    """Types, shapes and bits."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: numpy_st.arrays(dtype, numpy_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


@settings(max_examples=60)
@given(results=st.lists(st.lists(arrays, max_size=3).map(tuple), max_size=4))
def test_any_arrays_survive_a_parcel(results: list[Arrays]):
    found = list(unpack_arrays(pack_arrays(results)))
    assert len(found) == len(results)
    for one, other in zip(found, results, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("array", [
    np.zeros((0,), np.float32),
    np.zeros((3, 0, 2), np.int64),
    np.array(2.5),
    np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x00000001], np.uint32).view(np.float32),
    np.frombuffer(b"\n\n[]\n", np.uint8),  # what a header looks like
    np.arange(12).reshape(3, 4).T,
    np.arange(12)[::-2],
], ids=["empty", "empty in the middle", "no axes", "bit patterns", "line ends", "transposed", "backwards"])  # fmt: skip
def test_odd_arrays_survive_a_parcel(array: np.ndarray):
    odd = np.arange(3, dtype=np.uint8)  # puts what follows where no aligned number begins
    (found,) = unpack_arrays(pack_arrays([(odd, array, array)]))
    assert_same(found, (odd, array, array))


def test_unpacked_arrays_are_the_receivers_own():
    parcel = pack_arrays([(np.arange(4),)])
    ((array,),) = unpack_arrays(parcel)
    array += 1
    assert array.flags.owndata
    assert_same(next(unpack_arrays(parcel)), (np.arange(4),))
    assert [list(unpack_arrays(pack_arrays(nothing))) for nothing in ([], [(), ()])] == [[], [(), ()]]


def replicas_of(rank: int, **sizes: int) -> Replicas:
    return Replicas(Placement(plan=ParallelPlan(**sizes), rank=rank))


def test_items_are_dealt_out_in_turn_and_one_rank_speaks_for_a_replica():
    # 3 replicas of 2 ranks: ranks 0 and 1 are replica 0, and so on.
    shares = [replicas_of(rank, data_parallel=3, model_parallel=2).own("abcdefgh") for rank in range(6)]
    assert shares == [[*"adg"], [*"adg"], [*"beh"], [*"beh"], [*"cf"], [*"cf"]]
    leads = [replicas_of(rank, data_parallel=2, model_parallel=2, pipeline_stage=2).is_leader for rank in range(8)]
    assert leads == [False] * 4 + [True, False, True, False]  # slice 0 of the last stage


def test_a_process_that_is_alone_does_all():
    alone = Replicas()
    results = [(np.zeros(2),), (np.ones(3),)]
    assert alone.own("ab") == ["a", "b"]
    assert alone.collect(results, num_items=2) == results
    assert alone.collect_objects(["x", "y"], num_items=2, encode=str, decode=str) == ["x", "y"]
    assert alone.is_leader


@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 7, 8])
@pytest.mark.parametrize("sizes", [
    {"data_parallel": 4},
    {"data_parallel": 3, "model_parallel": 2},
    {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2},
    {"model_parallel": 2, "pipeline_stage": 2},
], ids=["4x1x1", "3x2x1", "2x2x2", "1x2x2"])  # fmt: skip
def test_everybody_gets_all_results_in_order(over_ranks: Any, num_items: int, sizes: dict[str, int]):
    items = [np.arange(number) for number in range(num_items)]

    def work(rank: int) -> list[Arrays]:
        replicas = replicas_of(rank, **sizes)
        own = replicas.own(items)
        # Ranks that do not speak have computed something else, or nothing.
        results = [(item, np.float32(item.sum())[None]) for item in own] if replicas.is_leader else [()]
        return replicas.collect(results, num_items=num_items)

    for found in over_ranks(ParallelPlan(**sizes).world_size, work):
        assert len(found) == num_items
        for number, result in enumerate(found):
            assert_same(result, (np.arange(number), np.array([number * (number - 1) / 2], np.float32)))


def test_texts_are_collected_whatever_their_letters(over_ranks: Any):
    texts = ["", "één\n", "\N{SNOWMAN}\0", "plain", "last"]

    def work(rank: int) -> list[str]:
        replicas = replicas_of(rank, data_parallel=2)
        return replicas.collect_objects(replicas.own(texts), num_items=5, encode=str.lower, decode=str.upper)

    assert over_ranks(2, work) == 2 * [["", "ÉÉN\n", "\N{SNOWMAN}\0", "PLAIN", "LAST"]]


def test_one_result_of_every_replica(over_ranks: Any):
    def work(rank: int) -> list[Arrays]:
        return replicas_of(rank, data_parallel=3).collect_each((np.array([rank]),))

    assert [[int(array[0]) for (array,) in found] for found in over_ranks(3, work)] == [[0, 1, 2]] * 3


def test_results_that_are_missing_are_a_mistake(over_ranks: Any):
    with pytest.raises(AssertionError, match="1 results for 2 items"):
        over_ranks(2, lambda rank: replicas_of(rank, data_parallel=2).collect([()], num_items=4))
