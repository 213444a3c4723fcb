"""Reward functions for the form of a response: tags, length, repetition.

N responses
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindgspo.config.reward import LengthSection, OverlongSection, RepetitionSection
from mindgspo.errors import DataError
from mindgspo.rewards.verification import Candidate
from mindgspo.types import Verdict

THINK, END_THINK, ANSWER, END_ANSWER = "<think>", "</think>", "<answer>", "</answer>"


class ThinkFormat:
    """1.0 for a well-formed response, else 0.0; the content of the tags does not matter.

    Well-formed: every tag exactly once and in this order; nothing but white space before <think>, between </think> and
    <answer>, and after </answer>. Any white space, line ends included, may stand inside the tags and between them.

    The opening <think> may be missing: chat templates of reasoning models write it at the end of the prompt, so that
    the response begins inside the block. A response cannot tell which template it follows, and 0 for every response of
    such a model would be worse than 1 for one that forgot the tag under another template. If <think> is present, it
    must come first.
    """

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """A few linear passes over the text."""
        body = candidate.text.strip().removeprefix(THINK)
        if THINK in body or any(body.count(tag) != 1 for tag in (END_THINK, ANSWER, END_ANSWER)):
            return 0.0
        rest = body.partition(END_THINK)[2].lstrip()
        return float(rest.startswith(ANSWER) and rest.endswith(END_ANSWER))


class CosineLength:
    """The cosine reward of arXiv 2502.03373, appendix C.1, as in TRL (get_cosine_scaled_reward).

        value = long + (short - long) (1 + cos(pi length / max_len)) / 2

    short and long are the values at lengths 0 and max_len, those of a correct response for the verdict CORRECT and
    those of a wrong one for every other verdict, so also where there is no verifier. Beyond max_len the value stays
    that of max_len; the paper uses a separate value there, for which `overlong` is meant here.
    """

    def __init__(self, section: LengthSection) -> None:
        assert section.max_len is not None, "the configuration fills in length.max_len"
        self._max_len = section.max_len
        self._correct = (section.correct_short, section.correct_long)
        self._wrong = (section.wrong_short, section.wrong_long)

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """Between short and long, both included."""
        assert candidate.num_tokens is not None, "length needs the length in tokens"
        short, long = self._correct if verdict is Verdict.CORRECT else self._wrong
        progress = min(candidate.num_tokens / self._max_len, 1.0)
        closeness = (1.0 + math.cos(math.pi * progress)) / 2
        # Two products instead of a difference: at both ends the result is exactly the configured number.
        return short * closeness + long * (1.0 - closeness)


class Overlong:
    """DAPO's soft penalty near the longest length, at most the section's factor, whether the answer is right or wrong.

    The penalties of all lengths are computed once, because numpy's work on an array of one takes far longer than a
    look-up in a list.
    Raises DataError for a buffer that is longer than max_len.
    """

    def __init__(self, section: OverlongSection) -> None:
        assert section.max_len is not None, "the configuration fills in overlong.max_len"
        self._max_len = section.max_len
        self._penalties: list[float] = overlong_penalty(
            np.arange(section.max_len + 1),
            max_len=section.max_len,
            buffer_len=section.buffer_len,
            factor=section.factor,
            floor=-section.factor,
        ).tolist()

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """0 up to the buffer, then a line down to -factor at max_len and beyond."""
        assert candidate.num_tokens is not None, "overlong needs the length in tokens"
        return self._penalties[min(candidate.num_tokens, self._max_len)]


def overlong_penalty(
    lengths_N: ArrayLike, *, max_len: int, buffer_len: int, factor: float = 1.0, floor: float | None = None
) -> NDArray[np.float64]:
    """Penalties (<= 0), float64 [N]: DAPO, arXiv 2503.14476, eq. 13.

    0 up to max_len - buffer_len tokens, then a straight line that reaches -factor at max_len.
    floor: smallest penalty, which ends the line: -1 in the paper and TRL, -factor in OpenRLHF. None: the line
    continues, as in verl. buffer_len 0 is a step from 0 to `floor` beyond max_len.
    lengths_N: whole numbers >= 0.
    Raises DataError for lengths or settings out of range, and for a step that has no floor to fall to.
    """
    lengths_N = np.asarray(lengths_N, dtype=np.float64)
    if lengths_N.ndim != 1:
        raise DataError(f"lengths: expected shape [any], got {list(lengths_N.shape)}")
    wrong_N = ~(np.isfinite(lengths_N) & (lengths_N >= 0) & (lengths_N == np.rint(lengths_N)))
    if wrong_N.any():
        first = int(np.flatnonzero(wrong_N)[0])
        raise DataError(f"lengths: {lengths_N[first]:g} at {first} is not a number of tokens")
    if not 0 <= buffer_len <= max_len:
        raise DataError(f"overlong: buffer_len {buffer_len} must lie between 0 and max_len {max_len}")
    if not (math.isfinite(factor) and factor >= 0):
        raise DataError(f"overlong: factor {factor:g} must be 0 or a positive number")
    if floor is not None and not (math.isfinite(floor) and floor <= 0):
        raise DataError(f"overlong: floor {floor:g} must be 0 or a negative number, or None for no floor")
    excess_N = np.maximum(lengths_N - (max_len - buffer_len), 0.0)
    if buffer_len == 0:
        if floor is None:
            raise DataError("overlong: buffer_len 0 needs a floor, e.g. -1, because a line of width 0 has no slope")
        return np.where(excess_N > 0, floor, 0.0).astype(np.float64)
    # The order of operations is the peers': -0.2 comes out as the same float64.
    line_N = np.where(excess_N > 0, -excess_N / buffer_len * factor, 0.0)
    return line_N if floor is None else np.maximum(line_N, floor)


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
        """0 if nothing is repeated; above -factor, because one n-gram is always the first of its kind."""
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
