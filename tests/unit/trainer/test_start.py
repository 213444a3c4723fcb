"""From the command line to several processes: what is decided before any of them imports MindSpore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from running import environment

from mindgspo.cli import main
from mindgspo.config import dump_config, load_config
from mindgspo.launch import worker
from mindgspo.launch.worker import copy_output
from mindgspo.metrics import RunLog, report_of_finished, write_summary

FOUR = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo_4.yaml"


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run folder of four processes as they leave it between summary.json and the report."""
    root = tmp_path / "run"
    root.mkdir()
    (root / "config.yaml").write_text(dump_config(load_config(FOUR, [f"run_dir={root}"])))
    with RunLog(root, progress=False, console=Console(quiet=True)) as log:
        log.log_metrics(1, {"critic/score/mean": 0.5})
    write_summary(root, finished=True, steps=7)
    return root


def test_a_finished_run_of_several_processes_gets_its_report(finished: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", str(FOUR), "--set", f"run_dir={finished}", "--set", "resume=auto"]) == 0
    said = capsys.readouterr().out
    assert f"this run is finished; its report is {finished / 'report.html'}" in said
    assert "--set trainer.max_steps=N with N above 7 continues it" in said
    assert (finished / "report.html").is_file() and (finished / "reward.png").is_file()


def test_a_run_that_is_there_is_refused_before_mindspore_is_imported(finished: Path) -> None:
    one = str(FOUR.with_name("gspo.yaml"))
    program = (
        "import sys; from mindgspo.cli import main;"
        f"code = main(['run', {one!r}, '--set', 'run_dir={finished}']);"
        "sys.exit(code + 2 * ('mindspore' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 1, done.stderr
    assert "already holds a finished run" in done.stderr
    assert "--set resume=auto     continue it with --set trainer.max_steps=N, N above 7" in done.stderr


@pytest.mark.parametrize(("options", "said"), [
    (["--nodes", "2"], "--nodes 2: the plans need 1 worker, the same number on every node"),
    (["--node-rank", "1"], "--node-rank 1: of 1 nodes; legal values are 0 to 0"),
    (["--master-port", "80"], "--master-port 80: legal ports are 1024 to 65535"),
])  # fmt: skip
def test_one_process_has_no_place_for_options_of_a_cluster(options: list[str], said: str, tmp_path: Path, capsys):
    assert main(["run", str(FOUR.with_name("gspo.yaml")), "--set", f"run_dir={tmp_path / 'run'}", *options]) == 1
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_report_from_before_the_end_is_made_again(finished: Path) -> None:
    report = finished / "report.html"
    report.write_text("half way")
    os.utime(report, ns=(0, 0))
    assert report_of_finished(finished) == report and "half way" not in report.read_text()
    report.write_text("of the end")
    report_of_finished(finished)
    assert report.read_text() == "of the end"


@pytest.mark.parametrize("role", ["MS_WORKER", "MS_SCHED"])
def test_msrun_with_another_number_of_workers_ends_at_once(tmp_path: Path, monkeypatch, capsys, role: str) -> None:
    """The scheduler too: msrun waits for it."""
    monkeypatch.setenv("MS_ROLE", role)
    monkeypatch.setenv("MS_WORKER_NUM", "8")
    assert main(["run", str(FOUR), "--set", f"run_dir={tmp_path / 'run'}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: msrun --worker_num 8: plans.train 2 x 2 x 1 and plans.infer 4 x 1 x 1 ")
    assert said.endswith("need 4; give --worker_num 4, or change the plans\n")
    assert not (tmp_path / "run").exists()


def test_what_a_rank_prints_goes_to_two_places(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(worker.sys, "stdout", worker.sys.stdout)
    monkeypatch.setattr(worker.sys, "stderr", worker.sys.stderr)
    copy_output(tmp_path, 3)
    print("a step")
    Console().print("in color", style="red")
    said = capsys.readouterr().out
    lines = (tmp_path / "rank_3.log").read_text().splitlines()
    assert said == "a step\nin color\n" and lines[1:] == ["a step", "in color"]
    assert lines[0].startswith(f"rank 3, process {os.getpid()} on ")
