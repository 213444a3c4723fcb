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
_GOES_ON = re.compile(r"\s*(?:,?\s?(?:and|or)\b|[-+*/^=])", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"[.?](?=\s|\Z)|[\u3002\uff1b\n]|,?\s(?:because|since|so|which|where|as|thus|hence|therefore)\s", re.IGNORECASE
)


def expression_in(content: str) -> str:
    """The formulas between delimiters, where some are and nothing else says a number; else the first sentence."""
    formulas = list(_FORMULA.finditer(content))
    if formulas and not re.search(r"[0-9]", content[: formulas[0].start()]):
        found = _first_list(content, formulas)
        if found is not None:
            return found
    end = _SENTENCE_END.search(content.lstrip())
    sentence = content.lstrip() if end is None else content.lstrip()[: end.start()]
    return sentence.strip() or content.strip()


def _first_list(content: str, formulas: list[re.Match[str]]) -> str | None:
    """The first formula and those that are listed right behind it; None where a list goes on without delimiters."""
    parts = [_inside(formulas[0])]
    last = formulas[0]
    for formula in formulas[1:]:
        between = content[last.end() : formula.start()]
        if _EQUALS.fullmatch(between):
            parts = [_inside(formula)]
        elif _CONNECTS.fullmatch(between):
            parts.append(_inside(formula))
        else:
            break
        last = formula
    return None if _GOES_ON.match(content, last.end()) else " , ".join(parts)


def _inside(formula: re.Match[str]) -> str:
    return (formula["display"] or formula["inline"] or formula["bracket"]).strip()
