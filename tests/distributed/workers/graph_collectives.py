"""One worker that runs collectives in graphs, over all ranks and over some of them.

usage: graph_collectives.py FOLDER. Every rank writes FOLDER/<rank>_<turn>.npz: results by the names of cases and their
ranks, of floats as float32. No collective reads another one's result. The last rank has
"sent <dtype>", too, which rank 0 sends it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from joined_ranks import run_joined

from mindgspo.parallel.platform import runtime


def body(folder: Path) -> None:
    import mindspore as ms
    from collective_cases import SENT, USED, graphs, key, own_input, sent_values
    from mindspore import Tensor, nn, ops

    from mindgspo.parallel.collectives import graph as collective_ops
    from mindgspo.parallel.collectives import host as collectives

    rank = runtime.rank()

    class One(nn.Cell):
        """An operator of a dtype, of numbers that numpy has."""

        def __init__(self, operator, dtype: str, uses_tokens: bool) -> None:
            super().__init__()
            self.operator, self.dtype, self.uses_tokens = operator, getattr(ms, dtype), uses_tokens
            self.back = ms.float32 if "float" in dtype else ms.int64

        def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
            x = ops.cast(x, self.dtype)
            if self.uses_tokens:
                return ops.cast(self.operator(x, tokens), self.back)
            return ops.cast(self.operator(x), self.back)

    class All(nn.Cell):
        def __init__(self, cells: list[One]) -> None:
            super().__init__()
            self.parts = nn.CellList(cells)

        def construct(self, tokens: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
            results = ()
            for i, cell in enumerate(self.parts):
                results += (cell(xs[i], tokens[i]),)
            return results

    arrays: list[dict[str, np.ndarray]] = [{}, {}]
    for cases in graphs(runtime.world_size()):
        own = [(case, ranks) for case, ranks in cases if rank in ranks]
        if not own:
            continue
        parts = [
            One(getattr(collective_ops, case.operation)(ranks, *case.axes), case.dtype, case.operation == USED)
            for case, ranks in own
        ]
        met = tuple(sorted({one for _, ranks in cases for one in ranks}))
        net = collectives.GraphOfRanks(All(parts), met)
        for turn in range(2):
            given = [own_input(case, ranks, rank, turn) for case, ranks in own]
            tokens = Tensor(np.array([[0, used] for _, used in given], np.int32))
            found = net(tokens, *(Tensor(x) for x, _ in given))
            names = [key(case, ranks) for case, ranks in own]
            arrays[turn] |= {name: array.asnumpy() for name, array in zip(names, found, strict=True)}
    for dtype in SENT:
        x = Tensor(sent_values(dtype))
        if rank == 0:
            collectives.send(ops.cast(x, getattr(ms, dtype)), runtime.world_size() - 1)
        elif rank == runtime.world_size() - 1:
            found = collectives.receive(x.shape, getattr(ms, dtype), 0)
            arrays[0][f"sent {dtype}"] = ops.cast(found, x.dtype).asnumpy()
    for turn in range(2):
        np.savez(folder / f"{rank}_{turn}.npz", **arrays[turn])


if __name__ == "__main__":
    run_joined(body)
