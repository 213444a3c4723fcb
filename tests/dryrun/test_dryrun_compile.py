"""Toy cells compiled by MindSpore's Ascend front end for 8 simulated ranks, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ascend_emulator.toolchain import Toolchain
from mindgspo.dryrun import DryRun, DryRunRequest, GraphResult
from mindgspo.dryrun.report import refusal_of
from mindgspo.errors import ConfigError, DryRunError
from mindgspo.planner.measured import stored_peaks

HERE = Path(__file__).parent
CompileToy = Callable[..., GraphResult]


def test_forward_graph_over_two_times_four_ranks(compile_toy: CompileToy) -> None:
    result = compile_toy("forward")
    assert result.failure is None
    facts = result.facts
    assert {parameter.name: (parameter.dtype, parameter.shape) for parameter in facts.parameters} == {
        "norm.weight": ("BFloat16", (64,)),
        "up.weight": ("BFloat16", (64, 64)),
        "down.weight": ("BFloat16", (64, 64)),
    }
    assert facts.parameter_bytes == 2 * (64 + 2 * 64 * 64)
    # 4 rows of 64 numbers in bfloat16 over a replica; one number over the two replicas.
    assert {(entry.kind, entry.ranks, entry.count, entry.bytes) for entry in facts.collectives} == {
        ("AllReduce", (0, 1, 2, 3), 1, 4 * 64 * 2),
        ("AllReduce", (0, 4), 1, 4),
    }
    assert facts.products == {"BFloat16": 2}
    assert facts.fused == {"RmsNorm": 1}
    assert result.seconds > 0 and result.peak_rss > 1 << 20


def test_variables_of_a_real_cluster_are_not_passed_on(
    compile_toy: CompileToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_TABLE_FILE", "/nowhere/rank_table.json")
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    monkeypatch.setenv("MS_COMPILER_CACHE_ENABLE", "1")
    assert compile_toy("forward", 5).failure is None


def test_what_mindspore_refuses(compile_toy: CompileToy) -> None:
    result = compile_toy("mistake")
    assert result.failure is not None and result.failure.phase == "compile"
    refusal = refusal_of(result.failure, result.log.read_text())
    assert "input1.shape and input2.shape need to broadcast" in refusal.message
    assert refusal.reasons == ()


def test_an_error_of_the_builder_comes_back(compile_toy: CompileToy) -> None:
    failure = compile_toy("refuse", 3).failure
    assert failure is not None
    assert (failure.phase, failure.kind) == ("build", "WeightsError")
    assert failure.text == "rank 3: no such weights\nnot even here"
    assert 'raise WeightsError(f"rank {rank}' in failure.place


def test_a_crash_of_the_process_comes_back(compile_toy: CompileToy) -> None:
    failure = compile_toy("crash").failure
    assert failure is not None
    assert (failure.phase, failure.text) == ("process", f"the process ended by signal {int(signal.SIGSEGV)}")


def test_a_compile_that_takes_too_long_is_ended(
    compile_toy: CompileToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_PID", str(tmp_path / "pid"))
    result = compile_toy("sleep", time_limit_s=5.0)
    assert result.failure is not None and result.failure.text.startswith("not done after 5 s")
    written = tmp_path / "pid"
    assert not written.exists() or not psutil.pid_exists(int(written.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_compile_outlives_who_asked_for_it(
    toolchain: Toolchain, cache: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C, and the end that nobody can react to."""
    code = (
        # A shell's background jobs, and what they start, ignore Ctrl-C unless told otherwise.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys; from pathlib import Path; from mindgspo.dryrun import find_toolchain, run_child; "
        "run_child(find_toolchain(), Path(sys.argv[1]), config=None, graph='sleep', rank=0, world_size=8, "
        "builder='toy_cells:build', import_folders=(Path(sys.argv[2]),))"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path, HERE],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "TOY_PID": str(tmp_path / "pid")},
        stderr=subprocess.DEVNULL,
    )
    written = tmp_path / "pid"
    child = int(until(lambda: written.exists() and written.read_text()))
    asker.send_signal(number)
    asker.wait(60)
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def until(condition: Callable[[], str | bool], limit_s: float = 120.0) -> str | bool:
    """What the condition returns as soon as it holds."""
    give_up = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return value


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The shipped example for 8 ranks: train 1 x 4 x 2, infer 2 x 4 x 1."""
    path = tmp_path / "toy.yaml"
    path.write_text(f"include: {HERE.parents[1]}/examples/arithmetic/gspo_8.yaml\nexperiment: toy\ndevice: CPU\n")
    return path


def request(config: Path, **options: object) -> DryRunRequest:
    settings = {"graphs": ("train", "prefill"), "folder": config.parent / "out", "builder": "toy_cells:build"}
    return DryRunRequest(config=config, import_folders=(HERE,), **settings | options)


@pytest.fixture
def cached(toolchain: Toolchain, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take this session's stand-ins."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def test_the_report_of_an_experiment(cached: None, config: Path) -> None:
    dry_run = DryRun.prepare(request(config))
    lines = list(dry_run.lines())
    assert [line for line in lines if ", rank " in line] == [
        "train, rank 0 of 8", "train, rank 4 of 8", "prefill, rank 0 of 8",
    ], "the first rank of each stage; a graph that generates has one stage"  # fmt: skip
    assert "  fused        RmsNorm 1" in lines
    assert lines[-1].startswith("3 graphs of 2 ranks compiled for Ascend in ") and lines[-1].endswith(" s")
    assert dry_run.num_failed == 0
    files = {str(path.relative_to(config.parent / "out")) for path in (config.parent / "out").rglob("*.*")}
    assert files == {
        "config.yaml",
        *("logs/train_0.log", "logs/train_4.log", "logs/prefill_0.log"),
        *("memory/train_0.json", "memory/train_4.json", "memory/prefill_0.json"),
    }
    assert sum(line.startswith("  memory ") for line in lines) == 3
    assert [(peak.graph, peak.rank) for peak in stored_peaks(config.parent / "out", dry_run.config)] == [
        *(("prefill", 0), ("train", 0), ("train", 4))
    ]


def test_memory_is_left_out_where_it_is_not_wanted(cached: None, config: Path) -> None:
    lines = list(DryRun.prepare(request(config, graphs=("prefill",), measures_memory=False)).lines())
    assert not any(line.startswith("  memory ") for line in lines)
    assert not (config.parent / "out" / "memory").exists()


def test_a_refusal_is_in_the_report(cached: None, config: Path) -> None:
    dry_run = DryRun.prepare(request(config, graphs=("sum",), ranks=(1,)))
    lines = list(dry_run.lines())
    assert "sum, rank 1 of 8: FAILED (compile)" in lines
    assert lines[-1].startswith("1 of 1 failed, 0 compiled for Ascend")
    assert dry_run.num_failed == 1


REPLICAS = (
    "plans.train.data_parallel=8", "plans.train.model_parallel=1", "plans.train.pipeline_stage=1",
    "plans.train.micro_batch_num=1", "plans.train.optimizer_shard=true", "plans.infer.data_parallel=8",
    "plans.infer.model_parallel=1", "trainer.samples_per_micro_batch=8",
)  # fmt: skip


@pytest.mark.parametrize(("graph", "changes", "ranks"), [
    ("forward", (), [0]), ("sum", (), [0, 4]), ("gather", (), []),
    ("gather", REPLICAS, [0]), ("forward", REPLICAS, []),
])  # fmt: skip
def test_graphs_that_a_rank_does_not_have_are_left_out(
    cached: None, config: Path, graph: str, changes: tuple[str, ...], ranks: list[int]
) -> None:
    dry_run = DryRun.prepare(request(config, graphs=(graph,), overrides=changes))
    assert dry_run._jobs() == [(graph, rank) for rank in ranks]


def test_files_of_another_configuration_are_moved_aside(cached: None, config: Path) -> None:
    folder = config.parent / "out"
    DryRun.prepare(request(config))
    (folder / "logs").mkdir()
    (folder / "logs" / "train_7.log").touch()
    DryRun.prepare(request(config))
    assert (folder / "logs").exists(), "the same configuration goes on in the same folder"
    DryRun.prepare(request(config, overrides=("seed=2",)))
    assert not (folder / "logs").exists()
    (aside,) = config.parent.glob("out.old-*")
    assert (aside / "logs" / "train_7.log").exists()


def test_a_folder_with_other_things_is_refused(cached: None, config: Path) -> None:
    (config.parent / "out").mkdir()
    (config.parent / "out" / "thesis.tex").touch()
    with pytest.raises(DryRunError, match="holds something else than a dry run"):
        DryRun.prepare(request(config))


def test_the_configuration_is_checked_first(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"plans\.train\.model_parallel"):
        DryRun.prepare(request(config, overrides=("plans.train.model_parallel=3",)))


def test_the_device_of_the_file_is_of_no_concern(cached: None, config: Path) -> None:
    """What CPU has no kernels for is compiled."""
    assert DryRun.prepare(request(config, overrides=("model.dtype=bfloat16",))).config.device == "Ascend"
