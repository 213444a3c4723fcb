"""Blocks and the last line of the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mindgspo.ascend.dryrun.facts import Collective, GraphFacts, HeldParameter
from mindgspo.ascend.dryrun.job import Failure, Memory
from mindgspo.ascend.dryrun.report import block, rank_text, size_text, summary
from mindgspo.ascend.dryrun.runner import Result
from mindgspo.config import ParallelPlan

PLAN = ParallelPlan(data_parallel=1, model_parallel=4, pipeline_stage=2, micro_batch_num=2)
FACTS = GraphFacts(
    parameters=(
        HeldParameter(name="w", dtype="BFloat16", shape=(1024, 1024)),
        HeldParameter(name="adam_m.w", dtype="Float32", shape=(1024, 1024)),
    ),
    collectives=(
        Collective(kind="AllReduce", group="4-1", ranks=(0, 1, 2, 3), count=1128, bytes=3 << 30),
        Collective(kind="Send", group="2-1", ranks=(0, 4), count=1, bytes=None),
    ),
    operators={"FlashAttentionScore": 14, "Add": 3},
    products={"BFloat16": 98},
)


def result(tmp_path: Path, graph: str = "train", rank: int = 0, failure: Failure | None = None) -> Result:
    return Result(
        graph=graph,
        rank=rank,
        seconds=23.44,
        peak_rss=5 << 30,
        failure=failure,
        facts=GraphFacts() if failure else FACTS,
        strategy=None if failure else Path("dryrun/train/strategy_0.ckpt"),
        log=tmp_path / "train_0.log",
    )


def test_block_of_a_compiled_graph(tmp_path: Path) -> None:
    lines = list(block(result(tmp_path), section="plans.train", plan=PLAN, world_size=8))
    assert lines == [
        "train, rank 0 of 8",
        "  compile      23.4 s, 5.00 GB of host memory",
        "  parameters   2 tensors, 2,097,152 numbers, 6.00 MB (BFloat16 2.00 MB, Float32 4.00 MB)",
        "  collectives  AllReduce  ranks 0-3  1,128 times                 3.00 GB",
        "               Send       ranks 0,4       1 time  size known at run time",
        "  fused        FlashAttentionScore 14",
        "  products     BFloat16 98",
        "  strategy     dryrun/train/strategy_0.ckpt",
    ]


@pytest.mark.parametrize(
    "memory, line",
    [
        (
            Memory(allocated=37 << 30, reserved=48 << 30),
            "  memory       37.00 GB peak on the device (MindSpore's allocator; without workspaces and HCCL buffers)",
        ),
        (Memory(why_not="RuntimeError: no kernel"), "  memory       not measured: RuntimeError: no kernel"),
    ],
)
def test_block_of_a_graph_whose_memory_was_asked_for(tmp_path: Path, memory: Memory, line: str) -> None:
    lines = list(block(replace(result(tmp_path), memory=memory), section="plans.train", plan=PLAN, world_size=8))
    assert lines[-2:] == [line, "  strategy     dryrun/train/strategy_0.ckpt"]


def test_block_of_a_refused_graph_reads_the_log(tmp_path: Path) -> None:
    (tmp_path / "train_0.log").write_text(
        "[ERROR] PARALLEL(1,7f,python):2026-11-22-00:15:00.1 [mindspore/ccsrc/a.cc:248] Check] MatMulInfo11: Input "
        "index 1, shape value 66 at dim index 0 cannot be divisible by strategy value 4\n"
    )
    failure = Failure(
        phase="compile", kind="RuntimeError", text="Failure:operator MatMul init failed\n\n" + "-" * 52 + "\n- C++"
    )
    lines = list(block(result(tmp_path, failure=failure), section="plans.train", plan=PLAN, world_size=8))
    assert lines == [
        "train, rank 0 of 8: FAILED (compile)",
        "  error        RuntimeError: operator MatMul init failed",
        "  because      MatMul: Input index 1, shape value 66 at dim index 0 cannot be divisible by strategy value 4",
        "  change       plans.train.model_parallel: 4 does not divide 66",
        f"  log          {tmp_path}/train_0.log",
    ]


def test_a_graph_that_needs_nothing_says_so(tmp_path: Path) -> None:
    empty = Result(
        graph="decode",
        rank=0,
        seconds=0.0,
        peak_rss=0,
        failure=None,
        facts=GraphFacts(),
        strategy=None,
        log=tmp_path / "x",
    )
    lines = list(block(empty, section="plans.infer", plan=ParallelPlan(), world_size=1))
    assert lines[2:] == [
        "  parameters   0 tensors, 0 numbers, 0 B",
        "  collectives  none",
        "  fused        none",
        "  products     none",
        "  strategy     none written",
    ]


def test_last_line(tmp_path: Path) -> None:
    good = [result(tmp_path, graph, rank) for graph in ("train", "reference") for rank in (0, 4)]
    bad = result(tmp_path, "decode", failure=Failure(phase="process", kind="no answer", text="killed"))
    assert summary(good, seconds=93.2, folder="out") == (
        "4 graphs of 2 ranks compiled for Ascend in 93 s; strategy files in out"
    )
    assert summary(good[:1], seconds=1.0, folder="out").startswith("1 graph of 1 rank compiled")
    assert summary([*good, bad], seconds=93.2, folder="out") == (
        "1 of 5 failed, 4 compiled for Ascend, in 93 s; strategy files in out"
    )
    assert summary([bad], seconds=2.0, folder="out") == "1 of 1 failed, 0 compiled for Ascend, in 2 s"


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KB"),
        (3 << 29, "1.50 GB"),
        (5 << 50, "5120.00 TB"),
        (None, "size known at run time"),
    ],
)
def test_sizes(size: int | None, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    "ranks, text",
    [
        ((), "?"),
        ((3,), "3"),
        ((0, 1), "0,1"),
        ((4, 5, 6, 7), "4-7"),
        ((0, 4), "0,4"),
        ((0, 2, 4, 6), "0,2,4,6"),
        (tuple(range(0, 64, 8)), "0,8,..,56"),
        ((0, 1, 4, 5), "0,1,4,5"),
    ],
)
def test_ranks(ranks: tuple[int, ...], text: str) -> None:
    assert rank_text(ranks) == text
