"""Calls that models write: the forms that are read, and what hostile or broken text becomes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mindgspo.environments.tool_calls as tool_calls
from mindgspo.environments.tool_calls import MAX_CALLS, Parsed, ToolCall, parse, style_of

ADD = '{"name": "add", "arguments": {"x": 2, "y": [3]}}'
CALL = ToolCall(name="add", arguments={"x": 2, "y": [3]})
LLAMA_ADD = ADD.replace("arguments", "parameters")


def hermes(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    """A call that is `depth` deep."""
    return '{"name": "a", "arguments": {"x": ' + opening * (depth - 2) + "1" + closing * (depth - 2) + "}}"


def long_call(size: int) -> str:
    body = '{"name": "a", "arguments": {"x": ""}}'
    return body.replace('""', f'"{"y" * (size - len(body))}"')


@pytest.mark.parametrize(("text", "calls", "content"), [
    ("It is 5.", [], "It is 5."),
    ("", [], ""),
    (hermes(ADD), [CALL], ""),
    (f"I add.\n<tool_call>\n{ADD}\n</tool_call>\n", [CALL], "I add."),
    (f"{hermes(ADD)}\n{hermes(ADD)}", [CALL, CALL], ""),
    (f"a {hermes(ADD)} b {hermes(ADD)} c", [CALL, CALL], "a  b  c"),
    (hermes('{"arguments": {}, "name": "now", "id": 7}'), [ToolCall(name="now", arguments={})], ""),
    (hermes('{"name": "say", "arguments": {"x": "</tool_call>}\\"{"}}'),
     [ToolCall(name="say", arguments={"x": '</tool_call>}"{'})], ""),
    (hermes('{"name": "say", "arguments": {"x": "\u4f60\\n\\ud83d\\ude00"}}'),
     [ToolCall(name="say", arguments={"x": "\u4f60\n\U0001f600"})], ""),
    (hermes(nested(32)), [ToolCall(name="a", arguments=json.loads(nested(32))["arguments"])], ""),
    (hermes(long_call(64 << 10)), [ToolCall(name="a", arguments=json.loads(long_call(64 << 10))["arguments"])], ""),
    (hermes('{"name": "a", "arguments": {"x": -' + "9" * 99 + "}}"),
     [ToolCall(name="a", arguments={"x": 1 - 10**99})], ""),
    ("</tool_call> {}", [], "</tool_call> {}"),
    ("<think>maybe</think>" + hermes(ADD), [CALL], "<think>maybe</think>"),
])  # fmt: skip
def test_hermes(text: str, calls: list[ToolCall], content: str) -> None:
    assert parse(text, "hermes") == Parsed(calls=tuple(calls), errors=(), content=content)


@pytest.mark.parametrize(("text", "calls", "content"), [
    ("It is 5.", [], "It is 5."),
    (LLAMA_ADD, [CALL], ""),
    (f"<|python_tag|>{LLAMA_ADD}", [CALL], ""),
    (f" \n<|python_tag|> {LLAMA_ADD} ;\n{LLAMA_ADD};", [CALL, CALL], ""),
    ('{"type": "function", "name": "add", "parameters": {"x": 2, "y": [3]}}', [CALL], ""),
    ('{"name": "say", "parameters": {"x": "a; {"}}', [ToolCall(name="say", arguments={"x": "a; {"})], ""),
    ("{1, 2} is the set.", [], "{1, 2} is the set."),
    ('{"answer": 5}', [], '{"answer": 5}'),
    (f"I call {LLAMA_ADD}", [], f"I call {LLAMA_ADD}"),
    (hermes(ADD), [], hermes(ADD)),
])  # fmt: skip
def test_llama3(text: str, calls: list[ToolCall], content: str) -> None:
    assert parse(text, "llama3") == Parsed(calls=tuple(calls), errors=(), content=content)


def test_none_reads_nothing() -> None:
    for text in (hermes(ADD), f" {LLAMA_ADD}\n"):
        assert parse(text, "none") == Parsed(calls=(), errors=(), content=text.strip())


BODIES = {
    "": "expected a JSON object",
    "add(2, 3)": "expected a JSON object",
    "[]": "expected a JSON object",
    f"[{ADD}]": "expected a JSON object",
    '"add"': "expected a JSON object",
    "null": "expected a JSON object",
    "\ufeff{}": "expected a JSON object",
    "```json\n{}\n```": "expected a JSON object",
    "{": "does not end",
    "{{": "does not end",
    '{"': "does not end",
    '{"\\': "does not end",
    '{"name": "add", "arguments": {"x": 2}': "does not end",
    '{"name": "add", "arguments": {"x": "2}}': "does not end",
    '{"name": "add", "arguments": {"x": "2\\"}}': "does not end",
    "{]": "not JSON",
    "{}": 'expected "name"',
    "{]}": "not JSON|expected </tool_call>",
    "{name: 'add'}": "not JSON",
    "{'name': 'add', 'arguments': {}}": "not JSON",
    '{"name": "add", "arguments": {},}': "not JSON",
    '{"name": "add" "arguments": {}}': "not JSON",
    '{"name": "add", "arguments": {"x": 02}}': "not JSON",
    '{"name": "add", "arguments": {"x": +2}}': "not JSON",
    '{"name": "add", "arguments": {"x": 0x2}}': "not JSON",
    '{"name": "add", "arguments": {"x": .5}}': "not JSON",
    '{"name": "add", "arguments": {"x": True}}': "not JSON",
    '{"name": "add", "arguments": {"x": None}}': "not JSON",
    '{"name": "add", "arguments": {"x": 1_000}}': "not JSON",
    '{"name": "add", "arguments": {"x": "a\nb"}}': "not JSON",
    '{"name": "add", "arguments": {"x": "a\0b"}}': "not JSON",
    '{"name": "add", "arguments": {"x": "\\x41"}}': "not JSON",
    '{"name": "add", "arguments": {"x": "\\u12"}}': "not JSON",
    '{"name": "add", "arguments": {} /* two */}': "not JSON",
    '{"name": "add", "arguments": {1: 2}}': "not JSON",
    '{"name": "add", "arguments": {"x": NaN}}': "NaN is no JSON",
    '{"name": "add", "arguments": {"x": Infinity}}': "Infinity is no JSON",
    '{"name": "add", "arguments": {"x": -Infinity}}': "-Infinity is no JSON",
    '{"name": "add", "arguments": {"x": 1e999}}': "1e999 is too large",
    '{"name": "add", "arguments": {"x": -1e400}}': "-1e400 is too large",
    '{"name": "add", "arguments": {"x": ' + "9" * 101 + "}}": "an integer of more than 100 digits",
    '{"name": "add", "arguments": {"x": ' + "9" * 60_000 + "}}": "an integer of more than 100 digits",
    '{"name": "add", "arguments": {"x": "\\ud800"}}': "half a surrogate pair",
    '{"name": "add", "arguments": {"\\udfff": 1}}': "half a surrogate pair",
    '{"name": "\\ud83d", "arguments": {}}': "half a surrogate pair",
    '{"name": "add", "arguments": {"x": "\ud800"}}': "half a surrogate pair",
    '{"name": "add", "name": "sub", "arguments": {}}': "a key is given twice",
    '{"name": "add", "arguments": {"x": 1, "x": 1}}': "a key is given twice",
    '{"name": "add", "arguments": {"x": [{"y": 1, "y": 2}]}}': "a key is given twice",
    '{"arguments": {}}': 'expected "name"',
    '{"name": "", "arguments": {}}': 'expected "name"',
    '{"name": null, "arguments": {}}': 'expected "name"',
    '{"name": 5, "arguments": {}}': 'expected "name"',
    '{"name": ["add"], "arguments": {}}': 'expected "name"',
    '{"name": "' + "a" * 129 + '", "arguments": {}}': 'expected "name"',
    '{"Name": "add", "arguments": {}}': 'expected "name"',
    '{"function": ' + ADD + "}": 'expected "name"',
    '{"name": "add"}': 'expected "arguments" with a JSON object',
    '{"name": "add", "arguments": null}': 'expected "arguments" with a JSON object',
    '{"name": "add", "arguments": [2, 3]}': 'expected "arguments" with a JSON object',
    '{"name": "add", "arguments": "{}"}': 'expected "arguments" with a JSON object',
    LLAMA_ADD: 'expected "arguments" with a JSON object',
    nested(33): "nested more than 32 deep",
    nested(5000): "nested more than 32 deep",
    nested(33, '{"x":', "}"): "nested more than 32 deep",
    "{" * 60_000: "nested more than 32 deep",
    '{"x":' * 60_000: "nested more than 32 deep",
    "{[" * 60_000: "nested more than 32 deep",
    long_call((64 << 10) + 1): "more than 64 KiB",
    long_call(1 << 20): "more than 64 KiB",
    long_call(40_000).replace("y", "\u4f60"): "more than 64 KiB",
    '{"' + '\\"' * 30_000: "does not end",
    '{"' + '\\"' * 300_000: "more than 64 KiB",
    '{"' + "\\" * 60_001: "does not end",
    '{"name": "add", "arguments": {}} {}': "expected </tool_call>",
    '{"name": "add", "arguments": {}};': "expected </tool_call>",
    ADD + ADD: "expected </tool_call>",
    f"<tool_call>{ADD}": "expected a JSON object",
    "<function=add><parameter=x>2</parameter></function>": "expected a JSON object",
}


@pytest.mark.parametrize(("body", "said"), BODIES.items(), ids=range(len(BODIES)))
def test_what_cannot_be_read_is_one_short_message(body: str, said: str) -> None:
    assert len(BODIES) >= 60
    found = parse(f"before{hermes(body)}after", "hermes")
    assert found.calls == () and len(found.errors) == 1 and found.content in ("beforeafter", "before")
    assert re.search(f"^malformed tool call: .*(?:{said})", found.errors[0]) and len(found.errors[0]) < 120


@pytest.mark.parametrize(("body", "said"), [
    ("print(2 + 3)", "expected a JSON object"), ("", "expected a JSON object behind"),
    (f"{LLAMA_ADD} and", "expected ; or the end"), (f"{LLAMA_ADD[:-2]}", "does not end"),
    (ADD, 'expected "parameters" with a JSON object'), (f"{LLAMA_ADD};;{LLAMA_ADD}", "expected a JSON object"),
    (nested(33), "nested more than 32"), (long_call(1 << 20), "more than 64 KiB"),
])  # fmt: skip
def test_llamas_broken_calls(body: str, said: str) -> None:
    found = parse(f"<|python_tag|>{body}", "llama3")
    assert len(found.errors) == 1 and said in found.errors[0]
    assert [call == CALL for call in found.calls] == [True] * (";;" in body)
    if body.startswith('{"'):
        assert parse(body, "llama3").errors == found.errors, "the tag may be missing"


def test_a_broken_call_does_not_hide_the_others() -> None:
    found = parse(f"{hermes(ADD)}{hermes('x')}{hermes(ADD)}<tool_call>{ADD}", "hermes")
    assert found.calls == (CALL, CALL)
    assert [error.removeprefix("malformed tool call: ") for error in found.errors] == [
        "expected a JSON object", "expected </tool_call> behind the JSON object"
    ]  # fmt: skip


def test_at_most_so_many_calls_are_read() -> None:
    for text, style in ((hermes(ADD) * 20, "hermes"), (f"{LLAMA_ADD};" * 20, "llama3")):
        found = parse(text, style)
        assert found.calls == (CALL,) * MAX_CALLS
        assert found.errors == ("more than 16 tool calls in one turn; the rest is not read",)
        assert parse(text[: len(text) * 16 // 20], style).errors == ()
    assert len(parse("<tool_call></tool_call>" * 100_000, "hermes").errors) == MAX_CALLS + 1


PARTS = ["<tool_call>", "</tool_call>", "<|python_tag|>", ADD, LLAMA_ADD, "{", "}", '"', "\\", ";", " ", "[", '{"name']


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join))
@example("{" + "\\" * 9)
def test_no_text_is_an_exception(text: str) -> None:
    for style in tool_calls.STYLES:
        found = parse(text, style)
        assert len(found.calls) <= text.count("{")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=9), inside, max_size=3),
    max_leaves=9,
)


@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=3), st.booleans())
def test_what_a_template_writes_is_read_back(arguments: dict, is_ascii: bool) -> None:
    call = ToolCall(name="f", arguments=arguments)
    body = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=is_ascii)
    assert parse(hermes(body), "hermes").calls == (call,)
    body = json.dumps({"name": "f", "parameters": arguments}, ensure_ascii=is_ascii)
    assert parse(f"{body}; {body}", "llama3").calls == (call, call)


@pytest.mark.parametrize(("text", "style"), [
    ('Use <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>', "hermes"),
    ('Environment: ipython\n... {"name": function name, "parameters": dictionary of argument name}', "llama3"),
    ("<tool_call>\n<function=f>\n<parameter=x>\n</tool_call>", "none"), ('{"parameters": {}}', "none"), ("Hi", "none"),
])  # fmt: skip
def test_the_style_that_a_prompt_teaches(text: str, style: str) -> None:
    assert style_of(text) == style


def test_both_modules_need_the_standard_library_alone() -> None:
    """A worker process imports them by their paths."""
    folder = Path(tool_calls.__file__).parent
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import tool_calls, tools; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(folder)], capture_output=True, text=True)
    assert done.stdout.strip() == "['__main__', 'tool_calls', 'tools']", done.stderr
