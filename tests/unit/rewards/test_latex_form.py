"""The parts of the normal form: tokens, braces, units, and what is not read because it would have to be guessed."""

from __future__ import annotations

import pytest

from mindgspo.rewards.answers.latex_reader import normal_form
from mindgspo.rewards.answers.latex_tokens import (
    MAX_EXPRESSION_CHARS,
    answer_tokens,
    safe_latex,
    spelled_out,
    tokens_of,
)
from mindgspo.rewards.functions.math import expression_in


def spelled(text: str) -> str:
    return "".join(token.text for token in spelled_out(tokens_of(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\frac12", "frac{1}{2}"),
        (r"\frac123", "frac{1}{2}3"),
        (r"\frac{270}7", "frac{270}{7}"),
        (r"\frac9{19}", "frac{9}{19}"),
        (r"\frac ab", "frac{a}{b}"),
        (r"\frac{\frac12}3", "frac{frac{1}{2}}{3}"),
        (r"\frac\pi2", "frac{pi}{2}"),
        (r"\sqrt2", "sqrt{2}"),
        (r"\sqrt13", "sqrt{13}"),
        (r"\sqrt\frac34", "sqrt{frac{3}{4}}"),
        (r"\sqrt[3]{2}", "sqrt[3]{2}"),
        (r"\sqrt((x)+1)", "sqrt{(x)+1}"),
        ("x^10y", "x^{10}y"),
        ("x^{2}", "x^{2}"),
        ("10^-3", "10^{-3}"),
        (r"\frac.1 2", "frac{.1}{2}"),
        (r"x^\frac12+1", "x^{frac{1}{2}}+1"),
        ("x_1^2", "x_{1}^{2}"),
        (r"\frac", "frac"),
        ("x^", "x^"),
        (r"\frac{1", "frac{1"),
    ],
)
def test_braces_that_were_left_out(text: str, expected: str) -> None:
    assert spelled(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234", ["1234"]),
        ("(1,234)", ["(", "1", ",", "234", ")"]),
        ("(10,\\!000, 2)", ["(", "10000", ",", "2", ")"]),
        ("1, 234", ["1", ",", "234"]),
        ("1,23", ["1", ",", "23"]),
        ("12,345.60", ["12345.60"]),
        (r"\left( x \right)", ["(", "x", ")"]),
        (r"5\text{ or }6", ["5", ",", "6"]),
        (r"50\text{ percent}", ["50", "%"]),
        (r"\text{4 cm}", ["{", "4", "cm", "}"]),
        ("2xy", ["2", "x", "y"]),
        ("\uff0d\uff12\uff0e\uff15", ["-", "2.5"]),
        ("x\u2082", ["x", "_", "{", "2", "}"]),
        (r"\$5", ["5"]),
        ("x" * (MAX_EXPRESSION_CHARS + 1), []),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert [token.text for token in tokens_of(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"5 \text{ cm}^2", "5"),
        (r"5\ \text{m}/\text{s}", "5"),
        (r"\sqrt{2} \text{ cm}", "sqrt{2}"),
        (r"5 \mathrm{~m}", "5"),
        (r"2\mathbf{A}", "2A"),
        (r"3\text{i}", "3i"),
        ("3, 5 apples", "3,5"),
        (r"(2 \text{ cm}, 3\text{ cm})", "(2,3)"),
        (r"5 \text{ million}", "5million"),
        (r"5 \text{ a.m.}", "5a.m."),
        (r"2\text{ hours }30", "2hours30"),
        (r"\text{east}", "east"),
        ("an ellipse", "anellipse"),
        ("5 cm.", "5"),
        ("5!", "5!"),
        ("5!.", "5!"),
        (", 5;", "5"),
    ],
)
def test_units_and_edges(text: str, expected: str) -> None:
    assert "".join(token.text for token in answer_tokens(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "$", "1/2x", "x2", "2 3", "(1", "1)", r"\frac{1}{0}", "|x", "1+", "*2", "2**3", "x^"]
)
def test_nothing_is_guessed(text: str) -> None:
    assert normal_form(text) is None


def test_names_may_be_left_out_but_not_exchanged() -> None:
    five, x_five, y_five = (normal_form(text) for text in ("5", "x=5", "y = 5"))
    assert five is not None and x_five is not None and y_five is not None
    assert five.same_as(x_five) and x_five.same_as(five) and not x_five.same_as(y_five)


@pytest.mark.parametrize(
    ("text", "name", "body"),
    [
        ("f(x)=2", "+(+x) f", "+2"),
        ("x_1 = 2", "+x_{+1}", "+2"),
        ("AB = 5", "+A B", "+5"),
        (r"\theta = 30^\circ", r"+\theta", "+30"),
        ("x = 1, y = 2", None, "set{+x = +1; +y = +2}"),
        ("x = 1, x = 2", "+x", "set{+1; +2}"),
        ("2x = 4", None, "relation(+2 x = +4)"),
    ],
)
def test_names(text: str, name: str | None, body: str) -> None:
    form = normal_form(text)
    assert form is not None and (form.name, form.body) == (name, body)


@pytest.mark.parametrize(
    "text", ["(" * 500 + ")" * 500, "{" * 900, r"\frac" * 190, "^" * 999, "|" * 999, r"\sqrt(" * 160]
)
def test_absurd_nesting_has_no_form(text: str) -> None:
    assert normal_form(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2(3)", r"2 \cdot ( 3 )"),  # the grammar would read the mixed number 5
        ("(2)(3)", r"( 2 ) \cdot ( 3 )"),
        (r"\frac{4}{2}\frac{1}{2}", r"\frac { 4 } { 2 } \cdot \frac { 1 } { 2 }"),
        (r"2\frac{1}{2}", r"2 \frac { 1 } { 2 }"),
        (r"\log_2(8)", r"\log _ { 2 } ( 8 )"),
        ("f(2)", "f ( 2 )"),
        (r"50\%", r"50 \%"),
        ("2 3", None),
        ('"5"', None),
        ("a@b", None),
        ("'5'", None),
        ("\u662f", None),
    ],
)
def test_what_a_symbolic_parser_gets(text: str, expected: str | None) -> None:
    assert safe_latex(spelled_out(tokens_of(text))) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("$2\\sqrt{3}$.", "2\\sqrt{3}"),
        ("$x = 5$ or $x = -3$.", "x = 5 , x = -3"),
        ("$5$ or 6", "$5$ or 6"),
        ("$5 or $6", "$5 or $6"),
        ("$5/$6", "$5/$6"),
        ("$18.90", "$18.90"),
        ("the value of $x$ is $5$", "5"),
        (r"\(x+1\), because it is", "x+1"),
        (r"\[ x \]", "x"),
        ("$$ y $$", "y"),
        ("5 because $x = 3$", "5"),
        ("5. Then we are done", "5"),
        ("x+1, where x is", "x+1"),
        ("0.5", "0.5"),
        ("", ""),
        ("the interval $(1,2)$", "(1,2)"),
        ("not $x+1$", "not $x+1$"),
        (r"more than $\sqrt2$", r"more than $\sqrt2$"),
        ("cannot be $x$", "cannot be $x$"),
        ("twice $x$", "twice $x$"),
        (r"$\pi$ is not correct", r"$\pi$ is not correct"),
        (r"$\pi$? or $e$?", r"$\pi$? or $e$?"),
        (r"$\pi$, maybe $e$", r"$\pi$, maybe $e$"),
    ],
)
def test_the_formula_in_a_line(content: str, expected: str) -> None:
    assert expression_in(content) == expected
