r"""Markup off, content kept: from what a model typed to text that `number` can read.

What enters: one line or one \boxed{} content, at most a few hundred characters. What leaves: the same words
and numbers without markdown, LaTeX spacing and wrappers, currency signs, tags and full-width forms. Called
by `markers`, `final_number` and `quantity`. Every pattern is bounded, so the work is linear in the text.
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
_CHARACTERS |= {0x2044: "/", 0x2215: "/", 0x3002: ". ", 0x2248: "=", 0x3001: ",", 0xFF61: ". "}
_CHARACTERS |= dict.fromkeys((0xA3, 0xA5, 0xFFE5, *range(0x20A0, 0x20C0)), "$")  # currency signs
_VULGAR_FRACTIONS = {
    **{0xBC: "1/4", 0xBD: "1/2", 0xBE: "3/4", 0x2150: "1/7", 0x2151: "1/9", 0x2152: "1/10", 0x2153: "1/3"},
    **{0x2154: "2/3", 0x2155: "1/5", 0x2156: "2/5", 0x2157: "3/5", 0x2158: "4/5", 0x2159: "1/6", 0x215A: "5/6"},
    **{0x215B: "1/8", 0x215C: "3/8", 0x215D: "5/8", 0x215E: "7/8"},
}
_CHARACTERS |= {point: f" {fraction}" for point, fraction in _VULGAR_FRACTIONS.items()}

_REMOVED = re.compile(
    r"<<[^<>]*>>"  # GSM8K's calculator notes
    r"|</?[A-Za-z][\w-]{0,20}>|<\|[^|<>]{0,30}\|>"  # tags and special tokens typed as text
    r"|\\(?:left|right|displaystyle|limits|bf|rm|!)(?![A-Za-z])"
    r"|`"
)
_NEGATIVE_MONEY = re.compile(r"-\\?\$(?=[0-9.])")
_SHORT_MONEY = re.compile(r"(\$\s?[0-9][0-9.,]{0,20})([kKMB])(?![\w$])")  # not $70k$, which is algebra
_SHORT_FORMS = {"k": " thousand", "K": " thousand", "M": " million", "B": " billion"}
_POWER = re.compile(r"(?<=[0-9)])\s?\*\*\s?(?=[0-9])")
_SPACED = re.compile(r"\*\*|__|\\?\$|\\[,;: ()\[\]]|~|\\q?quad(?![A-Za-z])")
_FONTS = r"text(?:bf|it|rm|tt|sf)?|math(?:rm|bf|it|tt|sf)|underline|mbox|emph"
_WRAPPER = re.compile(rf"\\(?:{_FONTS}|boxed|fbox)\s*\{{([^{{}}]*)\}}")
_WRAPPER_OPENING = re.compile(rf"\\(?:{_FONTS}|boxed|fbox)\s*\{{")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|equiv)(?![A-Za-z])")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degrees?(?![A-Za-z])")
# "48 minus 24" is a difference; "is negative 72" a sign.
_SIGN_WORD = re.compile(
    r"(\A\s{0,4}|\b(?:is|be|equals)\s|[:=#]\s?)(?:negative|minus)\s{1,2}(?=\$?\.?[0-9])", re.IGNORECASE
)
_CHINESE_MINUS = re.compile(r"(?<!\u6b63)\u8d1f\s?(?=[0-9])")
_WHITESPACE = re.compile(r"\s+")
_MARKUP_CHARACTERS = re.compile(r"[\\*_`$<~{}]")


def ascii_forms(text: str) -> str:
    """`text` with full-width digits and punctuation, typographic minus signs and the like in their ASCII forms."""
    return text if text.isascii() else text.translate(_CHARACTERS)


def plain(text: str) -> str:
    """`text` without markup, on one line, without quotes and closing punctuation at its edges."""
    text = ascii_forms(text)
    if _MARKUP_CHARACTERS.search(text):
        text = _without_markup(text)
    text = _CHINESE_MINUS.sub("-", _SIGN_WORD.sub(r"\1-", text))
    # A leading point may open a decimal (".5"), so only the right edge loses full stops.
    return _WHITESPACE.sub(" ", text).strip(" \"'*_,;:").rstrip(" \"'*_.,;:")


def _without_markup(text: str) -> str:
    text = _POWER.sub("^", text.replace("{,}", ",").replace(r"\%", "%"))
    text = _SHORT_MONEY.sub(lambda match: match[1] + _SHORT_FORMS[match[2]], text)
    text = _NEGATIVE_MONEY.sub("-", text)
    text = _DEGREES.sub("\u00b0", _APPROXIMATELY.sub("=", text))
    text = _SPACED.sub(" ", _REMOVED.sub("", text))
    for _ in range(3):  # \textbf{\text{...}}: three levels are more than anyone writes
        text = _WRAPPER.sub(r" \1 ", text)
    return _without_open_braces(text)


def _without_open_braces(text: str) -> str:
    r"""Wrappers cut off by a line end, as in `\textbf{Answer: 5` or `Answer:} 5`, lose their lone brace."""
    text = _WRAPPER_OPENING.sub(" ", text)
    for _ in range(min(3, text.count("}") - text.count("{"))):
        text = text.strip()
        text = text[1:] if text.startswith("}") else text.removesuffix("}")
    while text.startswith("{") and text.endswith("}") and text.find("}") == len(text) - 1:
        text = text[1:-1]
    return text
