"""Reshard plans: small ones by hand, the example plans of Qwen2.5-7B by their byte counts, and what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import small_plans
from hypothesis import given
from hypothesis import strategies as st
from reshard_in_numpy import received_bytes, sent_bytes
from small_plans import QWEN_7B

from mindgspo.errors import ConfigError, WeightsError
from mindgspo.parallel.plans.layout import Layout, Shape, TensorSlice
from mindgspo.reshard.plan import BlockTransfer, Bucket
from mindgspo.reshard.planner import UnsentBlock, choose_senders, plan_reshard

MIB = 1 << 20


def rows_over(ranks: Iterable[int], shape: Shape = (8, 2), *, replicas: int = 1, name: str = "w") -> Layout:
    """Rows of a matrix in equal runs over the ranks; replicas are the outer device axis."""
    ranks = tuple(ranks)
    matrix, tensor_map = (replicas, len(ranks) // replicas), (0, *(-1,) * (len(shape) - 1))
    return Layout(parameter=name, shape=shape, device_matrix=matrix, tensor_map=tensor_map, rank_list=ranks)


def whole_on(ranks: Iterable[int], shape: Shape = (8, 2), name: str = "w") -> Layout:
    ranks = tuple(ranks)
    tensor_map = (-1,) * len(shape)
    return Layout(parameter=name, shape=shape, device_matrix=(len(ranks),), tensor_map=tensor_map, rank_list=ranks)


def layouts_7b(*sizes: int) -> dict[str, Layout]:
    return small_plans.weights(small_plans.plan(*sizes), QWEN_7B)


def piece(parameter: str, source: tuple[int, int], destination: tuple[int, int], *, columns: int = 2) -> BlockTransfer:
    """A run of rows, float32."""
    (a, b), (c, d) = source, destination
    old, new = TensorSlice((a, 0), (b, columns)), TensorSlice((c, 0), (d, columns))
    return BlockTransfer(parameter=parameter, source=old, destination=new, num_bytes=(b - a) * columns * 4)


def test_gathering_halves_exchanges_them_and_copies_the_local_one():
    plan = plan_reshard({"w": rows_over((0, 1))}, {"w": whole_on((0, 1))}, bucket_bytes=64)
    assert list(plan.buckets()) == [
        Bucket(sender=0, receivers=(1,), pieces=(piece("w", (0, 4), (0, 4)),)),
        Bucket(sender=1, receivers=(0,), pieces=(piece("w", (0, 4), (4, 8)),)),
    ]
    rows = TensorSlice((0, 0), (4, 2))
    assert plan.local_copy("w", 1) == (rows, TensorSlice((4, 0), (8, 2)))
    assert not plan.is_kept("w", 1)
    assert plan.groups() == ((0, 1),)


def test_splitting_what_everybody_holds_moves_nothing():
    plan = plan_reshard({"w": whole_on(range(4))}, {"w": rows_over(range(4))}, bucket_bytes=64)
    assert list(plan.buckets()) == []
    rows, own = TensorSlice((6, 0), (8, 2)), TensorSlice((0, 0), (2, 2))
    assert plan.local_copy("w", 3) == (rows, own)


def test_equal_layouts_move_nothing_and_copy_nothing():
    # The same placement under another device matrix.
    source = {"w": rows_over(range(4), replicas=2)}
    respelt = Layout(parameter="w", shape=(8, 2), device_matrix=(2, 2, 1), tensor_map=(1, -1), rank_list=(0, 1, 2, 3))
    plan = plan_reshard(source, {"w": respelt}, bucket_bytes=64)
    assert list(plan.buckets()) == []
    assert all(plan.is_kept("w", rank) and plan.local_copy("w", rank) is None for rank in range(4))
    assert plan.lacking_bytes() == Counter()


def test_one_broadcast_serves_all_who_lack_the_same_block():
    plan = plan_reshard({"w": whole_on((1,))}, {"w": whole_on(range(4))}, bucket_bytes=64)
    assert list(plan.buckets()) == [Bucket(sender=1, receivers=(0, 2, 3), pieces=(piece("w", (0, 8), (0, 8)),))]
    assert sent_bytes(plan) == {1: 64}
    assert received_bytes(plan) == plan.lacking_bytes() == {0: 64, 2: 64, 3: 64}


def test_different_cuts_share_only_their_overlaps():
    # Thirds on ranks 0 to 2 become halves on ranks 2 and 3.
    plan = plan_reshard({"w": rows_over(range(3), (6, 2))}, {"w": rows_over((2, 3), (6, 2))}, bucket_bytes=64)
    assert list(plan.buckets()) == [
        Bucket(sender=0, receivers=(2,), pieces=(piece("w", (0, 2), (0, 2)),)),
        Bucket(sender=1, receivers=(2,), pieces=(piece("w", (0, 1), (2, 3)),)),
        Bucket(sender=1, receivers=(3,), pieces=(piece("w", (1, 2), (0, 1)),)),
        Bucket(sender=2, receivers=(3,), pieces=(piece("w", (0, 2), (1, 3)),)),
    ]
    assert plan.local_copy("w", 2) is None, "its old rows are the last ones, its new rows the first"


def test_rows_become_columns():
    columns = Layout(parameter="w", shape=(4, 4), device_matrix=(2,), tensor_map=(-1, 0), rank_list=(0, 1))
    plan = plan_reshard({"w": rows_over((0, 1), (4, 4))}, {"w": columns}, bucket_bytes=64)
    found = [(it.sender, it.receivers, it.pieces[0].source, it.pieces[0].destination) for it in plan.buckets()]
    # Rank 1 gives the left half of its rows, rank 0 the right half of its own.
    left, right = TensorSlice((0, 0), (2, 2)), TensorSlice((0, 2), (2, 4))
    assert found == [(1, (0,), left, TensorSlice((2, 0), (4, 2))), (0, (1,), right, left)]


def test_a_large_slice_is_cut_and_small_ones_travel_together():
    large, small = (64, 2), (4, 2)
    source = {name: whole_on((0,), shape, name) for name, shape in (("a", small), ("b", small), ("c", large))}
    destination = {name: whole_on((1,), layout.shape, name) for name, layout in source.items()}
    plan = plan_reshard(source, destination, bucket_bytes=128)
    assert [(step.parameters, [bucket.num_bytes for bucket in step.buckets]) for step in plan.steps] == [
        (("a", "b"), [64]),
        (("c",), [128, 128, 128, 128]),
    ]


def test_disjoint_groups_and_layers_of_different_stages_take_turns():
    plan = plan_reshard({"w": rows_over((0, 1))}, {"w": rows_over((2, 3))}, bucket_bytes=16)
    assert [bucket.sender for bucket in plan.buckets()] == [0, 1, 0, 1]
    source = {f"layers.{i}": whole_on((i // 6,), name=f"layers.{i}") for i in range(12)}
    destination = {name: whole_on((0, 1), name=name) for name in source}
    plan = plan_reshard(source, destination, bucket_bytes=64)
    assert [step.parameters[0] for step in plan.steps][:4] == ["layers.0", "layers.6", "layers.1", "layers.7"]


def test_replicas_share_the_sending():
    source = {f"w{i}": whole_on(range(4), (16, 4), f"w{i}") for i in range(10)}
    destination = {name: whole_on((4, 5), (16, 4), name) for name in source}
    plan = plan_reshard(source, destination, bucket_bytes=64)
    # 10 slices of 256 bytes, in pieces of 64: 2560 / 4 each.
    assert sent_bytes(plan) == dict.fromkeys(range(4), 640)


def block(holders: tuple[int, ...], receivers: tuple[int, ...], num_bytes: int) -> UnsentBlock:
    part = TensorSlice((0,), (1,))
    piece = BlockTransfer(parameter="w", source=part, destination=part, num_bytes=num_bytes)
    return UnsentBlock(piece=piece, holders=holders, receivers=receivers)


def chosen(grain_bytes: int, *loads: tuple[tuple[int, ...], tuple[int, ...], int]) -> list[int]:
    """loads: holders, receivers, bytes."""
    made = [block(*one) for one in loads]
    return choose_senders(made, grain_bytes=grain_bytes)


def test_senders_by_hand():
    # Those without a choice first: rank 4 is nearer, but alone holds the other block.
    assert chosen(1, ((4, 5), (3,), 40), ((4,), (3,), 40)) == [5, 4]
    assert chosen(1, *(((0, 1), (9,), size) for size in (10, 10, 20))) == [0, 0, 1], "large blocks first"
    loads = [(holders, (7, 8), 8) for holders in ((3,), (3, 6))]
    assert chosen(64, *loads) == [3, 3], "a group in use rather than a nearer rank"
    assert chosen(8, *loads) == [3, 6], "unless it has more to send"
    near = ((0, 3, 8), (4, 5), 8)
    assert chosen(64, near) == [3], "among equals the nearest"
    assert chosen(64, near, near, near) == [3, 3, 3], "8 and 16 bytes are no difference of weight"
    assert chosen(8, near, near, near) == [3, 8, 0]


@given(
    loads=st.lists(
        st.builds(
            block,
            holders=st.sets(st.integers(0, 7), min_size=1).map(lambda ranks: tuple(sorted(ranks))),
            receivers=st.just((8, 9)),
            num_bytes=st.integers(1, 100),
        ),
        max_size=40,
    ),
    grain_bytes=st.sampled_from([1, 8, 64]),
)
def test_nobody_sends_much_more_than_another_who_could_have(loads: list[UnsentBlock], grain_bytes: int):
    senders = choose_senders(loads, grain_bytes=grain_bytes)
    sent: Counter[int] = Counter()
    for load, sender in zip(loads, senders, strict=True):
        assert sender in load.holders
        sent[sender] += load.piece.num_bytes
    for sender in sent:
        # Without the load it was given last, no other holder of that load has less, up to the grain.
        assert any(
            sent[sender] - load.piece.num_bytes < sent[other] + grain_bytes
            for load, chosen in zip(loads, senders, strict=True)
            if chosen == sender
            for other in [min(load.holders, key=sent.__getitem__)]
        )


def test_qwen_7b_from_1_x_4_x_2_to_2_x_4_x_1():
    plan = plan_reshard(layouts_7b(1, 4, 2), layouts_7b(2, 4, 1), bucket_bytes=256 * MIB)
    # Rank r has slice r % 4 of its stage's 14 layers and lacks that slice of the other 14, with their whole norms.
    split = 14 * (2 * 3584 * 3584 + 3584 + 2 * (512 * 3584 + 512) + 3 * 18944 * 3584) // 4
    norms = 14 * 2 * 3584
    table = 152064 * 3584
    # Stage 0 also lacks the last norm and a quarter of the output table, stage 1 the whole input table.
    lacking = {0: split + norms + 3584 + table // 4, 4: split + norms + table}
    assert received_bytes(plan) == {rank: 4 * lacking[rank - rank % 4] for rank in range(8)}
    assert received_bytes(plan) == plan.lacking_bytes()
    # Slices travel between the two ranks that share them; whole parameters are broadcast to the other stage.
    assert {len(group) for group in plan.groups()} == {2, 5}
    assert {(0, 4), (1, 5), (2, 6), (3, 7)} <= set(plan.groups())
    # Stage 0 shares out the whole table: each of its ranks sends a quarter of it.
    sent = sent_bytes(plan)
    assert max(sent[rank] for rank in range(4)) - min(sent[rank] for rank in range(4)) < 256 * MIB


def test_the_order_of_the_layouts_does_not_matter():
    source, destination = layouts_7b(1, 4, 2), layouts_7b(2, 2, 2)
    shuffled = list(source)
    random.Random(1).shuffle(shuffled)
    orders = source, {name: source[name] for name in shuffled}
    plans = [plan_reshard(order, destination, bucket_bytes=MIB * 64) for order in orders]
    assert (plans[0].steps, plans[0].digest()) == (plans[1].steps, plans[1].digest())


def test_processes_with_other_hash_seeds_compute_the_same_plan():
    code = (
        "import sys; sys.path.append('tests'); from small_plans import plan, weights\n"
        "from mindgspo.reshard.planner import plan_reshard\n"
        "sides = [weights(plan(*sizes)) for sizes in ((2, 4, 2), (4, 2, 2))]\n"
        "assert 'mindspore' not in sys.modules and 'numpy' not in sys.modules\n"
        "print(plan_reshard(*sides, bucket_bytes=1024).digest())\n"
    )
    options = {"capture_output": True, "text": True, "check": True, "cwd": Path(__file__).parents[3]}
    command = [sys.executable, "-c", code]
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    assert len({subprocess.run(command, env=environment, **options).stdout for environment in seeds}) == 1


def test_the_digest_tells_plans_apart():
    source, destination = {"w": rows_over((0, 1))}, {"w": whole_on((0, 1))}
    digests = {
        plan_reshard(source, destination, bucket_bytes=64).digest(),
        plan_reshard(source, destination, bucket_bytes=32).digest(),
        plan_reshard(source, {"w": whole_on((0,))}, bucket_bytes=64).digest(),
    }
    assert len(digests) == 3
    assert plan_reshard({}, {}, bucket_bytes=64).steps == (), "a model without parameters"


@pytest.mark.parametrize(("source", "destination", "said"), [
    (dict.fromkeys("ab", whole_on((0,))), dict.fromkeys("bc", whole_on((0,))),
        "only in the destination: c; only in the source: a"),
    ({f"w{i}": whole_on((0,)) for i in range(9)}, {}, "only in the source: w0, w1, w2, w3 and 5 more"),
    ({"w": whole_on((0,))}, {"w": whole_on((0,), (8, 4))},
        r"w has shape \(8, 2\) in the source and \(8, 4\) in the destination"),
], ids=["names", "many names", "shapes"])  # fmt: skip
def test_sides_that_do_not_go_together_are_refused(source: dict, destination: dict, said: str):
    with pytest.raises(WeightsError, match=said):
        plan_reshard(source, destination, bucket_bytes=64)


@pytest.mark.parametrize(("bucket_bytes", "item_bytes", "legal"), [(6, 4, 8), (4, 8, 8), (0, 2, 4), (-4, 4, 4)])
def test_an_impossible_bucket_size_is_refused(bucket_bytes: int, item_bytes: int, legal: int):
    with pytest.raises(ConfigError, match=f"bucket_bytes: {bucket_bytes} must be .*; nearest legal: {legal}$"):
        plan_reshard({"w": whole_on((0,))}, {"w": whole_on((1,))}, bucket_bytes=bucket_bytes, item_bytes=item_bytes)
