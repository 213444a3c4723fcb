"""A penalty on responses that say the same words in the same order again and again.

What enters: the section and a response's text. What leaves: what is added to its reward. Called by the scorer.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from mindgspo.config.reward import RepetitionSection
from mindgspo.rewards.candidate import Candidate
from mindgspo.types import Verdict

# Kana, Han (extension A, the main block, compatibility, all supplementary planes of ideographs).
_CJK = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")


class Repetition:
    """-factor * (1 - distinct n-grams / n-grams) of a response: the n-gram penalty of arXiv 2502.03373, appendix C.2,
    over words in lower case as in open-r1 (get_repetition_penalty_reward); TRL's counts tokens.

    A word is what stands between white space; a CJK character, which no space separates from the next, is a word. A
    response of fewer than n words has no n-gram and gets 0.
    """

    def __init__(self, section: RepetitionSection) -> None:
        self._size = section.ngram_size
        self._factor = section.factor

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """0 where nothing is repeated; above -factor, because one n-gram is always the first of its kind."""
        words = _WORD.findall(candidate.text.lower())
        total = len(words) - self._size + 1
        if total < 1:
            return 0.0
        repeated = 1 - _num_distinct_ngrams(words, self._size) / total
        return 0.0 - self._factor * repeated


def _num_distinct_ngrams(words: Sequence[str], size: int) -> int:
    """Exact, in O(words log size) whatever the size: no n-gram is ever written out.

    Each n-gram is known by a number. Two n-grams of k words side by side make one of 2 k words, and the last step lets
    them overlap where size is no power of 2.
    """
    ngrams = _numbered(words)
    length = 1
    while length < size:
        step = min(length, size - length)
        ngrams = _numbered(list(zip(ngrams, ngrams[step:], strict=False)))
        length += step
    return len(set(ngrams))


def _numbered(items: Sequence[Hashable]) -> list[int]:
    """Equal items get equal numbers."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(item, len(numbers)) for item in items]
