r"""Data sets that are known by name, and what a model is measured with on them.

What enters: what a user writes behind --data: a name, NAME=PATH, or a path. What leaves: a `Benchmark`: rows, prompt
suffix and reward function that belong together. Called by `mindgspo eval`. Nothing is downloaded: the rows of a name
lie below one folder, under one of the paths listed here, which are those that the data sets are published with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.config.data import DataFormat
from mindgspo.data.dataset_info import FILE_NAME
from mindgspo.data.recognise import recognised_format
from mindgspo.data.source_files import check_file
from mindgspo.errors import DataError
from mindgspo.text import did_you_mean

DATA_FOLDER = "MINDGSPO_DATA"
"""Environment variable: the folder below which named data sets lie, where no other is given."""

NUM_GENERATED_ROWS = 512

_HASHES = ' Reason step by step and write the final number after "####".'
_BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_SUFFIXES = {"gsm8k": _HASHES, "math": _BOXED, "aime": _BOXED}
_FUNCTIONS = {"gsm8k": "gsm8k", "arithmetic": "gsm8k", "math": "math", "aime": "math"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One data set to measure on. label: for tables. path: a file or a prepared folder, None for generated rows."""

    label: str
    format: DataFormat
    path: Path | None

    @property
    def instruction_suffix(self) -> str:
        """What is appended to each question; "" where the rows say themselves how to answer."""
        return _SUFFIXES.get(self.format, "")

    @property
    def function(self) -> str:
        """The entry of `reward.functions`; "auto" where the rows' data source decides."""
        return _FUNCTIONS.get(self.format, "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownName:
    """files: where its rows may lie below the data folder, the first that is there counts; none are generated."""

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

    folder: where names are looked up. format: of a path; None: recognised from its columns.
    Raises DataError: nothing of that name or path, and where was looked.
    """
    name, equals, path = text.partition("=")
    if text in NAMES:
        known = NAMES[text]
        found = _looked_up(text, known.files, folder) if known.files else None
        return Benchmark(label=text, format=known.format, path=found)
    if equals and name in NAMES and NAMES[name].files:
        check_file(Path(path))
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
    check_file(path)
    return Benchmark(
        label=path.name, format=recognised_format(path) if format is None else format, path=path.absolute()
    )
