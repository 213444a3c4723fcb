r"""Markup off, content kept: from what a model typed to text that `number` can read.

What enters: one line or one \boxed{} content, at most a few hundred characters. What leaves: the same words
and numbers without markdown, LaTeX spacing and wrappers, currency signs, tags and full-width forms. Called
by `extract` and `quantity`. Every pattern is bounded, so the work is linear in the text.
"""

from __future__ import annotations

import re

# Full-width ASCII (U+FF01..U+FF5E) is what Chinese input methods produce. NFKC is not used: it would turn the
# exponent of "5 m^2" written as one character into the digit 2.
_CHARACTERS = {0xFF01 + offset: 0x21 + offset for offset in range(0x5E)}
_CHARACTERS |= dict.fromkeys((0x00A0, 0x2007, 0x2009, 0x200A, 0x202F, 0x3000), " ")
_CHARACTERS |= dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF), "")
_CHARACTERS |= dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2212, 0xFE63), "-")
_CHARACTERS |= dict.fromkeys((0x201C, 0x201D, 0x201E), '"') | dict.fromkeys((0x2018, 0x2019), "'")
_CHARACTERS |= {0x2044: "/", 0x3002: ". ", 0x2248: "=", 0x20AC: "$", 0xA3: "$", 0xA5: "$", 0xFFE5: "$"}

_REMOVED = re.compile(
    r"<<[^<>]*>>"  # GSM8K's calculator notes
    r"|</?[A-Za-z][\w-]{0,20}>|<\|[^|<>]{0,30}\|>"  # tags and special tokens typed as text
    r"|\\(?:left|right|displaystyle|limits|bf|rm|!)(?![A-Za-z])"
    r"|\*\*|__|`|\\?\$"
)
_SPACED = re.compile(r"\\[,;: ()\[\]]|~|\\q?quad(?![A-Za-z])")
_FONTS = r"text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox|emph"
_WRAPPER = re.compile(rf"\\(?:{_FONTS}|boxed|fbox)\s*\{{([^{{}}]*)\}}")
_WRAPPER_OPENING = re.compile(rf"\\(?:{_FONTS})\s*\{{")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|equiv)(?![A-Za-z])")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degrees?(?![A-Za-z])")
_WHITESPACE = re.compile(r"\s+")
_MARKUP_CHARACTERS = re.compile(r"[\\*_`$<~{}]")


def plain(text: str) -> str:
    """`text` without markup, on one line, without quotes and closing punctuation at its edges."""
    if not text.isascii():
        text = text.translate(_CHARACTERS)
    if _MARKUP_CHARACTERS.search(text):
        text = _without_markup(text)
    # A leading point may open a decimal (".5"), so only the right edge loses full stops.
    return _WHITESPACE.sub(" ", text).strip(" \"'*_,;:").rstrip(" \"'*_.,;:")


def _without_markup(text: str) -> str:
    text = text.replace("{,}", ",").replace(r"\%", "%")
    text = _DEGREES.sub("\u00b0", _APPROXIMATELY.sub("=", text))
    text = _SPACED.sub(" ", _REMOVED.sub("", text))
    for _ in range(3):  # \textbf{\text{...}}: three levels are more than anyone writes
        text = _WRAPPER.sub(r" \1 ", text)
    return _without_open_braces(text)


def _without_open_braces(text: str) -> str:
    r"""Wrappers cut off by a line end, as in `\textbf{Answer: 5` or `Answer:} 5`, lose their lone brace."""
    text = _WRAPPER_OPENING.sub(" ", text)
    depth = text.count("{") - text.count("}")
    if depth < 0:
        text = text.strip()
        text = text[1:] if text.startswith("}") else text.removesuffix("}")
    while text.startswith("{") and text.endswith("}") and text.find("}") == len(text) - 1:
        text = text[1:-1]
    return text
