"""Glossary: the policy's update, from the loss to the learning rate."""

from __future__ import annotations

from mindgspo.metrics.glossary.entry import GlossarySection, MetricInfo

CLIP_BAND = (0.02, 0.6)
"""Healthy share of clipped responses for gspo with the paper's clip range and several updates per rollout."""

_LOWER_LR = "lower optimizer.lr, or use fewer updates per rollout"

CLIPPING = GlossarySection(
    title="Clipping",
    metrics={
        "actor/pg_clipfrac_seq": MetricInfo(
            "share of responses whose ratio is clipped; with a ratio per token, mean over responses of the share of "
            "their tokens",
            "share of responses",
            f"gspo {CLIP_BAND[0]:g} to {CLIP_BAND[1]:g}; grpo below 0.01; exactly 0 with one update per rollout",
            f"above: {_LOWER_LR}; below: the clip range is too wide to act, or lr is tiny",
        ),
        "actor/pg_clipfrac": MetricInfo(
            "share of response tokens whose ratio is clipped",
            "share of tokens",
            "as actor/pg_clipfrac_seq; in the paper 0.15 for gspo against 0.0013 for grpo",
            "far above actor/pg_clipfrac_seq: long responses are clipped more often; check response_length",
        ),
        "actor/pg_clipfrac_pos_seq": MetricInfo(
            "responses clipped above, where the advantage is positive: they have become likelier than the range allows",
            "share of responses",
            "of the order of actor/pg_clipfrac_neg_seq",
            "much larger: raise clip_high a little, or lower optimizer.lr",
        ),
        "actor/pg_clipfrac_neg_seq": MetricInfo(
            "responses clipped below, where the advantage is negative: they have become less likely than the range "
            "allows",
            "share of responses",
            "of the order of actor/pg_clipfrac_pos_seq",
            "much larger: the policy mostly unlearns; watch actor/entropy, lower optimizer.lr",
        ),
        "actor/pg_clipfrac_pos": MetricInfo(
            "tokens clipped above, where the advantage is positive",
            "share of tokens",
            "as actor/pg_clipfrac_pos_seq",
        ),
        "actor/pg_clipfrac_neg": MetricInfo(
            "tokens clipped below, where the advantage is negative",
            "share of tokens",
            "as actor/pg_clipfrac_neg_seq",
        ),
        "actor/pg_clipfrac_lower": MetricInfo(
            "tokens whose loss is capped by the dual clip (clip_ratio_c), where the advantage is negative",
            "share of tokens",
            "0 to 0.001",
            f"the policy has moved far from the one that sampled: {_LOWER_LR}",
        ),
    },
)

RATIO = GlossarySection(
    title="Importance ratio",
    metrics={
        "actor/first_ratio_error_max": MetricInfo(
            "largest |ratio - 1| on the first mini-batch after a rollout, before any update",
            "",
            "below trainer.max_ratio_error; float32 about 1e-6, bfloat16 about 2e-3",
            "the run stops: temperature, padding, positions or weights differ between old and new log-probabilities",
        ),
        "actor/log_ratio_mean": MetricInfo(
            "mean log of the importance ratio, log s for gspo; every response weighs 1",
            "nat",
            "|x| below 0.01",
            _LOWER_LR,
        ),
        "actor/log_ratio_min": MetricInfo(
            "smallest log ratio of the step", "nat", "above -1; gspo mostly above -0.1", _LOWER_LR
        ),
        "actor/log_ratio_max": MetricInfo(
            "largest log ratio of the step", "nat", "below 1; gspo mostly below 0.1", _LOWER_LR
        ),
        "actor/log_ratio_hist/<bin>": MetricInfo(
            "share of responses (one ratio per response) or of tokens (one per token) whose log ratio lies in the bin; "
            "the bins are signed decades and sum to 1",
            "share",
            "centred on 0; gspo: most between -1e-2 and 1e-2",
            f"outer bins fill up: {_LOWER_LR}; all in within_1e-4: one update per rollout, or lr is tiny",
        ),
        "actor/ratio_error_mean": MetricInfo(
            "mean |ratio - 1|",
            "",
            "gspo 3e-4 to 1e-2; grpo 0.01 to 0.1",
            f"above: {_LOWER_LR}; below: clipping cannot act",
        ),
        "actor/ratio_error_max": MetricInfo("largest |ratio - 1|", "", "below 1", _LOWER_LR),
        "actor/ppo_kl": MetricInfo(
            "mean of old minus new log-probability per token since the rollout", "nat", "|x| below 0.01", _LOWER_LR
        ),
        "actor/ppo_kl_seq": MetricInfo("the same, every response weighing 1", "nat", "|x| below 0.01", _LOWER_LR),
        "actor/updates": MetricInfo(
            "optimizer updates made from the step's rollout",
            "updates",
            "4 in the paper; 2 to 8",
            "1: the ratio is always 1 and nothing is clipped, which is legal but plain policy gradient; more than 8: "
            "watch actor/pg_clipfrac_seq, lower optimizer.lr",
        ),
        "actor/updates_skipped": MetricInfo(
            "updates of the step that were skipped because loss or gradient was not finite (trainer.on_nonfinite=skip)",
            "updates",
            "0",
            "look at the batches in run_dir/failures; several in a row: lower optimizer.lr or optimizer.max_grad_norm",
        ),
    },
)

LOSS = GlossarySection(
    title="Loss, KL and entropy",
    metrics={
        "actor/pg_loss": MetricInfo(
            "policy loss, averaged over the step's updates",
            "",
            "small and noisy around 0; it need not fall",
            "judge progress by critic/score/mean",
        ),
        "actor/loss": MetricInfo(
            "what is differentiated: policy loss plus KL penalty minus entropy bonus",
            "",
            "close to actor/pg_loss",
            "far from it: algorithm.kl.coef or algorithm.entropy_coef outweighs the reward",
        ),
        "actor/kl": MetricInfo(
            "mean KL estimate per response token between the policy and the reference, by the estimator that is set",
            "nat",
            "grows slowly, below 0.2; k1 may be slightly negative",
            "above: raise algorithm.kl.coef or lower optimizer.lr; read samples.jsonl for language that has drifted",
        ),
        "actor/kl_loss": MetricInfo(
            "KL penalty as it enters the loss, aggregated, before its coefficient",
            "nat",
            "as actor/kl (with a -norm aggregation: times length)",
            "actor/kl_coef * actor/kl_loss far above |actor/pg_loss|: lower algorithm.kl.coef",
        ),
        "actor/kl_coef": MetricInfo(
            "coefficient of the KL penalty",
            "",
            "constant, or settling when algorithm.kl.target is set",
            "still rising: algorithm.kl.target is lower than what the learning rate allows",
        ),
        "critic/kl": MetricInfo(
            "mean KL estimate per response token, as subtracted from the reward before its coefficient",
            "nat",
            "as actor/kl",
            "above: raise algorithm.kl.coef or lower optimizer.lr",
        ),
        "critic/reference_version": MetricInfo(
            "version of the reference policy's weights, counted in updates; of a moving average the average version",
            "updates",
            "constant where the reference is frozen, else rising",
        ),
        "critic/reference_age": MetricInfo(
            "updates by which the reference policy lags behind the policy that is scored",
            "updates",
            "grows with the run where the reference is frozen; else at most algorithm.kl.reference.every times the "
            "updates per step, of a moving average about updates per step / (1 - decay)",
            "large while actor/kl presses against the reward: let the reference follow (algorithm.kl.reference.mode)",
        ),
        "actor/entropy": MetricInfo(
            "mean entropy of the policy at the response tokens",
            "nat",
            "falls slowly",
            "a collapse towards 0 ends exploration: lower lr, raise clip_high; a rise without end: lower entropy_coef",
        ),
    },
)

GRADIENT = GlossarySection(
    title="Gradient and learning rate",
    metrics={
        "actor/grad_norm": MetricInfo(
            "global L2 norm of the gradient before clipping",
            "",
            "steady; mostly below a few times optimizer.max_grad_norm",
            f"spikes: {_LOWER_LR}; exactly 0: no group had any signal",
        ),
        "actor/grad_share_length_decile/<decile>": MetricInfo(
            "share of the gradient in one tenth of the step's responses, ranked by length (1: shortest); a response "
            "weighs sum_t |d loss / d logp_t|, the tenths sum to 1",
            "share of the gradient",
            "seq-mean-token-mean: each near 0.1; token-mean: grows like the length",
            "decile 10 above 0.3: a few long responses decide the update; use seq-mean-token-mean, or look at what "
            "the longest responses are",
        ),
        "actor/lr": MetricInfo(
            "learning rate of the last update",
            "",
            "the schedule you set; large models 1e-6, the tiny quickstart 5e-5",
        ),
    },
)
