"""What may stand behind a number without changing it: "72 clips per day (48 in April and 24 in May)".

What enters: the text after a number, markup already off. What leaves: whether it measures or explains the number, and
neither takes it back nor goes on calculating with it. Called by `quantity`. Linear in the text.
"""

from __future__ import annotations

import re

# A unit is words: no further digit (except an exponent), operator, brace or LaTeX command.
_UNIT_EXPONENT = re.compile(r"(?<=[A-Za-z])\s?(?:\^\s?\{?-?[0-9]\}?|[\u00b2\u00b3])")
_UNIT_TAIL = re.compile(r"[^0-9\\{}=+*^<>|\[\]]*")
_WORD = r"(?!(?:pi|sqrt|sin|cos|tan|log|ln|exp|xy)\b)[^\W\d_]{2,}"
_UNIT_HEAD = re.compile(
    r"\s*[\u00b0\u00a2%]"  # degree, cent
    r"|\s*[\u3400-\u9fff]"  # Chinese measure words need no space
    rf"|\s*-?{_WORD}"
    r"|\s+[mgshlLCFKVWANJ](?![^\W\d_])"  # single letters only after a space: "5 m" is metres, "5m" is algebra
    rf"|\s*/\s*{_WORD}|\s+(?:per|a|an)\s|\s+\({_WORD}|\s*[,;:?\u2014]\s*{_WORD}|\s+-\s+{_WORD}|!\s+[A-Z]"
)
# Words that take the number back, or go on calculating with it.
_NO_UNIT = re.compile(
    r"\b(?:or|nor|not|no|never|cannot|wrong|incorrect|impossible|invalid|false|squared|cubed|plus|minus|divided|multiplied"
    r"|base|factorial|lakhs?|crores?|hundreds|thousands|millions|billions)\b|n't\b|\u6216|\u4e0d|\u9519"
    r"|\band\s(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]{3,5}teen|twenty|thirty|forty"
    r"|fifty|sixty|seventy|eighty|ninety)\b",
    re.IGNORECASE,
)
_REASON = re.compile(r"[\s,(]\s?(?:because|since)\b|\s?,?\s?\u56e0\u4e3a", re.IGNORECASE)
_EXPLANATION = re.compile(r"([^()]*)\s\(([^()]*)\)[\s.]*")
_NUMBER = re.compile(r"[0-9][0-9.,]*")
_UNSURE = re.compile(r"\b(?:maybe|perhaps|possibly|alternatively|if)\b", re.IGNORECASE)


def is_unit(rest: str) -> bool:
    """Whether the text after a number is nothing, or words that measure or explain it."""
    reason = _REASON.search(rest)
    rest = _without_explanation(rest if reason is None else rest[: reason.start()])
    if _NO_UNIT.search(rest):
        return False
    rest = _UNIT_EXPONENT.sub("", rest)
    return not rest.strip() or bool(_UNIT_HEAD.match(rest) and _UNIT_TAIL.fullmatch(rest))


def _without_explanation(rest: str) -> str:
    """Of " clips (48 in April and 24 in May)" the part before the bracket, which must hold numbers and words."""
    explained = _EXPLANATION.fullmatch(rest)
    if explained is None or len(_NUMBER.findall(explained[2])) < 2 or not re.search(_WORD, explained[2]):
        return rest
    return rest if _NO_UNIT.search(explained[2]) or _UNSURE.search(explained[2]) else explained[1]
