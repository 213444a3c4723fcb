"""The formats that rows of files come in, each in a file of its own.

What enters: one dictionary and the words that say where it stands. What leaves: a `SourceRow`, or a `DroppedRow` where
a solution is there but states no answer. A field that the format promises and the row lacks raises a DataError that
names row, field and rule: then the file is not what it is said to be, and nothing is repaired. To add a format: its
file here, its entry below, its name in config/schema.py and config/rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from mindgspo.data.formats.aime import parse_aime
from mindgspo.data.formats.columns import parse_columns
from mindgspo.data.formats.competition_math import parse_math
from mindgspo.data.formats.dapo import parse_dapo
from mindgspo.data.formats.dianjin import parse_dianjin
from mindgspo.data.formats.gsm8k import parse_gsm8k
from mindgspo.data.formats.verl import parse_verl
from mindgspo.data.source_row import DroppedRow, SourceRow

if TYPE_CHECKING:
    from mindgspo.config.data import DataSourceSection

Parser = Callable[[Mapping[str, object], str], "SourceRow | DroppedRow"]

PARSERS: Mapping[str, Parser] = {
    "gsm8k": parse_gsm8k,
    "verl": parse_verl,
    "dapo": parse_dapo,
    "math": parse_math,
    "aime": parse_aime,
    "dianjin": parse_dianjin,
}


def parser_for(section: DataSourceSection) -> Parser:
    """The parser of a file's rows; its section has been checked."""
    if section.format != "columns":
        return PARSERS[section.format]
    assert section.columns is not None, "the format columns goes with a mapping"
    return partial(parse_columns, section.columns)
