"""The YAML of a conversion: every value with a comment that says where it came from.

What enters: a `Draft` and overrides. What leaves: text that `config.load` reads, and the same as a mapping. Called by
`convert`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mindgspo.config.load import with_overrides
from mindgspo.config.messages import known_keys
from mindgspo.config.yaml_dialect import parse_document, write_document
from mindgspo.errors import ConfigError
from mindgspo.integrations.foreign_configs.draft import Draft, Placed
from mindgspo.integrations.foreign_configs.table import plain
from mindgspo.io import write_file

_ORDER = {key: number for number, (key, _) in enumerate(known_keys())}


def save_new(path: Path, text: str) -> None:
    """Write a file that was not there, aside and renamed. Raises ConfigError for one that is, or cannot be made."""
    if path.exists():
        raise ConfigError(f"{path}: is there already; give --out another name, or move it away")
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def place_overrides(draft: Draft, overrides: Iterable[str]) -> None:
    """Values of `--set` over those of the draft. Raises ConfigError for one that is not `a.b=value`."""
    for override in overrides:
        for target, value in _leaves(with_overrides({}, [override]), ""):
            for key in [key for key in draft.values if key.startswith(f"{target}.") or target.startswith(f"{key}.")]:
                del draft.values[key]  # a section in place of one value, or one value in place of a section
            draft.values[target] = Placed(value=value, origin="--set")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves(below, f"{key}.{name}" if key else name)
    else:
        yield key, value


def nested(draft: Draft) -> dict[str, Any]:
    """The draft as the mapping that a file would hold, sections in the schema's order."""
    mapping: dict[str, Any] = {}
    for key in sorted(draft.values, key=lambda key: _ORDER.get(key, len(_ORDER))):
        *above, leaf = key.split(".")
        place = mapping
        for step in above:
            place = place.setdefault(step, {})
        place[leaf] = draft.values[key].value
    return mapping


def written(draft: Draft, title: Iterable[str]) -> str:
    """The file: title lines as comments, then one line per value with its origin."""
    mapping = nested(draft)
    lines = [*(f"# {plain(line)}" for line in title), *_lines(mapping, draft, "", 0)]
    text = "\n".join(lines) + "\n"
    assert parse_document(text) == mapping, "the file does not say what the draft says"
    return text


def _lines(mapping: Mapping[str, Any], draft: Draft, above: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    told = ""  # the origin that a line of its own has told already
    for key, value in mapping.items():
        if f"{above}{key}" not in draft.values:
            if depth == 0:
                yield ""
            yield f"{indent}{key}:"
            yield from _lines(value, draft, f"{above}{key}.", depth + 1)
            continue
        origin = plain(draft.values[f"{above}{key}"].origin)
        block = write_document({key: value}).splitlines()
        is_short = len(block) == 1 and len(block[0]) + len(origin) < 110
        if origin != told and is_short and not _is_shared(origin, mapping, draft, above):
            yield f"{indent}{block[0]} # {origin}"
            continue
        if origin != told:
            yield f"{indent}# {origin}"
            told = origin
        yield from (f"{indent}{line}" for line in block)


def _is_shared(origin: str, mapping: Mapping[str, Any], draft: Draft, above: str) -> bool:
    """Whether more than two values of a section have this origin."""
    placed = [draft.values.get(f"{above}{key}") for key in mapping]
    return sum(one is not None and plain(one.origin) == origin for one in placed) > 2
