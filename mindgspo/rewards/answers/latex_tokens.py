r"""From what a model typed to LaTeX tokens that mean something: no fonts, spacing, sizes, delimiters or currency.

What enters: an answer of at most `MAX_EXPRESSION_CHARS` characters. What leaves: tokens. Called by `latex`, in the main
process and in a worker. One pass, no pattern that backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

MAX_EXPRESSION_CHARS = 1000
"""A longer answer is not read as an expression."""


class Kind(Enum):
    """COMMAND: \\name or a known name typed without backslash. TEXT: words, from \\text{...}, four letters in a row, or
    in another script.
    SYMBOL: any other single character, \\{ and \\} and the line break \\\\ included."""

    NUMBER = "number"
    LETTER = "letter"
    COMMAND = "command"
    TEXT = "text"
    SYMBOL = "symbol"


class Token(NamedTuple):
    """kind, and text without backslash; numbers have no thousands separators, single characters are themselves."""

    kind: Kind
    text: str

    def is_symbol(self, *texts: str) -> bool:
        """Whether this is one of these symbols."""
        return self.kind is Kind.SYMBOL and self.text in texts


LINE_BREAK = "\\\\"

# Full-width forms (U+FF01..U+FF5E) come from Chinese input methods.
_CHARACTERS: dict[int, str] = {0xFF01 + offset: chr(0x21 + offset) for offset in range(0x5E)}
_CHARACTERS |= dict.fromkeys((0x00A0, 0x2007, 0x2009, 0x200A, 0x202F, 0x3000), " ")
_CHARACTERS |= dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF), "")
_CHARACTERS |= dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2212, 0xFE63), "-")
_CHARACTERS |= {0x3001: ",", 0x3002: ".", 0x2236: ":", 0x2044: "/", 0x2215: "/", 0x2032: "'", 0x2019: "'"}
_CHARACTERS |= {0xD7: r"\times ", 0xB7: r"\cdot ", 0x22C5: r"\cdot ", 0x2217: "*", 0xF7: "/", 0xB1: r"\pm "}
_CHARACTERS |= {0x221A: r"\sqrt ", 0x221E: r"\infty ", 0x2205: r"\emptyset ", 0x2264: r"\le ", 0x2265: r"\ge "}
_CHARACTERS |= {0x2260: r"\ne ", 0x2248: r"\approx ", 0x2208: r"\in ", 0x222A: r"\cup ", 0x2229: r"\cap "}
_CHARACTERS |= {0xB0: r"\degree ", 0x211D: r"\mathbb{R}", 0x2124: r"\mathbb{Z}"}
_CHARACTERS |= {0xBD: r"\frac{1}{2}", 0xBC: r"\frac{1}{4}", 0xBE: r"\frac{3}{4}"}
_CHARACTERS |= {0xB2: "^{2}", 0xB3: "^{3}", 0xB9: "^{1}", 0x2070: "^{0}"}
_CHARACTERS |= {point: f"^{{{point - 0x2070}}}" for point in range(0x2074, 0x207A)}
_CHARACTERS |= {point: f"_{{{point - 0x2080}}}" for point in range(0x2080, 0x208A)}
_CHARACTERS |= dict.fromkeys((0x20AC, 0xA3, 0xA5), "$")
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi o pi rho - sigma tau upsilon phi chi psi "
    "omega"
)
_CHARACTERS |= {0x3B1 + offset: rf"\{name} " for offset, name in enumerate(_GREEK.split()) if len(name) > 1}

_DEGREES = re.compile(r"\^\s?\{?\s?\\circ(?![A-Za-z])\s?\}?|\\degrees?(?![A-Za-z])|\\textdegree(?![A-Za-z])")
# "10,\!080", "10{,}080" and "10\,080" are single numbers, whatever stands around them.
_TYPESET_THOUSANDS = re.compile(r"(?<=[0-9])(?:,\\! ?|\{,\} ?|\\[,;:](?=[0-9]{3}(?![0-9])))(?=[0-9]{3})")
_REPEATING = re.compile(r"(?<![0-9.])([0-9]{0,20})\.([0-9]{0,20})\\(?:overline|bar)\s?\{([0-9]{1,20})\}")

_WORD_WRAPPERS = r"text(?:bf|it|rm|normal|sf|tt|up|sc)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname|emph"
_IGNORED_COMMANDS = (
    r"left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|nolimits|quad|qquad|boxed|fbox|bf|rm|it"
    r"|hspace\{[^{}]{0,20}\}|phantom\{[^{}]{0,20}\}|bm|boldsymbol|ensuremath|mathop|mathstrut|strut"
)
_GROUPED = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
_NUMBER = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_PATTERN = (
    rf"(?P<skip>\s+|\\[ ,;:!()\[\]]|\\?\$|~|`|\*\*|\\(?:{_IGNORED_COMMANDS})(?![A-Za-z]))"
    r"|(?P<line>\\\\(?:\[[0-9a-z. ]{0,10}\])?|\\(?:cr|newline)(?![A-Za-z]))"
    rf"|\\(?P<font>{_WORD_WRAPPERS})(?![A-Za-z])\s?(?P<words>\{{[^{{}}]{{0,200}}\}})?"
    r"|\\(?P<edge>begin|end)\s?\{(?P<environment>[a-zA-Z]{1,15})\*?\}(?:\{[clr| ]{0,20}\})?"
    r"|\\(?P<command>[A-Za-z]+)|\\(?P<escaped>.)"
    rf"|(?P<number>{{number}})|(?P<letters>[A-Za-z]+)|(?P<foreign>[^\W\d_]+)|(?P<other>.)"
)
_OUTSIDE = re.compile(_PATTERN.replace("{number}", rf"{_GROUPED}|{_NUMBER}"), re.DOTALL)
# Within brackets a comma separates: (1,234) is a pair.
_INSIDE = re.compile(_PATTERN.replace("{number}", _NUMBER), re.DOTALL)

_SAME_COMMAND = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **{"leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "varnothing": "emptyset"},
    **{"dbinom": "binom", "tbinom": "binom", "infinity": "infty", "inf": "infty", "simeq": "approx"},
}
_SAME_MATRIX = dict.fromkeys(("matrix", "bmatrix", "smallmatrix", "array"), "pmatrix")  # all but the determinant
_AS_SYMBOL = {
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **{"div": "/", "colon": ":", "lt": "<", "gt": ">", "prime": "'", "percent": "%"},
    **{"lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")"},
    **dict.fromkeys(("mid", "vert", "lvert", "rvert"), "|"),
}
_NAMES = (
    "sqrt pi theta alpha beta gamma lambda infty infinity inf sin cos tan cot sec csc arcsin arccos arctan log ln exp "
    "pm cup cap times cdot frac"
)
_TYPED_NAMES = frozenset(_NAMES.split())
# Short words that nobody means as a product of variables, and units where something stands before them.
_WORDS = "per day the is are not all yes if with one two six ten"
_SHORT_WORDS = frozenset(_WORDS.split())
_UNITS = "cm mm km kg mg ft lb lbs oz yd mi mph kmh sec min hr hrs ml mL sq cu deg rad"
_SHORT_UNITS = frozenset(_UNITS.split())
_UNIT_LETTERS = frozenset("mgshLlCFKWVANJ")
_SEPARATING_WORDS = frozenset(("and", "or"))
_PERCENT_WORDS = frozenset(("percent", "percentage", "pct"))
_WORDS_ONLY = re.compile(r"[^0-9\\^_=+$]*")
_LONG_WORD = 4


def tokens_of(text: str) -> list[Token]:
    """The tokens of `text`; [] for text of nothing but markup, or longer than MAX_EXPRESSION_CHARS."""
    if len(text) > MAX_EXPRESSION_CHARS:
        return []
    if not text.isascii():
        text = text.translate(_CHARACTERS)
    text = _REPEATING.sub(_as_fraction, _TYPESET_THOUSANDS.sub("", _DEGREES.sub(" ", text)))
    tokens: list[Token] = []
    depth = position = 0
    while position < len(text):
        match = (_INSIDE if depth > 0 else _OUTSIDE).match(text, position)
        assert match is not None, "the last alternative matches any character"
        position = match.end()
        if match["words"] is not None and not _WORDS_ONLY.fullmatch(match["words"]):
            position = match.start("words")  # \text{4 cm}: its content is read like any other
            continue
        for token in _read(match, tokens):
            tokens.append(token)
            depth += token.is_symbol("(", "[", r"\{") - token.is_symbol(")", "]", r"\}")
    return tokens


def _as_fraction(repeating: re.Match[str]) -> str:
    r"""0.1\overline{6} as {\frac{15}{90}}, whose braces keep a number before it from making it mixed."""
    whole, fixed, period = repeating.groups()
    top = int(f"{whole}{fixed}{period}") - int(f"0{whole}{fixed}")
    return rf"{{\frac{{{top}}}{{{'9' * len(period)}{'0' * len(fixed)}}}}}"


def _read(match: re.Match[str], before: Sequence[Token]) -> list[Token]:
    if number := match["number"]:
        return [Token(Kind.NUMBER, number.replace(",", ""))]
    if command := match["command"]:
        return [_command(command)]
    if environment := match["environment"]:
        drawn = _SAME_MATRIX.get(environment, environment)
        return [Token(Kind.COMMAND, f"{match['edge']}{{{drawn}}}")]
    if letters := match["letters"]:
        return _letters(letters, before)
    if foreign := match["foreign"]:
        return [Token(Kind.TEXT, foreign)]
    if match["words"] is not None:
        content = match["words"][1:-1].strip()
        is_unit = content in _UNIT_LETTERS and match["font"] in ("text", "mbox", "mathrm", "textrm")
        return [Token(Kind.TEXT, content)] if is_unit else _words(content)
    if match["line"]:
        return [Token(Kind.SYMBOL, LINE_BREAK)]
    if escaped := match["escaped"]:
        return [Token(Kind.SYMBOL, escaped if escaped in "%_#&" else "\\" + escaped)]
    return [Token(Kind.SYMBOL, match["other"])] if match["other"] else []


def _command(name: str) -> Token:
    if name in _AS_SYMBOL:
        return Token(Kind.SYMBOL, _AS_SYMBOL[name])
    return Token(Kind.COMMAND, _SAME_COMMAND.get(name, name))


def _letters(run: str, before: Sequence[Token]) -> list[Token]:
    """Letters typed without any markup: a name, a separator, a word, a unit or a product of variables."""
    lower = run.lower()
    if lower in _SEPARATING_WORDS or lower in _PERCENT_WORDS:
        return _words(run)
    if run in _TYPED_NAMES:
        return [_command(run)]
    if len(run) >= _LONG_WORD or lower in _SHORT_WORDS or (run in _SHORT_UNITS and before):
        return [Token(Kind.TEXT, run)]
    return [Token(Kind.LETTER, letter) for letter in run]


def _words(content: str) -> list[Token]:
    lower = content.strip(" ,.").lower()
    if lower in _SEPARATING_WORDS:
        return [Token(Kind.SYMBOL, ",")]
    if lower in _PERCENT_WORDS or content == "%":
        return [Token(Kind.SYMBOL, "%")]
    if len(content) == 1:
        return [Token(Kind.LETTER if content.isalpha() else Kind.SYMBOL, content)]
    return [Token(Kind.TEXT, content)] if content else []
