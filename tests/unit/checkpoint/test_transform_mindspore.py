"""MindSpore as the judge of transforms: the same files from the same files, tensor for tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planned_checkpoints import (
    MODEL,
    layouts_of,
    plan,
    random_tensors,
    write_ranks,
    write_strategy_files,
)

from mindgspo.checkpoint.transform import TransformRequest, transform
from mindgspo.config import ParallelPlan
from mindgspo.planner.strategy_files import single_source
from mindgspo.strategy.file import save_strategy
from mindgspo.strategy.record import StoredLayout, Strategy
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.tensor_files.writer import write_tensors


def sharded(data: int, model: int, stages: int) -> ParallelPlan:
    return plan(data, model, stages, optimizer_shard=True, vocab_emb_dp=False)


def ours(source: Path, destination: Path, one: Path | None, two: Path | None) -> None:
    request = TransformRequest(source=source, destination=destination,
                               source_strategy=None if one is None else single_source(one),
                               destination_strategy=None if two is None else single_source(two),
                               prefix="w")  # fmt: skip
    transform(request, note=lambda line: None, shows_bar=False)


def files_of(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.glob("rank_*/*"))}


def assert_same_files(left: Path, right: Path) -> None:
    """The same names; in each the same tensors with the same dtype, shape and bytes."""
    assert files_of(left).keys() == files_of(right).keys()
    for name in files_of(left):
        assert differing(files_of(left)[name], files_of(right)[name]) == [], name


def differing(left: Path, right: Path) -> list[str]:
    """Names of tensors whose bytes differ; both files must have the same tensors."""
    with open_tensors(left) as one, open_tensors(right) as other:
        assert dict(one.tensors) == dict(other.tensors), (left, right)
        return [name for name in one.tensors if one.read(name).tobytes() != other.read(name).tobytes()]


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
@pytest.mark.parametrize(("source", "target", "compiled"), [
    (plan(1, 4, 2), plan(2, 4, 1), False),
    (sharded(2, 2, 2), sharded(4, 2, 1), False),
    (plan(2, 2, 2, optimizer_shard=True), plan(1, 2, 1), True),
], ids=["plain", "optimizer shards", "the compiler's shards"])  # fmt: skip
def test_transform_checkpoints_makes_the_same_files(tmp_path, source, target, compiled, suffix):
    import mindspore as ms

    one = write_strategy_files(tmp_path / "one", source, compiled=compiled, merged=True)
    two = write_strategy_files(tmp_path / "two", target, compiled=compiled, merged=True)
    tensors = random_tensors()
    write_ranks(tmp_path / "in", tensors, layouts_of(source, compiled=compiled), name=f"w{suffix}")
    kinds = {} if suffix == ".ckpt" else {"output_format": "safetensors"}
    ms.transform_checkpoints(str(tmp_path / "in"), str(tmp_path / "theirs"), "w", str(one), str(two), **kinds)
    ours(tmp_path / "in", tmp_path / "ours", one, two)
    assert_same_files(tmp_path / "ours", tmp_path / "theirs")
    assert len(files_of(tmp_path / "ours")) == target.world_size


def test_whole_to_ranks_and_back_with_scalars_and_bfloat16(tmp_path: Path):
    import mindspore as ms

    random = np.random.default_rng(2)
    infos = {"w": TensorInfo(dtype="BF16", shape=(16, 8)), "adam_m.w": TensorInfo(dtype="F32", shape=(16, 8)),
             "global_step": TensorInfo(dtype="I32", shape=(1,))}  # fmt: skip
    finite = random.integers(0, 0x7F00, (16, 8), dtype=np.uint16)
    values = {"w": finite, "adam_m.w": random.random((16, 8), np.float32), "global_step": np.array([9], np.int32)}
    (tmp_path / "in" / "rank_0").mkdir(parents=True)
    write_tensors(tmp_path / "in" / "rank_0" / "w.ckpt", infos, values.items())
    stored = StoredLayout(device_matrix=(2, 4), tensor_map=(0, -1), opt_weight_shard_step=4, opt_weight_shard_size=2)
    strategy = Strategy(stages={0: {"w": StoredLayout(device_matrix=(2, 4), tensor_map=(-1, 0)), "adam_m.w": stored}})
    save_strategy(tmp_path / "s.ckpt", strategy)
    ms.transform_checkpoints(str(tmp_path / "in"), str(tmp_path / "theirs"), "w", None, str(tmp_path / "s.ckpt"))
    ours(tmp_path / "in", tmp_path / "ours", None, tmp_path / "s.ckpt")
    assert_same_files(tmp_path / "ours", tmp_path / "theirs")
    ms.transform_checkpoints(str(tmp_path / "ours"), str(tmp_path / "merged"), "w", str(tmp_path / "s.ckpt"), None)
    ours(tmp_path / "theirs", tmp_path / "merged.ckpt", tmp_path / "s.ckpt", None)
    (theirs,) = files_of(tmp_path / "merged").values()
    with open_tensors(theirs) as one, open_tensors(tmp_path / "merged.ckpt") as other:
        assert dict(one.tensors) == dict(other.tensors)
        assert all(one.read(name).tobytes() == other.read(name).tobytes() for name in infos)
        np.testing.assert_array_equal(other.read("w"), finite)


@pytest.mark.parametrize("train", [plan(2, 4, 1), sharded(2, 2, 1)], ids=str)
def test_load_distributed_checkpoint_loads_what_we_cut(tmp_path: Path, train: ParallelPlan):
    import mindspore as ms
    from mindspore import Parameter, Tensor, nn

    tensors = {name: array for name, array in random_tensors().items() if name != "adamw.updates"}
    (tmp_path / "in").mkdir()
    write_tensors(tmp_path / "in.ckpt",
                  {name: TensorInfo(dtype="F32", shape=array.shape) for name, array in tensors.items()},
                  tensors.items())  # fmt: skip
    path = write_strategy_files(tmp_path / "s", train, compiled=train.optimizer_shard)
    ours(tmp_path / "in.ckpt", tmp_path / "ranks", None, path)

    class Whole(nn.Cell):
        """All parameters in full, zeros."""

        def __init__(self) -> None:
            super().__init__()
            for number, (name, array) in enumerate(tensors.items()):
                setattr(self, f"parameter_{number}", Parameter(Tensor(np.zeros_like(array)), name=name))

    network = Whole()
    files = [str(tmp_path / "ranks" / f"rank_{rank}" / f"w{rank}.ckpt") for rank in range(train.world_size)]
    ms.load_distributed_checkpoint(network, files, None, str(path / "ckpt_strategy_rank_0.ckpt"))
    for parameter in network.get_parameters():
        np.testing.assert_array_equal(parameter.asnumpy(), tensors[parameter.name], err_msg=parameter.name)


def test_mindspore_loads_the_files_and_its_own_files_are_read(tmp_path: Path):
    import mindspore as ms
    from mindspore import Tensor

    tensors = random_tensors(())
    saved = tmp_path / "theirs.ckpt"
    ms.save_checkpoint([{"name": name, "data": Tensor(array)} for name, array in tensors.items()], str(saved))
    strategy = write_strategy_files(tmp_path / "s", plan(1, 2, 1))
    ours(saved, tmp_path / "ranks", None, strategy)
    ours(tmp_path / "ranks", tmp_path / "back.ckpt", strategy, None)
    assert (tmp_path / "back.ckpt").read_bytes() == saved.read_bytes()
    found = ms.load_checkpoint(str(tmp_path / "ranks" / "rank_1" / "w1.ckpt"))
    half = MODEL.intermediate_size // 2
    name = "model.layers.0.mlp.up_proj.weight"
    np.testing.assert_array_equal(found[name].asnumpy(), tensors[name][half:])
