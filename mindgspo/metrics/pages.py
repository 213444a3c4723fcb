"""HTML pages that open anywhere: everything is inside, nothing is fetched, and the page's content policy says so.

They are in English and in Chinese, one at a time: a switch at the top, which is CSS alone, hides the other. Names,
prompts, responses and settings are untrusted: the templates escape all of them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mindgspo.metrics.plot_style import PanelPicture
from mindgspo.text import printable


@dataclass(frozen=True, slots=True)
class Picture:
    """A panel's words, and its PNG in base64 for light and for dark pages."""

    title: str
    subtitle: str
    light: str
    dark: str


def pictures(light: Sequence[PanelPicture], dark: Sequence[PanelPicture]) -> list[Picture]:
    """Pictures of the same panels in both themes."""
    return [
        Picture(one.title, one.subtitle, *(base64.b64encode(each.png).decode("ascii") for each in (one, other)))
        for one, other in zip(light, dark, strict=True)
    ]


def page(template: str, **values: object) -> bytes:
    """The HTML of a template of this package, without characters that hide or turn what is written."""
    return printable(_environment().get_template(template).render(**values)).encode()


def in_both(english: object, translated: object = None) -> Markup:
    """A text in English and in Chinese, of which a page shows one; unchanged if it has no translation. translated: the
    Chinese one, if the table of translations does not have it."""
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


# ----- Chinese, from pages_cn.yaml English is what the code writes. `{}` in an entry is a part that changes (a number,
# a name), which is translated itself where it has an entry; the parts come back in their order.


_LONGEST = 2_000
"""Characters of the longest text that is translated."""


@cache
def chinese_words() -> dict[str, str]:
    """English and Chinese, as the file has them."""
    return yaml.safe_load(Path(__file__).with_name("pages_cn.yaml").read_text(encoding="utf-8"))


@cache
def _forms() -> list[tuple[list[str], str]]:
    """The texts around the parts that change, and the Chinese form; those with the most fixed words first."""
    forms = [(english.split("{}"), chinese) for english, chinese in chinese_words().items() if "{}" in english]
    return sorted(forms, key=lambda form: -sum(map(len, form[0])))


def chinese(text: str) -> str | None:
    """The text in Chinese; None if there is no entry for it."""
    if text in chinese_words():
        return chinese_words()[text]
    if len(text) > _LONGEST:
        return None
    for pieces, form in _forms():
        parts = _parts(text, pieces)
        if parts:
            return form.format(*(chinese(part) or part for part in parts))
    return None


def _parts(text: str, pieces: Sequence[str]) -> list[str]:
    """Texts between the pieces, each as short as can be; none if the text does not match. Names in a text come from
    data, so no regular expression is used that a hostile one could slow down."""
    end = len(text) - len(pieces[-1])
    if not text.startswith(pieces[0]) or not text.endswith(pieces[-1]):
        return []
    parts, place = [], len(pieces[0])
    for piece in pieces[1:-1]:
        found = text.find(piece, place + 1, end)
        if found < 0:
            return []
        parts.append(text[place:found])
        place = found + len(piece)
    return [*parts, text[place:end]] if place < end else []


# ----- what a prompt asks, without its chat template: headings of samples would be all alike with it

_USER = re.compile(
    r"<[|\uff5c](?:im_start|turn)[|\uff5c]?>\s*user\n"
    r"|<\|start_header_id\|>user<\|end_header_id\|>\s*"
    r"|<start_of_turn>user\n"
    r"|<[|\uff5c](?:user|User|USER_TOKEN)[|\uff5c]>\s*"
    r"|\[INST\]\s*|<reserved_106>"
    r"|(?:^|\n)(?:### )?(?:User|USER|Human|Instruction|Question)\s*:\s*"
)
_END = re.compile(
    r"<[|\uff5c][^<>]{1,40}[|\uff5c]>|<turn\|>|<end_of_turn>|\[/INST\]|<reserved_107>|</s>"
    r"|\n(?:### )?(?:Assistant|ASSISTANT|Response|Answer)\s*:\s*$"
)


def questions(prompts: Sequence[str]) -> list[str]:
    """The last turn of the user in each prompt, without the lines with which all of them begin or end."""
    turns = [_last_turn(prompt).splitlines(keepends=True) for prompt in prompts]
    start = _shared(turns)
    end = _shared([turn[start:][::-1] for turn in turns])
    asked = ("".join(turn[start : len(turn) - end]).strip() for turn in turns)
    return [text or prompt.strip() for text, prompt in zip(asked, prompts, strict=True)]


def _shared(turns: Sequence[Sequence[str]]) -> int:
    """Number of lines with which all of them begin; 0 if they are all the same."""
    if all(turn == turns[0] for turn in turns):
        return 0
    return next(number for number, lines in enumerate(zip_longest(*turns)) if len(set(lines)) > 1)


def _last_turn(prompt: str) -> str:
    starts = [match.end() for match in _USER.finditer(prompt)]
    turn = prompt[starts[-1] :] if starts else prompt
    end = _END.search(turn)
    return (turn[: end.start()] if end and turn[: end.start()].strip() else turn).strip()
