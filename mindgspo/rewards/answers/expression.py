r"""The formula in a line that announces an answer: of "$2\sqrt{3}$, because ..." only $2\sqrt{3}$.

What enters: what `extract` found behind a marker or in a box. What leaves: the answer for `equivalence`. Called by
`functions.math`. Linear: the text is a few hundred characters and the patterns do not nest.
"""

from __future__ import annotations

import re

# A dollar sign that is no delimiter has a space on the inner side or a digit behind it: "$5 or $6".
_FORMULA = re.compile(
    r"\$\$(?P<display>[^$]+)\$\$|(?<!\\)\$(?=\S)(?P<inline>[^$]*[^$\s\\])\$(?![0-9])"
    r"|\\[(\[](?P<bracket>[^$]+?)\\[)\]]"
)
_CONNECTS = re.compile(r"\s*(?:,|;|,?\s?(?:and|or)|\u548c|\u6216|\u3001|\uff0c)\s*", re.IGNORECASE)
_EQUALS = re.compile(r"\s*(?:=|is|are|equals)\s*", re.IGNORECASE)
_GOES_ON = re.compile(
    r"\s*(?:,?\s?(?:and|or)\b|[-+*/^=]|[?,]\s?(?:or|maybe|perhaps|possibly|no|not)\b"
    r"|(?:is|was|are)(?:n['\u2019]t|\s(?:not|wrong|incorrect|false))\b|\(?(?:not|wrong|incorrect)\b)",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(
    r"(?:\A|\b(?:is|are|be|equals|equal to|therefore|thus|simply|exactly|approximately|about)|[=:\u662f\u4e3a\uff1a]"
    r"|\u7b49\u4e8e|\bthe (?:ordered )?(?:interval|set|function|polynomial|point|number|value|pair|triple|matrix|vector"
    r"|line|equation|expression|fraction|ratio))[\s*_\"'(]*\Z",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"\b(?:not|never|cannot|more|less|least|most|twice|half|neither|greater|smaller)\b|n['\u2019]t\b|\u4e0d",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"[\s*_:]*(?:not|never|more than|less than|greater than|smaller than|at least|at most|twice|half(?: of)?"
    r"|(?:it )?(?:cannot|can['\u2019]t|can not) be)\s+(?:equal to )?[-$(\\0-9]",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(
    r"[.?](?=\s|\Z)|[\u3002\uff1b\n]|,?\s(?:because|since|so|which|where|as|thus|hence|therefore)\s", re.IGNORECASE
)


def expression_in(content: str) -> str:
    """The formulas between delimiters, where they are announced and nothing else says a number; else the first
    sentence, or all of `content` where it takes back a formula: "not $x$", "$\\pi$? or $e$?"."""
    formulas = list(_FORMULA.finditer(content))
    if formulas and not re.search(r"[0-9]", content[: formulas[0].start()]):
        found = _first_list(content, formulas)
        if found is not None:
            return found
        if any(_GOES_ON.match(content, formula.end()) for formula in formulas):
            return content.strip()
    end = _SENTENCE_END.search(content.lstrip())
    sentence = content.lstrip() if end is None else content.lstrip()[: end.start()]
    return sentence.strip() or content.strip()


def takes_back(content: str) -> bool:
    """Whether an announcement says what the answer is not: "not $5$", "more than 5", "twice $5$"."""
    return _TAKEN_BACK.match(content) is not None


def _first_list(content: str, formulas: list[re.Match[str]]) -> str | None:
    """The first formula and those that are listed right behind it; None where nothing announces it,
    where a list goes on without delimiters, and where the words around it take it back."""
    parts = [_inside(formulas[0])]
    last = formulas[0]
    before = content[: last.start()]
    is_announced = _ANNOUNCES.search(before) is not None
    for formula in formulas[1:]:
        between = content[last.end() : formula.start()]
        if _EQUALS.fullmatch(between):
            parts = [_inside(formula)]
            is_announced = True
        elif _CONNECTS.fullmatch(between):
            parts.append(_inside(formula))
        else:
            break
        last = formula
    is_refused = not is_announced or _DENIES.search(before) or _GOES_ON.match(content, last.end())
    return None if is_refused else " , ".join(parts)


def _inside(formula: re.Match[str]) -> str:
    return (formula["display"] or formula["inline"] or formula["bracket"]).strip()
