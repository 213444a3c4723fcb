"""HTML pages that open anywhere: everything is inside, nothing is fetched, and the page's content policy says so.

They are in English and in Chinese, one at a time: a switch at the top, which is CSS alone, hides the other. Names,
prompts, responses and settings are untrusted: the templates escape all of them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mindgspo.metrics.plot_style import PanelPicture
from mindgspo.metrics.translation import chinese
from mindgspo.text import printable


@dataclass(frozen=True, slots=True)
class Picture:
    """A panel's words, and its PNG in base64 for light and for dark pages."""

    title: str
    subtitle: str
    light: str
    dark: str


def pictures(light: Sequence[PanelPicture], dark: Sequence[PanelPicture]) -> list[Picture]:
    """The same panels in both themes, as a page has them."""
    return [
        Picture(one.title, one.subtitle, *(base64.b64encode(each.png).decode("ascii") for each in (one, other)))
        for one, other in zip(light, dark, strict=True)
    ]


def page(template: str, **values: object) -> bytes:
    """The HTML of a template of this package, without characters that hide or turn what is written."""
    return printable(_environment().get_template(template).render(**values)).encode()


def in_both(english: object, translated: object = None) -> Markup:
    """A text in English and in Chinese, of which a page shows one; as it is where it has no translation. translated:
    the Chinese one, if the table of translations does not have it."""
    text = str(english)
    other = chinese(text) if translated is None else str(translated)
    if other is None or other == text:
        return escape(text)
    return Markup('<span class="en">{}</span><span class="zh" lang="zh">{}</span>').format(text, other)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("mindgspo.metrics", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"t": in_both, "chinese": chinese}
    return made
