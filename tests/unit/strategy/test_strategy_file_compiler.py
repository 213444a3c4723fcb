"""Files that MindSpore's compiler wrote, read; and the optimizer-shard fields as it means them.

The samples are from the Ascend front end of MindSpore 2.10.0 (compiled without devices): small networks with a
vocabulary table, a norm, and matrix products split over 2 x 4 or 2 x 2 x 2 devices, under `AutoParallel(...).hsdp()`.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.strategy.file import read_strategy
from mindgspo.strategy.layouts import strategy_layouts
from mindgspo.strategy.record import StoredLayout, Strategy, without_fields

# Column-, row- and head-parallel weights, a bias, a norm and a table, with both moments of each; 2 x 4.
SHARDED = (
    "eNqdkk1rwkAQhndllWWMFfYYaEUPrfQQFNoiaA899eRvCCsJKrqKGu3Pb0fdj1gDmk3YOWTnmfedyfCKaENzLLPxfhlvop90Pp1l4oETwXiF"
    "U4wM4xME3zKbpds4k5Nlqu/Z6f6Y5Uosikpcpqz/pzCMFGMI8JUk6GIylzsR2NvjaSGO7Gq9VQYPrAKecACBTKSKD9HZYhfOcIMT/mseGpIO"
    "6ZIeG+Q+vUM9X/ZZg/VrjOaxF6hpp49gfJKi+n2olrUUQePUjIruk/iEpm7ezv8Vakjgi3L0RitG7nCn3AiEzvcZ3BtwuwJuJC6hWPMDuFdv"
    "xqvy8moGq/wGO7S4R8dmo1XpjR7adfCQdfDmGr6ljP/Wg3JjKg//ATUbwRM="
)
# Layout((2, 2, 2), ("dp", "mp", "x")) with ("mp", "x") on axis 0 of matrices and biases.
NESTED = (
    "eNrjYBLi5WJ3TEmJT9JLEmLiYIBxE6FcAS4u38QS39IcoEghmkgSRETKhosrMSUxN75MDySix8XGwQSCQiwcjED13Bz/YYBRikGJQYPBgMUC"
    "SciUizmRPG3k2GYIdWuuHsjDymi6GbBp0QLZRKRaRFAkUuA4kG4iLTRECnsSteQSb4sNkhbSvWWDFOak69YCpQ/i3AkAT5jlQw=="
)
# Stage 1 of 2, 2 x 2 each, without hsdp.
LAST_STAGE = (
    "eNrjYBJS4OLzTSzxLc2JT9JLysnWKxTi42AUYuFggpPSXNyOKSlQ6SQhHqgEkxAQS6lx8SWmJObGl+nB5EW4YLIMUgxKDBoMBgwWDFLyXOz4"
    "FWjBFBQKyUMV8HIwcPyHAUYktaZcQonJyaXx6UWJKcV6RGszRHMrEVq0sNiEywewoMgloM4QTR1hZwAABKNgzw=="
)

EIGHT = tuple(range(8))


def sample(text: str, folder: Path) -> Strategy:
    (folder / "sample.ckpt").write_bytes(zlib.decompress(base64.b64decode(text)))
    return read_strategy(folder / "sample.ckpt")


def test_weights_and_moments_of_a_sharded_optimizer(tmp_path: Path):
    entries = sample(SHARDED, tmp_path).stages[0]

    def stored(matrix: tuple[int, ...], tensor_map: tuple[int, ...], step: int) -> StoredLayout:
        fields = {"opt_weight_shard_step": step, "opt_weight_shard_size": -1}
        return StoredLayout(device_matrix=matrix, tensor_map=tensor_map, **fields)

    expected = {
        "q.weight": stored((2, 4), (0, -1), 4), "q.bias": stored((2, 4), (0,), 4),
        "o.weight": stored((2, 4), (-1, 0), 4), "table": stored((2, 4), (0, -1), 4),
        # Two heads for four ranks, as our layouts write it.
        "k.weight": stored((2, 2, 2), (1, -1), 1),
        "norm.weight": stored((2, 4), (-1,), 1),
    }  # fmt: skip
    assert entries == {
        f"{prefix}{name}": value for name, value in expected.items() for prefix in ("", "adam_m.", "adam_v.")
    }


def test_what_every_rank_stores_of_it(tmp_path: Path):
    shapes = {"q.weight": (64, 64), "o.weight": (64, 64), "k.weight": (32, 64), "norm.weight": (64,)}
    layouts = strategy_layouts(sample(SHARDED, tmp_path), shapes)
    assert list(layouts) == list(shapes)
    # Slice 1 of four has rows 16 to 31; the second replica stores their second half.
    assert layouts["q.weight"].slice_of(5) == TensorSlice((24, 0), (32, 64))
    assert layouts["o.weight"].slice_of(5) == TensorSlice((32, 16), (64, 32))
    # Ranks 0, 1, 4, 5 hold head 0, rows 0 to 15: four parts in the order of the ranks.
    assert [layouts["k.weight"].slice_of(rank).starts[0] for rank in EIGHT] == [0, 4, 16, 20, 8, 12, 24, 28]
    assert [layouts["norm.weight"].slice_of(rank).starts[0] for rank in EIGHT] == [0, 8, 16, 24, 32, 40, 48, 56]


def test_one_axis_split_by_two_device_axes(tmp_path: Path):
    strategy = sample(NESTED, tmp_path)
    entries = strategy.stages[0]
    assert [entries[name].tensor_map for name in ("a.q", "a.b")] == [((1, 0), -1), ((1, 0),)]
    layouts = strategy_layouts(strategy, {"a.q": (64, 64), "a.b": (64,)})
    # Four blocks of 16 rows, each in two halves, one per replica.
    assert [layouts["a.q"].slice_of(rank).starts[0] for rank in EIGHT] == [0, 16, 32, 48, 8, 24, 40, 56]
    assert layouts["a.b"].slice_of(6) == TensorSlice((40,), (48,))


def test_the_last_of_two_stages(tmp_path: Path):
    strategy = sample(LAST_STAGE, tmp_path)
    assert list(strategy.stages) == [1]
    assert sorted(strategy.stages[1])[::2] == ["accu_grads.b.blk.b", "adam_m.b.blk.b", "adam_v.b.blk.b", "b.blk.b"]
    assert strategy_layouts(strategy, {"b.blk.q": (64, 64)})["b.blk.q"] == Layout(
        parameter="b.blk.q", shape=(64, 64), device_matrix=(2, 2), tensor_map=(0, -1), rank_list=(4, 5, 6, 7)
    )


def test_the_compiler_s_json(tmp_path: Path):
    # Cut to two of its entries; keys in its order.
    document = {
        "current_stage": 2,
        "parallel_layout_item": {"k.weight": {"dev_matrix": [2, 2, 2], "field": 0, "opt_weight_shard_size": -1,
            "opt_weight_shard_step": 1, "tensor_map": [1, -1],
            "tensor_shape": [32, 64]}, "norm.weight": {"dev_matrix": [2, 4], "field": 0, "opt_weight_shard_size": -1,
            "opt_weight_shard_step": 1, "tensor_map": [-1], "tensor_shape": [64]}},
        "parallel_strategy_item": {"Add_q.bias": {"parallel_strategy": [[2, 4], [4]], "stage": 0}},
    }  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps(document))
    layouts = strategy_layouts(read_strategy(tmp_path / "s.json"))
    assert layouts == strategy_layouts(sample(SHARDED, tmp_path), {"k.weight": (32, 64), "norm.weight": (64,)})


@pytest.mark.parametrize(("matrix", "tensor_map", "step", "size", "expected"), [
    ((2, 4), (0, -1), 4, -1, ((2, 4), ((0, 1), -1))),
    ((2, 4), (-1, 0), 4, 2, ((2, 4), (1, 0))),
    ((4, 2), (0,), 2, 2, ((2, 2, 2), ((0, 1),))),
    ((2, 4), (-1,), 1, -1, ((2, 4), ((1, 0),))),
    ((2, 4), (-1,), 1, 2, ((2, 2, 2), (0,))),
    ((2, 2, 2), (1, -1), 1, 2, ((2, 2, 2), ((1, 0), -1))),
    ((2, 3, 2), (0,), 2, 3, ((2, 3, 2), ((0, 1),))),
    ((2, 4), (1, 0), 1, -1, ((2, 4), (1, 0))),
    ((2, 4), (0, -1), 0, -1, ((2, 4), (0, -1))),
])  # fmt: skip
def test_the_fields_spelled_out_by_hand(matrix, tensor_map, step, size, expected):
    assert without_fields(matrix, tensor_map, step, size) == expected


@pytest.mark.parametrize(("matrix", "tensor_map", "step", "size", "said"), [
    ((2, 4), (0, -1), 4, 4, r"held by 2 ranks; legal: -1, 0 or a divisor of 2"),
    ((2, 4), (), 1, -1, r"opt_weight_shard_size -1 does not fit"),
    ((2, 4), (0, -1), 1, 2, r"step 1 contradicts .* replicas are 4 ranks apart"),
    ((4, 3, 2), (0,), 2, 2, r"size 2 cuts across the axes of device matrix \(4, 3, 2\)"),
])  # fmt: skip
def test_fields_that_contradict_the_matrix_are_refused(matrix, tensor_map, step, size, said):
    with pytest.raises(ValueError, match=said):
        without_fields(matrix, tensor_map, step, size)
