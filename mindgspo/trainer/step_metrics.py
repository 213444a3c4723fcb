"""The metrics of a step that are not the groups' own: account, mismatch, update, performance.

What enters: the parcels and results of one step. What leaves: flat metrics under the names of `metrics.names`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindgspo.algorithms.update import UpdateResult
from mindgspo.metrics import Timers, peak_rss_mb, rss_gb
from mindgspo.rollout.protocol import Rollout
from mindgspo.types import Batch, Group


def account(groups: Sequence[Group], *, num_asked: int, num_trained: int) -> dict[str, float]:
    """What became of every sample: generated = trained + filtered, by reason. A hole in it is a defect of ours.

    num_asked: responses that the engine was asked for. num_trained: sequences that the updates counted.
    """
    generated = sum(len(group.responses) for group in groups)
    filtered = Counter(score.verdict.value for group in groups for score in group.scores if score.value is None)
    assert generated == num_asked, f"{generated} responses, {num_asked} were asked for"
    assert generated == num_trained + filtered.total(), (
        f"{generated} responses, but {num_trained} trained + {filtered.total()} filtered {dict(filtered)}"
    )
    return {
        "samples/generated": generated,
        "samples/trained": num_trained,
        "samples/filtered": filtered.total(),
        **{f"samples/filtered/{reason}": count for reason, count in sorted(filtered.items())},
    }


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """What the engine did."""
    counters = rollout.counters
    return {
        "rollout/prefill_calls": counters.prefilled_prompts,
        "rollout/decode_steps": counters.decode_steps,
        "rollout/busy_slot_share": counters.busy_share,
    }


def mismatch_metrics(batches: Sequence[Batch]) -> dict[str, float]:
    """How far the sampler's log-probs lie from the trainer's, over all response tokens of the step."""
    sampler = np.concatenate([batch.rollout_logp_NK[batch.mask_NK] for batch in batches]).astype(np.float64)
    trainer = np.concatenate([batch.old_logp_NK[batch.mask_NK] for batch in batches]).astype(np.float64)
    probability_gap = np.abs(np.exp(sampler) - np.exp(trainer))
    return {
        "training/rollout_logprob_diff_max": float(np.abs(sampler - trainer).max()),
        "training/rollout_logprob_diff_mean": float(np.abs(sampler - trainer).mean()),
        "training/rollout_probs_diff_max": float(probability_gap.max()),
        "training/rollout_probs_diff_mean": float(probability_gap.mean()),
        "training/rollout_probs_diff_std": float(probability_gap.std()),
    }


_EXTREMES = {"log_ratio_max": max, "log_ratio_min": min, "ratio_error_max": max}


def update_metrics(results: Sequence[UpdateResult]) -> dict[str, float]:
    """Means over the step's updates; extremes where a mean would hide them."""
    metrics = {
        "actor/pg_loss": float(np.mean([result.loss for result in results])),
        "actor/grad_norm": float(np.mean([result.grad_norm for result in results])),
        "actor/first_ratio_error_max": results[0].metrics["ratio_error_max"],
        "actor/updates": len(results),
    }
    for name in results[0].metrics:
        values = [result.metrics[name] for result in results]
        metrics[f"actor/{name}"] = float(_EXTREMES[name](values) if name in _EXTREMES else np.mean(values))
    return metrics


def perf_metrics(groups: Sequence[Group], timers: Timers) -> dict[str, float]:
    """Throughput by the step's own timers, memory, and the timings themselves."""
    response_tokens = sum(response.length for group in groups for response in group.responses)
    prompt_tokens = sum(group.prompt.ids.size * len(group.responses) for group in groups)
    timings = timers.collect()
    return {
        **timings,
        "perf/total_num_tokens": prompt_tokens + response_tokens,
        "perf/throughput": (prompt_tokens + response_tokens) / timings["timing_s/step"],
        "perf/time_per_step": timings["timing_s/step"],
        "perf/gen_tokens_per_second": response_tokens / timings["timing_s/gen"],
        "perf/cpu_memory_used_gb": rss_gb(),
        "perf/peak_rss_mb": peak_rss_mb(),
    }
