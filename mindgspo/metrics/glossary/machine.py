"""Glossary: sampling and its agreement with training, progress, time and memory, supervised warm-up."""

from __future__ import annotations

from mindgspo.metrics.glossary.entry import GlossarySection, MetricInfo

_MISMATCH = "a growing trend: stale rollout weights or a numeric difference between the two graphs"

MISMATCH = GlossarySection(
    title="Sampler against trainer",
    metrics={
        "training/rollout_logprob_diff_max": MetricInfo(
            "largest difference between the sampler's and the trainer's token log-probability",
            "nat",
            "float32 below 1e-4; bfloat16 below 1",
            _MISMATCH,
        ),
        "training/rollout_logprob_diff_mean": MetricInfo(
            "mean of that difference", "nat", "float32 below 1e-5; bfloat16 below 0.02", _MISMATCH
        ),
        "training/rollout_probs_diff_max": MetricInfo(
            "largest difference between the sampler's and the trainer's token probability",
            "",
            "float32 below 1e-3; bfloat16 below 0.1",
            _MISMATCH,
        ),
        "training/rollout_probs_diff_mean": MetricInfo(
            "mean of that difference", "", "float32 below 1e-5; bfloat16 below 0.01", _MISMATCH
        ),
        "training/rollout_probs_diff_std": MetricInfo(
            "standard deviation of that difference", "", "of the order of its mean", _MISMATCH
        ),
        "training/rollout_actor_probs_pearson_corr": MetricInfo(
            "correlation of the sampler's and the trainer's token probabilities; absent where one does not vary",
            "",
            "above 0.999",
            "below 0.99: the two compute with other weights, positions or temperatures, not only with other rounding",
        ),
        "rollout_corr/kl": MetricInfo(
            "KL divergence from sampler to trainer per response token, estimated by the mean log-probability gap",
            "nat",
            "of the order of the next one; may be slightly negative",
            _MISMATCH,
        ),
        "rollout_corr/k3_kl": MetricInfo(
            "the same divergence by the estimate that is never negative; one token that is far off shows here first",
            "nat",
            "float32 below 1e-8; bfloat16 below 0.005",
            "above 0.01: look at training/rollout_actor_probs_pearson_corr for the kind, and at the largest "
            "differences for single tokens; algorithm.rollout_correction bounds what they do",
        ),
        "rollout_corr/weight_mean": MetricInfo(
            "mean weight that corrects the mismatch of sampler and trainer (algorithm.rollout_correction)",
            "",
            "0.95 to 1.05",
            "far below 1: many weights are cut or masked; see rollout_corr/clipped_share",
        ),
        "rollout_corr/weight_max": MetricInfo(
            "largest weight",
            "",
            "at most algorithm.rollout_correction.max",
            "always at the bound: the mismatch is large; see training/rollout_logprob_diff_mean",
        ),
        "rollout_corr/weight_min": MetricInfo(
            "smallest weight",
            "",
            "above 0.5; 0 where mode is mask and a weight was out of range",
            "near 0: the trainer finds what the sampler did unlikely; see training/rollout_logprob_diff_mean",
        ),
        "rollout_corr/ess": MetricInfo(
            "effective sample size of the weights, (sum w)^2 / (n sum w^2), as a share of their number",
            "share",
            "above 0.9",
            "below 0.5 a few samples decide the update: refresh the sampler's weights more often, use the same "
            "numeric type for sampling and training, or correct per token",
        ),
        "rollout_corr/clipped_share": MetricInfo(
            "weights that were truncated or masked",
            "share",
            "below 0.05",
            "above: the mismatch is large; find its cause before widening algorithm.rollout_correction.max",
        ),
    },
)

ROLLOUT = GlossarySection(
    title="Rollout engine",
    metrics={
        "rollout/prefill_calls": MetricInfo("prefill runs", "calls", "one per prompt: siblings share it"),
        "rollout/decode_steps": MetricInfo(
            "decode graph runs",
            "calls",
            "about tokens / rollout.slots",
            "far above: few slots are busy; see rollout/busy_slot_share",
        ),
        "rollout/busy_slot_share": MetricInfo(
            "decode slots that held an unfinished response",
            "share",
            "above 0.9 on long runs",
            "fewer rollout.slots",
        ),
        "rollout/slot_refills": MetricInfo(
            "finished responses whose slot was given to a waiting one",
            "responses",
            "generated responses minus rollout.slots",
        ),
    },
)

PROGRESS = GlossarySection(
    title="Progress, time and memory",
    metrics={
        "training/global_step": MetricInfo("training steps done: one rollout with all its updates", "steps"),
        "training/epoch": MetricInfo(
            "passes over the prompts", "epochs", "a few", "many on few prompts: compare with held-out accuracy"
        ),
        "training/updates": MetricInfo("optimizer updates done since the start", "updates"),
        "training/weight_version": MetricInfo(
            "version stamp of the weights that sampled", "", "rises by the updates of each step"
        ),
        "timing_s/<phase>": MetricInfo(
            "wall time of a phase: gen, reward, old_log_prob, adv, update_actor, update_weights, step, testing, "
            "warm_up",
            "s",
            "gen and update_actor are the largest",
            "reward large: a slow verifier; update_weights large: see the parallel plans",
        ),
        "perf/total_num_tokens": MetricInfo("prompt and response tokens of the step", "tokens"),
        "perf/throughput": MetricInfo(
            "total_num_tokens per second and device",
            "tokens/s",
            "steady after the first steps, which compile",
            "falling: longer responses, ever more compiled graphs, or a machine that is shared",
        ),
        "perf/time_per_step": MetricInfo("wall time of the step", "s", "steady after the first steps"),
        "perf/gen_tokens_per_second": MetricInfo(
            "response tokens per second of generation",
            "tokens/s",
            "grows with rollout.slots, to a limit",
            "low: raise rollout.slots while memory allows",
        ),
        "perf/cpu_memory_used_gb": MetricInfo(
            "resident memory of this process",
            "GB",
            "steady after a few steps",
            "steady growth is a leak: report it",
        ),
        "perf/cpu_memory_used_max_gb": MetricInfo(
            "the largest resident memory of any rank, where there are several",
            "GB",
            "steady after a few steps",
            "steady growth is told with its rank (watch.memory_growth)",
        ),
        "perf/peak_rss_mb": MetricInfo(
            "largest resident memory of this process so far", "MB", "below the machine's memory"
        ),
        "perf/max_memory_allocated_gb": MetricInfo(
            "largest device memory in use so far",
            "GB",
            "below the card's memory",
            "close to it: lower trainer.samples_per_micro_batch or rollout.slots",
        ),
        "perf/num_graph_compilations": MetricInfo(
            "graphs compiled so far",
            "graphs",
            "stops rising after a few steps",
            "raise trainer.length_multiple, so that fewer lengths occur",
        ),
    },
)

BATCHES = GlossarySection(
    title="Batches of the updates",
    metrics={
        "global_seqlen/min": MetricInfo(
            "tokens of the replica with fewest in an update, had each taken as many samples in the order of the step",
            "tokens",
        ),
        "global_seqlen/max": MetricInfo("of the replica with most, likewise", "tokens"),
        "global_seqlen/minmax_diff": MetricInfo("the difference of the two: what balancing has to even out", "tokens"),
        "global_seqlen/balanced_min": MetricInfo(
            "tokens of the replica with fewest in an update, as they are", "tokens", "close to global_seqlen/mean"
        ),
        "global_seqlen/balanced_max": MetricInfo(
            "of the replica with most; the others wait for it",
            "tokens",
            "close to global_seqlen/mean",
            "trainer.balance_batches=true, more samples per update, or trainer.packing",
        ),
        "global_seqlen/mean": MetricInfo("tokens of a replica in an update", "tokens"),
        "training/padding_share": MetricInfo(
            "token slots of the updates that hold padding",
            "share",
            "below 0.1 with trainer.packing",
            "trainer.packing with trainer.max_tokens_per_micro_batch, see docs/batches.md",
        ),
        "training/micro_batches_per_update": MetricInfo(
            "forward and backward passes of a replica in an update",
            "calls",
            "few",
            "raise trainer.max_tokens_per_micro_batch or trainer.samples_per_micro_batch while memory allows",
        ),
    },
)

WARMUP = GlossarySection(
    title="Supervised warm-up",
    metrics={
        "sft/loss": MetricInfo(
            "mean negative log-likelihood of the solution tokens",
            "nat",
            "falls",
            "stays: raise warmup.lr or warmup.max_steps; rises: lower warmup.lr",
        ),
        "sft/token_probability": MetricInfo("mean probability of the solution tokens", "", "rises"),
        "sft/grad_norm": MetricInfo(
            "global L2 norm of the gradient before clipping", "", "falls and settles", "spikes: lower warmup.lr"
        ),
        "sft/lr": MetricInfo(
            "learning rate of the last warm-up update", "", "a cosine down to optimizer.min_lr_ratio of warmup.lr"
        ),
        "sft/updates": MetricInfo("warm-up updates done", "updates", "at most warmup.max_steps"),
        "sft/accuracy": MetricInfo(
            "greedy accuracy on the rows that decide when the warm-up ends",
            "share of problems",
            "rises; 0.3 to 0.8 is a good start for reinforcement learning",
            "near 0: warm up longer, no response would ever be rewarded",
        ),
    },
)
