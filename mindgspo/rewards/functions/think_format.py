"""Whether a response is laid out as reasoning and answer: <think>...</think> <answer>...</answer>.

What enters: a response's text. What leaves: 1 or 0. Called by the scorer.
"""

from __future__ import annotations

from mindgspo.rewards.candidate import Candidate
from mindgspo.types import Verdict

THINK, END_THINK, ANSWER, END_ANSWER = "<think>", "</think>", "<answer>", "</answer>"


class ThinkFormat:
    """1.0 for a well-formed response, else 0.0; what stands inside the tags, if anything, is not judged.

    Well-formed: every tag exactly once and in this order; nothing but white space before <think>, between </think> and
    <answer>, and after </answer>. Any white space, line ends included, may stand inside the tags and between them.

    The opening <think> may be missing: chat templates of reasoning models write it at the end of the prompt, so that
    the response begins inside the block. A response cannot tell which template it follows, and 0 for every response of
    such a model would be worse than 1 for one that forgot the tag under another template. Where <think> does stand, it
    must come first.
    """

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """A few linear passes over the text."""
        return float(_is_well_formed(candidate.text))


def _is_well_formed(text: str) -> bool:
    body = text.strip().removeprefix(THINK)
    if THINK in body or any(body.count(tag) != 1 for tag in (END_THINK, ANSWER, END_ANSWER)):
        return False
    _, _, rest = body.partition(END_THINK)
    rest = rest.lstrip()
    return rest.startswith(ANSWER) and rest.endswith(END_ANSWER)
