"""Why a run does or does not learn, in words: findings for the report and for the lines after each evaluation."""

from __future__ import annotations

import math

from mindgspo.config.data import CHANGE, OVERALL
from mindgspo.metrics.diagnosis_rules import POLICY_RULES, REWARD_RULES, Finding, Level, Rule, memory_growth, recent
from mindgspo.metrics.run_folder import Recorded, accuracies, accuracy_span, latest, run_settings

FEW_PROBLEMS = 8
"""A set with fewer can be solved, or missed, as a whole by chance."""

LONGER = 1.5
"""Responses that grew by this factor have grown."""


def interval_text(low: float, high: float) -> str:
    """A change in points, as text: "95 % interval -1.9 .. +2.7"."""
    return f"95 % interval {low * 100:+.1f} .. {high * 100:+.1f}"


def accuracy_change(run: Recorded) -> Finding | None:
    """Whether the accuracy has changed since the first evaluation, by an interval that knows the problems are the
    same."""
    change, low, high = (latest(run, name) for name in (CHANGE, f"{CHANGE}/low", f"{CHANGE}/high"))
    accuracy = latest(run, OVERALL)
    if change is None or low is None or high is None or accuracy is None:
        return None
    text = (
        f"held-out accuracy went from {accuracy - change:.1%} to {accuracy:.1%} ({change * 100:+.1f} points, "
        f"{interval_text(low, high)})"
    )
    if low > 0:
        return Finding(Level.GOOD, text)
    if high < 0:
        advice = "More than noise: go back to the best checkpoint and lower optimizer.lr, or read what changed in "
        return Finding(Level.ALARM, text, advice + "validation.jsonl.")
    half = (high - low) / 2
    advice = f"Train longer, or evaluate on more problems: these show changes of {half * 100:.1f} points or more."
    return Finding(Level.WARN, f"{text}: no change can be claimed", advice)


def _worst_part(run: Recorded, name: str) -> tuple[float, str] | None:
    """The highest latest value of val-aux/<part>/<name>, and its part."""
    found = [(value, part) for part in accuracies(run) if (value := latest(run, f"val-aux/{part}/{name}")) is not None]
    return max(found, default=None, key=lambda pair: pair[0])


def _cut(run: Recorded) -> Finding | None:
    worst = _worst_part(run, "response_length/clip_ratio")
    if worst is None or worst[0] <= 0.1:
        return None
    share, part = worst
    limit = run_settings(run).max_new_tokens
    length = "rollout.max_new_tokens" if limit is None else f"{limit:,} tokens"
    text = f"{share:.0%} of the evaluation's answers to {part} were cut at {length}"
    return Finding(Level.ALARM if share > 0.5 else Level.WARN, text, "Raise rollout.max_new_tokens.")


def _no_answer(run: Recorded) -> Finding | None:
    """A cut answer seldom holds one, which `_cut` says already."""
    beyond = {
        part: (latest(run, f"val-aux/{part}/no_answer_ratio") or 0.0)
        - (latest(run, f"val-aux/{part}/response_length/clip_ratio") or 0.0)
        for part in accuracies(run)
    }
    part = max(beyond, key=beyond.__getitem__, default=None)
    if part is None or beyond[part] <= 0.2:
        return None
    text = (
        f"no answer was recognised in {beyond[part]:.0%} of the evaluation's answers to {part}, though they were whole"
    )
    advice = "Read validation.jsonl: the prompt must ask for the form that the reward function reads."
    return Finding(Level.ALARM if beyond[part] > 0.8 else Level.WARN, text, advice)


def _failed(run: Recorded) -> Finding | None:
    worst = _worst_part(run, "failed_ratio")
    if worst is None or worst[0] == 0:
        return None
    text = f"{worst[0]:.1%} of the evaluation's answers to {worst[1]} could not be scored and count as not correct"
    advice = "validation.jsonl has the message of each; raise reward.workers.timeout_s if they took too long."
    return Finding(Level.ALARM if worst[0] > 0.05 else Level.WARN, text, advice)


def _part_without_news(solved: float, text: str, advice: str) -> Rule:
    """A rule for parts of which all, or no, problems are solved."""

    def rule(run: Recorded) -> Finding | None:
        for part, series in accuracies(run).items():
            number = latest(run, f"val-aux/{part}/num_problems")
            if number is not None and number >= FEW_PROBLEMS and math.isclose(series.values[-1], solved, abs_tol=1e-12):
                return Finding(Level.WARN, text.format(number=f"{number:,.0f}", part=part), advice)
        return None

    return rule


def _longer_but_no_better(run: Recorded) -> Finding | None:
    series, gain = run.series("response_length/mean"), latest(run, f"{CHANGE}/low")
    if len(series.values) < 12 or gain is None or gain > 0:
        return None
    start, now = sum(series.values[:4]) / 4, recent(run, "response_length/mean", count=4)
    if now is None or now < LONGER * start:
        return None
    text = f"responses grew from {start:.0f} to {now:.0f} tokens, and the accuracy did not"
    advice = (
        "Read the longest samples: does the text repeat itself? reward.overlong and reward.length charge for length."
    )
    return Finding(Level.WARN, text, advice)


EVALUATION_RULES: tuple[Rule, ...] = (
    _cut,
    _no_answer,
    _failed,
    _part_without_news(
        0.0,
        "none of the {number} problems of {part} is solved",
        "They are too hard to learn from, or the answers take a form that is not read: see validation.jsonl.",
    ),
    _part_without_news(
        1.0,
        "all {number} problems of {part} are solved, so they no longer tell checkpoints apart",
        "Evaluate on harder problems, too: data.eval takes several sets.",
    ),
    _longer_but_no_better,
)


def _accuracy(run: Recorded) -> Finding | None:
    """With its interval where that was recorded."""
    change = accuracy_change(run)
    if change is not None:
        return change
    before, after = accuracy_span(run)
    if before is None or after is None:
        return None
    text = f"held-out accuracy went from {before:.1%} to {after:.1%} ({(after - before) * 100:+.1f} points)"
    if after > before:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "If the training reward rose, the policy fits the training set only.")


RULES: tuple[Rule, ...] = (
    _accuracy,
    *REWARD_RULES,
    *EVALUATION_RULES,
    *POLICY_RULES,
    memory_growth,
)

_GRAVITY = {Level.ALARM: 0, Level.WARN: 1, Level.GOOD: 2}


def diagnose(run: Recorded) -> list[Finding]:
    """All findings, the gravest first, otherwise in the order of `RULES`."""
    findings = [finding for rule in RULES if (finding := rule(run)) is not None]
    return sorted(findings, key=lambda finding: _GRAVITY[finding.level])


MOST_FINDINGS = 3
"""Further ones are counted; the report has them."""


def verdict_lines(run: Recorded, *, step: int, best: str) -> list[str]:
    """The accuracy in one line, then the gravest findings. best: the best evaluation so far, as text.

    Empty for a run without an evaluation.
    """
    accuracy = latest(run, OVERALL)
    if accuracy is None:
        return []
    headline = f"evaluation at step {step}: accuracy {accuracy:.1%}{_interval(run)}{_change(run)}; {best}"
    moved = accuracy_change(run)
    said = set() if moved is None or moved.level is Level.ALARM else {moved.text}  # the headline says it
    findings = [one for one in diagnose(run) if one.level is not Level.GOOD and one.text not in said]
    if not findings:
        return [f"{headline}; nothing needs attention"]
    lines = [f"  {one.level.value}: {one.text}. {one.advice}".rstrip() for one in findings[:MOST_FINDINGS]]
    if len(findings) > MOST_FINDINGS:
        lines.append(f"  and {len(findings) - MOST_FINDINGS} more, in the report")
    return [headline, *lines]


def _interval(run: Recorded) -> str:
    low, high = latest(run, f"{OVERALL}/low"), latest(run, f"{OVERALL}/high")
    return "" if low is None or high is None else f" (95 % interval {low:.1%} .. {high:.1%})"


def _change(run: Recorded) -> str:
    change, low, high = (latest(run, name) for name in (CHANGE, f"{CHANGE}/low", f"{CHANGE}/high"))
    if change is None or low is None or high is None:
        return ""
    claim = ": no change can be claimed" if low <= 0 <= high else ""
    return f", {change * 100:+.1f} points since the first ({interval_text(low, high)}{claim})"
