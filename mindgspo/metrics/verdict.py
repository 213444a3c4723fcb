"""The verdict at the end of an evaluation: a line with the accuracy, and one for each thing that needs attention.

What enters: the run so far. What leaves: lines for people. Called by the trainer after each evaluation. What is judged,
and how, is the table of `diagnosis`, which the report shows whole.
"""

from __future__ import annotations

from mindgspo.config.eval_section import CHANGE, OVERALL
from mindgspo.metrics.diagnosis import diagnose
from mindgspo.metrics.diagnosis_evaluation import accuracy_change, interval_text
from mindgspo.metrics.finding import Level
from mindgspo.metrics.recorded import Recorded, latest

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
