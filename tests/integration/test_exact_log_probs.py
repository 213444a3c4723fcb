"""Whole runs that require bit-equal log-probs: resumed, over processes, with own servers; and one that fails."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from running import PROJECT, environment, python, read_lines, sets, succeeded, training_lines

pytestmark = pytest.mark.slow

ON = ("trainer.require_exact_logprobs=true", "logging.groups_per_step=null")
COUNT = "training/exact_logprobs_tokens"
MIXTURE = (
    "model.architecture=qwen3_moe", "model.head_dim=8", "model.num_experts=6", "model.num_experts_per_tok=3",
    "model.moe_intermediate_size=16",
)  # fmt: skip


def run(experiment: Path, name: str, *settings: str) -> list[dict]:
    """The training lines of a run, the tokens of whose steps are all counted."""
    run_dir = experiment.parent / name
    succeeded("run", experiment, *sets(*ON, *settings, f"run_dir={run_dir}"), cwd=experiment.parent)
    lines = training_lines(run_dir)
    assert all(line["training/rollout_logprob_diff_max"] == 0 for line in lines)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["exact_logprobs_tokens"] == sum(line.get(COUNT, 0) for line in lines) > 0
    return lines


def test_a_run_and_one_that_was_stopped_count_every_trained_token(experiment: Path) -> None:
    """In float16, with packed rows."""
    packed = ("trainer.samples_per_micro_batch=null", "trainer.max_tokens_per_micro_batch=128", "trainer.packing=true")
    settings = ("model.dtype=float16", "optimizer.warmup_steps=1", "trainer.exact_logprobs_every=3", *packed)
    whole = run(experiment, "whole", *settings)
    sampled = Counter()
    for line in read_lines(experiment.parent / "whole" / "samples.jsonl"):
        sampled[line["step"]] += line["length"]
    assert [line.get(COUNT) for line in whole] == [sampled[1], None, None, sampled[4]]
    assert all(line["actor/grad_norm"] > 0 for line in whole)
    run(experiment, "parts", *settings, "trainer.max_steps=2")
    parts = run(experiment, "parts", *settings, "resume=auto")
    assert [line.get(COUNT) for line in parts] == [line.get(COUNT) for line in whole]
    page = (experiment.parent / "parts" / "report.html").read_text(encoding="utf-8")
    assert "Equal log-probs" in page and f"{sampled[1] + sampled[4]:,}" in page


def test_replicas_of_a_mixture_in_bfloat16(experiment: Path) -> None:
    plans = ("plans.train.data_parallel=2", "plans.infer.data_parallel=2", "trainer.samples_per_micro_batch=4")
    lines = run(experiment, "two", *MIXTURE, *plans, "model.dtype=bfloat16", "trainer.max_steps=2")
    assert [COUNT in line for line in lines] == [True, True]


def test_servers_that_new_weights_reach_in_the_middle_of_a_response(experiment: Path) -> None:
    """Tokens of the present weights are compared, those of earlier ones are not."""
    run_dir = experiment.parent / "bounded"
    settings = ("trainer.schedule=bounded", "warmup=null", "trainer.max_steps=6", "eval.every=6", f"run_dir={run_dir}")
    done = succeeded("run", experiment, *sets(*ON, *settings), cwd=experiment.parent)
    assert "earlier weights drew some tokens" in done.stdout
    compared = [line[COUNT] for line in training_lines(run_dir)]
    trained = Counter()
    for line in read_lines(run_dir / "samples.jsonl"):
        trained[line["step"]] += line["length"]
    assert compared[0] == trained[1] and 0 < sum(compared) < trained.total()


def test_a_difference_stops_the_run_and_is_explained(experiment: Path) -> None:
    """As tools/measure_mismatch.py adds it, to what the engine returns."""
    words = ("run", experiment, *sets(*ON, "trainer.max_steps=1", "eval.before=false"))
    tool, updates = PROJECT / "tools" / "measure_mismatch.py", experiment.parent / "updates.jsonl"
    done = python(tool, "--child", "token_1e-3", updates, *words, cwd=experiment.parent, env=environment())
    assert done.returncode == 1 and not updates.exists(), done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "have other log-probs in the trainer (scoring pass) than in the sampler" in line
    assert line.endswith("so other weights drew this response: look at how weights reach generation "
                         "(reshard.verify=full), and at their version"), line  # fmt: skip
