"""Peaks that a dry run measured: kept as files, found by configuration, shown beside the plan's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planned_experiments import experiment_of, qwen2

from mindgspo.cli import main
from mindgspo.config import ExperimentConfig, load_config
from mindgspo.planner import GIB, graph_memory
from mindgspo.planner.measured import MeasuredPeak, fingerprint, store_peak, stored_peaks
from mindgspo.planner.smallest_change import changed

SEVEN_BILLION = Path(__file__).resolve().parents[3] / "examples" / "gsm8k" / "gspo_qwen2_5_7b.yaml"


def peak_of(config: ExperimentConfig, graph: str = "train", rank: int = 0, gib: float = 37.5) -> MeasuredPeak:
    return MeasuredPeak(
        fingerprint=fingerprint(config),
        graph=graph,
        rank=rank,
        world_size=8,
        mindspore="2.10.0",
        allocated=int(gib * GIB),
        reserved=48 * GIB,
    )


def test_peaks_are_found_by_their_configuration(tmp_path: Path, seven_billion: ExperimentConfig) -> None:
    last, first = peak_of(seven_billion, rank=4), peak_of(seven_billion)
    other = peak_of(changed(seven_billion, {"rollout.slots": 64}), graph="decode")
    for peak in (last, first, other):
        store_peak(tmp_path, peak)
    assert stored_peaks(tmp_path, seven_billion) == [first, last]
    store_peak(tmp_path, replace(first, allocated=1))
    assert stored_peaks(tmp_path, seven_billion) == [replace(first, allocated=1), last]


def test_files_that_are_no_peaks_are_left_out(tmp_path: Path, seven_billion: ExperimentConfig) -> None:
    assert stored_peaks(tmp_path / "nothing", seven_billion) == []
    store_peak(tmp_path, peak_of(seven_billion))
    (tmp_path / "memory" / "half.json").write_text('{"graph": ')
    (tmp_path / "memory" / "other.json").write_text('{"graph": "train"}')
    assert len(stored_peaks(tmp_path, seven_billion)) == 1


@pytest.mark.parametrize(
    "settings, is_same",
    [
        ({"model.path": Path("/elsewhere")}, True),
        ({"trainer.max_steps": 2, "optimizer.lr": 1e-3, "experiment": "other", "seed": 9}, True),
        ({"plans.train.recompute": "none"}, False),
        ({"data.max_prompt_length": 1024}, False),
        ({"trainer.samples_per_micro_batch": 2}, False),
        ({"model.dtype": "float32"}, False),
    ],
)
def test_a_fingerprint_is_that_of_the_graphs(seven_billion: ExperimentConfig, settings: dict, is_same: bool) -> None:
    assert (fingerprint(changed(seven_billion, settings)) == fingerprint(seven_billion)) == is_same


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """planned(...): the lines of `mindgspo plan` with these arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def lines(*arguments: str) -> list[str]:
        assert main(["plan", str(SEVEN_BILLION), *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return lines


def test_a_plan_shows_what_was_measured(planned, tmp_path: Path) -> None:
    config = load_config(SEVEN_BILLION, check_files=False)
    assert not any("graph by graph" in line for line in planned())
    expected = graph_memory(config, "train", 4) / GIB
    for peak in (
        peak_of(config, rank=4, gib=expected / 1.1),
        peak_of(config, graph="decode", gib=graph_memory(config, "decode", 0) / GIB),
        peak_of(config, graph="rollout"),  # for its strategy file; a run has no such graph
    ):
        store_peak(tmp_path / "dryrun" / config.experiment, peak)
    lines = planned()
    start = next(number for number, line in enumerate(lines) if line.startswith("graph by graph, GiB"))
    assert lines[start].split()[-3:] == ["MindSpore", "plan", "difference"]
    assert lines[start + 1].startswith("  rollout: decode, rank 0") and lines[start + 1].endswith("+0.0 %")
    assert lines[start + 2].split() == [
        *("update:", "train,", "rank", "4", f"{expected / 1.1:.2f}", f"{expected:.2f}", "+10.0", "%")
    ]
    assert lines[start + 3].startswith("MindSpore: what the allocator of 2.10.0 gave out in a dry run (dryrun/gsm8k-")
    assert not any("graph by graph" in line for line in planned("--set", "rollout.slots=64")), "another configuration"


def test_small_peaks_are_told_in_mebibytes(capsys: pytest.CaptureFixture[str]) -> None:
    from mindgspo.parallel.swap.states import Phase
    from mindgspo.planner.command import measured_lines

    config = experiment_of(qwen2(), device="Ascend", rows=1, slots=64)
    peak = replace(peak_of(config), allocated=200 << 20)
    title, row = measured_lines([(Phase.UPDATE, peak, 190 << 20)])
    assert title.startswith("graph by graph, MiB") and row.split()[-4:] == ["200", "190", "-5.0", "%"]
