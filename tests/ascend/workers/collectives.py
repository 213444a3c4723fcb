"""Every collective that this suite calls, between emulated cards against numpy: in groups of several sizes, inside
graphs and from the host; and messages of which the two sides differ. usage: see launch_cards.py.
"""

from collections.abc import Callable
from functools import reduce
from itertools import permutations

import numpy as np

from ascend_emulator.launcher import collective_bytes, collective_counts, enter_emulated_cards
from mindgspo.launch.worker import run_worker


def work() -> int:
    from mindgspo.parallel.collectives.host import group_name
    from mindgspo.parallel.platform import runtime

    runtime.set_up_runtime("Ascend")
    runtime.join_cluster()
    rank, world = runtime.rank(), tuple(range(runtime.world_size()))
    for ranks in dict.fromkeys((world, world[:3], (1, world[-1]), world[:-2])):
        if rank in ranks and len(ranks) > 1:
            for dtype in ("float32", "bfloat16", "int32"):
                check_graph(rank, ranks, group_name(ranks), dtype)
    for dtype in ("float32", "bfloat16", "int32", "uint8"):
        check_messages(rank, world, dtype)
        check_exchange(rank, world, dtype)
    check_ring(rank, len(world))
    check_messages_of_graphs(rank, world)
    check_different_sides(rank)
    check_different_collectives(rank)
    return 0


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    from ascend_emulator.tensors import round_to_bfloat16

    if dtype == "bfloat16":
        return (round_to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    return values if dtype == "float32" else np.abs(np.round(values))


def given(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What a rank gives: float32 that the dtype holds."""
    return rounded(np.random.default_rng(rank).normal(0, 9, shape).astype(np.float32), dtype)


def tensor(values: np.ndarray, dtype: str):
    import mindspore as ms

    return ms.Tensor(values, dtype=getattr(ms, dtype))


def assert_equal(found, expected: np.ndarray, *about: object) -> None:
    import mindspore as ms

    np.testing.assert_array_equal(found.astype(ms.float32).asnumpy(), expected, err_msg=str(about))


def check_graph(rank: int, ranks: tuple[int, ...], group: str, dtype: str) -> None:
    """Reductions add in the order of ranks and round after each step."""
    from mindspore import Tensor, nn, ops

    from mindgspo.parallel.collectives import graph as collective_ops
    from mindgspo.parallel.platform import runtime

    size = len(ranks)

    class All(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.sum, self.highest = collective_ops.all_reduce(ranks), ops.AllReduce(ops.ReduceOp.MAX, group)
            self.gather, self.scatter = collective_ops.all_gather(ranks), collective_ops.reduce_scatter(ranks)
            self.rows, self.columns = (collective_ops.all_to_all(ranks, *axes) for axes in ((0, 1), (1, 0)))
            self.same = collective_ops.all_to_all(ranks, 1, 1)
            # MindSpore's documentation says rank of the world, its kernel takes the place in the group.
            self.broadcast = ops.Broadcast(size - 1, group)

        def construct(self, x: Tensor) -> tuple[Tensor, ...]:
            total = self.sum(x)
            highest = self.highest(ops.depend(x, total))
            whole = self.gather(ops.depend(x, highest))
            share = self.scatter(ops.depend(x, whole))
            rows = self.rows(ops.depend(x, share))
            columns = self.columns(ops.depend(x, rows))
            same = self.same(ops.depend(x, columns))
            of_root = self.broadcast((ops.depend(x, same),))[0]  # in the place of x
            return total, highest, whole, share, rows, columns, same, of_root

    all_given = [given(one, (2 * size, 3 * size), dtype) for one in ranks]
    place = ranks.index(rank)
    total = reduce(lambda a, b: rounded(a + b, dtype), all_given)

    def to_each(split: int, concat: int) -> np.ndarray:
        return np.concatenate([np.split(one, size, split)[place] for one in all_given], concat)

    expected = {
        "sum": total, "max": np.max(all_given, 0), "gather": np.concatenate(all_given),
        "scatter": np.split(total, size)[place], "rows": to_each(0, 1), "columns": to_each(1, 0),
        "same": to_each(1, 1), "broadcast": all_given[-1],
    }  # fmt: skip
    calls, num_bytes = collective_counts(), collective_bytes()
    found = runtime.call_compiled(All(), tensor(all_given[place], dtype))
    for one, (name, values) in zip(found, expected.items(), strict=True):
        assert_equal(one, values, name, ranks, dtype)
    calls, num_bytes = collective_counts() - calls, collective_bytes() - num_bytes
    kinds = {"AllReduce": 2, "AllGather": 1, "ReduceScatter": 1, "AlltoAll": 3, "Broadcast": 1}
    assert calls == {f"{kind}/{size}": number for kind, number in kinds.items()}, calls
    one, others = total.size * (2 if dtype == "bfloat16" else 4), size - 1
    assert num_bytes == {
        f"AllReduce/{size}": 2 * (2 * one * others // size), f"AllGather/{size}": one * others,
        f"ReduceScatter/{size}": one * others // size, f"AlltoAll/{size}": 3 * one * others // size,
        f"Broadcast/{size}": one * others // size,
    }, num_bytes  # fmt: skip


def check_messages(rank: int, world: tuple[int, ...], dtype: str) -> None:
    """From each rank to each other, at once and in the background."""
    import mindspore as ms
    from mindspore.mint import distributed

    from mindgspo.parallel.collectives import host as collectives

    for number, (source, target) in enumerate(permutations(world, 2)):
        values = given(number, (5, 3), dtype)
        if rank == source:
            if number % 2:
                collectives.send(tensor(values, dtype), target)
            else:
                distributed.isend(tensor(values, dtype), target).wait()
        elif rank == target:
            if number % 2:
                into = collectives.receive(values.shape, getattr(ms, dtype), source)
            else:
                into = tensor(np.zeros_like(values), dtype)
                distributed.irecv(into, source).wait()
            assert_equal(into, values, source, target, dtype)


def check_exchange(rank: int, world: tuple[int, ...], dtype: str) -> None:
    """Equal shares, and as many rows for a rank as its number and the sender's say."""
    from mindspore.mint import distributed

    parts = [given(one, (len(world), 3), dtype) for one in world]
    into = tensor(np.zeros_like(parts[rank]), dtype)
    distributed.all_to_all_single(into, tensor(parts[rank], dtype))
    assert_equal(into, np.stack([part[rank] for part in parts]), dtype)

    rows = [[given(source + target, (1 + source + 2 * target, 3), dtype) for target in world] for source in world]
    expected = np.concatenate([row[rank] for row in rows])
    into = tensor(np.zeros_like(expected), dtype)
    out, own = tensor(np.concatenate(rows[rank]), dtype), [len(part) for part in rows[rank]]
    distributed.all_to_all_single(into, out, [len(row[rank]) for row in rows], own)
    assert_equal(into, expected, dtype)


def check_ring(rank: int, size: int) -> None:
    """All ranks send and receive at once, which one after the other would never end."""
    from mindspore.mint import distributed

    into = tensor(np.zeros(4), "float32")
    sends = distributed.P2POp("isend", tensor(np.full(4, rank), "float32"), (rank + 1) % size)
    receives = distributed.P2POp("irecv", into, (rank - 1) % size)
    for work in distributed.batch_isend_irecv([sends, receives]):
        work.wait()
    assert_equal(into, np.full(4, (rank - 1) % size, np.float32))


def check_messages_of_graphs(rank: int, world: tuple[int, ...]) -> None:
    """Along all ranks, each adding 1."""
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from mindgspo.parallel.collectives import host as collectives
    from mindgspo.parallel.platform import runtime

    group, last = collectives.group_name(collectives.world_ranks()), world[-1]

    class Sends(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.send = ops.Send(sr_tag=rank, dest_rank=rank + 1, group=group)

        def construct(self, x: Tensor) -> Tensor:
            return ops.depend(x, self.send(x))

    class Receives(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.receive = ops.Receive(sr_tag=rank - 1, src_rank=rank - 1, shape=[4], dtype=ms.float32, group=group)

        def construct(self, x: Tensor) -> Tensor:
            return self.receive(x) + 1

    x = Tensor(np.zeros(4, np.float32))
    if rank > 0:
        x = runtime.call_compiled(Receives(), x)
    if rank < last:
        x = runtime.call_compiled(Sends(), x)
    assert_equal(x, np.full(4, rank, np.float32))


def refused(call: Callable[[], object]) -> str:
    from mindgspo.parallel.platform import runtime

    try:
        call()
        runtime.synchronize_device()  # operators are dispatched by a thread of MindSpore's
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it has gone through")


def check_different_sides(rank: int) -> None:
    """Both sides of a message are told of both."""
    from mindspore.mint import distributed

    if rank == 0:
        told = refused(lambda: distributed.send(tensor(np.ones(3), "int32"), 1))
        assert "rank 0 in Send to rank 1 (" in told and ") has 3 int32, rank 1 4 float32" in told, told
    elif rank == 1:
        told = refused(lambda: distributed.recv(tensor(np.ones(4), "float32"), 0))
        assert "rank 1 in Receive from rank 0 (" in told and ") has 4 float32, rank 0 3 int32" in told, told


def check_different_collectives(rank: int) -> None:
    """So are the ranks of a group."""
    from mindspore.mint import distributed

    values = tensor(np.ones(4), "float32")
    if rank == 0:
        told = refused(lambda: distributed.all_reduce(values))
        assert "rank 0 in AllReduce (" in told and "rank 1 in Broadcast 4 float32" in told, told
    else:
        told = refused(lambda: distributed.broadcast(values, 0))
        assert f"rank {rank} in Broadcast (" in told and "rank 0 in AllReduce 4 float32" in told, told


if __name__ == "__main__":
    enter_emulated_cards()
    run_worker(work)
