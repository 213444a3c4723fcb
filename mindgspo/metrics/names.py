"""The glossary: every metric that a run may write, what it means and what to do about it.

Names follow the field's convention (verl), so that curves of different suites can be laid side by side.
Read by `report` and by the test that a run writes no name outside this table. `<...>` in a name is a
placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One line of the glossary; unit is "" for a plain number, action is what to do outside `healthy`."""

    meaning: str
    unit: str = ""
    healthy: str = ""
    action: str = ""


CLIP_BAND = (0.02, 0.6)
"""Healthy share of clipped responses for gspo with the paper's clip range and several updates per rollout."""

_LOWER_LR = "lower optimizer.lr, or use fewer updates per rollout"
_SEE_SAMPLES = "read samples.jsonl: prompt, answer format and reward function must fit together"

METRICS: dict[str, MetricInfo] = {
    # ----- policy
    "actor/pg_loss": MetricInfo(
        "policy loss, averaged over the step's updates",
        healthy="small and noisy around 0; it need not fall",
        action="judge progress by critic/score/mean",
    ),
    "actor/loss": MetricInfo("total loss that is differentiated: policy loss plus regularisers"),
    "actor/pg_clipfrac": MetricInfo(
        "share of response tokens whose ratio is clipped", "share", "as actor/pg_clipfrac_seq for gspo"
    ),
    "actor/pg_clipfrac_seq": MetricInfo(
        "share of responses whose ratio is clipped",
        "share",
        f"gspo {CLIP_BAND[0]:g} to {CLIP_BAND[1]:g}; grpo below 0.01; exactly 0 with one update per rollout",
        "above: " + _LOWER_LR + "; below: the clip range is too wide to act, or lr is tiny",
    ),
    "actor/pg_clipfrac_pos": MetricInfo("tokens clipped above, where the advantage is positive", "share"),
    "actor/pg_clipfrac_neg": MetricInfo("tokens clipped below, where the advantage is negative", "share"),
    "actor/pg_clipfrac_pos_seq": MetricInfo("responses clipped above, where the advantage is positive", "share"),
    "actor/pg_clipfrac_neg_seq": MetricInfo("responses clipped below, where the advantage is negative", "share"),
    "actor/ppo_kl": MetricInfo(
        "mean of old minus new log-probability per token since the rollout",
        "nat",
        "|x| below 0.01",
        _LOWER_LR,
    ),
    "actor/ppo_kl_seq": MetricInfo("the same, every response weighing 1", "nat", "|x| below 0.01", _LOWER_LR),
    "actor/log_ratio_mean": MetricInfo("mean log of the importance ratio", "nat", "near 0", _LOWER_LR),
    "actor/log_ratio_min": MetricInfo("smallest log ratio", "nat", "above -1", _LOWER_LR),
    "actor/log_ratio_max": MetricInfo("largest log ratio", "nat", "below 1", _LOWER_LR),
    "actor/ratio_error_mean": MetricInfo("mean |ratio - 1|", "", "of the order of the clip range"),
    "actor/ratio_error_max": MetricInfo("largest |ratio - 1|", "", "below 1", _LOWER_LR),
    "actor/first_ratio_error_max": MetricInfo(
        "largest |ratio - 1| on the first mini-batch after a rollout, before any update",
        "",
        "below trainer.max_ratio_error; float32 about 1e-6",
        "temperature, padding, positions or stale weights differ between old and new log-probabilities",
    ),
    "actor/entropy": MetricInfo(
        "mean entropy of the policy at the response tokens",
        "nat",
        "falls slowly",
        "a collapse towards 0 ends exploration: lower lr, raise clip_high",
    ),
    "actor/grad_norm": MetricInfo(
        "global L2 norm of the gradient before clipping",
        "",
        "steady; mostly below a few times optimizer.max_grad_norm",
        "spikes: " + _LOWER_LR,
    ),
    "actor/lr": MetricInfo("learning rate of the last update"),
    "actor/updates": MetricInfo("optimizer updates since the rollout", "updates"),
    # ----- rewards and advantages
    "critic/score/<stat>": MetricInfo(
        "reward of the valid responses, before shaping",
        "reward",
        "the mean rises",
        "flat: see the diagnosis lines (clipped responses, groups without signal, no answer found)",
    ),
    "critic/rewards/<stat>": MetricInfo("reward as it enters the advantages", "reward", "as critic/score"),
    "critic/advantages/<stat>": MetricInfo(
        "group-relative advantage", "std of the group", "mean 0; |max| below sqrt(G)"
    ),
    "reward/correct_ratio": MetricInfo("responses judged correct", "share of responses", "rises"),
    "reward/wrong_ratio": MetricInfo("responses with an answer that is wrong", "share of responses"),
    "reward/no_answer_ratio": MetricInfo(
        "responses without a recognisable answer",
        "share of responses",
        "below 0.2 and falling",
        "too short max_new_tokens, or an answer format the reward does not read; " + _SEE_SAMPLES,
    ),
    "reward/invalid_ratio": MetricInfo(
        "responses left out because no reward could be given (error, timeout, unreadable gold answer)",
        "share of responses",
        "0",
        "look for the verdicts error, timeout and unparseable_gold in samples.jsonl",
    ),
    "reward/zero_signal_group_ratio": MetricInfo(
        "groups whose responses all have the same reward, hence advantage 0 and no gradient",
        "share of groups",
        "below 0.7",
        "easier or harder prompts, a larger group, or a higher temperature",
    ),
    "reward/part/<name>/mean": MetricInfo("mean of one reward function before weighting", "reward"),
    # ----- account
    "samples/generated": MetricInfo("responses sampled", "responses", "= trained + filtered + dropped"),
    "samples/trained": MetricInfo("responses that entered the loss", "responses"),
    "samples/filtered": MetricInfo("responses taken out on purpose", "responses"),
    "samples/filtered/<reason>": MetricInfo("responses taken out on purpose, by reason", "responses"),
    "samples/dropped": MetricInfo("responses lost", "responses", "0"),
    "samples/dropped/<reason>": MetricInfo("responses lost, by reason", "responses", "0"),
    # ----- lengths
    "response_length/<stat>": MetricInfo("response length, end token included", "tokens"),
    "response_length/clip_ratio": MetricInfo(
        "responses cut at rollout.max_new_tokens",
        "share of responses",
        "below 0.1",
        "raise rollout.max_new_tokens; cut responses seldom hold an answer",
    ),
    "prompt_length/<stat>": MetricInfo("prompt length", "tokens"),
    "prompt_length/clip_ratio": MetricInfo("prompts cut to data.max_prompt_length", "share of prompts", "0"),
    # ----- rollout
    "rollout/prefill_calls": MetricInfo("prefill runs", "calls", "one per prompt: siblings share it"),
    "rollout/decode_steps": MetricInfo("decode graph runs", "calls"),
    "rollout/busy_slot_share": MetricInfo(
        "decode slots that held an unfinished response",
        "share",
        "above 0.9 on long runs",
        "fewer rollout.slots",
    ),
    "rollout/slot_refills": MetricInfo("finished responses whose slot was given to a waiting one", "responses"),
    "training/rollout_probs_diff_max": MetricInfo(
        "largest difference between the sampler's and the trainer's token probability",
        "",
        "float32 below 1e-3; bf16 below 0.1",
        "a growing trend: stale rollout weights or a numeric difference between the two graphs",
    ),
    "training/rollout_probs_diff_mean": MetricInfo("mean of that difference", "", "float32 below 1e-5"),
    "training/rollout_probs_diff_std": MetricInfo("standard deviation of that difference"),
    "training/rollout_logprob_diff_max": MetricInfo(
        "largest difference between the sampler's and the trainer's token log-probability",
        "nat",
        "float32 below 1e-4",
        "a growing trend: stale rollout weights or a numeric difference between the two graphs",
    ),
    "training/rollout_logprob_diff_mean": MetricInfo("mean of that difference", "nat", "float32 below 1e-5"),
    # ----- progress, time, resources
    "training/global_step": MetricInfo("training steps done: one rollout with all its updates", "steps"),
    "training/epoch": MetricInfo("passes over the prompts", "epochs"),
    "training/updates": MetricInfo("optimizer updates done since the start", "updates"),
    "training/weight_version": MetricInfo("version stamp of the weights that sampled"),
    "timing_s/<phase>": MetricInfo(
        "wall time of a phase: gen, reward, old_log_prob, adv, update_actor, update_weights, step, testing, "
        "save_checkpoint",
        "s",
    ),
    "perf/total_num_tokens": MetricInfo("prompt and response tokens of the step", "tokens"),
    "perf/throughput": MetricInfo("total_num_tokens per second and device", "tokens/s"),
    "perf/time_per_step": MetricInfo("wall time of the step", "s"),
    "perf/gen_tokens_per_second": MetricInfo("response tokens per second of generation", "tokens/s"),
    "perf/cpu_memory_used_gb": MetricInfo(
        "resident memory of this process",
        "GB",
        "steady after a few steps",
        "steady growth is a leak: report it",
    ),
    "perf/peak_rss_mb": MetricInfo("largest resident memory of this process so far", "MB"),
    "perf/max_memory_allocated_gb": MetricInfo("largest device memory in use so far", "GB"),
    "perf/num_graph_compilations": MetricInfo("graphs compiled so far", "graphs", "stops rising after a few steps"),
    # ----- evaluation
    "val-core/<source>/acc/mean@<n>": MetricInfo(
        "accuracy on held-out problems, mean over n samples each; mean@1 is greedy", "share", "rises"
    ),
    "val-core/<source>/acc/pass@<n>": MetricInfo(
        "problems solved by at least one of n samples (unbiased estimate)", "share", "at least mean@n"
    ),
    "val-aux/<source>/no_answer_ratio": MetricInfo(
        "evaluation responses without a recognisable answer", "share of responses", "below 0.2", _SEE_SAMPLES
    ),
    "val-aux/<source>/response_length/<stat>": MetricInfo("length of evaluation responses", "tokens"),
    "val-aux/<source>/response_length/clip_ratio": MetricInfo("evaluation responses cut", "share of responses"),
    "val-aux/<source>/num_problems": MetricInfo("held-out problems", "problems"),
    # ----- supervised warm-up
    "sft/loss": MetricInfo("mean negative log-likelihood of the solution tokens", "nat", "falls"),
    "sft/token_probability": MetricInfo("mean probability of the solution tokens", "", "rises"),
    "sft/grad_norm": MetricInfo("global L2 norm of the gradient before clipping"),
    "sft/lr": MetricInfo("learning rate of the last warm-up update"),
    "sft/updates": MetricInfo("warm-up updates done", "updates"),
    "sft/accuracy": MetricInfo("greedy accuracy on the rows that decide when the warm-up ends", "share", "rises"),
}

_PLACEHOLDERS = {
    "<stat>": r"(?:mean|max|min|std)",
    "<source>": r".+",
    "<n>": r"[1-9][0-9]*",
    "<reason>": r"[a-z0-9_]+",
    "<name>": r"[A-Za-z0-9_.-]+",
    "<phase>": r"[a-z0-9_]+(?:/[a-z0-9_]+)*",
}


def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"(<[a-z]+>)", name)
    return re.compile("".join(_PLACEHOLDERS.get(part, re.escape(part)) for part in parts))


_PATTERNS = {_pattern(name): name for name in METRICS if "<" in name}


def glossary_name(metric: str) -> str | None:
    """The glossary's name for a metric: timing_s/gen -> timing_s/<phase>. None: unknown."""
    if metric in METRICS:
        return metric
    return next((name for pattern, name in _PATTERNS.items() if pattern.fullmatch(metric)), None)


def unknown_names(metrics: Iterable[str]) -> list[str]:
    """The names among `metrics` (a mapping or any iterable of names) that the glossary lacks, sorted."""
    return sorted({name for name in metrics if name != "step" and glossary_name(name) is None})
