"""The glossary knows the field's names and nothing else."""

from __future__ import annotations

import pytest

from mindgspo.metrics import METRICS, unknown_names
from mindgspo.metrics.names import glossary_name

KNOWN = [
    *("actor/pg_loss", "actor/pg_clipfrac", "actor/grad_norm", "actor/lr", "actor/entropy", "actor/ppo_kl"),
    *("critic/score/mean", "critic/score/max", "critic/rewards/min", "critic/advantages/mean"),
    *("response_length/mean", "response_length/clip_ratio", "prompt_length/max"),
    *("timing_s/gen", "timing_s/old_log_prob", "timing_s/step", "timing_s/save_checkpoint"),
    *("perf/total_num_tokens", "perf/throughput", "perf/time_per_step", "perf/cpu_memory_used_gb"),
    *("training/global_step", "training/epoch", "reward/part/gsm8k/mean", "samples/dropped/no_reward"),
    *("val-core/arithmetic/acc/mean@1", "val-core/openai/gsm8k/acc/pass@16"),
]
UNKNOWN = [
    *("actor/pg_los", "critic/score/median", "timing_s/", "val-core/arithmetic/acc/mean@", "foo", ""),
    *("val-core//acc/pass@0", "actor/pg_loss ", "response_length", "ACTOR/LR"),
]


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    assert glossary_name(name) in METRICS
    assert unknown_names({name: 1.0}) == []


def test_unknown_names_are_listed_once_and_sorted_and_step_is_no_metric() -> None:
    assert unknown_names([*KNOWN, "step", *UNKNOWN, *UNKNOWN]) == sorted(UNKNOWN)


def test_every_entry_says_what_it_means() -> None:
    for name, info in METRICS.items():
        assert len(info.meaning) > 10, name
        assert not info.action or info.healthy, f"{name}: an action needs a healthy range"
        assert all(text.isascii() for text in (info.meaning, info.unit, info.healthy, info.action)), name
