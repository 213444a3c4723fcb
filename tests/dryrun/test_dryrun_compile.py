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

from mindgspo.ascend.dryrun import DryRun, DryRunRequest, Result, Toolchain
from mindgspo.ascend.dryrun.messages import cut
from mindgspo.errors import ConfigError, DryRunError
from mindgspo.parallel.strategy.file import read_strategy
from mindgspo.planner.measured import stored_peaks

HERE = Path(__file__).parent
CompileToy = Callable[..., Result]


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
    # Row-parallel: 4 rows of 64 numbers in bfloat16 over a replica; the loss is one number over the two replicas.
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


@pytest.mark.parametrize("rank, stage, name", [(0, 0, "first"), (6, 1, "last")])
def test_training_graph_over_two_pipeline_stages(compile_toy: CompileToy, rank: int, stage: int, name: str) -> None:
    result = compile_toy("pipeline", rank)
    assert result.failure is None
    held = {parameter.name: parameter.shape for parameter in result.facts.parameters}
    assert held[f"{name}.weight"] == held[f"adam_m.{name}.weight"] == held[f"accu_grads.{name}.weight"] == (16, 64)
    kinds = {entry.kind: (entry.ranks, entry.count) for entry in result.facts.collectives}
    assert kinds["Send"] == kinds["Receive"] == ((rank % 4, rank % 4 + 4), 2)
    assert result.facts.fused == {"AdamWeightDecay": 2}
    assert result.strategy is not None
    strategy = read_strategy(result.strategy)
    layout = strategy.stages[stage][f"{name}.weight"]
    assert (layout.device_matrix, layout.tensor_map) == ((4,), (0, -1))


@pytest.mark.parametrize("mistake, reason, code", [
    ("rows_do_not_divide", "value 66 at dim index 0 cannot be divisible by strategy value 4", "self.matmul(x"),
    ("split_of_sharded_axis", "SplitWithSize: The axis can not be split", "self.split("),
    ("heads_do_not_divide", "got 6(head_num) and 4(query_strategy[2])", "self.flash(x"),
    ("stages_do_not_divide", "got the device_num : 8and the split_stage_num : 3", "self.last("),
])  # fmt: skip
def test_what_mindspore_refuses(compile_toy: CompileToy, mistake: str, reason: str, code: str) -> None:
    result = compile_toy(mistake, module="wrong_cells")
    assert result.failure is not None and result.failure.phase == "compile"
    refusal = cut(result.failure, result.log.read_text())
    assert reason in refusal.reasons[-1]
    assert code in refusal.place
    assert result.strategy is None


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


def test_a_compile_that_takes_too_long_is_ended(compile_toy: CompileToy) -> None:
    result = compile_toy("sleep", time_limit_s=5.0)
    assert result.failure is not None and result.failure.text.startswith("not done after 5 s")
    written = result.log.parents[1] / "sleep" / "pid"
    assert not written.exists() or not psutil.pid_exists(int(written.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_compile_outlives_who_asked_for_it(
    toolchain: Toolchain, cache: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C, and the end that nobody can react to."""
    code = (
        # A shell's background jobs, and what they start, ignore Ctrl-C unless told otherwise.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys; from pathlib import Path; from mindgspo.ascend.dryrun import find_toolchain, run_child; "
        "run_child(find_toolchain(), Path(sys.argv[1]), config=None, graph='sleep', rank=0, world_size=8, "
        "builder='toy_cells:build', import_folders=(Path(sys.argv[2]),))"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path, HERE],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        stderr=subprocess.DEVNULL,
    )
    written = tmp_path / "sleep" / "pid"
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
    assert lines[-1].startswith("3 graphs of 2 ranks compiled for Ascend in ")
    assert lines[-1].endswith(f" s; strategy files in {config.parent}/out")
    assert dry_run.num_failed == 0
    files = {str(path.relative_to(config.parent / "out")) for path in (config.parent / "out").rglob("*.*")}
    assert files == {
        "config.yaml",
        *("train/strategy_0.ckpt", "train/strategy_4.ckpt", "prefill/strategy_0.ckpt"),
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


def test_a_refusal_in_the_report_names_the_plan(cached: None, config: Path) -> None:
    options = {"graphs": ("train",), "ranks": (1,), "builder": "plan_cells:build"}
    dry_run = DryRun.prepare(request(config, **options))
    lines = list(dry_run.lines())
    assert "train, rank 1 of 8: FAILED (compile)" in lines
    assert "  change       plans.train.model_parallel: 4 does not divide 66" in lines
    assert lines[-1].startswith("1 of 1 failed, 0 compiled for Ascend")
    assert dry_run.num_failed == 1


def test_files_of_another_configuration_are_moved_aside(cached: None, config: Path) -> None:
    folder = config.parent / "out"
    DryRun.prepare(request(config))
    (folder / "train").mkdir()
    (folder / "train" / "strategy_7.ckpt").touch()
    DryRun.prepare(request(config))
    assert (folder / "train").exists(), "the same configuration goes on in the same folder"
    DryRun.prepare(request(config, overrides=("seed=2",)))
    assert not (folder / "train").exists()
    (aside,) = config.parent.glob("out.old-*")
    assert (aside / "train" / "strategy_7.ckpt").exists()


def test_a_folder_with_other_things_is_refused(cached: None, config: Path) -> None:
    (config.parent / "out").mkdir()
    (config.parent / "out" / "thesis.tex").touch()
    with pytest.raises(DryRunError, match="holds something else than a dry run"):
        DryRun.prepare(request(config))


def test_the_configuration_is_checked_first(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"plans\.train\.model_parallel"):
        DryRun.prepare(request(config, overrides=("plans.train.model_parallel=3",)))


@pytest.mark.parametrize("options, message", [
    ({"ranks": (0, 8)}, "--ranks: 8; plans.train 1 x 4 x 2 has ranks 0 to 7"),
    ({"ranks": (-1,)}, "--ranks: -1; plans.train 1 x 4 x 2 has ranks 0 to 7"),
    ({"graphs": ("train", "draw")}, "--graphs: 'draw' is none of train, reference, prefill, decode, rollout"),
])  # fmt: skip
def test_what_does_not_exist_is_refused_at_once(config: Path, options: dict, message: str) -> None:
    with pytest.raises(DryRunError, match=message):
        DryRun.prepare(request(config, **options))
    assert not (config.parent / "out").exists()


def test_the_device_of_the_file_is_of_no_concern(cached: None, config: Path) -> None:
    """What CPU has no kernels for is compiled, what Ascend refuses is not."""
    assert DryRun.prepare(request(config, overrides=("model.dtype=bfloat16",))).config.device == "Ascend"
    with pytest.raises(ConfigError, match=r"plans\.train\.pipeline_stage: 2 stages, but model\.tie_word_embeddings"):
        DryRun.prepare(request(config, overrides=("model.tie_word_embeddings=true",)))
