"""HTML pages that open anywhere: everything is inside, nothing is fetched, and the page's content policy says so.

Names, prompts, responses and settings are untrusted: the templates escape all of them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from mindgspo.text import printable


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG in base64 for light and for dark pages, and what it shows, for readers who cannot see it."""

    description: str
    light: str
    dark: str


def picture(description: str, *, light: bytes, dark: bytes) -> Picture:
    """The two PNG files as a page has them."""
    return Picture(description, *(base64.b64encode(data).decode("ascii") for data in (light, dark)))


def page(template: str, **values: object) -> bytes:
    """The HTML of a template of this package, without characters that hide or turn what is written."""
    return printable(_environment().get_template(template).render(**values)).encode()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mindgspo.metrics", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
