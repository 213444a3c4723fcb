"""Rules of the diagnosis over training metrics: rewards, lengths, clipping, ratio, KL, gradient, entropy, memory.

A rule looks at the mean over the last steps and returns a `Finding`, or None where its metric was not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mindgspo.metrics.run_folder import HELD_OUT_ACCURACY, Recorded, held_out_figures, run_settings

RECENT_STEPS = 20
"""Rules look at the mean over this many last steps."""


class Level(str, Enum):
    """ALARM: the run cannot learn like this. WARN: worth a look. GOOD: checked and healthy."""

    ALARM = "alarm"
    WARN = "warn"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Finding:
    """level; text: what was seen, with its number; advice: what to do, "" where nothing needs doing."""

    level: Level
    text: str
    advice: str = ""


Rule = Callable[[Recorded], "Finding | None"]
"""Looks at a run; None where it has nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRule:
    """A share that must not be high. Above `alarm` or `warn` (shares in [0, 1]) it becomes a finding."""

    keys: tuple[str, ...]
    text: str
    warn: float
    alarm: float
    advice: str

    def __call__(self, run: Recorded) -> Finding | None:
        share = recent(run, *self.keys)
        if share is None:
            return None
        level = Level.ALARM if share > self.alarm else Level.WARN if share > self.warn else Level.GOOD
        return Finding(level, f"{share:.1%} {self.text}", "" if level is Level.GOOD else self.advice)


def recent(run: Recorded, *keys: str, count: int = RECENT_STEPS) -> float | None:
    """Mean over the last `count` values of the first of `keys` that was recorded."""
    return next((series.recent_mean(count) for key in keys if (series := run.series(key))), None)


# ----- rewards, lengths, memory


def _reward_trend(run: Recorded) -> Finding | None:
    series = run.series("critic/score/mean")
    if len(series.values) < 6:
        return None
    third = len(series.values) // 3
    early, late = sum(series.values[:third]) / third, series.recent_mean(third)
    text = f"mean reward {early:.3f} in the first third of the steps, {late:.3f} in the last"
    if late > early:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "Look for an alarm in this list; otherwise raise optimizer.lr with care.")


def _cut(run: Recorded) -> Finding | None:
    limit = run_settings(run).max_new_tokens
    rule = ShareRule(
        keys=("response_length/clip_ratio",),
        text="of the responses were cut at " + ("max_new_tokens" if limit is None else f"{limit:,} tokens"),
        warn=0.1,
        alarm=0.5,
        advice="Raise rollout.max_new_tokens: a cut response seldom holds an answer, so nothing is rewarded.",
    )
    return rule(run)


def _no_signal(run: Recorded) -> Finding | None:
    is_accuracy = held_out_figures(run)[0] is HELD_OUT_ACCURACY
    solved = recent(run, "reward/correct_ratio") if is_accuracy else None
    if solved is not None and solved > 0.9:
        cause = f"{solved:.0%} of the responses are correct: choose harder prompts"
    elif solved is not None and solved < 0.1:
        cause = f"{solved:.0%} of the responses are correct: choose easier prompts, or begin with a supervised warm-up"
    else:
        cause = "Choose prompts " + ("that are solved sometimes" if is_accuracy else "whose responses differ in reward")
    rule = ShareRule(
        keys=("reward/zero_signal_group_ratio",),
        text="of the groups had equal rewards, hence no gradient",
        warn=0.7,
        alarm=0.9,
        advice=f"{cause}, enlarge the group, or raise the temperature.",
    )
    return rule(run)


def memory_growth(run: Recorded) -> Finding | None:
    series = run.series("perf/cpu_memory_used_gb")
    if len(series.values) < 12:
        return None
    half = len(series.values) // 2
    growth = series.recent_mean(3) / max(series.values[half], 1e-9) - 1
    text = f"resident memory changed by {growth:+.1%} over the second half of the run"
    if growth < 0.1:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "A leak, or ever more compiled graphs: raise trainer.length_multiple.")


def _only_if_high(rule: ShareRule) -> Rule:
    """Names a cause of `reward/invalid_ratio`; silent while there is none."""

    def apply(run: Recorded) -> Finding | None:
        finding = rule(run)
        return None if finding is None or finding.level is Level.GOOD else finding

    return apply


REWARD_RULES: tuple[Rule, ...] = (
    _reward_trend,
    _cut,
    _no_signal,
    ShareRule(
        keys=("reward/no_answer_ratio",),
        text="of the responses held no recognisable answer",
        warn=0.2,
        alarm=0.8,
        advice="Read the samples below: is the answer format the one that the reward function reads?",
    ),
    ShareRule(
        keys=("reward/invalid_ratio",),
        text="of the responses could not be scored (error, timeout, unreadable gold answer)",
        warn=0.0,
        alarm=0.05,
        advice="They are left out; samples.jsonl has the verdict of each and the message of those that failed.",
    ),
    _only_if_high(
        ShareRule(
            keys=("reward/timeout_ratio",),
            text="of the responses ran out of time while they were scored",
            warn=0.02,
            alarm=0.1,
            advice="Make your reward function faster, or raise reward.workers.timeout_s; the message in samples.jsonl "
            "names the function.",
        )
    ),
    _only_if_high(
        ShareRule(
            keys=("reward/error_ratio",),
            text="of the responses got no reward from a function that failed or abstained",
            warn=0.02,
            alarm=0.1,
            advice="Read the message in samples.jsonl: it holds the exception, or says that the worker died (then see "
            "reward.workers.memory_mb).",
        )
    ),
)


# ----- the policy's updates


CLIP_BAND = (0.02, 0.6)
"""Healthy share of clipped responses for gspo with the paper's clip range and several updates per rollout."""

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
    if distance == gap == 0:
        text = "sampler and trainer agree exactly on the same tokens"
    else:
        text = f"sampler and trainer disagree on the same tokens by {distance:.2g} nat per token (k3), by {gap:.2g} in "
        text += "probability"
    if (behind := recent(run, "staleness/token_mean")) is not None and behind > 0:
        return Finding(Level.GOOD, f"{text}; the sampler's weights were {behind:.2g} steps behind")
    level = Level.ALARM if distance > 0.1 else Level.WARN if distance > 0.01 or gap > 0.01 else Level.GOOD
    advice = (
        "Look at training/rollout_actor_probs_pearson_corr: far below 1 means other weights, positions or temperature; "
        "near 1 means rounding, which algorithm.rollout_correction bounds."
    )
    return Finding(level, text, "" if level is Level.GOOD else advice)


def _routing(run: Recorded) -> Finding | None:
    share = recent(run, "router/mismatch")
    if share is None:
        return None
    text = f"{share:.2%} of the experts that tokens were trained with were not those of the sampler"
    level = Level.ALARM if share > 0.2 else Level.WARN if share > 0.05 else Level.GOOD
    advice = "Set algorithm.router_replay=rollout, use fewer updates per rollout, or lower optimizer.lr."
    return Finding(level, text, "" if level is Level.GOOD else advice)


def _expert_load(run: Recorded) -> Finding | None:
    peak, entropy = recent(run, "router/load_max_over_mean"), recent(run, "router/load_entropy")
    dead = recent(run, "router/dead_expert_share")
    if peak is None or entropy is None or dead is None:
        return None
    text = (
        f"the busiest expert of a layer had {peak:.1f} times the mean load, {dead:.0%} of all experts no token; the "
        f"most uneven layer's entropy was {entropy:.0%} of the largest"
    )
    level = Level.ALARM if dead > 0.7 else Level.WARN if dead > 0.3 or entropy < 0.6 else Level.GOOD
    advice = (
        "Look at router/layer_<layer>/ for the layer. Nothing here balances the load: lower optimizer.lr, or begin "
        "with a model whose routers are balanced."
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
    text = "before the first update of a rollout the ratio "
    text += f"differed from 1 by at most {worst:.1e}" if worst else "was exactly 1"
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


def _waiting(run: Recorded) -> Finding | None:
    trainer, servers = recent(run, "schedule/trainer_idle_share"), recent(run, "schedule/rollout_idle_share")
    if trainer is None or servers is None:
        return None
    behind = recent(run, "staleness/token_mean") or 0.0
    text = (
        f"the trainer waits {trainer:.0%} of a step, the servers have nothing to do {servers:.0%} of the time; trained "
        f"tokens are {behind:.2g} steps behind on average"
    )
    if max(trainer, servers) <= 0.3:
        return Finding(Level.GOOD, text)
    side, other = ("generation", "training") if trainer > servers else ("training", "generation")
    advice = f"Give {side} cards of {other}, or raise trainer.max_staleness."
    return Finding(Level.WARN, text, advice)


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
    _waiting,
    _routing,
    _expert_load,
    _gradient_by_length,
    _entropy,
)
