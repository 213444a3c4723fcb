"""examples/gsm8k/smoke.yaml: two real steps on real rows with the real tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SHARED_DATA = PROJECT / ".." / "shared" / "data"


@pytest.mark.shared_data
def test_two_steps_on_real_rows_fit_into_memory(mindgspo, tmp_path: Path, read_lines) -> None:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"{SHARED_DATA} is absent: the real data sets lie beside the project")
    root = tmp_path / "run"
    done = mindgspo(
        "run", PROJECT / "examples/gsm8k/smoke.yaml", "--set", f"run_dir={root}", cwd=tmp_path, timeout=1200
    )
    assert done.returncode == 0, done.stderr
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
