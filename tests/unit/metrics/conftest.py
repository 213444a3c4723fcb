"""A run folder as training would leave it, made with the room's own writers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mindgspo.algorithms.loss_metrics import collect_telemetry, telemetry_metrics
from mindgspo.metrics import RunLog, group_metrics, write_summary
from mindgspo.types import FinishReason, Group, Int32Array, Prompt, Response, Score, Verdict

TEXTS = {
    Verdict.CORRECT: "Carry the one: 7 + 8 = 15, then 4 + 3 + 1 = 8.\nThe sum is 85.\n#### 85",
    Verdict.WRONG: "7 + 8 = 15, and 4 + 3 = 7.\nThe sum is 75.\n#### 75",
    Verdict.NO_ANSWER: "7 + 8 = 15, so I write 5 and carry the one. Now the tens: 4 + 3 = 7 and",
}


CONFIG = (
    "experiment: arithmetic\nrollout: {temperature: 1.0}\nalgorithm: {name: gspo, clip_low: 3e-4, clip_high: 4e-4}\n"
)


def make_group(index: int, verdicts: list[Verdict], *, text: str = "What is 47 + 38?") -> Group:
    """A group whose response ids are [verdict number, sample number], so that `decode` can find the text."""
    values = np.array([float(verdict is Verdict.CORRECT) for verdict in verdicts])
    spread = values.std(ddof=1) if len(values) > 1 else 0.0
    advantages = (values - values.mean()) / (spread + 1e-6) if spread else np.zeros(len(values))
    kinds = list(TEXTS)
    return Group(
        prompt=Prompt(
            index=index, ids=np.arange(1, 13, dtype=np.int32), text=text, answer="85", data_source="arithmetic"
        ),
        responses=tuple(
            Response(
                prompt_index=index, sample_index=sample,
                ids=np.array([kinds.index(verdict), sample] + [0] * (8 + sample), np.int32),
                logprobs=np.full(10 + sample, -0.5, np.float32),
                finish_reason=FinishReason.LENGTH if verdict is Verdict.NO_ANSWER else FinishReason.STOP,
                temperature=1.0, weight_version=3,
            )
            for sample, verdict in enumerate(verdicts)
        ),
        scores=tuple(
            Score(
                value=float(value), verdict=verdict,
                extracted=None if verdict is Verdict.NO_ANSWER else TEXTS[verdict][-2:], parts={"gsm8k": float(value)},
            )
            for verdict, value in zip(verdicts, values, strict=True)
        ),
        advantages=tuple(np.full(10 + sample, advantage, np.float32) for sample, advantage in enumerate(advantages)),
    )  # fmt: skip


def decode(ids: Int32Array) -> str:
    return list(TEXTS.values())[int(ids[0])]


def make_run(run_dir: Path, *, steps: int = 60, end: bool = True) -> Path:
    """A run that learns: reward 0.45 -> 0.9, evaluated every 15 steps, samples of every 20th step."""
    run_dir.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    kinds = [Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER]
    with RunLog(run_dir, progress=False, console=Console(quiet=True)) as log:
        log.log_metrics(0, {"val-core/arithmetic/acc/mean@1": 0.4375})
        for step in range(1, steps + 1):
            share = 0.45 + 0.45 * (1 - math.exp(-step / 22))
            odds = [share, (1 - share) * 0.8, (1 - share) * 0.2]
            groups = [make_group(i, [kinds[k] for k in rng.choice(3, 8, p=odds)]) for i in range(16)]
            log.log_metrics(step, group_metrics(groups) | _fake_update(step, rng))
            if step % 15 == 0:
                log.log_metrics(step, {"val-core/arithmetic/acc/mean@1": round(share * 0.99, 4)})
            if step % 20 == 1 or step == steps:
                log.log_samples(step, groups[:3], decode)
    (run_dir / "config.yaml").write_text(CONFIG, encoding="utf-8")
    if end:
        write_summary(
            run_dir, accuracy_before=0.4375, accuracy_after=0.873, steps=steps, seconds=214.6, tokens_per_second=8412.0,
            peak_rss_mb=2310.5,
        )  # fmt: skip
    return run_dir


def _fake_update(step: int, rng: np.random.Generator) -> dict[str, float]:
    log_s = rng.normal(-2e-4, 0.006 + 0.004 * math.exp(-step / 15), 256).astype(np.float32)
    mask_NK = np.arange(80) < rng.integers(20, 80, 256)[:, None]
    gradient_NK = mask_NK / mask_NK.sum(axis=1, keepdims=True) * rng.normal(0, 1, (256, 1))
    telemetry = collect_telemetry(
        log_ratio=log_s[:, None], grad_logp_NK=gradient_NK.astype(np.float32), mask_NK=mask_NK
    )
    actor = telemetry_metrics([telemetry]) | {
        "log_ratio_mean": float(log_s.mean()), "log_ratio_min": float(log_s.min()),
        "log_ratio_max": float(log_s.max()), "pg_clipfrac_pos": 0.2, "pg_clipfrac_pos_seq": 0.2,
        "pg_clipfrac_neg": 0.15, "pg_clipfrac_neg_seq": 0.15, "pg_clipfrac_seq": 0.36 - 0.002 * step,
        "pg_clipfrac": 0.33 - 0.002 * step, "updates": 4, "pg_loss": float(rng.normal(0, 2e-4)), "lr": 5e-5,
        "grad_norm": float(0.8 + rng.normal(0, 0.1)), "entropy": 0.41 - 0.002 * step, "first_ratio_error_max": 9.5e-7,
    }  # fmt: skip
    length = 44 + 0.15 * step + rng.normal(0, 1.2)
    return {
        **{f"actor/{name}": value for name, value in actor.items()}, "response_length/mean": float(length),
        "response_length/max": float(length + 20), "response_length/min": float(length - 18), "timing_s/gen": 1.9,
        "timing_s/step": 3.4, "perf/throughput": 8400.0, "perf/cpu_memory_used_gb": 2.2,
    }  # fmt: skip


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run of 60 steps."""
    return make_run(tmp_path / "arithmetic")


@pytest.fixture
def build_run() -> Callable[..., Path]:
    """`make_run`, for tests that need other steps or an unfinished run."""
    return make_run


@pytest.fixture
def build_group() -> Callable[..., Group]:
    """`make_group`."""
    return make_group


@pytest.fixture
def decode_ids() -> Callable[[Int32Array], str]:
    """`decode`."""
    return decode
