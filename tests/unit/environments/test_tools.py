"""Python functions as tools: their schemas, and calls whose arguments are checked."""

from __future__ import annotations

from typing import Any, Literal, Optional

import pytest

from mindgspo.environments.tools import ToolError, call, find_tool, schema


def search(query: str, limit: int = 3, kind: Literal["web", "news"] = "web", exact: Optional[bool] = None) -> list[str]:  # noqa: UP045
    """Search a text.

    It takes a while.

    Args:
        query: What to look for,
            in a few words: two or three.
        limit (int): Most results.
        kind: Where to look.
        exact: Whether words must match.

    Returns:
        The results.
    """
    return [f"{query} {limit} {kind} {exact}"]


def numbers(
    xs: list[float], table: dict[str, list[int]], any_of: dict | None = None, level: Literal[1, "a"] = 1
) -> str:
    """Take numbers.

    Args:
        xs: Some.
        table: More.
        any_of: Others.
        level: One of two.
    """
    return f"{xs} {table} {any_of} {level!r}"


def clock() -> str:
    """Tell the time."""
    raise RuntimeError("no\nclock " + "x" * 1000)


class Counter:
    """Methods are tools as well."""

    total = 0

    def add(self, step: int) -> int:
        """Count on.

        Args:
            step: So much.
        """
        self.total += step
        return self.total


def test_a_schema_of_hints_and_docstring() -> None:
    assert schema(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search a text.\n\nIt takes a while.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for, in a few words: two or three."},
                    "limit": {"type": "integer", "description": "Most results."},
                    "kind": {"type": "string", "enum": ["web", "news"], "description": "Where to look."},
                    "exact": {"type": "boolean", "nullable": True, "description": "Whether words must match."},
                },
                "required": ["query"],
            },
        },
    }


def test_containers_methods_and_functions_without_arguments() -> None:
    parameters = schema(numbers)["function"]["parameters"]
    assert parameters["properties"] == {
        "xs": {"type": "array", "items": {"type": "number"}, "description": "Some."},
        "table": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}},
                  "description": "More."},
        "any_of": {"type": "object", "nullable": True, "description": "Others."},
        "level": {"type": ["integer", "string"], "enum": [1, "a"], "description": "One of two."},
    }  # fmt: skip
    assert parameters["required"] == ["xs", "table"]
    assert schema(clock)["function"]["parameters"] == {"type": "object", "properties": {}}
    assert list(schema(Counter().add)["function"]["parameters"]["properties"]) == ["step"]


@pytest.mark.parity
@pytest.mark.parametrize("function", [search, numbers, clock, Counter().add])
def test_transformers_makes_the_same_schema(function) -> None:
    utils = pytest.importorskip("transformers.utils", reason="needs the `parity` extra")
    theirs = utils.get_json_schema(function)
    theirs["function"].pop("return", None)
    assert schema(function) == theirs
    assert list(schema(function)["function"]) == list(theirs["function"]), "the order is that of the prompt"


def undocumented(x: int) -> int:
    return x


def unexplained(x: int) -> int:
    """Do it."""
    return x


def untyped(x) -> int:
    """Do it.

    Args:
        x: It.
    """
    return x


def foreign(x: int | str) -> int:
    """Do it.

    Args:
        x: It.
    """
    return 0


def by_number(x: dict[int, str]) -> int:
    """Do it.

    Args:
        x: It.
    """
    return 0


def unnamed(*x: int) -> int:
    """Do it."""
    return 0


def unknown_hint(x: Missing) -> int:  # noqa: F821
    """Do it."""
    return 0


async def later() -> int:
    """Do it."""
    return 0


@pytest.mark.parametrize(("function", "said"), [
    (undocumented, "the tool undocumented has no docstring"),
    (unexplained, 'the tool unexplained: its docstring has no line "x: ..." below "Args:"'),
    (untyped, "the argument x has no type hint; take one of str, int"),
    (foreign, r"foreign\(x\): the type hint int \| str has no JSON form"),
    (by_number, r"by_number\(x\): the type hint dict\[int, str\] has no JSON form"),
    (unnamed, r"unnamed: \*x: '?int'? cannot be given by name"),
    (unknown_hint, "unknown_hint: its type hints cannot be read: name 'Missing' is not defined"),
    (later, "the tool later is async"),
])  # fmt: skip
def test_functions_that_are_no_tools(function, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schema(function)


@pytest.mark.parametrize(("arguments", "result"), [
    ({"query": "a"}, "a 3 web None"),
    ({"query": "a", "limit": 2.0, "kind": "news", "exact": None}, "a 2 news None"),
    ({"exact": True, "query": ""}, " 3 web True"),
])  # fmt: skip
def test_a_call(arguments: dict[str, object], result: str) -> None:
    assert call(search, arguments) == [result]


def test_numbers_become_those_of_the_hints() -> None:
    found = call(numbers, {"xs": [1, 2.5], "table": {"a": [3.0]}, "any_of": {"b": None}, "level": "a"})
    assert found == "[1.0, 2.5] {'a': [3]} {'b': None} 'a'"
    counter = Counter()
    assert [call(counter.add, {"step": 2}), call(counter.add, {"step": 3})] == [2, 5]


@pytest.mark.parametrize(("arguments", "said"), [
    ({}, "search: missing: query"),
    ({"query": "a", "q": 1}, "search: there is no argument 'q'; its arguments: query, limit, kind, exact"),
    ({"self": 1}, "there is no argument 'self'"),
    ({"query": 5}, "search: query: expected string, got integer 5"),
    ({"query": None}, "expected string, got null"),
    ({"query": ["a"]}, "expected string, got array"),
    ({"query": "a", "limit": "3"}, "limit: expected integer, got string '3'"),
    ({"query": "a", "limit": 2.5}, "limit: expected integer, got number 2.5"),
    ({"query": "a", "limit": True}, "limit: expected integer, got boolean True"),
    ({"query": "a", "limit": None}, "limit: expected integer, got null"),
    ({"query": "a", "kind": "mail"}, "kind: expected one of 'web', 'news', got string 'mail'"),
    ({"query": "a", "exact": 1}, "exact: expected boolean, got integer 1"),
    ({"query": {"x": "y" * 9000}}, "got object"),
])  # fmt: skip
def test_arguments_that_do_not_fit(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ToolError) as raised:
        call(search, arguments)
    assert raised.value.kind == "bad_arguments" and said in raised.value.message and len(raised.value.message) < 200


@pytest.mark.parametrize(("changed", "said"), [
    ({"xs": [1, "2"]}, "xs[1]: expected number, got string '2'"),
    ({"xs": [10**400]}, "xs[0]: integer"),
    ({"xs": [False]}, "xs[0]: expected number, got boolean False"),
    ({"table": {"a": [1], "b": 2}}, "table['b']: expected array, got integer 2"),
    ({"level": True}, "level: expected one of 1, 'a', got boolean True"),
    ({"any_of": []}, "any_of: expected object, got array"),
])  # fmt: skip
def test_the_inside_of_containers_is_checked(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError) as raised:
        call(numbers, {"xs": [], "table": {}, **changed})
    assert raised.value.kind == "bad_arguments" and said in raised.value.message


def test_an_exception_of_the_tool_is_a_short_line() -> None:
    with pytest.raises(ToolError) as raised:
        call(clock, {})
    message = raised.value.message
    assert raised.value.kind == "failed" and message.startswith("clock: RuntimeError: no clock xxx")
    assert len(message) == 500 and isinstance(raised.value.__cause__, RuntimeError)


def test_names_of_tools() -> None:
    functions = {"search": search, "clock": clock}
    assert find_tool(functions, "clock") is clock
    for name, said in (("serach", "there is no tool 'serach'; did you mean 'search'?"),
                       ("zzz", "there is no tool 'zzz'; there are search, clock")):  # fmt: skip
        with pytest.raises(ToolError) as raised:
            find_tool(functions, name)
        assert (raised.value.kind, raised.value.message) == ("unknown_tool", said)
    with pytest.raises(ToolError, match="there is no tool 'a'$"):
        find_tool({}, "a")
