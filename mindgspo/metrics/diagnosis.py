"""Why a run does or does not learn, in words: findings for the report and for the lines after each evaluation.

A rule looks at one run and returns a `RunFinding`, or None if it has nothing to say. Rules over training metrics
look at the mean of the last steps; most are rows of thresholds.yaml, a figure with its limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import yaml

from mindgspo.metrics.run_folder import (
    HELD_OUT_ACCURACY,
    HELD_OUT_REWARD,
    HeldOut,
    RecordedRun,
    accuracies,
    held_out_figures,
    latest,
    reward_text,
    run_settings,
)

RECENT_STEPS = 20
"""Rules look at the mean over this many last steps."""
FEW_PROBLEMS = 8
"""A set with fewer problems can be solved, or missed, as a whole by chance."""
LONGER = 1.5
"""Factor from which on responses have grown."""
CLIP_BAND = (0.02, 0.6)
"""Healthy share of clipped responses for gspo with the paper's clip range and several updates per rollout."""
TOKEN_CLIP_LIMIT = 0.05
"""Share of clipped tokens that is still usual where every token has a ratio of its own."""
SLOW_ENVIRONMENT = 0.3
"""Share of the generation's time from which on an episode's environment is slow."""
MOST_FINDINGS = 3
"""Findings that are printed; further ones are counted, and the report has them."""


class FindingLevel(str, Enum):
    """ALARM: the run cannot learn like this. WARN: worth a look. GOOD: checked and healthy."""

    ALARM = "alarm"
    WARN = "warn"
    GOOD = "good"


ALARM, WARN, GOOD = FindingLevel.ALARM, FindingLevel.WARN, FindingLevel.GOOD


@dataclass(frozen=True, slots=True)
class RunFinding:
    """One sentence of the diagnosis."""

    level: FindingLevel
    text: str
    """The observation, with its number."""
    advice: str = ""
    """The remedy; "" where nothing needs doing."""


Rule = Callable[[RecordedRun], "RunFinding | None"]


def recent(run: RecordedRun, *keys: str) -> float | None:
    """Mean over the last RECENT_STEPS values of the first of `keys` that was recorded."""
    return next((series.recent_mean(RECENT_STEPS) for key in keys if (series := run.series(key))), None)


def _level(value: float, warn: float, alarm: float) -> FindingLevel:
    return ALARM if value > alarm else WARN if value > warn else GOOD


def _finding(level: FindingLevel, text: str, advice: str) -> RunFinding:
    return RunFinding(level, text, "" if level is GOOD else advice)


# ----- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A figure that must not be high."""

    keys: Sequence[str]
    """The first one that was recorded counts; with `<part>` in it, the set or data source with the highest value."""
    text: str
    """Format with {value}, {part} and {limit}, the longest response."""
    warn: float
    alarm: float = math.inf
    advice: str
    is_low_bad: bool = False
    """Whether low values are the problem: warn and alarm are then lower limits."""
    is_silent: bool = False
    """Whether nothing is said while the figure is healthy."""

    def __call__(self, run: RecordedRun) -> RunFinding | None:
        value, part = self._figure(run)
        if value is None:
            return None
        sign = -1 if self.is_low_bad else 1
        level = _level(sign * value, sign * self.warn, sign * self.alarm)
        if level is GOOD and self.is_silent:
            return None
        limit = _longest_response(run) if "{limit}" in self.text else ""
        return _finding(level, self.text.format(value=value, part=part, limit=limit), self.advice)

    def _figure(self, run: RecordedRun) -> tuple[float | None, str]:
        if "<part>" not in self.keys[0]:
            return recent(run, *self.keys), ""
        parts = [(latest(run, self.keys[0].replace("<part>", part)), part) for part in accuracies(run)]
        known = [(value, part) for value, part in parts if value is not None]
        return max(known, key=lambda pair: pair[0]) if known else (None, "")


def _longest_response(run: RecordedRun) -> str:
    limit = run_settings(run).max_new_tokens
    return "rollout.max_new_tokens" if limit is None else f"{limit:,} tokens"


@cache
def thresholds() -> dict[str, tuple[Threshold, ...]]:
    """The rows of thresholds.yaml by group: training, episodes, evaluation, policy."""
    table = yaml.safe_load(Path(__file__).with_name("thresholds.yaml").read_text(encoding="utf-8"))
    return {group: tuple(Threshold(**row) for row in rows) for group, rows in table.items()}


# ----- held-out figures


def _since_first(run: RecordedRun, figure: HeldOut) -> tuple[float, float, float] | None:
    """Change of a figure since the first evaluation, and its paired interval: the problems are the same."""
    change, low, high = (latest(run, figure.change + end) for end in ("", "/low", "/high"))
    return None if change is None or low is None or high is None else (change, low, high)


def _interval_text(figure: HeldOut, low: float, high: float) -> str:
    """The interval of a change, e.g. "95 % interval -1.9 .. +2.7"."""
    return f"95 % interval {figure.difference(low, unit=False)} .. {figure.difference(high, unit=False)}"


def _movement(run: RecordedRun, figure: HeldOut) -> tuple[str, float, float] | None:
    """The movement of a figure as text, and the interval of the change: twice the change where none was recorded."""
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


def _judged(run: RecordedRun) -> RunFinding | None:
    """Whether the figure by which the run is judged has changed since the first evaluation."""
    figure, *others = held_out_figures(run)
    movement = _movement(run, figure)
    if movement is None:
        return None
    text, low, high = movement
    if low > 0:
        return RunFinding(GOOD, text)
    if low == high and not _since_first(run, figure):
        return RunFinding(WARN, text, "If the training reward rose, the policy fits the training set only.")
    if high < 0:
        advice = "More than noise: go back to the best checkpoint and lower optimizer.lr, or read what changed in "
        return RunFinding(ALARM, text, advice + "validation.jsonl.")
    least = figure.difference((high - low) / 2).removeprefix("+")
    advice = f"Train longer, or evaluate on more problems: these show changes of {least} or more."
    if any((other := _since_first(run, one)) is not None and other[1] > 0 for one in others):
        advice = "The held-out reward rose: what is learned is what it pays beside the right answer."
    return RunFinding(WARN, f"{text}: no change can be claimed", advice)


def _beside(run: RecordedRun) -> RunFinding | None:
    """The other figure, which is not decisive; its fall is reported only if the first one did not fall."""
    movements = [movement for figure in held_out_figures(run)[1:] if (movement := _movement(run, figure))]
    if not movements:
        return None
    text, _, high = movements[0]
    judged = _judged(run)
    if high >= 0 or (judged is not None and judged.level is ALARM):
        return RunFinding(GOOD, text)
    return RunFinding(WARN, text, "More than noise: read what changed in validation.jsonl.")


def _no_answer(run: RecordedRun) -> RunFinding | None:
    """Complete answers without a recognised result; cut answers have a rule of their own."""
    beyond = {
        part: (latest(run, f"val-aux/{part}/no_answer_ratio") or 0.0)
        - (latest(run, f"val-aux/{part}/response_length/clip_ratio") or 0.0)
        for part in accuracies(run)
    }
    part = max(beyond, key=beyond.__getitem__, default="")
    level = _level(beyond.get(part, 0.0), 0.2, 0.8)
    if level is GOOD:
        return None
    text = f"no answer was recognised in {beyond[part]:.0%} of the evaluation's answers to {part}"
    advice = "Read validation.jsonl: the prompt must ask for the form that the reward function reads."
    return RunFinding(level, f"{text}, though they were whole", advice)


def _all_or_none_solved(run: RecordedRun) -> RunFinding | None:
    """A set whose problems are all solved, or none of them, unless rewards distinguish its answers."""
    for part, series in accuracies(run).items():
        number, solved = latest(run, f"val-aux/{part}/num_problems"), series.values[-1]
        if number is None or number < FEW_PROBLEMS or 1e-12 < solved < 1 - 1e-12:
            continue
        reward, low, high = (run.series(f"val-core/{part}/reward/mean@1{end}") for end in ("", "/low", "/high"))
        has_risen = bool(reward) and reward.values[-1] > reward.values[0]
        differs = bool(low and high) and low.values[-1] < high.values[-1]
        if held_out_figures(run)[0] is HELD_OUT_REWARD and (has_risen or differs):
            continue
        if solved > 0.5:
            text = f"all {number:,.0f} problems of {part} are solved, so they no longer tell checkpoints apart"
            return RunFinding(WARN, text, "Evaluate on harder problems, too: data.eval takes several sets.")
        text = f"none of the {number:,.0f} problems of {part} is solved"
        if has_risen:
            first, last = (reward_text(reward.values[place]) for place in (0, -1))
            text += f", though the reward rose from {first} to {last}"
        advice = "They are too hard to learn from, or the answers take a form that is not read: see validation.jsonl."
        return RunFinding(WARN, text, advice)
    return None


def _longer_but_no_better(run: RecordedRun) -> RunFinding | None:
    figure = held_out_figures(run)[0]
    series, gain = run.series("response_length/mean"), latest(run, f"{figure.change}/low")
    if len(series.values) < 12 or gain is None or gain > 0:
        return None
    start, now = sum(series.values[:4]) / 4, series.recent_mean(4)
    if now < LONGER * start:
        return None
    text = f"responses grew from {start:.0f} to {now:.0f} tokens, and the {figure.name} did not"
    advice = "Read the longest samples: does the text repeat itself? reward.overlong and reward.length charge for "
    return RunFinding(WARN, text, f"{advice}length.")


# ----- training


def _reward_trend(run: RecordedRun) -> RunFinding | None:
    series = run.series("critic/score/mean")
    if len(series.values) < 6:
        return None
    third = len(series.values) // 3
    early, late = sum(series.values[:third]) / third, series.recent_mean(third)
    text = f"mean reward {early:.3f} in the first third of the steps, {late:.3f} in the last"
    advice = "Look for an alarm in this list; otherwise raise optimizer.lr with care."
    return _finding(GOOD if late > early else WARN, text, advice)


def _no_signal(run: RecordedRun) -> RunFinding | None:
    share = recent(run, "reward/zero_signal_group_ratio")
    if share is None:
        return None
    is_accuracy = held_out_figures(run)[0] is HELD_OUT_ACCURACY
    solved = recent(run, "reward/correct_ratio") if is_accuracy else None
    if solved is not None and solved > 0.9:
        cause = f"{solved:.0%} of the responses are correct: choose harder prompts"
    elif solved is not None and solved < 0.1:
        cause = f"{solved:.0%} of the responses are correct: choose easier prompts, or begin with a supervised warm-up"
    else:
        cause = "Choose prompts " + ("that are solved sometimes" if is_accuracy else "whose responses differ in reward")
    text = f"{share:.1%} of the groups had equal rewards, hence no gradient"
    return _finding(_level(share, 0.7, 0.9), text, f"{cause}, enlarge the group, or raise the temperature.")


def _memory_growth(run: RecordedRun) -> RunFinding | None:
    series = run.series("perf/cpu_memory_used_gb")
    if len(series.values) < 12:
        return None
    growth = series.recent_mean(3) / max(series.values[len(series.values) // 2], 1e-9) - 1
    text = f"resident memory changed by {growth:+.1%} over the second half of the run"
    advice = "A leak, or ever more compiled graphs: raise trainer.length_multiple."
    return _finding(GOOD if growth < 0.1 else WARN, text, advice)


def _clip_fraction(run: RecordedRun) -> RunFinding | None:
    settings, lower = run_settings(run), "Lower optimizer.lr or use fewer updates per rollout."
    if settings.clips_responses is False:
        share = recent(run, "actor/pg_clipfrac")
        if share is None:
            return None
        usual = f"usual for {settings.algorithm}: below {TOKEN_CLIP_LIMIT:.0%}"
        text = f"{share:.2%} of the tokens had a clipped ratio ({usual})"
        return _finding(_level(share, TOKEN_CLIP_LIMIT, math.inf), text, lower)
    share = recent(run, "actor/pg_clipfrac_seq", "actor/pg_clipfrac")
    if share is None:
        return None
    low, high = CLIP_BAND
    text = f"{share:.1%} of the responses had a clipped ratio (healthy for gspo: {low:.0%} to {high:.0%})"
    if share == 0.0 and recent(run, "actor/updates") == 1:
        return RunFinding(GOOD, f"{text}; with one update per rollout the ratio is 1 and nothing can be clipped")
    if share == 0.0:
        advice = "With one update per rollout the ratio is 1 and clipping cannot act: that is expected. Otherwise "
        return RunFinding(WARN, text, f"{advice}the clip range is too wide.")
    if share < low:
        advice = "Normal for grpo. For gspo: the clip range is too wide to act, or lr is tiny."
        return RunFinding(WARN, text, advice)
    return _finding(_level(share, high, math.inf), text, lower)


def _first_ratio(run: RecordedRun) -> RunFinding | None:
    series = run.series("actor/first_ratio_error_max")
    if not series:
        return None
    worst = max(series.values)
    text = "before the first update of a rollout the ratio "
    text += f"differed from 1 by at most {worst:.1e}" if worst else "was exactly 1"
    advice = "Temperature, padding, positions or weights differ between old and new log-probabilities."
    return _finding(GOOD if worst < 2e-3 else ALARM, text, advice)


def _mismatch(run: RecordedRun) -> RunFinding | None:
    distance, gap = recent(run, "rollout_corr/k3_kl"), recent(run, "training/rollout_probs_diff_mean")
    if distance is None or gap is None:
        return None
    if distance == gap == 0:
        text = "sampler and trainer agree exactly on the same tokens"
    else:
        text = f"sampler and trainer disagree on the same tokens by {distance:.2g} nat per token (k3), by {gap:.2g} in "
        text += "probability"
    if (behind := recent(run, "staleness/token_mean")) is not None and behind > 0:
        return RunFinding(GOOD, f"{text}; the sampler's weights were {behind:.2g} steps behind")
    advice = (
        "Look at training/rollout_actor_probs_pearson_corr: far below 1 means other weights, positions or temperature; "
        "near 1 means rounding, which algorithm.rollout_correction bounds."
    )
    return _finding(ALARM if distance > 0.1 else WARN if distance > 0.01 or gap > 0.01 else GOOD, text, advice)


def _waiting(run: RecordedRun) -> RunFinding | None:
    trainer, servers = recent(run, "schedule/trainer_idle_share"), recent(run, "schedule/rollout_idle_share")
    if trainer is None or servers is None:
        return None
    text = (
        f"the trainer waits {trainer:.0%} of a step, the servers have nothing to do {servers:.0%} of the time; trained "
        f"tokens are {recent(run, 'staleness/token_mean') or 0.0:.2g} steps behind on average"
    )
    side, other = ("generation", "training") if trainer > servers else ("training", "generation")
    advice = f"Give {side} cards of {other}, or raise trainer.max_staleness."
    return _finding(_level(max(trainer, servers), 0.3, math.inf), text, advice)


def _environment_time(run: RecordedRun) -> RunFinding | None:
    """Whether an episode spends much of the generation's time in its environment; silent if not."""
    seconds, generation = recent(run, "env/seconds/mean"), recent(run, "timing_s/gen")
    if seconds is None or not generation or seconds <= SLOW_ENVIRONMENT * generation:
        return None
    text = f"an episode spends {seconds:.2g} s in its environment, of {generation:.2g} s of generation"
    advice = "Make the environment faster; if it waits for others, raise environment.workers.count and rollout.slots."
    return RunFinding(WARN, text, advice)


def _expert_load(run: RecordedRun) -> RunFinding | None:
    peak, entropy = recent(run, "router/load_max_over_mean"), recent(run, "router/load_entropy")
    dead = recent(run, "router/dead_expert_share")
    if peak is None or entropy is None or dead is None:
        return None
    text = (
        f"the busiest expert of a layer had {peak:.1f} times the mean load, {dead:.0%} of all experts no token; the "
        f"most uneven layer's entropy was {entropy:.0%} of the largest"
    )
    advice = (
        "Look at router/layer_<layer>/ for the layer. Nothing here balances the load: lower optimizer.lr, or begin "
        "with a model whose routers are balanced."
    )
    return _finding(ALARM if dead > 0.7 else WARN if dead > 0.3 or entropy < 0.6 else GOOD, text, advice)


def _entropy(run: RecordedRun) -> RunFinding | None:
    series = run.series("actor/entropy")
    if len(series.values) < 6 or series.values[0] <= 0:
        return None
    start, now = series.values[0], series.recent_mean(3)
    text = f"entropy went from {start:.3g} to {now:.3g} nat per token"
    advice = "The policy hardly explores now: lower optimizer.lr or raise clip_high."
    return _finding(GOOD if now >= 0.05 * start else WARN, text, advice)


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order in which findings of one level are shown."""
    table = thresholds()
    return (
        *(_judged, _beside, _reward_trend),
        *table["training"],
        *table["episodes"],
        _environment_time,
        _no_signal,
        *table["evaluation"],
        *(_no_answer, _all_or_none_solved, _longer_but_no_better),
        *(_clip_fraction, _first_ratio, _mismatch, _waiting, _expert_load, _entropy),
        *table["policy"],
        _memory_growth,
    )


def diagnose(run: RecordedRun) -> list[RunFinding]:
    """All findings, the gravest first, otherwise in the order of `rules`."""
    findings = [finding for rule in rules() if (finding := rule(run)) is not None]
    return sorted(findings, key=lambda finding: list(FindingLevel).index(finding.level))


def collapse(run: RecordedRun) -> str:
    """What shows that the policy lost what it had: its held-out figure or its entropy fell; "" if nothing does."""
    judged, entropy = _judged(run), _entropy(run)
    found = [judged] if judged is not None and judged.level is ALARM else []
    found += [entropy] if entropy is not None and entropy.level is WARN else []
    return "; ".join(one.text for one in found)


def verdict_lines(run: RecordedRun, *, step: int, best: str) -> list[str]:
    """The figures in one line, then the most serious findings; empty for a run without an evaluation.

    best: the best evaluation so far, as text.
    """
    if latest(run, HELD_OUT_ACCURACY.key) is None:
        return []
    figures = [_figure_text(run, one) for one in held_out_figures(run) if latest(run, one.key) is not None]
    headline = f"evaluation at step {step}: {'; '.join(figures)}; {best}"
    moved = _judged(run)
    said = set() if moved is None or moved.level is ALARM else {moved.text}  # the headline says it
    findings = [one for one in diagnose(run) if one.level is not GOOD and one.text not in said]
    if not findings:
        return [f"{headline}; nothing needs attention"]
    lines = [f"  {one.level.value}: {one.text}. {one.advice}".rstrip() for one in findings[:MOST_FINDINGS]]
    if len(findings) > MOST_FINDINGS:
        lines.append(f"  and {len(findings) - MOST_FINDINGS} more, in the report")
    return [headline, *lines]


def _figure_text(run: RecordedRun, figure: HeldOut) -> str:
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
