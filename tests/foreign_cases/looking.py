"""Conversions of texts, and looks at what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindgspo.config.yaml_dialect import parse_document
from mindgspo.integrations.foreign_configs import Conversion, convert
from mindgspo.integrations.foreign_configs.reading import Finding

FILES = Path(__file__).resolve().parents[1] / "data" / "foreign_configs"
"""Whole files in the manner of each suite."""


def converted(
    folder: Path, text: str, suite: str | None = None, *, name: str = "given.txt", overrides: tuple[str, ...] = ()
) -> Conversion:
    """The conversion of one file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return convert([path], suite, overrides)


def flat(conversion: Conversion) -> dict[str, Any]:
    """The YAML of a conversion as dotted keys."""
    return dict(_leaves(parse_document(conversion.yaml), ""))


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(below, f"{key}.{name}" if key else name)
    else:
        yield key, value


def findings_of(conversion: Conversion, source: str) -> list[Finding]:
    """What the report says about a key; an assertion fails if it says nothing."""
    found = [finding for finding in conversion.findings if finding.source == source]
    assert found, f"the report says nothing about {source}"
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as sections."""
    made: dict[str, Any] = {}
    for key, value in settings.items():
        *above, leaf = key.split(".")
        place = made
        for step in above:
            place = place.setdefault(step, {})
        place[leaf] = value
    return made
