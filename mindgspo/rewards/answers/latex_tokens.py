r"""From what a model typed to LaTeX tokens that mean something, and back to LaTeX that is safe for a symbolic parser.

`answer_tokens` leaves out fonts, spacing, sizes, delimiters and currency, writes the braces that TeX lets one leave out
(\frac12, \sqrt2, x^2), and drops units behind a value (5 \text{ cm}^2, \sqrt{2} \text{ m/s}). A unit that differs is
not noticed, as with plain numbers: the question names it. Linear in the text, no pattern that backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from mindgspo.rewards.answers.text import (
    COLOUR,
    ORDINAL,
    SIZES,
    WIDTHS_AND_DASHES,
    single_backslashes,
    without_marks,
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


LINE_BREAK = "\\\\"

_CHARACTERS: dict[int, str] = dict(WIDTHS_AND_DASHES)
_CHARACTERS |= {0x3001: ",", 0x3002: ".", 0x2236: ":", 0x2044: "/", 0x2215: "/", 0x2032: "'", 0x2019: "'"}
_CHARACTERS |= {0xD7: r"\times ", 0xB7: r"\cdot ", 0x22C5: r"\cdot ", 0x2217: "*", 0xF7: "/", 0xB1: r"\pm "}
_CHARACTERS |= {0x221A: r"\sqrt ", 0x221E: r"\infty ", 0x2205: r"\emptyset ", 0x2264: r"\le ", 0x2265: r"\ge "}
_CHARACTERS |= {0x2260: r"\ne ", 0x223C: r"\sim ", 0x2245: r"\cong ", 0x2208: r"\in "}
_CHARACTERS |= {0x222A: r"\cup ", 0x2229: r"\cap ", 0x2033: "''", 0x211D: r"\mathbb{R}", 0x2124: r"\mathbb{Z}"}
_CHARACTERS |= dict.fromkeys((0xBA, 0x2DA), "°")
_CHARACTERS |= dict.fromkeys((0x2243, 0x2248, 0x2250, 0x2252), r"\approx ")
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

_DEGREE = "°"
_DEGREES = re.compile(
    r"\^\s?(?:\{\s?\\circ\s?\}|\\circ(?![A-Za-z]))|(?<=[0-9])\^\s?(?:\{\s?o\s?\}|o(?![A-Za-z]))"
    r"|\\degrees?(?![A-Za-z])|\\textdegree(?![A-Za-z])|(?<=[0-9])度(?=[0-9])"
)
_MAY_BE_DEGREES = re.compile(r"[°º˚度]|circ|deg|\^[\s{]{0,3}o", re.IGNORECASE)
_DEGREE_WORDS = frozenset(("degree", "degrees", "deg", "度"))
_PRIMES = re.compile(r"\^\s?(?:\{\s?((?:\\prime\s?){1,3})\}|\\prime(?![A-Za-z]))")
_MINUTES = re.compile(
    rf"([0-9]{{1,6}})\s?{_DEGREE}\s?([0-9]{{1,2}}(?:\.[0-9]{{1,9}})?)\s?(?:'(?!')|分)"
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
_NAMES = (
    "sqrt pi theta alpha beta gamma lambda infty infinity inf sin cos tan cot sec csc arcsin arccos arctan log ln lg "
    "exp pm cup cap times cdot frac"
)
_TYPED_NAMES = frozenset(_NAMES.split())
TRIGONOMETRIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
# Short words that nobody means as a product of variables, and units where something stands before them.
_WORDS = "per day for any the is are not all yes no if with one two six ten"
_SHORT_WORDS = frozenset(_WORDS.split())
_UNITS = (
    "cm mm km kg mg ft lb lbs oz yd mi mph kmh sec min hr hrs ml mL sq cu deg rad QED erg Hz kHz MHz GHz kPa "
    "MPa atm kJ eV keV MeV GeV kW mol"
)
_SHORT_UNITS = frozenset(_UNITS.split())
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
    text = _DEGREES.sub(_DEGREE, ORDINAL.sub("", text))
    if "prime" in text:
        text = _PRIMES.sub(lambda primes: "'" * primes[0].count("prime"), text)
    if _DEGREE in text:
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
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}{_DEGREE}"


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
    if len(run) >= _LONG_WORD or lower in _SHORT_WORDS or (run in _SHORT_UNITS and before):
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


# ----- braces that were left out

_ARGUMENTS = {"frac": 2, "binom": 2, "sqrt": 1}
_OPEN, _CLOSE = Token(TokenKind.SYMBOL, "{"), Token(TokenKind.SYMBOL, "}")
_FRACTION, _BINOMIAL = Token(TokenKind.COMMAND, "frac"), Token(TokenKind.COMMAND, "binom")


@dataclass(slots=True)
class _Level:
    """An open brace. owed: arguments still to come. one_digit: whether each takes one digit only. added: whether the
    brace was not typed, so that it closes as soon as nothing is owed any more. parentheses: how many are open, of a
    brace that stands for a parenthesis."""

    owed: int = 0
    one_digit: bool = False
    added: bool = False
    parentheses: int = 0


def spelled_out(tokens: Sequence[Token]) -> list[Token]:
    r"""`tokens` with braces around every argument of \frac, \binom, \sqrt, ^ and _ that is typed without.

    \frac12 takes one digit per argument, as TeX does; \sqrt13, x^10 and 5_12 take the whole number, and \sqrt(x) and
    2^(x) the parenthesis, as their writers mean it.
    """
    pending = list(reversed(tokens))
    result: list[Token] = []
    levels = [_Level()]
    while pending:
        token = pending.pop()
        level = levels[-1]
        if level.owed and not token.is_symbol("{", "}", "(", "["):
            level.owed -= 1
            if token.is_command and token.text in _ARGUMENTS:  # x^\frac12
                levels.append(_Level(added=True))
                result.append(_OPEN)
                _owe(levels[-1], token)
                result.append(token)
            else:
                result += [_OPEN, *_argument(token, pending, level.one_digit), _CLOSE]
        elif level.owed and not level.one_digit and token.is_symbol("("):
            level.owed = 0
            levels.append(_Level(parentheses=1))
            result.append(_OPEN)
        elif level.parentheses == 1 and token.is_symbol(")"):
            levels.pop()
            result.append(_CLOSE)
        else:
            result.append(token)
            if level.parentheses:
                level.parentheses += token.is_symbol("(") - token.is_symbol(")")
            if token.is_symbol("{"):
                level.owed = max(level.owed - 1, 0)
                levels.append(_Level())
            elif token.is_symbol("}") and len(levels) > 1:
                levels.pop()
            else:
                _owe(level, token)
                if token.is_symbol("^") and len(result) > 1 and result[-2].text in TRIGONOMETRIC:
                    level.one_digit = True  # \sin^220^\circ
        while levels[-1].added and not levels[-1].owed:
            result.append(_CLOSE)
            levels.pop()
    return result


def _owe(level: _Level, token: Token) -> None:
    """Notes how many arguments follow `token`."""
    takes_script = token.is_symbol("^", "_")
    level.owed = _ARGUMENTS.get(token.text, 0) if token.is_command else int(takes_script)
    level.one_digit = token.is_command and token.text != "sqrt"


def _argument(token: Token, pending: list[Token], one_digit: bool) -> list[Token]:
    if one_digit and token.is_number and token.text[0] != "." and len(token.text) > 1:
        pending.append(Token(TokenKind.NUMBER, token.text[1:]))
        return [Token(TokenKind.NUMBER, token.text[0])]
    if token.is_symbol("-", "+") and pending and pending[-1].is_number:
        return [token, pending.pop()]  # 10^-3, which nobody means as 10^{-}3
    return [token]


# ----- angles

_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_ARGUMENT_ENDS = ("+", "-", ",", ";", "=", "<", ">", ":", "&", LINE_BREAK)
_WRITTEN_ANGLE = re.compile(
    r"(?P<whole>[0-9]{0,9}(?:\.[0-9]{1,20})?)(?:frac\{(?P<top>[0-9]{1,20})\}\{(?P<bottom>0{0,9}[1-9][0-9]{0,9})\})?"
)


def _with_angles(tokens: Sequence[Token], *, in_radians: bool) -> list[Token]:
    r"""`tokens` without degree signs: within the argument of a sine and its kin radians, as in \sin\frac{7\pi}{18},
    elsewhere the number of degrees, unless `in_radians`."""
    result: list[Token] = []
    in_function = [False]  # per open bracket
    was_sign = False
    for token in tokens:
        is_word = token.is_text and token.text.lower() in _DEGREE_WORDS
        if token.text == _DEGREE or (is_word and result and _ends_value(result[-1])):
            if result and not was_sign and (in_function[-1] or in_radians):
                start = _start_of_value(result)
                result[start:] = _radians(result[start:])
            was_sign = True
            continue
        was_sign = False
        if token.is_command and token.text in TRIGONOMETRIC:
            in_function[-1] = True
        elif token.is_symbol(*_OPENING):
            in_function.append(in_function[-1])
        elif token.is_symbol(*_CLOSING):
            in_function = in_function[:-1] or [False]
        elif token.is_symbol(*_ARGUMENT_ENDS) and not (result and result[-1].text in TRIGONOMETRIC):
            in_function[-1] = False
        result.append(token)
    return result


def _start_of_value(tokens: Sequence[Token]) -> int:
    """Where the last value starts: a bracket, a fraction with the number before it, or the last token."""
    start = _opening_of(tokens, len(tokens) - 1)
    if start > 3 and tokens[start].is_symbol("{") and tokens[start - 1].is_symbol("}"):
        top = _opening_of(tokens, start - 1)
        if top and tokens[top - 1] == _FRACTION:
            return top - 1 - (top > 1 and tokens[top - 2].is_number)
    return start


def _opening_of(tokens: Sequence[Token], end: int) -> int:
    depth = 0
    for at in range(end, -1, -1):
        depth += tokens[at].is_symbol(*_CLOSING) - tokens[at].is_symbol(*_OPENING)
        if depth <= 0:
            return at
    return 0


def _radians(degrees: list[Token]) -> list[Token]:
    half_turn = "180"
    written = _WRITTEN_ANGLE.fullmatch("".join(token.text for token in degrees))
    if written is not None:
        value = Fraction(written["whole"] or 0) + Fraction(int(written["top"] or 0), int(written["bottom"] or 1))
        angle = value / 180
        if angle == 0:
            return degrees
        degrees = [Token(TokenKind.NUMBER, str(angle.numerator))] if angle.numerator > 1 else []
        half_turn = str(angle.denominator)
    return [
        _FRACTION,
        _OPEN,
        *degrees,
        Token(TokenKind.COMMAND, "pi"),
        _CLOSE,
        _OPEN,
        Token(TokenKind.NUMBER, half_turn),
        _CLOSE,
    ]


# ----- for a symbolic parser

_SAFE_WORD = re.compile(r"[^A-Za-z]")
_SAFE_SYMBOLS = frozenset("+-*/^_=<>()[]{}|!,;:'&%") | {r"\{", r"\}", r"\|", LINE_BREAK}


def safe_latex(tokens: Sequence[Token]) -> str | None:
    """LaTeX of spelled-out `tokens` for a symbolic parser; None where one of them has no place in a formula.

    Whatever the parser does with names, these are letters only: no quotes, dots, underscores or calls survive. Products
    of numbers get their dot, because the parser takes 2(3) for the mixed number 2 + 3; so 2 3 has no place either. Nor
    has a zero behind a word: "4 for 0" would be zero.
    """
    written: list[str] = []
    scripts: list[bool] = []  # per open brace, whether it is a script
    before, is_operand = None, False
    for token in tokens:
        text = _safe(token)
        if text is None or (before is not None and before.is_number and token.is_number):
            return None
        if before is not None and before.is_text and token.is_number and not token.text.strip("0."):
            return None
        if token.is_symbol("'") and (before is None or not before.is_letter):
            return None  # a quotation mark rather than the prime of f'
        is_mixed = before is not None and before.is_number and token == _FRACTION
        starts = token.is_symbol("(") or token.is_number or token in (_FRACTION, _BINOMIAL)
        if is_operand and not is_mixed and starts:
            written.append(r"\cdot")
        written.append(text)
        is_operand = token.is_number or token.is_symbol(")")
        if token.is_symbol("{"):
            scripts.append(before is not None and before.is_symbol("^", "_"))
        elif token.is_symbol("}"):
            # Within \frac{1}{2} no number can follow, and behind \log_{2} none is a factor.
            is_operand = not (scripts and scripts.pop())
        before = token
    return " ".join(text for text in written if text)


def _safe(token: Token) -> str | None:
    if token.kind is TokenKind.SYMBOL:
        if token.text == "%":
            return r"\%"
        return token.text if token.text in _SAFE_SYMBOLS else None
    if token.is_text:
        if not token.text.isascii():
            return None
        word = _SAFE_WORD.sub("", token.text)
        return rf"\text{{{word}}}" if word else ""
    return "\\" + token.text if token.is_command else token.text


# ----- units

# Words that say more than a unit does.
_UNIT_WORDS = (
    "or and not if no when for with base mod remainder hundred thousand million billion trillion dozen hundreds "
    "thousands millions dozens tenths hundredths thousandths halves doubled tripled halved am pm a.m p.m a.m. p.m. is "
    "are times plus minus over to than least most less more lakh lakhs "
    "crore crores factorial"
)
_VOWEL = re.compile(r"[aeiou]|[^\x00-\x7f]")  # xyzw is a product
_DENIALS = frozenset(("wrong", "incorrect", "false", "maybe", "cannot"))
_POWERS = frozenset(("squared", "cubed"))
_TELLING_WORDS = frozenset(_UNIT_WORDS.split())
_TELLING_CHARACTERS = frozenset("或不十百千万亿半")  # or, not, ten, hundred, ..., half
_ELEMENT_ENDS = (",", ";", "&", LINE_BREAK, ")", "]", r"\}", "}")
_VALUE_ENDS = (")", "]", r"\}", "}", "%", "!", "|")


def _without_units(tokens: Sequence[Token]) -> list[Token]:
    """`tokens` without the units."""
    result: list[Token] = []
    at = 0
    has_quantity = False  # "an ellipse" is no number of ellipses
    while at < len(tokens):
        length = _unit_length(tokens, at) if has_quantity and _ends_value(result[-1]) else 0
        if not length:
            result.append(tokens[at])
            has_quantity = has_quantity or tokens[at].kind in (TokenKind.NUMBER, TokenKind.COMMAND)
        at += max(length, 1)
    return result


def denies(text: str, *, is_first: bool) -> bool:
    """Whether words behind a value say that it is another one or none. is_first: whether they stand right behind it,
    as those of "5 squared" do and those of "5 cm squared" do not."""
    words = text.lower().split()
    return bool(_DENIALS & set(words)) or (is_first and bool(words) and words[0] in _POWERS)


def _ends_value(token: Token) -> bool:
    return token.kind in (TokenKind.NUMBER, TokenKind.LETTER, TokenKind.COMMAND) or token.is_symbol(*_VALUE_ENDS)


def _unit_length(tokens: Sequence[Token], start: int) -> int:
    """How many tokens from `start` on are the unit that ends an element; 0 if there is none."""
    at = start
    if tokens[start].is_symbol("("):  # (hours)
        end = next((i for i in range(start + 1, len(tokens)) if not tokens[i].is_text), start)
        inside = _unit_length(tokens[:end], start + 1) if end > start + 1 and tokens[end].is_symbol(")") else 0
        are_words = all(token.text in _SHORT_UNITS or _VOWEL.search(token.text) for token in tokens[start + 1 : end])
        return inside + 2 if inside and are_words else 0
    while at < len(tokens):
        token = tokens[at]
        if token.is_text:
            if _TELLING_WORDS & set(token.text.lower().split()) or _TELLING_CHARACTERS & set(token.text):
                return 0
            if denies(token.text, is_first=at == start):
                return 0
            at += 1
        elif at > start and token.is_symbol("^") and (length := _script_length(tokens, at + 1)):
            at += 1 + length
        elif at > start and token.is_symbol("/", "*", "."):
            at += 1
        else:
            break
    ends = at == len(tokens) or tokens[at].is_symbol(*_ELEMENT_ENDS)
    return at - start if ends else 0


def _script_length(tokens: Sequence[Token], at: int) -> int:
    """Tokens of {2} or {-1} at `at`; 0 if there is neither."""
    texts = [token.text for token in tokens[at : at + 4]]
    length = 4 if texts[1:2] == ["-"] else 3
    return length if texts[:1] == ["{"] and texts[length - 1 : length] == ["}"] else 0


# ----- an answer

_EDGES = (".", ",", ";", ":", "?", "'", '"', "`", "!")
_EDGES_BEFORE = (",", ";", ":", "=", '"', "`")
_ABOUT = (Token(TokenKind.COMMAND, "sim"), Token(TokenKind.COMMAND, "thicksim"), Token(TokenKind.COMMAND, "cong"))


def answer_tokens(text: str, *, in_radians: bool = False) -> list[Token]:
    """The tokens of an answer, spelled out, without units and without punctuation at its edges.

    in_radians: whether degrees that stand outside a function are written as multiples of pi, too.
    """
    tokens = tokens_of(text)
    start, end = 0, len(tokens)
    while start < end and (tokens[start].is_symbol(*_EDGES_BEFORE) or tokens[start] in _ABOUT):
        start += 1
    while end > start and tokens[end - 1].is_symbol(*_EDGES) and not _is_mathematical(tokens, end - 1):
        end -= 1
    spelled = spelled_out(_without_repeats(tokens[start:end]))
    has_degrees = _MAY_BE_DEGREES.search(text) is not None
    return _without_units(_with_angles(spelled, in_radians=in_radians) if has_degrees else spelled)


def tokens_of_pair(answer: str, gold: str) -> list[list[Token]]:
    r"""`answer_tokens` of both; of an angle in degrees and one in multiples of \pi both in radians."""
    pair = [answer_tokens(answer), answer_tokens(gold)]
    if not (_MAY_BE_DEGREES.search(answer) or _MAY_BE_DEGREES.search(gold)):
        return pair
    have_pi = [any(token.text == "pi" for token in tokens) for tokens in pair]
    if have_pi[0] != have_pi[1]:
        turned = [answer_tokens(text, in_radians=True) for text in (answer, gold)]
        have_degrees = [tokens != others for tokens, others in zip(turned, pair, strict=True)]
        if have_degrees == [not has_pi for has_pi in have_pi]:
            return turned
    return pair


def _without_repeats(tokens: list[Token]) -> list[Token]:
    r"""Of "3, 5, and 7" one of the two separators; nor is there a line break behind the last row of a matrix."""
    kept: list[Token] = []
    for token in tokens:
        repeats_comma = token.is_symbol(",") and bool(kept) and kept[-1].is_symbol(",")
        if kept and kept[-1].is_symbol(LINE_BREAK) and token.text.startswith("end{"):
            kept.pop()
        if not repeats_comma:
            kept.append(token)
    return kept


def _is_mathematical(tokens: list[Token], index: int) -> bool:
    """Whether the ! of 5! and the ' of f' belong to what stands before them."""
    return tokens[index].is_symbol("!", "'") and index > 0 and not tokens[index - 1].is_symbol("!", ".", ",")
