r"""Symbolic comparison of two answers, in a worker process only: it may run forever, take all memory or crash.

No text is ever evaluated. math-verify's own `parse` is not used, because its reader of plain expressions hands text to
sympy's `parse_expr`, which is `eval`. The texts are broken into tokens and written down again with nothing but numbers,
single letters, commands of letters and a fixed set of symbols; the grammar of latex2sympy builds a sympy tree from
that, and math-verify's `verify` compares trees. The only text that reaches an evaluating function is a run of digits.
The library's own time limits, which use signal.alarm, are off: the pool's limit is the only one.

Its numeric step, some of its comparisons of relations and the letters that must be positive are ours, see `algebra`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from mindgspo.rewards.answers.equivalence import values_of_pair
from mindgspo.rewards.answers.latex_tokens import Token, safe_latex
from mindgspo.rewards.verification import JSONValue

MathVerifyTask = Callable[[Mapping[str, JSONValue]], JSONValue]


def load() -> MathVerifyTask:
    """Imports sympy, the LaTeX grammar and math-verify (about a second), and returns the task.

    Raises ImportError where the package math-verify is not installed.
    """
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify import grader, verify
    from sympy import Basic, Float, MatrixBase, false, log
    from sympy.core.relational import Relational

    from mindgspo.rewards.workers import algebra

    # It warns once that its time limits are off, which is how they are meant to be.
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def parse(tokens: list[Token]) -> Basic | MatrixBase | None:
        """The tree of one answer, None where it is no formula."""
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

    grader.sympy_numeric_eq = algebra.numerically_equal
    grader.sympy_symbolic_eq = algebra.are_same_simplified
    grader.sympy_compare_relational = algebra.are_same_relations
    grader.sympy_solve_and_compare = algebra.have_same_solutions

    def is_false(tree: Basic | MatrixBase) -> bool:
        """Whether a relation of numbers within does not hold; the library takes the last side of 2 + 2 = 5."""
        relations = tree.atoms(Relational) if isinstance(tree, Basic) else set()
        closed = [each for each in relations if not each.free_symbols and not each.has(Float)]
        return any(each.func(each.lhs.doit(), each.rhs.doit()) == false for each in closed)

    def are_same(gold: Basic | MatrixBase, answer: Basic | MatrixBase) -> bool:
        try:
            if is_false(answer):
                return False
            # Without allow_set_relation_comp, -2 < x < 3 equals the interval (-2, 3) in one direction only.
            verified = partial(verify, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)
            if verified(gold, answer):
                return True
            letters = algebra.asking(gold) & algebra.asking(answer)
            if not letters and not (gold.has(log) and answer.has(log)):
                return False
            pair = [algebra.of_positive_letters(tree, letters) for tree in (gold, answer)]
            # \sqrt{x} = -1 and \sqrt{x} = -2 are both false, which does not make them the same.
            return false not in pair and verified(*pair)
        except MemoryError:
            raise
        except Exception:  # what sympy cannot subtract, solve or compare is not shown to be the same
            return False

    def compare(arguments: Mapping[str, JSONValue]) -> JSONValue:
        answer, gold = arguments["answer"], arguments["gold"]
        assert isinstance(answer, str) and isinstance(gold, str), "answer and gold are texts"
        answer_tokens, gold_tokens = values_of_pair(answer, gold)
        gold_tree = parse(gold_tokens)
        answer_tree = None if gold_tree is None else parse(answer_tokens)
        both = gold_tree is not None and answer_tree is not None
        return {
            "same": both and are_same(gold_tree, answer_tree),
            "gold_parsed": gold_tree is not None,
            "answer_parsed": answer_tree is not None,
        }

    return compare
