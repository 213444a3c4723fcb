"""tools/compare_algorithms.py, its table and its picture; the launcher writes run folders and trains nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import compare_algorithms as tool
import pytest

from mindgspo.config import dump_config, load_config
from mindgspo.metrics.plot_style import DARK, LIGHT
from mindgspo.metrics.run_folder import RunRecord, read_run

PROJECT = Path(__file__).resolve().parents[2]
QUICKSTART = PROJECT / "examples/arithmetic/gspo.yaml"
PNG = b"\x89PNG\r\n\x1a\n"
CLIP = {"gspo": 0.2, "grpo": 0.001}


def write_run(run_dir: Path, *, variant: str = "gspo", seed: int = 1, steps: int = 12, config: str = "") -> Path:
    """A finished run whose accuracy after is 0.9 + seed / 100, clip fraction of `CLIP`, 100 + seed seconds."""
    run_dir.mkdir(parents=True, exist_ok=True)
    after = 0.9 + seed / 100
    rows: list[dict[str, float]] = [{"step": 0, "val-core/arithmetic/acc/mean@1": 0.5}]
    for step in range(1, steps + 1):
        clip = CLIP.get(variant, 0.1) * (1 + (step % 2) / 2.5)
        rows.append(
            {
                "step": step, "critic/score/mean": 0.5 + 0.4 * step / steps + seed / 100, "actor/pg_clipfrac": clip,
                "actor/pg_clipfrac_seq": clip, "actor/updates": 4, "samples/generated": 100 * seed,
            }
        )  # fmt: skip
    rows.append({"step": steps, "val-core/arithmetic/acc/mean@1": after})
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"finished": True, "accuracy_before": 0.5, "accuracy_after": after, "seconds": 100.0 + seed}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    (run_dir / "config.yaml").write_text(config)
    return run_dir


def compared(tmp_path: Path, *, seeds: tuple[int, ...] = (1, 2, 3), steps: int = 12) -> list[tool.ComparedRun]:
    return [
        tool.ComparedRun(
            variant=variant,
            seed=seed,
            run=read_run(write_run(tmp_path / variant / str(seed), variant=variant, seed=seed, steps=steps)),
        )
        for variant in CLIP
        for seed in seeds
    ]


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_by_hand(tmp_path: Path) -> None:
    header, ruler, *rows = cells(tool.comparison_table(compared(tmp_path)))
    assert header[:2] == ["algorithm", "seed"] and set(ruler) == {"---"}
    assert rows[0] == ["gspo", "1", "0.500", "0.910", "0.910", "0.24", "0.24", "1,200", "101"]
    assert rows[5] == ["grpo", "3", "0.500", "0.930", "0.930", "0.0012", "0.0012", "3,600", "103"]
    # 0.91, 0.92, 0.93; 1,200, 2,400, 3,600; 101, 102, 103: means and deviations (ddof 1)
    clipped = ["0.24 ± 0", "0.24 ± 0"]
    accuracies = ["0.500 ± 0.000", *["0.920 ± 0.010"] * 2]
    assert rows[6] == ["gspo", "mean of 3", *accuracies, *clipped, "2,400 ± 1,200", "102 ± 1"]
    assert [row[0] for row in rows[6:]] == ["gspo", "grpo"]
    runs = compared(tmp_path, seeds=(4,))
    assert len(tool.comparison_table(runs).splitlines()) == 2 + 2
    bare = RunRecord(name="bare", metrics=({"step": 1},))
    *_, row, mean = cells(tool.comparison_table([*runs, tool.ComparedRun(variant="gspo", seed=5, run=bare)]))
    assert (row, mean) == (["gspo", "5", *["-"] * 7], ["gspo", "mean of 2", *["-"] * 7])


def test_routing_and_gradients_have_columns_where_they_were_recorded() -> None:
    rows = ({"step": 1, "actor/grad_norm": 0.5, "router/drift": 0.01, "router/mismatch": 0.0},
            {"step": 2, "actor/grad_norm": 1.5, "router/drift": 0.03, "router/mismatch": 0.0})  # fmt: skip
    runs = [tool.ComparedRun(variant="gspo", seed=1, run=RunRecord(name="routed", metrics=rows))]
    header, _, row = cells(tool.comparison_table(runs))
    found = dict(zip(header, row, strict=True))
    assert (found["gradient norm"], found["largest gradient norm"]) == ("1", "1.5")
    assert (found["routing mismatch"], found["routing drift"]) == ("0.00%", "2.00%")
    content = tool.draw_comparison(runs, LIGHT)
    assert int.from_bytes(content[16:20], "big") >= 2000


def test_several_held_out_sets_have_columns() -> None:
    rows = ({"step": 0, "val-core/sums/acc/mean@1": 0.5, "val-core/differences/acc/mean@1": 0.25},
            {"step": 4, "val-core/sums/acc/mean@1": 0.75, "val-core/differences/acc/mean@1": 0.5})  # fmt: skip
    header, _, row = cells(
        tool.comparison_table([tool.ComparedRun(variant="gspo", seed=1, run=RunRecord(name="two", metrics=rows))])
    )
    found = dict(zip(header, row, strict=True))
    assert (found["sums after"], found["differences after"]) == ("0.750", "0.500")


@pytest.mark.parametrize(("seeds", "steps"), [((1, 2, 3), 40), ((1,), 12), ((1, 2), 1)])
def test_the_picture(tmp_path: Path, seeds: tuple[int, ...], steps: int) -> None:
    runs = compared(tmp_path, seeds=seeds, steps=steps)
    content = tool.draw_comparison(runs, LIGHT)
    assert content.startswith(PNG)
    assert int.from_bytes(content[16:20], "big") >= 1500
    assert tool.draw_comparison(runs, LIGHT) == content != tool.draw_comparison(runs, DARK)


def test_conditions_have_lines_and_panels_of_their_own(tmp_path: Path) -> None:
    runs = [
        replace(one, condition=condition)
        for condition in ("fresh", "stale")
        for one in compared(tmp_path, seeds=(1, 2))
    ]
    header, _, *rows = cells(tool.comparison_table(runs))
    assert header[:3] == ["condition", "algorithm", "seed"]
    names = [("gspo", "1"), ("gspo", "2"), ("grpo", "1"), ("grpo", "2")]
    means = [(condition, name, "mean of 2") for condition in ("fresh", "stale") for name in ("gspo", "grpo")]
    assert [tuple(row[:3]) for row in rows] == [("fresh", *name) for name in names] + [
        ("stale", *name) for name in names
    ] + means
    one, two = (int.from_bytes(tool.draw_comparison(some, LIGHT)[20:24], "big") for some in (runs[:4], runs))
    assert two == 2 * one


def test_costs_still_runs_and_names_in_the_picture(tmp_path: Path) -> None:
    runs = compared(tmp_path, seeds=(1, 3))
    assert tool.spent(runs[1].run, "samples/generated", [0, 1, 12]) == [0, 300, 3600]
    assert tool.spent(runs[0].run, "actor/updates", [0, 5, 12]) == [0, 20, 48]
    content = tool.draw_costs(runs, LIGHT)
    assert content.startswith(PNG) and tool.draw_costs(runs, LIGHT) == content != tool.draw_costs(runs[:2], LIGHT)
    bare = RunRecord(name="bare", metrics=({"step": 1},))
    assert tool.draw_costs([tool.ComparedRun(variant="gspo", seed=5, run=bare)], LIGHT).startswith(PNG)
    rows = ({"step": 1, "actor/pg_clipfrac": 0.0}, {"step": 2, "actor/pg_clipfrac": 0.0})
    still = RunRecord(name="still", metrics=rows)
    assert tool.draw_comparison([tool.ComparedRun(variant="gspo", seed=1, run=still)], LIGHT).startswith(PNG)
    both = [*compared(tmp_path), tool.ComparedRun(variant="still", seed=1, run=still)]
    assert tool.draw_comparison(both, LIGHT).startswith(PNG)
    assert [tool.display_name(name) for name in ("gspo", "dr_grpo", "wide_clip")] == ["GSPO", "DR-GRPO", "wide_clip"]


class Trainer:
    """A launcher that leaves a finished run, or fails at the job it is told to."""

    def __init__(self, fails_at: str = "") -> None:
        self.launched: list[str] = []
        self.fails_at = fails_at

    def __call__(self, job: object) -> int:
        name = f"{job.seed}/{job.name}"
        self.launched.append(name)
        if name == self.fails_at:
            job.log.write_text("\n".join(f"line {number}" for number in range(20)))
            return 3
        write_run(job.run_dir, variant=job.name, seed=job.seed, config=dump_config(job.config))
        return 0


def compare(output: Path, trainer: Callable[[object], int], *words: str) -> int:
    return tool.main([str(QUICKSTART), "--output", str(output), *words], launch=trainer)


def test_every_seed_warms_up_once_and_both_algorithms_start_from_it(tmp_path: Path) -> None:
    jobs = tool.plan(QUICKSTART, tmp_path, tool.VARIANTS, [1, 2], ["eval.every=20"])
    assert [(job.seed, job.name, job.command) for job in jobs] == [
        (seed, name, command)
        for seed in (1, 2)
        for name, command in (("warm-up", "sft"), ("gspo", "run"), ("grpo", "run"))
    ]
    warm_up, gspo, grpo = jobs[3:]
    assert warm_up.config.warmup is not None and gspo.config.warmup is grpo.config.warmup is None
    assert gspo.config.model.path == grpo.config.model.path == tmp_path / "seed2/warm-up/export"
    assert gspo.config.algorithm.name == "gspo" and grpo.config.algorithm.name == "grpo"
    assert (gspo.config.algorithm.clip_low, grpo.config.algorithm.clip_low) == (3e-4, 0.2)
    assert {job.config.seed for job in (warm_up, gspo, grpo)} == {2}
    assert {job.config.eval.every for job in jobs} == {20}
    assert {job.config.resume for job in jobs} == {"auto"}
    assert [job.config.run_dir for job in jobs] == [job.run_dir for job in jobs]
    # Beside algorithm and names, nothing differs between the two.
    same = {"algorithm": gspo.config.algorithm, "experiment": "gspo", "run_dir": gspo.config.run_dir}
    assert grpo.config.model_copy(update=same) == gspo.config


def test_every_variant_runs_under_every_condition(tmp_path: Path) -> None:
    trainer = Trainer()
    words = ["--seeds", "1", "--condition", "sync", "--condition", "many", "trainer.prompts_per_mini_batch=16"]
    assert (
        compare(tmp_path, trainer, *words, "--variant", "gspo", "--variant", "own", "trainer.prompts_per_mini_batch=32")
        == 0
    )
    assert trainer.launched == ["1/warm-up", *["1/gspo", "1/own"] * 2]
    jobs = tool.plan(QUICKSTART, tmp_path, {"gspo": (), "own": ("trainer.prompts_per_mini_batch=32",)}, [1], [],
                     {"sync": (), "many": ("trainer.prompts_per_mini_batch=16",)})[1:]  # fmt: skip
    assert [job.run_dir.relative_to(tmp_path).as_posix() for job in jobs] == [
        "seed1/sync/gspo", "seed1/sync/own", "seed1/many/gspo", "seed1/many/own",
    ]  # fmt: skip
    assert [job.config.trainer.prompts_per_mini_batch for job in jobs] == [8, 32, 16, 32]
    assert not (tmp_path / "comparison_cost.png").exists()


def test_what_a_child_is_told_and_runs_without_warm_up(tmp_path: Path) -> None:
    output = tmp_path / "odd: name, # {here}"
    (job,) = [job for job in tool.plan(QUICKSTART, output, tool.VARIANTS, [1], []) if job.name == "grpo"]
    python, minus_m, module, command, experiment, *overrides = job.arguments()
    assert (python, minus_m, module, command) == (sys.executable, "-m", "mindgspo.cli", "run")
    assert overrides[::2] == ["--set"] * (len(overrides) // 2)
    assert load_config(experiment, overrides[1::2], check_files=False) == job.config
    jobs = tool.plan(QUICKSTART, tmp_path, {"a": (), "b": ("algorithm.clip_high=8e-4",)}, [1], ["warmup=null"])
    assert [(job.name, job.command) for job in jobs] == [("a", "run"), ("b", "run")]
    assert jobs[0].config.model.path is None
    assert [job.config.algorithm.clip_high for job in jobs] == [4e-4, 8e-4]


def test_runs_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    assert compare(tmp_path, trainer, "--seeds", "1", "2") == 0
    assert trainer.launched == ["1/warm-up", "1/gspo", "1/grpo", "2/warm-up", "2/gspo", "2/grpo"]
    printed = capsys.readouterr().out
    table = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert table in printed
    assert [row[:2] for row in cells(table)[2:]] == [
        ["gspo", "1"], ["gspo", "2"], ["grpo", "1"], ["grpo", "2"], ["gspo", "mean of 2"], ["grpo", "mean of 2"],
    ]  # fmt: skip
    assert (tmp_path / "comparison.png").read_bytes().startswith(PNG)


def test_a_failed_run_stops_and_names_its_log_and_the_next_call_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, Trainer(fails_at="1/grpo"), "--seeds", "1", "2") == 1
    message = capsys.readouterr().err
    log = tmp_path / "seed1/grpo.log"
    assert f"error: seed 1, grpo: exit code 3; its output is in {log}" in message
    assert "line 19" in message and "line 11\n" not in message
    assert not (tmp_path / "comparison.md").exists()
    trainer = Trainer()
    assert compare(tmp_path, trainer, "--seeds", "1", "2") == 0
    assert trainer.launched == ["1/grpo", "2/warm-up", "2/gspo", "2/grpo"]
    assert "seed 1, gspo: finished before" in capsys.readouterr().out
    trainer = Trainer()
    assert compare(tmp_path, trainer, "--seeds", "1", "2") == 0
    assert trainer.launched == []


def test_wrong_settings_and_other_runs_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer()
    assert compare(tmp_path, trainer, "--variant", "gspo", "--variant", "x", "algorithm.clip_hihg=1") == 1
    assert "did you mean algorithm.clip_high" in capsys.readouterr().err
    assert trainer.launched == [] and list(tmp_path.iterdir()) == []
    assert compare(tmp_path, Trainer(), "--seeds", "1") == 0
    trainer = Trainer()
    assert compare(tmp_path, trainer, "--seeds", "1", "--set", "optimizer.lr=1e-4") == 1
    message = capsys.readouterr().err
    assert "optimizer.lr: 0.0001, the run has 5e-05" in message and "choose another --output" in message
    assert trainer.launched == []
    assert compare(tmp_path / "other", lambda job: 0) == 1
    assert "warm-up: ended without a result" in capsys.readouterr().err


def test_only_plot_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    assert compare(tmp_path, trainer, "--seeds", "1", "--only-plot") == 1
    assert "no metrics.jsonl here" in capsys.readouterr().err
    assert compare(tmp_path, trainer, "--seeds", "1") == 0
    (tmp_path / "comparison.md").unlink()
    assert compare(tmp_path, Trainer(fails_at="1/gspo"), "--seeds", "1", "--only-plot") == 0
    assert (tmp_path / "comparison.md").exists()


@pytest.mark.parametrize("words", [
    ("--seeds", "1", "1"), ("--seeds", "one"), ("--variant", "algorithm.name=gspo"),
    ("--variant", "a", "--variant", "a"), ("--variant", "warm-up"), ("--condition", "warm-up"), ("--set",),
])  # fmt: skip
def test_a_wrong_command_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.parse_arguments(words)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_real_child_is_started_and_its_output_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is understood by the real program, which then misses the weights of the warm-up."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    job = tool.plan(QUICKSTART, tmp_path, tool.VARIANTS, [1], [])[1]
    job.run_dir.parent.mkdir(parents=True)
    assert tool.run_child(job) == 1
    message = job.log.read_text(encoding="utf-8")
    assert "1 problem" in message and "model.path" in message and "warm-up/export" in message
