"""Data sets that `mindgspo eval` knows by name or recognises by their columns. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.config.data import DataFormat
from mindgspo.data.dataset_info import FILE_NAME
from mindgspo.data.formats import PARSERS
from mindgspo.data.source_rows import DroppedRow
from mindgspo.data.sources import check_source_file, read_file
from mindgspo.errors import DataError
from mindgspo.text import did_you_mean

_DAPO = ("math_dapo", "BytedTsinghua-SIA/DAPO-Math-17k")


def recognised_format(path: Path) -> DataFormat:
    """The format of a *.jsonl or *.parquet file. Raises DataError for an empty file and one of unknown columns."""
    first = next(read_file(path), None)
    if first is None:
        raise DataError(f"{path}: holds no rows")
    _, row = first
    found = format_of_row(row)
    if found is None and _is_aime(path):
        return "aime"
    if found is None:
        raise DataError(
            f"{path}: its columns ({', '.join(row)}) are those of no known format; say which one it is "
            f"(--format {', '.join(PARSERS)}), or which column holds what (--format columns --columns map.yaml)"
        )
    return found


def format_of_row(row: Mapping[str, object]) -> DataFormat | None:
    """The published format that has a row's columns; AIME's columns are so common that they could be anyone's."""
    if {"prompt", "reward_model"} <= row.keys():
        return "dapo" if str(row.get("data_source", "")).startswith(_DAPO) else "verl"
    if {"instruction", "output"} <= row.keys():
        return "dianjin"
    if {"problem", "solution"} <= row.keys():
        return "math"
    return "gsm8k" if "question" in row and "####" in str(row.get("answer")) else None


def _is_aime(path: Path) -> bool:
    """Whether every row is one that AIME could have."""
    parse = PARSERS["aime"]
    try:
        return not any(isinstance(parse(row, where), DroppedRow) for where, row in read_file(path))
    except DataError:
        return False


DATA_FOLDER = "MINDGSPO_DATA"
"""Environment variable: the folder below which named data sets lie, where no other is given."""

NUM_GENERATED_ROWS = 512

_HASHES = ' Reason step by step and write the final number after "####".'
_BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
INSTRUCTIONS: Mapping[str, str] = {
    "gsm8k": _HASHES,
    "math": _BOXED,
    "multiple_choice": "\nPlease reason step by step, and put the letters of the right options within \\boxed{}.",
}
"""What is appended to a question so that a reward function finds the answer."""
_FUNCTIONS = {"gsm8k": "gsm8k", "arithmetic": "gsm8k", "math": "math", "aime": "math"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One data set to evaluate on. label: its name in tables. path: a file or a prepared folder, None for generated
    rows."""

    label: str
    format: DataFormat
    path: Path | None

    @property
    def instruction_suffix(self) -> str:
        """Text appended to each question; "" if the rows themselves say how to answer."""
        return "" if self.format == "arithmetic" else INSTRUCTIONS.get(self.function, "")

    @property
    def function(self) -> str:
        """The entry of `reward.functions`; "auto" if the rows' data source decides."""
        return _FUNCTIONS.get(self.format, "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownName:
    """files: places of its rows below the data folder, of which the first that exists is read; empty: rows are
    generated."""

    format: DataFormat
    files: tuple[str, ...] = ()


NAMES: Mapping[str, KnownName] = {
    "gsm8k": KnownName(
        format="gsm8k",
        files=("gsm8k/test.jsonl", "gsm8k/test.parquet", "gsm8k/main/test-00000-of-00001.parquet", "gsm8k.jsonl"),
    ),
    "math500": KnownName(
        format="math", files=("math500/math500.jsonl", "math500/test.jsonl", "MATH-500/test.jsonl", "math500.jsonl")
    ),
    "aime24": KnownName(
        format="aime",
        files=("aime2024/aime24.jsonl", "aime24/aime24.jsonl", "aime24/test.jsonl", "aime24.jsonl"),
    ),
    "arithmetic": KnownName(format="arithmetic"),
}


def find_benchmark(text: str, *, folder: Path | None, format: DataFormat | None) -> Benchmark:
    """The data set that `text` means: a name of `NAMES`, NAME=PATH, or a *.jsonl, *.parquet or prepared folder.

    folder: where names are looked up. format: of a path; None: recognised from its columns. Raises DataError if there
    is nothing of that name or path, with the places that were searched.
    """
    name, equals, path = text.partition("=")
    if text in NAMES:
        known = NAMES[text]
        found = _looked_up(text, known.files, folder) if known.files else None
        return Benchmark(label=text, format=known.format, path=found)
    if equals and name in NAMES and NAMES[name].files:
        check_source_file(Path(path))
        return Benchmark(label=name, format=NAMES[name].format, path=Path(path).absolute())
    return _of_path(text, format)


def _looked_up(name: str, files: Sequence[str], folder: Path | None) -> Path:
    rest = f"Give --data {name}=/path/to/file.jsonl"
    if folder is None:
        raise DataError(f"--data {name}: no folder to look in. {rest}, or --data-dir DIR, or set {DATA_FOLDER}=DIR")
    for file in files:
        if (folder / file).is_file():
            return (folder / file).absolute()
    raise DataError(f"--data {name}: below {folder} there is none of {', '.join(files)}. {rest}")


def _of_path(text: str, format: DataFormat | None) -> Benchmark:
    path = Path(text)
    if (path / FILE_NAME).is_file():
        return Benchmark(label=path.name, format="prepared", path=path.absolute())
    if not path.exists():
        hint = did_you_mean(text.partition("=")[0], NAMES, show=str)
        raise DataError(f"--data {text}: neither a name ({', '.join(NAMES)}) nor a file that is there{hint}")
    check_source_file(path)
    return Benchmark(
        label=path.name, format=recognised_format(path) if format is None else format, path=path.absolute()
    )
