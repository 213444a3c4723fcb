"""`mindgspo plan` where generation has cards of its own: both sides, each without what the other holds."""

from __future__ import annotations

import re
from pathlib import Path

from mindgspo.planner import plan_of_file

PROJECT = Path(__file__).resolve().parents[3]
LARGE = PROJECT / "examples" / "dapo_math" / "gspo_qwen3_32b.yaml"


def test_both_sides_of_more_and_of_fewer_cards_than_training() -> None:
    settings = ["trainer.schedule=bounded", "plans.train.data_parallel=2"]
    for replicas in (1, 8):
        lines = list(plan_of_file(LARGE, [*settings, f"plans.infer.data_parallel={replicas}"]))
        start = next(number for number, line in enumerate(lines) if line.startswith("each of"))
        assert lines[start].startswith(f"each of {replicas} servers, plans.infer {replicas} x 4 x 1")
        training, server = "\n".join(lines[:start]), "\n".join(lines[start:-3]).partition("seconds of a step")[0]
        assert "key/value cache" not in training and "rollout weights" not in training
        assert "AdamW" not in server and "gradients" not in server
        # 32.8 billion bfloat16 numbers on four cards, and the cache in what is left.
        weights, cache = (float(re.search(rf"{name} +([0-9.]+)", server)[1]) for name in ("rollout weights", "cache"))
        assert 15 < weights < 16 and 20 < cache < 40
        assert [line.split(":")[0] for line in lines[-2:]] == ["training fits", "each server fits"]


def test_servers_elsewhere_are_not_counted() -> None:
    lines = list(plan_of_file(PROJECT / "examples/arithmetic/gspo.yaml", ["rollout.servers.urls=[http://a:1]"]))
    assert lines[0] == "training, 1 x 1 x 1 (data x model x pipeline); other processes generate"
    assert lines[-1].startswith("training fits: ") and not any("each of" in line for line in lines)
