"""Text from outside, made harmless for a terminal."""

from __future__ import annotations

import io
import unicodedata

import pytest

from mindgspo.cli import main
from mindgspo.text import PrintableStream, error_text, printable

OWNED = "\x1b]0;owned\x07\x1b[31m\u009b31m\u202edlrow\u202c"


@pytest.mark.parametrize(("text", "shown"), [
    ("\x1b[31mred", r"\x1b[31mred"), ("a\rb\x08\x7f", r"a\rb\x08\x7f"), ("\u009b31m", r"\x9b31m"),
    ("\u202edlrow\u2066", r"\u202edlrow\u2066"), ("\ud800", r"\ud800"), ("\u2028", r"\u2028"),
    ("two\n\tlines", "two\n\tlines"), ("\u4f60\u597d\u3000\u00a0\u00e9 \U0001f600", None),
])  # fmt: skip
def test_what_steers_a_terminal_is_escaped_and_nothing_else(text: str, shown: str | None) -> None:
    assert printable(text) == (text if shown is None else shown)


def test_no_control_character_is_forgotten() -> None:
    kept = [chr(code) for code in range(0x110000) if printable(chr(code)) == chr(code)]
    assert {one for one in kept if unicodedata.category(one) in ("Cc", "Cs")} == {"\n", "\t"}
    assert not [one for one in kept if unicodedata.bidirectional(one) in ("LRE", "RLE", "LRO", "RLO", "PDF", "RLI")]


def test_an_error_is_cut_line_by_line() -> None:
    first, second = error_text(f"{'a' * 5_000}; do this\n  {OWNED}").split("\n")
    assert first.startswith("error: aaa") and first.endswith("aaa; do this") and len(first) == 2_005
    assert second == "  " + printable(OWNED)


def test_a_stream_escapes_what_is_written_and_is_its_stream_otherwise() -> None:
    raw = io.StringIO()
    stream = PrintableStream(raw)
    print("a", OWNED, file=stream, flush=True)
    assert raw.getvalue() == f"a {printable(OWNED)}\n" and not stream.isatty() and stream.raw is raw


@pytest.mark.parametrize("arguments", [
    ["check", f"{OWNED}.yaml"], ["report", OWNED], ["data", "inspect", OWNED], ["check", "x.yaml", f"--{OWNED}"],
    ["checkpoint", "list", OWNED], ["report", "x" * 5_000], ["data", "inspect", "x" * 5_000],
    ["checkpoint", "list", "x" * 5_000], ["eval", "x" * 5_000, "--data", "gsm8k"], ["strategy", "show", "x" * 5_000],
])  # fmt: skip
def test_names_given_to_a_command_come_back_harmless(arguments: list[str], capsys) -> None:
    assert main(arguments) in (1, 2)
    said = capsys.readouterr().err
    assert said == printable(said) and max(map(len, said.splitlines())) < 2_100
