r"""Symbolic comparison of two answers, for a process that may be killed: it may run forever, take all memory or crash.

No text is ever evaluated. math-verify's own `parse` is not used, because its reader of plain expressions hands text to
sympy's `parse_expr`, which is `eval`. The texts are broken into tokens and written down again with nothing but numbers,
single letters, commands of letters and a fixed set of symbols; the grammar of latex2sympy builds a sympy tree from
that, and math-verify's `verify` compares trees. The only text that reaches an evaluating function is a run of digits.
The library's own time limits, which use signal.alarm, are off: whoever kills the process sets the only one.

Where math-verify is too lax, its steps are replaced. It takes numbers for equal whose difference is below 1e-15, so
that e^{-50} would be e^{-51}; `numerically_equal` stands in for that step. Two equations without a real solution, or
without letters, would be the same if both are false or both true; `are_same_relations` and `have_same_solutions` tell
them apart. And letters are any real numbers to it, so that \sqrt{ab} would not be \sqrt{a}\sqrt{b};
`of_positive_letters` writes both sides down again, where both ask for positive letters. Importing this module takes
about a second.
"""

from __future__ import annotations

import logging
from functools import partial

from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import grader, verify
from sympy import (
    Abs,
    Add,
    Basic,
    Eq,
    Expr,
    Float,
    Integer,
    Integral,
    Limit,
    MatrixBase,
    Mul,
    Pow,
    Product,
    Rational,
    Sum,
    Symbol,
    UnevaluatedExpr,
    cancel,
    factor,
    false,
    log,
    solve,
)
from sympy.core.relational import Relational

from math_answers.latex_tokens import Token
from math_answers.relations import values_of_pair
from math_answers.symbolic_input import safe_latex

RELATIVE_TOLERANCE = 1e-6
r"""For comparisons with a decimal number, as in 1.414214 for \sqrt{2}."""

_COMPARE_RELATIONS, _COMPARE_SOLUTIONS = grader.sympy_compare_relational, grader.sympy_solve_and_compare
_COMPARE_SIMPLIFIED = grader.sympy_symbolic_eq
_LIMITS = (Integral, Limit, Product, Sum)

MAX_DIGITS, MAX_DIGITS_OF_SUMS = 1000, 30
"""To how many digits a difference of exact numbers is worked out before it counts as zero; fewer where it holds an
integral or an infinite sum that sympy cannot do."""


def _is_zero(number: Expr) -> bool:
    """Whether an exact number without letters is zero: sympy adds digits until one shows."""
    if number.is_Rational:
        return bool(number == 0)
    digits = MAX_DIGITS_OF_SUMS if number.has(*_LIMITS) else MAX_DIGITS
    found = number.evalf(2, maxn=digits)
    if found == 0:  # \ln(1 + 10^{-20}), \arccos(1 - 10^{-20}): rounded before the function, and said to be exact
        parts = number.evalf(digits).as_real_imag()
        return all(part.is_number and abs(part) < Rational(1, 10 ** (digits * 9 // 10)) for part in parts)
    return bool(found.is_finite) and all(
        part == 0 or (part.is_Float and part._prec == 1) for part in found.as_real_imag()
    )


def _is_identity(difference: Expr) -> bool:
    """Whether the coefficients of all terms with the same letters add up to zero."""
    sums: dict[Expr, Expr] = {}
    for term in Add.make_args(difference):
        coefficient, letters = term.as_independent(*difference.free_symbols, as_Add=False)
        sums[letters] = sums.get(letters, Integer(0)) + coefficient
    return all(map(_is_zero, sums.values()))


def _exact(tree: Expr) -> Expr:
    """The tree worked out, decimals as the fractions that they say."""
    return tree.xreplace({number: Rational(str(number)) for number in tree.atoms(Float)}).doit()


def _without_percent(tree: Expr) -> Expr:
    r"""72 for 72\%, which the grammar writes as 72 times an unevaluated hundredth."""
    if isinstance(tree, Mul) and UnevaluatedExpr(Rational(1, 100)) in tree.args:
        return tree * 100
    return tree


def numerically_equal(gold: Basic | MatrixBase, answer: Basic | MatrixBase, float_rounding: int, _: int) -> bool:
    """The numeric step of math-verify: exact, but for one decimal that is compared with an irrational number."""
    if isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase):
        gold, answer = gold.doit(), answer.doit()
        return gold.shape == answer.shape and all(
            numerically_equal(*pair, float_rounding, _) for pair in zip(gold.flat(), answer.flat(), strict=True)
        )
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return False
    if isinstance(gold, Float) or isinstance(answer, Float):
        gold, answer = gold.doit(), answer.doit()
        difference = (gold - answer).evalf()
        half_unit = 0.5000001 * 10.0**-float_rounding
        return bool(difference.is_number and abs(difference) <= min(RELATIVE_TOLERANCE * abs(gold.evalf()), half_unit))
    pair = _exact(gold), _exact(answer)
    plain = _exact(_without_percent(gold)), _exact(_without_percent(answer))
    return _is_identity(pair[0] - pair[1]) or (plain != pair and _is_identity(plain[0] - plain[1]))


def are_same_simplified(gold: Basic | MatrixBase, answer: Basic | MatrixBase) -> bool:
    """The symbolic step of math-verify, but for numbers: `numerically_equal` has compared them, and it rounds some."""
    are_numbers = all(isinstance(each, Expr) and each.is_number and not each.has(*_LIMITS) for each in (gold, answer))
    return not are_numbers and _COMPARE_SIMPLIFIED(gold, answer)


def are_same_relations(gold: Basic, answer: Basic, *precision: int) -> bool:
    """The step of math-verify for relations; those without letters, which hold or do not, side by side."""
    if isinstance(gold, Relational) and not gold.free_symbols and not answer.free_symbols:
        sides = zip(gold.args, answer.args, strict=True)
        return type(gold) is type(answer) and all(grader.sympy_expr_eq(*each, *precision) for each in sides)
    return _COMPARE_RELATIONS(gold, answer, *precision)


def have_same_solutions(gold: Relational, answer: Relational, *precision: int) -> bool:
    """Its step that solves them: equations whose sides differ by a factor, or the same solutions, at least one."""
    if isinstance(gold, Eq) and isinstance(answer, Eq):
        ratio = cancel((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
        if ratio.is_number and ratio.is_finite and not ratio.is_zero:
            return True
    return _COMPARE_SOLUTIONS(gold, answer, *precision) and bool(solve(answer, answer.free_symbols))


def _real_for_some(tree: Basic | MatrixBase) -> list[Expr]:
    """Logarithms, roots and powers with an unknown exponent: what is real for a positive argument only."""
    return [node for node in tree.atoms(Pow, log) if isinstance(node, log) or not node.exp.is_integer]


def asking(tree: Basic | MatrixBase) -> set[str]:
    """Letters that are taken to be positive: of what must be positive, unless it is anyway, as a^2 is."""
    arguments = [node.args[0] for node in _real_for_some(tree)]
    return {each.name for argument in arguments if not argument.is_nonnegative for each in argument.free_symbols}


def _split(node: Expr) -> Expr:
    """Roots and logarithms of a product as those of its factors, as far as the signs of these are known."""
    argument = node.args[0]
    in_bars = isinstance(argument, Abs)
    known, unknown = [], []
    for base, exponent in factor(argument.args[0] if in_bars else argument).as_powers_dict().items():
        if base.is_positive or isinstance(base, Abs):
            known.append((base, exponent))
        elif in_bars or (exponent / 2).is_integer:
            known.append((Abs(base), exponent))
        else:
            unknown.append((base, exponent))
    # The product is positive, and so is the only factor whose sign would not be known.
    parts = known + (unknown if len(unknown) < 2 else [(Mul(*[Pow(*part) for part in unknown]), Integer(1))])
    if isinstance(node, log):
        return Add(*[exponent * log(base) for base, exponent in parts])
    return Mul(*[Pow(base, exponent * node.exp) for base, exponent in parts])


def of_positive_letters(tree: Basic | MatrixBase, letters: set[str]) -> Basic | MatrixBase:
    r"""\sqrt{ab} as \sqrt{a}\sqrt{b} and \ln(a^2 b) as 2\ln a + \ln b, where `letters` are positive."""
    tree = tree.xreplace({each: Symbol(each.name, positive=True) for each in tree.free_symbols if each.name in letters})
    tree = tree.doit()
    return tree.xreplace({node: _split(node) for node in _real_for_some(tree) if node.free_symbols}).doit()


def _parse(tokens: list[Token]) -> Basic | MatrixBase | None:
    """The tree of one answer, None if it is no formula."""
    latex = safe_latex(tokens)
    if not latex:
        return None
    try:
        # No normalization: that of the library takes letters at the end for units (4t for 4).
        tree = latex2sympy(
            latex,
            is_real=not grader.should_treat_as_complex(latex),
            convert_degrees=False,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),  # X is not x
        )
    except MemoryError:
        raise
    except Exception:  # the grammar's errors are bare Exceptions, and sympy's constructors raise many kinds
        return None
    return tree if isinstance(tree, Basic | MatrixBase) else None


def _is_false(tree: Basic | MatrixBase) -> bool:
    """Whether a relation of numbers within does not hold; the library takes the last side of 2 + 2 = 5."""
    relations = tree.atoms(Relational) if isinstance(tree, Basic) else set()
    closed = [each for each in relations if not each.free_symbols and not each.has(Float)]
    return any(each.func(each.lhs.doit(), each.rhs.doit()) == false for each in closed)


# Without allow_set_relation_comp, -2 < x < 3 equals the interval (-2, 3) in one direction only.
_verified = partial(verify, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)


def _are_same(gold: Basic | MatrixBase, answer: Basic | MatrixBase) -> bool:
    try:
        if _is_false(answer):
            return False
        if _verified(gold, answer):
            return True
        letters = asking(gold) & asking(answer)
        if not letters and not (gold.has(log) and answer.has(log)):
            return False
        pair = [of_positive_letters(tree, letters) for tree in (gold, answer)]
        # \sqrt{x} = -1 and \sqrt{x} = -2 are both false, which does not make them the same.
        return false not in pair and _verified(*pair)
    except MemoryError:
        raise
    except Exception:  # what sympy cannot subtract, solve or compare is not shown to be the same
        return False


def are_symbolically_same(answer: str, gold: str) -> bool:
    """Whether both are formulas and the same. No text raises; only memory that runs out does (MemoryError)."""
    trees = [_parse(tokens) for tokens in values_of_pair(answer, gold)]
    return trees[0] is not None and trees[1] is not None and _are_same(trees[1], trees[0])


# It warns once that its time limits are off, which is how they are meant to be.
logging.getLogger("math_verify").setLevel(logging.ERROR)
grader.sympy_numeric_eq = numerically_equal
grader.sympy_symbolic_eq = are_same_simplified
grader.sympy_compare_relational = are_same_relations
grader.sympy_solve_and_compare = have_same_solutions
