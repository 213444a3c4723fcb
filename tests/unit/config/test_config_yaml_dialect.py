"""The YAML dialect: numbers as people write them, no YAML 1.1 surprises, nothing but plain data."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.yaml_dialect import parse_document, parse_value, write_document

SCALARS = [
    ("1e-6", 1e-6),
    ("3E-4", 3e-4),
    ("-2e5", -2e5),
    ("1.", 1.0),
    (".5", 0.5),
    ("1_000_000.0", 1e6),
    ("512", 512),
    ("-0", 0),
    ("1_000", 1000),
    ("true", True),
    ("null", None),
    ("~", None),
    ("yes", "yes"),
    ("on", "on"),
    ("010", "010"),
    ("0x10", "0x10"),
    ("1:30", "1:30"),
    ("2024-01-01", "2024-01-01"),
    ("1e", "1e"),
    ("e5", "e5"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalars_mean_the_same_in_files_and_overrides(text, value):
    from_file, from_override = parse_document(f"key: {text}")["key"], parse_value(text)
    assert from_file == value and type(from_file) is type(value)
    assert from_override == value and type(from_override) is type(value)


def test_an_empty_override_is_null_and_flow_values_are_read():
    assert parse_value("") is None
    assert parse_value("[1, 1e-6, a]") == [1, 1e-6, "a"]
    assert parse_value("{a: {b: 1}}") == {"a": {"b": 1}}
    assert math.isinf(parse_value(".inf"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {b: 1, b: 2}", "key 'b' is given twice"),
        ("1: x", "a key must be text, got 1"),
        ("a: &x 1\nb: *x", "alias"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: !!binary aGk=", "could not determine a constructor"),
        ("a: 1\n---\nb: 2", "another document"),
    ],
)
def test_what_is_not_plain_data_is_refused(text, message):
    with pytest.raises(yaml.YAMLError, match=message):
        parse_document(text)


KEYS = st.from_regex(r"[A-Za-z_.#:-]{1,6}", fullmatch=True)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, PLAIN, max_size=4))
def test_what_is_written_is_read_back_equal(mapping):
    assert parse_document(write_document(mapping)) == mapping


@given(st.text(alphabet="\x85\u2028\u2029\r\n\t a'\"#:-\ufeff\x00"))
def test_line_breaks_and_quotes_survive(text):
    assert parse_document(write_document({"key": text, "list": [text]})) == {"key": text, "list": [text]}


@given(st.sampled_from([text for text, _ in SCALARS]))
def test_text_that_looks_like_a_number_stays_text(text):
    assert parse_document(write_document({"key": text})) == {"key": text}
