r"""The gold answer of a worked solution: the content of its last \boxed{}."""

from __future__ import annotations

import re

from mindgspo.rewards.answers.text import boxed_spans

# `\boxed 5$`: a few solutions of MATH leave the braces out; their authors' own grader reads up to the dollar sign.
_WITHOUT_BRACES = re.compile(r"\\(?:boxed|fbox)[ \t]{1,4}([^\s${}\\][^${}\\\n]{0,40})\$")


def last_box(solution: str) -> str | None:
    """The last balanced box's content, stripped; without any, the last box without braces; None if empty or absent."""
    spans = boxed_spans(solution)
    if spans:
        content = solution[spans[-1].start : spans[-1].end]
    else:
        bare = _WITHOUT_BRACES.findall(solution)
        content = bare[-1] if bare else ""
    return content.strip() or None
