"""The proof of a reshard: which blocks are compared, what a hash is, and that no flipped bit passes. Ranks are
threads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_in_numpy import RankSlices, run_in_one_process, scatter

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.errors import WeightsError
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.parallel.plans.parameter_layouts import parameter_layouts
from mindgspo.reshard.planner import plan_reshard
from mindgspo.reshard.verify import SAMPLE_SIZE, _blocks, sampled_names, verify_reshard


def layout(
    shape: tuple[int, ...], tensor_map: tuple[Any, ...], device_matrix: tuple[int, ...], first: int = 0
) -> Layout:
    """Over consecutive ranks from `first`."""
    ranks = tuple(range(first, first + int(np.prod(device_matrix))))
    return Layout(parameter="w", shape=shape, device_matrix=device_matrix, tensor_map=tensor_map, rank_list=ranks)


ROWS, COLUMNS = layout((4, 6), (0, -1), (2,)), layout((4, 6), (-1, 0), (2,))
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


def verified(
    over_ranks: Callable[..., list],
    world_size: int,
    sides: tuple[Mapping[str, Layout], Mapping[str, Layout]],
    old: RankSlices,
    new: RankSlices,
) -> list[dict[str, str] | str]:
    """What every rank gets: hashes, or the text of the error."""

    def work(rank: int) -> dict[str, str] | str:
        try:
            return verify_reshard(list(sides[0]), *sides, old.get(rank, {}), new.get(rank, {}))
        except WeightsError as error:
            return str(error)

    return over_ranks(world_size, work)


WHOLE = layout((4, 6), (-1, -1), (1,))


def test_blocks_by_hand():
    corners = [((0, 0), (2, 3)), ((0, 3), (2, 6)), ((2, 0), (4, 3)), ((2, 3), (4, 6))]
    assert list(_blocks(ROWS, COLUMNS)) == [TensorSlice(*corner) for corner in corners]
    blocks = _blocks(layout((12,), (0,), (2,)), layout((12,), (0,), (3,)))
    assert [(block.starts[0], block.stops[0]) for block in blocks] == [(0, 4), (4, 6), (6, 8), (8, 12)]
    assert list(_blocks(layout((4, 6), (-1, -1), (2,)), WHOLE)) == [TensorSlice((0, 0), (4, 6))]


@settings(max_examples=40)
@given(splits=st.tuples(*[st.sampled_from([1, 2, 3, 4, 6]) for _ in range(4)]))
def test_every_block_lies_in_one_slice_of_either_side(splits: tuple[int, int, int, int]):
    sides = [layout((12, 12), (1, 0), splits[:2]), layout((12, 12), (1, 0), splits[2:])]
    seen = np.zeros((12, 12), np.int64)
    for block in _blocks(*sides):
        seen[block.index] += 1
        for side in sides:
            slices = [side.slice_at(index) for index in side.slice_indices()]
            touched = [piece.intersection(block) for piece in slices if piece.intersection(block) is not None]
            assert touched == [block]
    assert (seen == 1).all()


def test_hash_of_a_parameter_is_that_of_its_blocks_in_order(over_ranks):
    sides = {"w": ROWS}, {"w": COLUMNS}
    found = verified(over_ranks, 2, sides, scatter({"w": VALUES}, sides[0]), scatter({"w": VALUES}, sides[1]))
    blocks = [VALUES[:2, :3], VALUES[:2, 3:], VALUES[2:, :3], VALUES[2:, 3:]]
    digests = [hashlib.sha256(block.tobytes()).digest() for block in blocks]
    assert found == 2 * [{"w": hashlib.sha256(b"".join(digests)).hexdigest()}]


def test_views_are_hashed_as_what_they_show():
    turned = np.asfortranarray(VALUES)
    wide = np.zeros((4, 12), np.float32)
    wide[:, ::2] = VALUES
    verify_reshard(["w"], {"w": WHOLE}, {"w": WHOLE}, {"w": turned}, {"w": wide[:, ::2]})


def test_names_that_are_not_asked_for_are_not_looked_at():
    sides = dict.fromkeys("ab", WHOLE)
    old, new = {"a": VALUES, "b": VALUES}, {"a": VALUES, "b": VALUES + 1}
    assert list(verify_reshard(["a"], sides, sides, old, new)) == ["a"]
    with pytest.raises(WeightsError, match="1 of 2 compared parameters differ between the two plans: b; "):
        verify_reshard(["a", "b"], sides, sides, old, new)


# Ranks 0 and 1 hold rows, then ranks 2 and 3 columns: each value has one holder on either side.
@pytest.mark.parametrize(("side", "rank"), [("old", 0), ("old", 1), ("new", 2), ("new", 3)])
def test_any_flipped_bit_is_told_to_all_ranks(over_ranks, side: str, rank: int):
    sides = {"w": ROWS}, {"w": layout((4, 6), (-1, 0), (2,), first=2)}
    slices = {"old": scatter({"w": VALUES}, sides[0]), "new": scatter({"w": VALUES}, sides[1])}
    words = slices[side][rank]["w"].view(np.int32)
    for place in np.ndindex(words.shape):
        words[place] ^= 1 << 31  # of the first element: a zero becomes a negative zero
        for answer in verified(over_ranks, 4, sides, **slices):
            assert "1 of 1 compared parameters differ between the two plans: w; " in str(answer)
        words[place] ^= 1 << 31
    assert isinstance(verified(over_ranks, 4, sides, **slices)[0], dict)


def test_a_replica_that_fell_behind_is_noticed(over_ranks):
    """Equal layouts and own arrays: only the comparison with the other replica can show it."""
    twice = {"w": layout((4, 6), (-1, -1), (2,))}
    old = scatter({"w": VALUES}, twice)
    assert isinstance(verified(over_ranks, 2, (twice, twice), old, old)[0], dict)
    old[1]["w"][3, 5] += 1
    for answer in verified(over_ranks, 2, (twice, twice), old, old):
        assert "1 of 1 compared parameters differ" in str(answer)


def test_damaged_parameters_are_listed_up_to_five():
    for num_damaged, listed in ((5, "w0, w1, w2, w3, w4;"), (7, "w0, w1, w2, w3, w4 and 2 more;")):
        sides = {f"w{i}": WHOLE for i in range(8)}
        old = dict.fromkeys(sides, VALUES)
        new = {name: VALUES + (i < num_damaged) for i, name in enumerate(sides)}
        with pytest.raises(WeightsError, match=f"{num_damaged} of 8 .*: {listed} the rollout would not be"):
            verify_reshard(list(sides), sides, sides, old, new)


MODEL = ModelSection(
    vocab_size=16, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip


@pytest.mark.parametrize(("source", "destination"), [
    ({"model_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 2}, {"data_parallel": 2, "model_parallel": 4}),
    ({"data_parallel": 2, "model_parallel": 2, "vocab_emb_dp": False}, {"model_parallel": 4}),
    ({"model_parallel": 2}, {"data_parallel": 4}),
], ids=["1x4x2 to 2x4x1", "2x2x1 to 1x4x1", "1x2x1 to 4x1x1"])  # fmt: skip
def test_a_reshard_is_accepted_and_each_damaged_slice_of_it_refused(over_ranks, source: dict, destination: dict):
    plans = ParallelPlan(**source), ParallelPlan(**destination)
    shapes = weight_shapes(MODEL)
    sides = tuple(parameter_layouts(shapes, MODEL, plan) for plan in plans)
    random = np.random.default_rng(5)
    full = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    old = scatter(full, sides[0])
    new, _ = run_in_one_process(plan_reshard(*sides, bucket_bytes=1024), old)
    new = {rank: {name: array.copy() for name, array in slices.items()} for rank, slices in new.items()}
    world_size = max(plan.world_size for plan in plans)
    found = verified(over_ranks, world_size, sides, old, new)
    assert found == world_size * [found[0]] and list(found[0]) == list(shapes)
    for number, name in list(enumerate(shapes))[::3]:
        rank = sorted(rank for rank, slices in new.items() if name in slices)[number % 2]
        kept = new[rank][name].reshape(-1)[number % 3].copy()
        new[rank][name].reshape(-1)[number % 3] += 1
        for answer in verified(over_ranks, world_size, sides, old, new):
            assert f"1 of {len(shapes)} compared parameters differ between the two plans: {name};" in str(answer)
        new[rank][name].reshape(-1)[number % 3] = kept


def test_a_sample_moves_on_with_the_version_and_begins_anew():
    names = list("abcdefghij")
    assert SAMPLE_SIZE == 4
    assert sampled_names([], 3) == []
    samples = ["".join(sampled_names(names, version)) for version in range(6)]
    assert samples == ["abcd", "efgh", "ijab", "cdef", "ghij", "abcd"]
