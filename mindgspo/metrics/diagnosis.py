"""Why a run does or does not learn, in words: a small table of rules over the last steps' metrics.

What enters: what a run has recorded. What leaves: findings, the gravest first. Called by `report`, and by `verdict`
after each evaluation. A rule whose metric was not recorded says nothing.
"""

from __future__ import annotations

from mindgspo.metrics.diagnosis_evaluation import EVALUATION_RULES, accuracy_change
from mindgspo.metrics.diagnosis_policy import POLICY_RULES
from mindgspo.metrics.diagnosis_verdicts import VERDICT_RULES
from mindgspo.metrics.finding import Finding, Level, Rule, ShareRule, recent
from mindgspo.metrics.recorded import Recorded, overall_accuracy
from mindgspo.metrics.run_settings import run_settings


def _accuracy(run: Recorded) -> Finding | None:
    """With its interval where that was recorded."""
    judged = accuracy_change(run)
    if judged is not None:
        return judged
    before, after = accuracy_span(run)
    if before is None or after is None:
        return None
    text = f"held-out accuracy went from {before:.1%} to {after:.1%} ({(after - before) * 100:+.1f} points)"
    if after > before:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "If the training reward rose, the policy fits the training set only.")


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
    solved = recent(run, "reward/correct_ratio")
    if solved is not None and solved > 0.9:
        cause = f"{solved:.0%} of the responses are correct: choose harder prompts"
    elif solved is not None and solved < 0.1:
        cause = f"{solved:.0%} of the responses are correct: choose easier prompts, or begin with a supervised warm-up"
    else:
        cause = "Choose prompts that are solved sometimes"
    rule = ShareRule(
        keys=("reward/zero_signal_group_ratio",),
        text="of the groups had equal rewards, hence no gradient",
        warn=0.7,
        alarm=0.9,
        advice=f"{cause}, enlarge the group, or raise the temperature.",
    )
    return rule(run)


def _memory(run: Recorded) -> Finding | None:
    series = run.series("perf/cpu_memory_used_gb")
    if len(series.values) < 12:
        return None
    half = len(series.values) // 2
    growth = series.recent_mean(3) / max(series.values[half], 1e-9) - 1
    text = f"resident memory changed by {growth:+.1%} over the second half of the run"
    if growth < 0.1:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "A leak, or ever more compiled graphs: raise trainer.length_multiple.")


RULES: tuple[Rule, ...] = (
    _accuracy,
    _reward_trend,
    _cut,
    _no_signal,
    *VERDICT_RULES,
    *EVALUATION_RULES,
    *POLICY_RULES,
    _memory,
)

_GRAVITY = {Level.ALARM: 0, Level.WARN: 1, Level.GOOD: 2}


def diagnose(run: Recorded) -> list[Finding]:
    """All findings, the gravest first, otherwise in the order of `RULES`."""
    findings = [finding for rule in RULES if (finding := rule(run)) is not None]
    return sorted(findings, key=lambda finding: _GRAVITY[finding.level])


def accuracy_span(run: Recorded) -> tuple[float | None, float | None]:
    """Accuracy before and after: from the summary, else the first and the last evaluation."""
    before, after = run.summary.get("accuracy_before"), run.summary.get("accuracy_after")
    series = overall_accuracy(run)
    if len(series.values) > 1:
        before = series.values[0] if before is None else before
        after = series.values[-1] if after is None else after
    return _number(before), _number(after)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
