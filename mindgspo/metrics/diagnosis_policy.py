"""Rules about the policy's updates: clipping, ratio, KL, correction weights, gradient, entropy.

Called by `diagnosis`.
"""

from __future__ import annotations

from mindgspo.metrics.finding import Finding, Level, Rule, ShareRule, recent
from mindgspo.metrics.names import CLIP_BAND
from mindgspo.metrics.recorded import Recorded
from mindgspo.metrics.run_settings import run_settings

TOKEN_CLIP_LIMIT = 0.05
"""Share of clipped tokens that is still usual where every token has a ratio of its own."""


def _clip_fraction(run: Recorded) -> Finding | None:
    settings = run_settings(run)
    if settings.clips_responses is False:
        return _token_clip_fraction(run, settings.algorithm)
    share = recent(run, "actor/pg_clipfrac_seq", "actor/pg_clipfrac")
    if share is None:
        return None
    low, high = CLIP_BAND
    text = f"{share:.1%} of the responses had a clipped ratio (healthy for gspo: {low:.0%} to {high:.0%})"
    if share == 0.0 and recent(run, "actor/updates") == 1:
        return Finding(Level.GOOD, f"{text}; with one update per rollout the ratio is 1 and nothing can be clipped")
    if share == 0.0:
        return Finding(
            Level.WARN,
            text,
            "With one update per rollout the ratio is 1 and clipping cannot act: that is expected. Otherwise "
            "the clip range is too wide.",
        )
    if share > high:
        return Finding(Level.WARN, text, "Lower optimizer.lr or use fewer updates per rollout.")
    if share < low:
        return Finding(Level.WARN, text, "Normal for grpo. For gspo: the clip range is too wide to act, or lr is tiny.")
    return Finding(Level.GOOD, text)


def _token_clip_fraction(run: Recorded, algorithm: str | None) -> Finding | None:
    share = recent(run, "actor/pg_clipfrac")
    if share is None:
        return None
    text = f"{share:.2%} of the tokens had a clipped ratio (usual for {algorithm}: below {TOKEN_CLIP_LIMIT:.0%})"
    if share <= TOKEN_CLIP_LIMIT:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "Lower optimizer.lr or use fewer updates per rollout.")


def _kl(run: Recorded) -> Finding | None:
    distance = recent(run, "actor/kl", "critic/kl")
    if distance is None:
        return None
    text = f"the policy is {distance:.3g} nat per token away from the reference (KL estimate)"
    level = Level.ALARM if distance > 1.0 else Level.WARN if distance > 0.2 else Level.GOOD
    advice = "Raise algorithm.kl.coef or lower optimizer.lr, and read the samples: has the language drifted?"
    return Finding(level, text, "" if level is Level.GOOD else advice)


def _effective_sample_size(run: Recorded) -> Finding | None:
    share = recent(run, "rollout_corr/ess")
    if share is None:
        return None
    text = f"the weights against the sampler's mismatch leave an effective sample size of {share:.1%}"
    level = Level.ALARM if share < 0.2 else Level.WARN if share < 0.5 else Level.GOOD
    advice = (
        "A few samples decide the updates: sample and train with the same numeric type, refresh the sampler's weights "
        "more often, or correct per token."
    )
    return Finding(level, text, "" if level is Level.GOOD else advice)


def _mismatch(run: Recorded) -> Finding | None:
    distance, gap = recent(run, "rollout_corr/k3_kl"), recent(run, "training/rollout_probs_diff_mean")
    if distance is None or gap is None:
        return None
    text = (
        f"sampler and trainer disagree on the same tokens by {distance:.2g} nat per token (k3), by {gap:.2g} in "
        "probability"
    )
    level = Level.ALARM if distance > 0.1 else Level.WARN if distance > 0.01 or gap > 0.01 else Level.GOOD
    advice = (
        "Look at training/rollout_actor_probs_pearson_corr: far below 1 means other weights, positions or temperature; "
        "near 1 means rounding, which algorithm.rollout_correction bounds."
    )
    return Finding(level, text, "" if level is Level.GOOD else advice)


def _gradient_by_length(run: Recorded) -> Finding | None:
    longest = recent(run, "actor/grad_share_length_decile/10")
    if longest is None:
        return None
    text = f"the longest tenth of the responses had {longest:.0%} of the gradient (equal weight: 10%)"
    if longest <= 0.3:
        return Finding(Level.GOOD, text)
    advice = "Set algorithm.loss_agg_mode=seq-mean-token-mean, or look at what the longest responses are."
    return Finding(Level.WARN, text, advice)


def _first_ratio(run: Recorded) -> Finding | None:
    series = run.series("actor/first_ratio_error_max")
    if not series:
        return None
    worst = max(series.values)
    text = f"before the first update of a rollout the ratio differed from 1 by at most {worst:.1e}"
    if worst < 2e-3:
        return Finding(Level.GOOD, text)
    advice = "Temperature, padding, positions or weights differ between old and new log-probabilities."
    return Finding(Level.ALARM, text, advice)


def _entropy(run: Recorded) -> Finding | None:
    series = run.series("actor/entropy")
    if len(series.values) < 6 or series.values[0] <= 0:
        return None
    start, now = series.values[0], series.recent_mean(3)
    text = f"entropy went from {start:.3g} to {now:.3g} nat per token"
    if now >= 0.05 * start:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "The policy hardly explores now: lower optimizer.lr or raise clip_high.")


POLICY_RULES: tuple[Rule, ...] = (
    _clip_fraction,
    ShareRule(
        keys=("actor/pg_clipfrac_lower",),
        text="of the tokens were capped by the dual clip",
        warn=0.001,
        alarm=0.05,
        advice="The policy moved far from the one that sampled: lower optimizer.lr or use fewer updates per rollout.",
    ),
    _first_ratio,
    _kl,
    _mismatch,
    _effective_sample_size,
    _gradient_by_length,
    _entropy,
)
