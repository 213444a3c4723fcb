"""The work behind `mindgspo data prepare` and tools/prepare_data.py, free of any argument parser.

What enters: plain values as a user types them. What leaves: a prepared folder and its `DatasetInfo`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from mindgspo.config.schema import DataSection, DataSourceSection, TokenizerSection
from mindgspo.config.validate import columns_problems
from mindgspo.data.columns_file import read_columns_file
from mindgspo.data.dataset_info import DatasetInfo
from mindgspo.data.prepare import prepare_dataset
from mindgspo.errors import ConfigError
from mindgspo.tokenization import load_tokenizer


def prepare_from_options(
    *,
    format: str,
    output: Path,
    input: Path | None = None,
    columns: Path | None = None,
    dedup: bool = False,
    tokenizer: Path | None = None,
    eos_tokens: tuple[str, ...] | None = None,
    pad_token: str | None = None,
    split: str = "train",
    max_rows: int | None = None,
    max_prompt_length: int = 1024,
    truncation: str = "error",
    system_prompt: str | None = None,
    instruction_prefix: str = "",
    instruction_suffix: str = "",
    seed: int = 1,
    workers: int | None = None,
    force: bool = False,
) -> DatasetInfo:
    """Prepare a data set from the values of a command line; None means the configuration's default.

    Meanings as in the configuration's sections of the same names; output: the folder to make; columns: a YAML file that
    holds the section of that name; workers: processes that tokenize, None: one per processor.
    Raises ConfigError for a value that its section refuses, else as `load_tokenizer` and `prepare_dataset`.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: must be >= 1, got {workers}")
    chosen = {"path": tokenizer, "eos_tokens": eos_tokens, "pad_token": pad_token}
    if seed < 0:
        raise ConfigError(f"--seed: must be >= 0, got {seed}")
    mapping = None if columns is None else read_columns_file(columns)
    try:
        section = TokenizerSection(**{key: value for key, value in chosen.items() if value is not None})
        source = DataSourceSection(
            format=format, path=input, columns=mapping, dedup=dedup, split=split, max_rows=max_rows
        )
        data = DataSection(
            train=source,
            eval=source,
            system_prompt=system_prompt,
            instruction_prefix=instruction_prefix,
            instruction_suffix=instruction_suffix,
            max_prompt_length=max_prompt_length,
            truncation=truncation,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}") from error
    for problem in columns_problems("", source):
        place = "--columns" if columns is None or format != "columns" else str(columns)
        rest = problem.removeprefix(".columns").removeprefix(".").removeprefix(": ")
        raise ConfigError(f"{place}: {rest.replace('format=columns', '--format columns')}")
    if tokenizer is None and format not in ("arithmetic", "prepared"):
        raise ConfigError(
            f"--tokenizer: missing; the built-in tokenizer knows only the arithmetic task, but --format is {format} "
            "(a Hugging Face model folder usually holds its tokenizer)"
        )
    return prepare_dataset(source, data, load_tokenizer(section), output, seed=seed, force=force, workers=workers)
