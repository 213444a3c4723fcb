"""MindSpore's own launcher in place of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import command, environment, sets
from torture_runs import write_experiment


@pytest.mark.slow
def test_a_run_under_msrun_and_one_with_another_number_of_workers(tmp_path: Path, free_port: int) -> None:
    paths = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shutil.which("msrun", path=paths["PATH"]) is None:
        pytest.skip("needs msrun, which comes with MindSpore")
    config = write_experiment(tmp_path, max_steps=1, workers=2)
    run_dir, ended = tmp_path / "run", []
    for number in (4, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = ["msrun", "--worker_num", number, "--local_worker_num", number, "--master_port", free_port,
                 "--join", "True", "python", *command("run", config, *sets(f"run_dir={run_dir}"))[1:]]  # fmt: skip
        ended.append(subprocess.run([str(word) for word in words], cwd=folder, env=paths, capture_output=True,
                                    text=True, timeout=600, check=False))  # fmt: skip
    for process in ("scheduler", *(f"worker_{rank}" for rank in range(4))):
        said = (tmp_path / "4" / f"{process}.log").read_text()
        assert said == "" or "give --worker_num 2, or change the plans" in said, "msrun ends the others"
    assert ended[0].returncode != 0 and "give --worker_num 2" in (tmp_path / "4" / "scheduler.log").read_text()
    assert ended[1].returncode == 0, ended[1].stdout + ended[1].stderr
    assert "rank 1 of 2, process " in (tmp_path / "2" / "worker_1.log").read_text()
    first, second = ((run_dir / "logs" / f"rank_{rank}.log").read_text() for rank in range(2))
    assert "step     1/1" in first and first.splitlines()[-1] == f"report: {run_dir / 'report.html'}"
    assert second.startswith("rank 1, process ")
