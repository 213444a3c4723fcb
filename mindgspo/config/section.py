"""The base of every configuration section. Nothing but pydantic is imported."""

from __future__ import annotations

from typing import Any

from annotated_types import Le
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

LARGEST_INTEGER = 2**31 - 1
"""MindSpore counts in int32."""


class Section(BaseModel):
    """Frozen; unknown keys and non-finite numbers are refused; the text under a field is its description.

    Types are checked strictly when a section comes from YAML (`config.load`: "8" is not an integer there),
    and by pydantic's usual conversions when Python code builds one (a path may be given as text).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @field_validator("*")
    @classmethod
    def _within_int32(cls, value: Any, info: ValidationInfo) -> Any:
        """An integer whose field names no largest value is an int32."""
        if type(value) is int and abs(value) > LARGEST_INTEGER:
            assert info.field_name is not None
            if not any(isinstance(rule, Le) for rule in cls.model_fields[info.field_name].metadata):
                raise PydanticKnownError("less_than_equal", {"le": LARGEST_INTEGER})
        return value


def is_changed(section: Section, key: str) -> bool:
    """Whether a key holds something else than its default. A resolved config was set in full, so that asking
    pydantic what the user has set would not do."""
    return getattr(section, key) != type(section).model_fields[key].default
