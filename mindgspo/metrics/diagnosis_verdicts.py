"""Rules about what the reward functions made of the responses.

Called by `diagnosis`. One rule covers every response without a reward; those on timeouts and errors add the cause and
what to do about it, and say nothing while there is no cause to name.
"""

from __future__ import annotations

from mindgspo.metrics.finding import Finding, Level, Rule, ShareRule
from mindgspo.metrics.recorded import Recorded


def _only_if_high(rule: ShareRule) -> Rule:
    def judged(run: Recorded) -> Finding | None:
        finding = rule(run)
        return None if finding is None or finding.level is Level.GOOD else finding

    return judged


VERDICT_RULES: tuple[Rule, ...] = (
    ShareRule(
        keys=("reward/no_answer_ratio",),
        text="of the responses held no recognisable answer",
        warn=0.2,
        alarm=0.8,
        advice="Read the samples below: is the answer format the one that the reward function reads?",
    ),
    ShareRule(
        keys=("reward/invalid_ratio",),
        text="of the responses could not be judged (error, timeout, unreadable gold answer)",
        warn=0.0,
        alarm=0.05,
        advice="They are left out; samples.jsonl has the verdict of each and the message of those that failed.",
    ),
    _only_if_high(
        ShareRule(
            keys=("reward/timeout_ratio",),
            text="of the responses ran out of time while they were judged",
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
