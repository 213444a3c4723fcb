"""Strict models of what a conformance file holds, and their problems as one line: place, key, rule, what was given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from mindgspo.errors import DataError
from mindgspo.text import did_you_mean


class Strict(BaseModel):
    """Frozen, strictly typed, no unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )


Model = TypeVar("Model", bound=Strict)


def read_model(place: str, model: type[Model], given: object) -> Model:
    """`given` as the model. Raises DataError for the first problem, unknown keys first: place, key, rule, value."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
        raise DataError(_sentence(place, problems[0], model)) from error


def hint(given: object, known: Iterable[object]) -> str:
    """The known name that is close ("; did you mean 'k3'?"), otherwise all of them."""
    names = [str(name) for name in known]
    return did_you_mean(given, names, otherwise=f"; known: {', '.join(names)}")


_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a finite number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}
_BOUNDS = {"greater_than": ("> ", "gt"), "greater_than_equal": (">= ", "ge"), "less_than_equal": ("<= ", "le")}


def _sentence(place: str, problem: ErrorDetails, model: type[Strict]) -> str:
    kind, given, context = problem["type"], problem["input"], problem.get("ctx", {})
    *above, key = problem["loc"] or ("",)
    for name in above:  # into the section that holds the key
        inner = model.model_fields[name].annotation if name in model.model_fields else None
        model = next((one for one in (inner, *get_args(inner)) if isinstance(one, type)), model)
    where = ".".join(str(step) for step in (place, *problem["loc"]) if str(step)) + context.get("at", "")
    if kind == "extra_forbidden":
        return f"{where}: unknown key{hint(key, model.model_fields)}"
    if kind == "missing":
        needed = [name for name, one in model.model_fields.items() if one.is_required()]
        return f"{where}: missing; needed here: {', '.join(needed)}"
    if kind == "literal_error":
        legal = [one.strip("'") for one in re.split(r", | or ", context["expected"])]
        return f"{where}: expected one of {', '.join(legal)}, got {given!r}{did_you_mean(given, legal)}"
    if kind in _EXPECTED:
        got = repr(given[:40]) if isinstance(given, str) else repr(given) if np.isscalar(given) else type_name(given)
        return f"{where}: expected {_EXPECTED[kind]}, got {got}"
    if kind in _BOUNDS:
        sign, bound = _BOUNDS[kind]
        return f"{where}: must be {sign}{context[bound]:g}, got {given}"
    return f"{where}: {problem['msg']}"


def type_name(value: object) -> str:
    """The word of JSON for the type of a value."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
