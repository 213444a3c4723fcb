"""Which of the known formats the rows of a file have, from their columns.

What enters: a path. What leaves: the name of a format. Called where a user gives a file without one.

    prompt, reward_model            dapo where the data source is DAPO-Math-17k's, else verl
    instruction, output             dianjin
    problem, solution               math
    question, answer with "####"    gsm8k
    problem or question, answer     aime, if the answer of every row is an integer from 0 to 999

Anything else is no guess's business: the user says the format, or which columns hold what.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mindgspo.config.data import DataFormat
from mindgspo.data.formats import PARSERS
from mindgspo.data.source_files import read_file
from mindgspo.data.source_row import DroppedRow
from mindgspo.errors import DataError

_DAPO = ("math_dapo", "BytedTsinghua-SIA/DAPO-Math-17k")
_HASHES = "####"


def recognised_format(path: Path) -> DataFormat:
    """The format of a *.jsonl or *.parquet file. Raises DataError for an empty file and one of unknown columns."""
    first = next(read_file(path), None)
    if first is None:
        raise DataError(f"{path}: holds no rows")
    _, row = first
    found = _by_columns(row)
    if found is None and _is_aime(path):
        return "aime"
    if found is None:
        raise DataError(
            f"{path}: its columns ({', '.join(row)}) are those of no known format; say which one it is "
            f"(--format {', '.join(PARSERS)}), or which column holds what (--format columns --columns map.yaml)"
        )
    return found


def _by_columns(row: Mapping[str, object]) -> DataFormat | None:
    if {"prompt", "reward_model"} <= row.keys():
        return "dapo" if str(row.get("data_source", "")).startswith(_DAPO) else "verl"
    if {"instruction", "output"} <= row.keys():
        return "dianjin"
    if {"problem", "solution"} <= row.keys():
        return "math"
    return "gsm8k" if "question" in row and _HASHES in str(row.get("answer")) else None


def _is_aime(path: Path) -> bool:
    """Whether every row is one that AIME could have."""
    parse = PARSERS["aime"]
    try:
        return not any(isinstance(parse(row, where), DroppedRow) for where, row in read_file(path))
    except DataError:
        return False
