"""The examples on real rows with the real tokenizer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import PROJECT, python, read_lines, succeeded


@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data")
def test_two_steps_on_real_rows_fit_into_memory(tmp_path: Path) -> None:
    root = tmp_path / "run"
    succeeded("run", PROJECT / "examples/gsm8k/smoke.yaml", "--set", f"run_dir={root}", cwd=tmp_path, timeout=1200)
    summary = json.loads((root / "summary.json").read_text())
    print(f"smoke: {summary['seconds']:.0f} s, peak {summary['peak_rss_mb']:.0f} MB")
    assert summary["steps"] == 2
    assert summary["peak_rss_mb"] < 8 * 1024
    steps = [line for line in read_lines(root / "metrics.jsonl") if "actor/pg_loss" in line]
    assert [line["samples/generated"] for line in steps] == [32, 32]
    assert all(line["training/rollout_logprob_diff_max"] < 1e-4 for line in steps)
    samples = read_lines(root / "samples.jsonl")
    assert all(sample["prompt"].startswith("<|im_start|>system\n") for sample in samples)
    assert all('write the final number after "####".<|im_end|>' in sample["prompt"] for sample in samples)


@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data")
def test_packed_batches_are_even_and_dense() -> None:
    done = python("tools/bench_batches.py", cwd=PROJECT, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["sequences"], report["replicas"]) == (512, 8)
    layouts = report["layouts"]
    assert layouts["in order"]["spread"] > 0.1 and layouts["rows of one sample"]["spread"] > 0.1
    for name in ("packed, balanced", "packed in one row (Ascend), balanced"):
        found = layouts[name]
        assert found["spread"] < 0.02 and found["padding"] < 0.1 and found["prediction_padding"] < 0.15
        assert found["shapes"] == 1 and found["passes"] <= layouts["rows of one sample"]["passes"]


def test_a_benchmark_says_which_data_it_lacks(tmp_path: Path) -> None:
    done = python("tools/bench_batches.py", "--rows", tmp_path / "train.jsonl", cwd=PROJECT)
    assert done.returncode == 1 and done.stderr.startswith(f"error: --rows: {tmp_path / 'train.jsonl'} does not exist")


@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize(("example", "said"), [
    ("dapo_math", ("data.train: 64 rows", "math_dapo 1 + overlong ", "Remember to put your answer on its own line")),
    ("math_lighteval", ("data.train: 64 rows", "math 1 + format 0", "put your final answer within \\boxed{}")),
])  # fmt: skip
def test_two_rows_are_shown_and_scored(tmp_path: Path, example: str, said: tuple[str, ...]) -> None:
    done = succeeded("check", PROJECT / "examples" / example / "smoke.yaml", cwd=tmp_path)
    for text in said:
        assert text in done.stdout, text


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data")
def test_a_reward_of_ones_own_trains(tmp_path: Path) -> None:
    example = tmp_path / "examples" / "custom_reward"
    shutil.copytree(PROJECT / "examples" / "custom_reward", example, ignore=shutil.ignore_patterns("data"))
    subprocess.run([sys.executable, example / "make_data.py"], check=True)
    config = example / "smoke.yaml"
    text = config.read_text().replace("../../model_configs", str(PROJECT / "model_configs"))
    config.write_text(text.replace("../../../shared", str(PROJECT / ".." / "shared")))
    root = tmp_path / "run"
    succeeded("run", config, "--set", f"run_dir={root}", cwd=tmp_path, timeout=1200)
    assert json.loads((root / "summary.json").read_text())["steps"] == 2
    for step in read_lines(root / "metrics.jsonl"):
        if "actor/pg_loss" in step:
            assert {"reward/part/reward.compute_score/mean", "reward/extra/reward.compute_score/structure/mean"} <= set(
                step
            )
            assert step["reward/error_ratio"] == step["reward/timeout_ratio"] == 0
    samples = read_lines(root / "samples.jsonl")
    assert samples and all("reward.compute_score" in sample["parts"] for sample in samples)
