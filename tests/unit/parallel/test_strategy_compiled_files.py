"""Files of a dry run under the names of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mindgspo.config import ParallelPlan
from mindgspo.config.schema import PlansSection
from mindgspo.errors import CheckpointError
from mindgspo.parallel.strategy.file import save_strategy
from mindgspo.parallel.strategy.record import StoredLayout, Strategy
from mindgspo.planner.strategy_files import place_compiled

PLANS = PlansSection(
    train=ParallelPlan(model_parallel=2, pipeline_stage=2, micro_batch_num=2),
    infer=ParallelPlan(data_parallel=2, model_parallel=2),
)


@dataclass
class Failed:
    phase: str = "compile"
    text: str = "RuntimeError: Failure:operator MatMul init failed\nmore"


@dataclass
class Compiled:
    graph: str
    rank: int
    strategy: Path | None
    failure: Failed | None = None
    seconds: float = 2.5
    log: Path = Path("logs/train_0.log")


def written(folder: Path, stage: int, num_ranks: int) -> Path:
    entry = StoredLayout(device_matrix=(num_ranks,), tensor_map=(0, -1))
    save_strategy(folder / f"of_stage_{stage}.ckpt", Strategy(stages={stage: {"w": entry}}))
    return folder / f"of_stage_{stage}.ckpt"


def test_a_stage_s_ranks_get_the_file_byte_for_byte(tmp_path: Path):
    for rank, stage in ((0, 0), (2, 1)):
        line = place_compiled(Compiled("train", rank, written(tmp_path, stage, 2)), PLANS, tmp_path / "out")
    assert line == (
        f"train      compiled for rank 2 in 2.5 s: 1 entries; the files of ranks 2-3 in {tmp_path / 'out' / 'train'}"
    )
    contents = [(tmp_path / "out" / "train" / f"ckpt_strategy_rank_{rank}.ckpt").read_bytes() for rank in range(4)]
    sources = [(tmp_path / f"of_stage_{stage}.ckpt").read_bytes() for stage in range(2)]
    assert contents == [sources[0], sources[0], sources[1], sources[1]]


def test_the_rollout_has_the_ranks_of_the_infer_plan(tmp_path: Path):
    place_compiled(Compiled("rollout", 0, written(tmp_path, 0, 4)), PLANS, tmp_path / "out")
    assert len(list((tmp_path / "out" / "rollout").iterdir())) == 4


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        (
            Compiled("train", 0, None, Failed()),
            r"train, rank 0: does not compile \(compile: RuntimeError: Failure:operator MatMul init failed\); `mind",
        ),
        (Compiled("reference", 2, None), r"reference, rank 2: MindSpore wrote no strategy file; logs/train_0.log"),
    ],
)
def test_what_did_not_compile_stops_the_tool(compiled: Compiled, said: str, tmp_path: Path):
    with pytest.raises(CheckpointError, match=said):
        place_compiled(compiled, PLANS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_of_another_plan_is_refused(tmp_path: Path):
    with pytest.raises(
        CheckpointError, match=r"arranges 4 ranks, a stage of 1 x 2 x 2 has 2; was another plan compiled"
    ):
        place_compiled(Compiled("train", 0, written(tmp_path, 0, 4)), PLANS, tmp_path / "out")
