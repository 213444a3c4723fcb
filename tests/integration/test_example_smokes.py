"""The examples on real rows with the real tokenizer: two are checked, the one with a reward of its own is run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = PROJECT / ".." / "shared" / "data"

pytestmark = pytest.mark.shared_data


@pytest.fixture(autouse=True)
def _needs_shared_data() -> None:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"{SHARED_DATA} is absent: the real data sets and the tokenizer lie beside the project")


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (
            "dapo_math",
            ("data.train: 64 rows", "math_dapo 1 + overlong ", "Remember to put your answer on its own line"),
        ),
        ("math_lighteval", ("data.train: 64 rows", "math 1 + format 0", "put your final answer within \\boxed{}")),
    ],
)
def test_two_rows_are_shown_and_scored(mindgspo, tmp_path: Path, example: str, said: tuple[str, ...]) -> None:
    done = mindgspo("check", PROJECT / "examples" / example / "smoke.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in said:
        assert text in done.stdout, text


@pytest.mark.slow
def test_a_reward_of_ones_own_trains(mindgspo, tmp_path: Path, read_lines) -> None:
    example = tmp_path / "examples" / "custom_reward"
    shutil.copytree(PROJECT / "examples" / "custom_reward", example, ignore=shutil.ignore_patterns("data"))
    subprocess.run([sys.executable, example / "make_data.py"], check=True)
    config = example / "smoke.yaml"
    text = config.read_text().replace("../../model_configs", str(PROJECT / "model_configs"))
    config.write_text(text.replace("../../../shared", str(PROJECT / ".." / "shared")))
    root = tmp_path / "run"
    done = mindgspo("run", config, "--set", f"run_dir={root}", cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert json.loads((root / "summary.json").read_text())["steps"] == 2
    for step in read_lines(root / "metrics.jsonl"):
        if "actor/pg_loss" in step:
            assert {"reward/part/reward.compute_score/mean", "reward/extra/reward.compute_score/structure/mean"} <= set(
                step
            )
            assert step["reward/error_ratio"] == step["reward/timeout_ratio"] == 0
    samples = read_lines(root / "samples.jsonl")
    assert samples and all("reward.compute_score" in sample["parts"] for sample in samples)
