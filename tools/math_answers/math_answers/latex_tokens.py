r"""Text of an answer, as a model types it, to LaTeX tokens that mean something.

`tokens_of` leaves out fonts, spacing, sizes, delimiters and currency, and reads the same symbol in all its notations as
one: \le, \leq and <=, 0.\dot3 and \frac39. Linear in the text, no pattern that backtracks. `answer_tokens` goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from math_answers.text import (
    COLOUR,
    ORDINAL,
    SIZES,
    WIDTHS_AND_DASHES,
    single_backslashes,
    without_marks,
    word_set,
)

MAX_EXPRESSION_CHARS = 1000
"""A longer answer is not read as an expression."""


class TokenKind(Enum):
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

    kind: TokenKind
    text: str

    @property
    def is_number(self) -> bool:
        """Whether this is a number without sign."""
        return self.kind is TokenKind.NUMBER

    @property
    def is_letter(self) -> bool:
        """Whether this is a single letter."""
        return self.kind is TokenKind.LETTER

    @property
    def is_command(self) -> bool:
        """Whether this is a command of LaTeX."""
        return self.kind is TokenKind.COMMAND

    @property
    def is_text(self) -> bool:
        """Whether these are words."""
        return self.kind is TokenKind.TEXT

    def is_symbol(self, *texts: str) -> bool:
        """Whether this is one of these symbols."""
        return self.kind is TokenKind.SYMBOL and self.text in texts

    @property
    def depth(self) -> int:
        """1 for an opening bracket or brace, -1 for a closing one, else 0."""
        return self.is_symbol("(", "[", "{", r"\{") - self.is_symbol(")", "]", "}", r"\}")


LINE_BREAK = "\\\\"
OPEN, CLOSE = Token(TokenKind.SYMBOL, "{"), Token(TokenKind.SYMBOL, "}")
FRACTION, BINOMIAL = Token(TokenKind.COMMAND, "frac"), Token(TokenKind.COMMAND, "binom")

_CHARACTERS: dict[int, str] = WIDTHS_AND_DASHES | str.maketrans(
    {
        **{"、": ",", "。": ".", "∶": ":", "⁄": "/", "∕": "/", "÷": "/", "∗": "*", "′": "'", "’": "'", "″": "''"},
        **{"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ", "√": r"\sqrt ", "∞": r"\infty "},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∼": r"\sim ", "≅": r"\cong ", "∈": r"\in ", "∅": r"\emptyset "},
        **{"∪": r"\cup ", "∩": r"\cap ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "º": "°", "˚": "°"},
        **{"½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"},
        **dict.fromkeys("≃≈≐≒", r"\approx "), **dict.fromkeys("€£¥", "$"),
        **{character: f"^{{{digit}}}" for digit, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        **{character: f"_{{{digit}}}" for digit, character in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    }
)  # fmt: skip
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega"
)
_GREEK = dict(zip("αβγδεζηθικλμνξπρστυφχψω", _GREEK_NAMES.split(), strict=True))
_CHARACTERS |= str.maketrans({letter: rf"\{name} " for letter, name in _GREEK.items()})

DEGREE = "°"
_DEGREES = re.compile(
    r"\^\s?(?:\{\s?\\circ\s?\}|\\circ(?![A-Za-z]))|(?<=[0-9])\^\s?(?:\{\s?o\s?\}|o(?![A-Za-z]))"
    r"|\\degrees?(?![A-Za-z])|\\textdegree(?![A-Za-z])|(?<=[0-9])度(?=[0-9])"
)
_PRIMES = re.compile(r"\^\s?(?:\{\s?((?:\\prime\s?){1,3})\}|\\prime(?![A-Za-z]))")
_MINUTES = re.compile(
    rf"([0-9]{{1,6}})\s?{DEGREE}\s?([0-9]{{1,2}}(?:\.[0-9]{{1,9}})?)\s?(?:'(?!')|分)"
    rf"(?:\s?([0-9]{{1,2}}(?:\.[0-9]{{1,9}})?)\s?(?:''|\"|秒))?"
)
# "10,\!080", "10{,}080", "10\,080" and "10'080" are single numbers, whatever stands around them.
_TYPESET_THOUSANDS = re.compile(r"(?<=[0-9])(?:,\\! ?|\{,\} ?|(?:\\[,;:]|')(?=[0-9]{3}(?![0-9])))(?=[0-9]{3})")
_TYPED_RELATIONS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne "}
_TYPED_RELATION = re.compile(r"[<>]=|(?<=\s)!=")
_DOT = r"\\dot\s?(?:\{[0-9]\}|[0-9])"
_REPEATING = re.compile(
    rf"(?<![0-9.])([0-9]{{0,20}})\.([0-9]{{0,20}})(\\(?:overline|bar)\s?\{{[0-9]{{1,20}}\}}|{_DOT}(?:[0-9]{{0,20}}{_DOT})?)"
)
# C_{10}^3, C^3_{10}, {}_{10}C_3 and 10C3; the letter may be upright.
_COUNT = r"\s?(?:\{\s?([0-9a-z][0-9a-z+ -]{0,9})\s?\}|([0-9]{1,4}|[a-z]))"
_COUNTER = r"(?:\\(?:mathrm|text|rm)\s?\{([CAP])\}|(?<![A-Za-z\\])([CAP]))\s?"
_COMBINATION = re.compile(
    rf"(?:\{{\}}\s?)?{_COUNTER}(?:_{_COUNT}\s?\^{_COUNT}|\^{_COUNT}\s?_{_COUNT})"
    rf"|(?:\{{\}}|(?<![\w)}}\]]))\s?[_^]{_COUNT}\s?{_COUNTER}_{_COUNT}|(?<![\w.])([0-9]{{1,4}})\s?([CP])\s?([0-9]{{1,4}})(?![\w^(])"
)

_WORD_WRAPPERS = r"text(?:bf|it|rm|normal|sf|tt|up|sc)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname|emph"
_IGNORED_COMMANDS = (
    r"left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|nolimits|quad|qquad|boxed|fbox|bf|rm|it"
    r"|bm|boldsymbol|ensuremath|math(?:op|ord|bin|rel)|mathstrut|strut|underline|hfill|par"
    rf"|{SIZES}|(?:script)?scriptstyle|normalfont|bfseries"
)
_IGNORED_WITH_ARGUMENT = rf"(?:hspace\{{[^{{}}]{{0,20}}\}}|phantom\{{[^{{}}]{{0,20}}\}}|{COLOUR})"
_GROUPED = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
_NUMBER = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_PATTERN = (
    rf"(?P<skip>\s+|\\[ ,;:!()\[\]]|\\?\$|~|`|\*\*|\\(?:{_IGNORED_COMMANDS})(?![A-Za-z])|\\{_IGNORED_WITH_ARGUMENT})"
    r"|(?P<line>\\\\(?:\[[0-9a-z. ]{0,10}\])?|\\(?:cr|newline)(?![A-Za-z]))"
    rf"|\\(?P<font>{_WORD_WRAPPERS})(?![A-Za-z])\s?(?P<words>\{{[^{{}}]{{0,200}}\}})?"
    r"|\\(?P<edge>begin|end)\s?\{(?P<environment>[a-zA-Z]{1,15})\*?\}(?:\{[clr| ]{0,20}\})?"
    r"|\\(?P<command>[A-Za-z]+)|\\(?P<escaped>.)"
    rf"|(?P<number>{{number}})|(?P<letters>[A-Za-z]+)|(?P<foreign>[^\W\d_A-Za-z]+)|(?P<other>.)"
)
_OUTSIDE = re.compile(_PATTERN.replace("{number}", rf"{_GROUPED}|{_NUMBER}"), re.DOTALL)
# Within brackets a comma separates: (1,234) is a pair.
_INSIDE = re.compile(_PATTERN.replace("{number}", _NUMBER), re.DOTALL)

_SAME_COMMAND = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **{"leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "varnothing": "emptyset"},
    **{"dbinom": "binom", "tbinom": "binom", "infinity": "infty", "inf": "infty"},
}
_SAME_MATRIX = dict.fromkeys(("matrix", "bmatrix", "smallmatrix", "array"), "pmatrix")  # all but the determinant
_AS_SYMBOL = {
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **{"div": "/", "colon": ":", "lt": "<", "gt": ">", "prime": "'", "percent": "%"},
    **{"lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")"},
    **dict.fromkeys(("mid", "vert", "lvert", "rvert"), "|"),
    # A value is compared as it is written: "about 72" says 72.
    **dict.fromkeys(("approx", "approxeq", "simeq", "thickapprox", "doteq", "fallingdotseq"), "="),
}
_TYPED_NAMES = word_set(
    "sqrt pi theta alpha beta gamma lambda infty infinity inf sin cos tan cot sec csc arcsin arccos arctan log ln lg "
    "exp pm cup cap times cdot frac"
)
TRIGONOMETRIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
# Short words that nobody means as a product of variables, and units where something stands before them.
_SHORT_WORDS = word_set("per day for any the is are not all yes no if with one two six ten")
SHORT_UNITS = word_set(
    "cm mm km kg mg ft lb lbs oz yd mi mph kmh sec min hr hrs ml mL sq cu deg rad QED erg Hz kHz MHz GHz kPa MPa atm "
    "kJ eV keV MeV GeV kW mol"
)
_UNIT_LETTERS = frozenset("mgshLlCFKWVANJ")
_CHINESE_AND_OR = ("或", "或者", "和", "与", "及", "以及", "且")
_SEPARATING_WORDS = frozenset(("and", "or", *_CHINESE_AND_OR))
_PERCENT_WORDS = frozenset(("percent", "percentage", "pct"))
_WORDS_ONLY = re.compile(r"[^0-9\\^_=+$]*")
_LONG_WORD = 4


def tokens_of(text: str) -> list[Token]:
    """The tokens of `text`; [] for text of nothing but markup, or longer than MAX_EXPRESSION_CHARS."""
    if len(text) > MAX_EXPRESSION_CHARS:
        return []
    text = without_marks(text)
    if not text.isascii():
        text = text.translate(_CHARACTERS)
    text = _TYPED_RELATION.sub(lambda typed: _TYPED_RELATIONS[typed[0]], single_backslashes(text))
    text = _DEGREES.sub(DEGREE, ORDINAL.sub("", text))
    if "prime" in text:
        text = _PRIMES.sub(lambda primes: "'" * primes[0].count("prime"), text)
    if DEGREE in text:
        text = _MINUTES.sub(_as_degrees, text)
    if "C" in text or "A" in text or "P" in text:
        text = _COMBINATION.sub(_as_binomial, text)
    text = _REPEATING.sub(_as_fraction, _TYPESET_THOUSANDS.sub("", text))
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
    whole, fixed, marked = repeating.groups()
    period = re.sub(r"[^0-9]", "", marked)
    top = int(f"{whole}{fixed}{period}") - int(f"0{whole}{fixed}")
    return rf"{{\frac{{{top}}}{{{'9' * len(period)}{'0' * len(fixed)}}}}}"


def _as_degrees(angle: re.Match[str]) -> str:
    r"""63^\circ 45' as {\frac{255}{4}} degrees."""
    degrees, minutes, seconds = angle.groups()
    value = Fraction(degrees) + Fraction(minutes) / 60 + Fraction(seconds or 0) / 3600
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}{DEGREE}"


def _as_binomial(found: re.Match[str]) -> str:
    r"""C_{10}^3 as \binom{10}{3} and A_5^2 as \frac{5!}{3!}; C_1^2 is the square of C_1."""
    groups = found.groups()
    upright, italic, n1, n2, k1, k2, above1, above2, below1, below2, *before, typed_n, typed, typed_k = groups
    name = upright or italic or before[2] or before[3] or typed
    total = n1 or n2 or below1 or below2 or before[0] or before[1] or typed_n
    taken = k1 or k2 or above1 or above2 or before[4] or before[5] or typed_k
    are_numbers = total.isdigit() and taken.isdigit()
    if (are_numbers and int(total) < int(taken)) or (name != "C" and not are_numbers):
        return found[0]
    if name == "C":
        return rf"\binom{{{total}}}{{{taken}}}"
    return rf"{{\frac{{{int(total)}!}}{{{int(total) - int(taken)}!}}}}"


def _read(match: re.Match[str], before: Sequence[Token]) -> list[Token]:
    if number := match["number"]:
        return [Token(TokenKind.NUMBER, number.replace(",", ""))]
    if command := match["command"]:
        if command == "lg":
            return _LG
        # With an index it is an operation on many sets, without one a large sign.
        if command in ("bigcup", "bigcap") and not match.string[match.end() : match.end() + 2].lstrip().startswith("_"):
            command = command[3:]
        return [_command(command)]
    if environment := match["environment"]:
        drawn = _SAME_MATRIX.get(environment, environment)
        return [Token(TokenKind.COMMAND, f"{match['edge']}{{{drawn}}}")]
    if letters := match["letters"]:
        return _letters(letters, before)
    if foreign := match["foreign"]:
        return _words(foreign) if foreign in _SEPARATING_WORDS else [Token(TokenKind.TEXT, foreign)]
    if match["words"] is not None:
        content = match["words"][1:-1].strip()
        is_unit = content in _UNIT_LETTERS and match["font"] in ("text", "mbox", "mathrm", "textrm")
        return [Token(TokenKind.TEXT, content)] if is_unit else _words(content)
    if match["line"]:
        return [Token(TokenKind.SYMBOL, LINE_BREAK)]
    if escaped := match["escaped"]:
        return [Token(TokenKind.SYMBOL, escaped if escaped in "%_#&" else "\\" + escaped)]
    return [Token(TokenKind.SYMBOL, match["other"])] if match["other"] else []


_LG = [Token(TokenKind.COMMAND, "log"), *(Token(TokenKind.SYMBOL, "_"), Token(TokenKind.SYMBOL, "{"))]
_LG += [Token(TokenKind.NUMBER, "10"), Token(TokenKind.SYMBOL, "}")]


def _command(name: str) -> Token:
    if name in _AS_SYMBOL:
        return Token(TokenKind.SYMBOL, _AS_SYMBOL[name])
    return Token(TokenKind.COMMAND, _SAME_COMMAND.get(name, name))


def _letters(run: str, before: Sequence[Token]) -> list[Token]:
    """Letters typed without any markup: a name, a separator, a word, a unit or a product of variables."""
    lower = run.lower()
    if lower in _SEPARATING_WORDS or lower in _PERCENT_WORDS:
        return _words(run)
    if run in _TYPED_NAMES:
        return _LG if run == "lg" else [_command(run)]
    if len(run) >= _LONG_WORD or lower in _SHORT_WORDS or (run in SHORT_UNITS and before):
        return [Token(TokenKind.TEXT, run)]
    return [Token(TokenKind.LETTER, letter) for letter in run]


def _words(content: str) -> list[Token]:
    lower = content.strip(" ,.").lower()
    if lower in _SEPARATING_WORDS:
        return [Token(TokenKind.SYMBOL, ",")]
    if lower in _PERCENT_WORDS or content == "%":
        return [Token(TokenKind.SYMBOL, "%")]
    if len(content) == 1:
        kind = TokenKind.SYMBOL if not content.isalpha() else TokenKind.LETTER if content.isascii() else TokenKind.TEXT
        return [Token(kind, content)]
    return [Token(TokenKind.TEXT, content)] if content else []
