r"""Comparison of sympy trees where math-verify's own is too lax, in worker processes only: this imports sympy.

math-verify takes numbers for equal whose difference is below 1e-15, so that e^{-50} would be e^{-51};
`numerically_equal` stands in for that step. Two equations without a real solution, or without letters, would be the
same if both are false or both true; `are_same_relations` and `have_same_solutions` tell them apart. And letters are
any real numbers to it, so that \sqrt{ab} would not be \sqrt{a}\sqrt{b}; `of_positive_letters` writes both sides down
again, where both ask for positive letters.
"""

from __future__ import annotations

from math_verify import grader
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
    log,
    solve,
)
from sympy.core.relational import Relational

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
