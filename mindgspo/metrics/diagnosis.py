"""Why a run does or does not learn, in words: findings for the report and for the lines after each evaluation."""

from __future__ import annotations

import math

from mindgspo.metrics.diagnosis_rules import POLICY_RULES, REWARD_RULES, Finding, Level, Rule, memory_growth, recent
from mindgspo.metrics.run_folder import (
    HELD_OUT_ACCURACY,
    HELD_OUT_REWARD,
    HeldOut,
    Recorded,
    accuracies,
    held_out_figures,
    latest,
    reward_text,
    run_settings,
)

FEW_PROBLEMS = 8
"""A set with fewer can be solved, or missed, as a whole by chance."""

LONGER = 1.5
"""Responses that grew by this factor have grown."""


def _since_first(run: Recorded, figure: HeldOut) -> tuple[float, float, float] | None:
    """Change of a figure since the first evaluation, and the ends of an interval that knows the problems are the
    same."""
    change, low, high = (latest(run, figure.change + end) for end in ("", "/low", "/high"))
    return None if change is None or low is None or high is None else (change, low, high)


def _interval_text(figure: HeldOut, low: float, high: float) -> str:
    """Of a change: "95 % interval -1.9 .. +2.7"."""
    return f"95 % interval {figure.difference(low, unit=False)} .. {figure.difference(high, unit=False)}"


def _movement(run: Recorded, figure: HeldOut) -> tuple[str, float, float] | None:
    """How a figure went, as text, and the ends of the change's interval: both the change where none was recorded."""
    value, since = latest(run, figure.key), _since_first(run, figure)
    if value is not None and since is not None:
        change, low, high = since
        before, after, interval = value - change, value, f", {_interval_text(figure, low, high)}"
    else:
        start, end = figure.span(run)
        if start is None or end is None:
            return None
        before, after, interval = start, end, ""
        low = high = end - start
    moved = f"held-out {figure.name} went from {figure.text(before)} to {figure.text(after)}"
    return f"{moved} ({figure.difference(after - before)}{interval})", low, high


def _judged(run: Recorded) -> Finding | None:
    """Whether the figure by which the run is judged has changed since the first evaluation."""
    figure, *others = held_out_figures(run)
    movement = _movement(run, figure)
    if movement is None:
        return None
    text, low, high = movement
    if low > 0:
        return Finding(Level.GOOD, text)
    if low == high and not _since_first(run, figure):
        return Finding(Level.WARN, text, "If the training reward rose, the policy fits the training set only.")
    if high < 0:
        advice = "More than noise: go back to the best checkpoint and lower optimizer.lr, or read what changed in "
        return Finding(Level.ALARM, text, advice + "validation.jsonl.")
    least = figure.difference((high - low) / 2).removeprefix("+")
    advice = f"Train longer, or evaluate on more problems: these show changes of {least} or more."
    if any((other := _since_first(run, one)) is not None and other[1] > 0 for one in others):
        advice = "The held-out reward rose: what is learned is what it pays beside the right answer."
    return Finding(Level.WARN, f"{text}: no change can be claimed", advice)


def _beside(run: Recorded) -> Finding | None:
    """The other figure, which judges nothing; that it fell is news only where the first did not."""
    movements = [movement for figure in held_out_figures(run)[1:] if (movement := _movement(run, figure))]
    if not movements:
        return None
    text, _, high = movements[0]
    judged = _judged(run)
    if high >= 0 or (judged is not None and judged.level is Level.ALARM):
        return Finding(Level.GOOD, text)
    return Finding(Level.WARN, text, "More than noise: read what changed in validation.jsonl.")


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
            if number is None or number < FEW_PROBLEMS or not math.isclose(series.values[-1], solved, abs_tol=1e-12):
                continue
            reward, low, high = (run.series(f"val-core/{part}/reward/mean@1{end}") for end in ("", "/low", "/high"))
            has_risen = bool(reward) and reward.values[-1] > reward.values[0]
            differs = bool(low and high) and low.values[-1] < high.values[-1]
            if held_out_figures(run)[0] is HELD_OUT_REWARD and (has_risen or differs):
                continue  # the reward tells answers apart, whatever counts as solved
            said = text.format(number=f"{number:,.0f}", part=part)
            if has_risen and not solved:
                first, last = (reward_text(reward.values[place]) for place in (0, -1))
                said += f", though the reward rose from {first} to {last}"
            return Finding(Level.WARN, said, advice)
        return None

    return rule


def _longer_but_no_better(run: Recorded) -> Finding | None:
    figure = held_out_figures(run)[0]
    series, gain = run.series("response_length/mean"), latest(run, f"{figure.change}/low")
    if len(series.values) < 12 or gain is None or gain > 0:
        return None
    start, now = sum(series.values[:4]) / 4, recent(run, "response_length/mean", count=4)
    if now is None or now < LONGER * start:
        return None
    text = f"responses grew from {start:.0f} to {now:.0f} tokens, and the {figure.name} did not"
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


RULES: tuple[Rule, ...] = (
    _judged,
    _beside,
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
    """The figures in one line, then the gravest findings. best: the best evaluation so far, as text.

    Empty for a run without an evaluation.
    """
    if latest(run, HELD_OUT_ACCURACY.key) is None:
        return []
    figures = [_figure_text(run, one) for one in held_out_figures(run) if latest(run, one.key) is not None]
    headline = f"evaluation at step {step}: {'; '.join(figures)}; {best}"
    moved = _judged(run)
    said = set() if moved is None or moved.level is Level.ALARM else {moved.text}  # the headline says it
    findings = [one for one in diagnose(run) if one.level is not Level.GOOD and one.text not in said]
    if not findings:
        return [f"{headline}; nothing needs attention"]
    lines = [f"  {one.level.value}: {one.text}. {one.advice}".rstrip() for one in findings[:MOST_FINDINGS]]
    if len(findings) > MOST_FINDINGS:
        lines.append(f"  and {len(findings) - MOST_FINDINGS} more, in the report")
    return [headline, *lines]


def _figure_text(run: Recorded, figure: HeldOut) -> str:
    value, low, high = (latest(run, figure.key + end) for end in ("", "/low", "/high"))
    assert value is not None
    text = f"{figure.name} {figure.text(value)}"
    if low is not None and high is not None:
        text += f" (95 % interval {figure.text(low)} .. {figure.text(high)})"
    since = _since_first(run, figure)
    if since is None:
        return text
    change, low, high = since
    claim = ": no change can be claimed" if low <= 0 <= high else ""
    return f"{text}, {figure.difference(change)} since the first ({_interval_text(figure, low, high)}{claim})"
