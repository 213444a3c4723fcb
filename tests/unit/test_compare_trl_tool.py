"""tools/compare_trl.py: which runs it takes, and what it draws of both sides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from compare_trl import check_comparable, main, seconds_by_step, up_to

from mindgspo.config import load_config
from mindgspo.errors import ConfigError
from mindgspo.metrics.run_folder import read_run

PROJECT = Path(__file__).resolve().parents[2]
EXPERIMENT = PROJECT / "examples" / "smollm2" / "boxed.yaml"


def folder_of(path: Path, seconds: list[float], accuracy: dict[int, float], peak_mb: float) -> Path:
    rows: list[dict[str, float]] = [{"step": step} for step in range(len(seconds) + 1)]
    for step, taken in enumerate(seconds, start=1):
        rows[step] |= {"timing_s/step": taken, "critic/score/mean": 0.1 * step, "perf/peak_rss_mb": peak_mb}
    for step, value in accuracy.items():
        rows[step]["val-core/acc/mean@1"] = value
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_seconds_and_accuracies_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = folder_of(tmp_path / "ours", [9.0, 2.0, 3.0, 4.0], {0: 0.0, 3: 0.75}, 5000.0)
    theirs = folder_of(tmp_path / "theirs", [30.0, 10.0, 12.0], {0: 0.125, 2: 0.5}, 7000.4)
    assert seconds_by_step(read_run(ours)) == {0: 0.0, 1: 9.0, 2: 11.0, 3: 14.0, 4: 18.0}
    picture = tmp_path / "both.png"
    words = ["compare_trl.py", "plot", "--ours", str(ours), "--theirs", str(theirs), "--out", str(picture)]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0 and picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(capsys.readouterr().out) == {
        "steps": "2 to 3",
        "mindgspo": {"seconds": 5.0, "held_out_first": [0.0], "held_out_last": [0.75], "peak_rss_mb": 5000},
        "trl": {"seconds": 22.0, "held_out_first": [0.125], "held_out_last": [0.5], "peak_rss_mb": 7000},
        "ratio_of_seconds": 4.4,
    }


def test_a_response_ends_with_its_first_end_of_text() -> None:
    assert up_to([5, 2, 7, 2], 2) == [5, 2]
    assert up_to([5, 7], 2) == [5, 7]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("algorithm.name=grpo", "algorithm.name: 'grpo'; the comparison needs 'gspo'"),
        ("optimizer.warmup_ratio=0.1", "optimizer.warmup_ratio: 0.1; the comparison needs 0.0"),
        ("rollout.top_p=0.9", "rollout.top_p: 0.9; the comparison needs 1.0"),
    ],
)
def test_what_trl_would_compute_otherwise_is_refused(setting: str, problem: str) -> None:
    check_comparable(load_config(EXPERIMENT, check_files=False))
    with pytest.raises(ConfigError) as error:
        check_comparable(load_config(EXPERIMENT, [setting], check_files=False))
    assert str(error.value) == problem


def test_a_folder_without_a_run_is_one_line(tmp_path: Path) -> None:
    tool = str(PROJECT / "tools" / "compare_trl.py")
    command = [sys.executable, tool, "train", str(tmp_path), "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.startswith(f"error: {tmp_path / 'config.yaml'}"), ended.stderr
    assert ended.stderr.count("\n") == 1
