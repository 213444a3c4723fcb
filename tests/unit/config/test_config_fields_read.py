"""A field of the schema exists only if code outside the configuration room reads it."""

from __future__ import annotations

import ast
from pathlib import Path

from mindgspo.config import ExperimentConfig, ParallelPlan
from mindgspo.config.messages import section_of
from mindgspo.config.section import Section

PACKAGE = Path(__file__).resolve().parents[3] / "mindgspo"

# Fields whose whole effect is inside the configuration room, each with its reason.
READ_BY_CONFIG_ALONE = {
    "AlgorithmSection.allow_wide_clip": "lifts a rule of config.validate",
    "AlgorithmSection.allow_token_weighting": "lifts a rule of config.validate",
}


def _fields(section: type[Section] = ExperimentConfig) -> set[tuple[str, str]]:
    """(class name, field) of every section except the plan, whose rules refuse all but its defaults."""
    found = set()
    for name in section.model_fields:
        below = section_of(section, name)
        found.add((section.__name__, name))
        if below is not None and below is not ParallelPlan:
            found |= _fields(below)
    return found


def _attributes_read() -> set[str]:
    """Every `x` of a `....x` that is read in the package outside mindgspo/config."""
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "config"]
    return {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_every_field_is_read_by_some_code():
    read = _attributes_read()
    unread = {f"{section}.{field}" for section, field in _fields() if field not in read}
    dead = sorted(unread - READ_BY_CONFIG_ALONE.keys())
    assert not dead, f"no code outside mindgspo/config reads: {', '.join(dead)}; use them or remove them"


def test_exceptions_are_fields_that_still_need_one():
    names = {f"{section}.{field}" for section, field in _fields()}
    assert names >= READ_BY_CONFIG_ALONE.keys()
