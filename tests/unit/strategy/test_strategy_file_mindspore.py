"""MindSpore as the judge of our strategy files: its readers take them and cut the slices that our layouts say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import small_plans
from mindspore import Parameter, Tensor, nn
from mindspore.train import node_strategy_pb2
from small_plans import compiled_layouts, plan, weights_and_moments

import mindgspo.strategy.file as messages
from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.errors import CheckpointError
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import parameter_layouts
from mindgspo.strategy.file import merge_strategies, read_strategy, save_strategy, write_strategies
from mindgspo.strategy.layouts import compiled_strategy, strategy_layouts
from mindgspo.strategy.record import StoredLayout, Strategy

TINY, TIED = (model.model_copy(update={"num_hidden_layers": 2}) for model in (small_plans.TINY, small_plans.TIED))


def sharded(data: int, model: int, stages: int) -> ParallelPlan:
    return plan(data, model, stages, optimizer_shard=True, vocab_emb_dp=False)


def full_tensor(name: str, layout: Layout) -> np.ndarray:
    """Every element another number, the same ones for a name on every call."""
    start = sum(name.encode()) * 1000
    return np.arange(start, start + int(np.prod(layout.shape)), dtype=np.float32).reshape(layout.shape)


def held_by(rank: int, layouts: dict[str, Layout]) -> dict[str, np.ndarray]:
    """What a rank's checkpoint has in it."""
    held = {name: layout.slice_of(rank) for name, layout in layouts.items()}
    return {k: full_tensor(k, layouts[k])[part.index].copy() for k, part in held.items() if part is not None}


def write_checkpoints(folder: Path, layouts: dict[str, Layout], num_ranks: int) -> list[Path]:
    paths = [folder / f"rank_{rank}" / "weights.ckpt" for rank in range(num_ranks)]
    for rank, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        tensors = held_by(rank, layouts).items()
        ms.save_checkpoint([{"name": name, "data": ms.Tensor(array)} for name, array in tensors], str(path))
    return paths


def assert_checkpoints(folder: Path, layouts: dict[str, Layout], num_ranks: int) -> None:
    """Every rank's checkpoint has the slices of these layouts and no others."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"rank_{rank}" for rank in range(num_ranks))
    for rank in range(num_ranks):
        (path,) = (folder / f"rank_{rank}").glob("*.ckpt")
        found, expected = ms.load_checkpoint(str(path)), held_by(rank, layouts)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name].asnumpy(), array, err_msg=f"rank {rank}: {name}")


def merged_files(folder: Path, model: ModelSection, *plans: ParallelPlan, suffix: str = ".ckpt") -> list[str]:
    """For each of the plans a strategy file of all its stages."""
    files = [str(folder / f"{side}{suffix}") for side in range(len(plans))]
    for file, each in zip(files, plans, strict=True):
        paths = write_strategies(f"{file}.ranks", weights_and_moments(each, model), plan=each, suffix=suffix)
        save_strategy(file, merge_strategies(paths))
    return files


def test_our_messages_are_mindspore_s_field_by_field():
    def fields(message: Any) -> list[tuple[Any, ...]]:
        ordered = sorted(message.field, key=lambda field: field.number)
        return [(field.name, field.number, field.label, field.type, field.type_name) for field in ordered]

    installed = messages.descriptor_pb2.FileDescriptorProto()
    node_strategy_pb2.DESCRIPTOR.CopyToProto(installed)
    ours = messages.file_descriptor()
    theirs = {message.name: message for message in installed.message_type}
    assert ours.package == installed.package
    assert installed.syntax in ("", "proto2") and ours.syntax == "proto2"
    for message in ours.message_type:
        assert fields(message) == fields(theirs[message.name]), message.name
    # Left out are the messages of the group-info file.
    left_out = theirs.keys() - {message.name for message in ours.message_type}
    assert left_out == {"ParallelGroupRanks", "ParallelGroupItem", "ParallelGroupMap"}


@pytest.mark.parametrize("suffix", [".ckpt", ".json"])
def test_merge_pipeline_strategys_gives_our_merged_record(tmp_path: Path, suffix: str):
    train = plan(2, 4, 2)
    paths = write_strategies(tmp_path / "ranks", weights_and_moments(train, TIED), plan=train, suffix=suffix)
    ms.merge_pipeline_strategys(str(tmp_path / "ranks"), str(tmp_path / f"merged{suffix}"))
    merged = read_strategy(tmp_path / f"merged{suffix}")
    assert merged == merge_strategies(paths)
    save_strategy(tmp_path / f"ours{suffix}", merged)
    theirs, ours = (ms.build_searched_strategy(str(tmp_path / f"{name}{suffix}")) for name in ("merged", "ours"))
    assert theirs == ours and "1-model.embed_tokens.weight" in ours


@pytest.mark.parametrize(("model", "source", "target", "suffix"), [
    (TINY, plan(2, 4, 1), plan(4, 2, 1), ".json"),
    (TIED, plan(2, 4, 1), plan(1, 4, 2), ".json"),
    (TIED, sharded(2, 4, 2), sharded(4, 2, 2), ".ckpt"),
    (TINY, sharded(4, 2, 1), sharded(2, 8, 1), ".ckpt"),
    (TINY, plan(1, 1, 2), sharded(2, 2, 2), ".ckpt"),
], ids=lambda value: getattr(value, "suffix", str(value)) if isinstance(value, ParallelPlan | str) else "")  # fmt: skip
def test_transform_checkpoints_cuts_our_slices(
    tmp_path: Path, model: ModelSection, source: ParallelPlan, target: ParallelPlan, suffix: str
):
    files = merged_files(tmp_path, model, source, target, suffix=suffix)
    write_checkpoints(tmp_path / "in", weights_and_moments(source, model), source.world_size)
    ms.transform_checkpoints(str(tmp_path / "in"), str(tmp_path / "out"), "weights", *files)
    assert_checkpoints(tmp_path / "out", weights_and_moments(target, model), target.world_size)


@pytest.mark.parametrize(("source", "target"), [
    # Whole tables and shared heads are cut over consecutive ranks, matrices over data_parallel, norms not at all.
    (plan(2, 4, 2, optimizer_shard=True), plan(1, 2, 1)),
    (plan(4, 1, 1), plan(2, 4, 1, optimizer_shard=True)),
], ids=str)  # fmt: skip
def test_transform_checkpoints_cuts_as_the_compiler(tmp_path: Path, source: ParallelPlan, target: ParallelPlan):
    # Above 64 KB, below which nothing is cut.
    model = TIED.model_copy(update={"vocab_size": 512, "hidden_size": 256, "intermediate_size": 128, "head_dim": 32})
    held = {}
    for side, parallel_plan in (("source", source), ("target", target)):
        layouts = parameter_layouts(weight_shapes(model), model, parallel_plan)
        held[side] = compiled_layouts(layouts, plan=parallel_plan)
        paths = write_strategies(tmp_path / side, layouts, plan=parallel_plan, strategy_of=compiled_strategy)
        save_strategy(tmp_path / f"{side}.ckpt", merge_strategies(paths))
    assert any(layout.replicas > 1 for layout in held["source"].values())
    write_checkpoints(tmp_path / "in", held["source"], source.world_size)
    files = [str(tmp_path / f"{side}.ckpt") for side in held]
    ms.transform_checkpoints(str(tmp_path / "in"), str(tmp_path / "out"), "weights", *files)
    assert_checkpoints(tmp_path / "out", held["target"], target.world_size)


@pytest.mark.parametrize(("matrix", "tensor_map", "step", "size"), [
    ((2, 4), (0, -1), 4, -1), ((2, 4), (-1, 0), 4, 2), ((4, 2), (0, -1), 2, 2), ((2, 4), (1, -1), 1, 2),
    ((2, 4), (1, -1), 1, -1), ((2, 4), (-1, -1), 1, -1), ((2, 4), (-1, -1), 1, 2), ((8,), (-1, -1), 1, 4),
    ((2, 2, 2), (1, -1), 1, -1), ((2, 2, 2), (1, -1), 1, 2), ((2, 2, 2), (-1, 1), 1, -1),
    ((2, 2, 2), ((1, 0), -1), 4, -1), ((2, 2, 2), ((0, 1), -1), 4, 2), ((2, 2, 2), ((2, 0), 1), 0, 0),
    ((2, 2, 2), (-1, (0, 2)), 2, -1),
])  # fmt: skip
def test_every_spelling_means_to_mindspore_what_it_means_here(
    tmp_path: Path, matrix: tuple[int, ...], tensor_map: Any, step: int, size: int
):
    stored = StoredLayout(
        device_matrix=matrix, tensor_map=tensor_map, opt_weight_shard_step=step, opt_weight_shard_size=size
    )
    save_strategy(tmp_path / "s.ckpt", Strategy(stages={0: {"w": stored}}))
    layouts = strategy_layouts(read_strategy(tmp_path / "s.ckpt"), {"w": (16, 32)})
    whole = replace(layouts["w"], device_matrix=(1,), tensor_map=(-1, -1), rank_list=(0,))
    write_checkpoints(tmp_path / "in", {"w": whole}, 1)
    write_checkpoints(tmp_path / "cut", layouts, 8)
    ms.transform_checkpoints(str(tmp_path / "in"), str(tmp_path / "out"), "w", None, str(tmp_path / "s.ckpt"))
    assert_checkpoints(tmp_path / "out", layouts, 8)
    ms.transform_checkpoints(str(tmp_path / "cut"), str(tmp_path / "back"), "w", str(tmp_path / "s.ckpt"), None)
    assert_checkpoints(tmp_path / "back", {"w": whole}, 1)


@pytest.mark.parametrize("train", [plan(2, 4, 1), plan(4, 2, 1)], ids=str)
def test_load_distributed_checkpoint_joins_our_slices(tmp_path: Path, train: ParallelPlan):
    layouts = weights_and_moments(train, TINY)

    class Whole(nn.Cell):
        """All parameters in full, zeros."""

        def __init__(self) -> None:
            super().__init__()
            for i, (name, layout) in enumerate(layouts.items()):
                setattr(self, f"parameter_{i}", Parameter(Tensor(np.zeros(layout.shape, np.float32)), name=name))

    network = Whole()
    (path, *_) = write_strategies(tmp_path / "strategies", layouts, plan=train)
    checkpoints = [str(each) for each in write_checkpoints(tmp_path / "in", layouts, train.world_size)]
    ms.load_distributed_checkpoint(network, checkpoints, None, str(path))
    assert [parameter.name for parameter in network.get_parameters()] == list(layouts)
    for parameter in network.get_parameters():
        expected = full_tensor(parameter.name, layouts[parameter.name])
        np.testing.assert_array_equal(parameter.asnumpy(), expected, err_msg=parameter.name)


def test_a_checkpoint_of_weights_is_refused(tmp_path: Path):
    (path,) = write_checkpoints(tmp_path, weights_and_moments(plan(1, 1)), 1)
    said = r"weights.ckpt: .*\(weights have the same suffix\); expected a MindSpore"
    with pytest.raises(CheckpointError, match=said):
        read_strategy(path)
