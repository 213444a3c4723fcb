"""The base of every configuration section. Nothing but pydantic is imported."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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


def is_changed(section: Section, key: str) -> bool:
    """Whether a key holds something else than its default. A resolved config was set in full, so that asking
    pydantic what the user has set would not do."""
    return getattr(section, key) != type(section).model_fields[key].default
