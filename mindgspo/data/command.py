"""`mindgspo data prepare` and tools/prepare_data.py without their argument parsers."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from mindgspo.config.data import ColumnsSection, DataSection, DataSourceSection, TokenizerSection
from mindgspo.config.load import read_layers
from mindgspo.config.messages import schema_problems
from mindgspo.config.rules import columns_problems
from mindgspo.config.schema import ExperimentConfig
from mindgspo.data.dataset_info import DatasetInfo
from mindgspo.data.prepare import prepare_dataset
from mindgspo.errors import ConfigError
from mindgspo.text import did_you_mean, listed
from mindgspo.tokenization import load_tokenizer

# Where the section stands in an experiment.
_PLACE = "data.train.columns."


def read_columns_file(path: Path) -> ColumnsSection:
    """The mapping that stands in the file, keys `prompt`, `answer`, ... at its top level.

    Raises ConfigError for a file that is missing or no such YAML, with every problem of its keys.
    """
    mapping = read_layers(path, ())
    try:
        return ColumnsSection.model_validate_json(json.dumps(mapping), strict=True)
    except ValidationError:
        known = {key: value for key, value in mapping.items() if key in ColumnsSection.model_fields}
        problems = [*(_unknown_key(key) for key in mapping if key not in known), *_problems(known)]
        raise ConfigError("\n  ".join([f"{path}: wrong columns", *problems])) from None


def _unknown_key(key: str) -> str:
    """The nearest key of this file; an experiment's other sections have no place here."""
    names = list(ColumnsSection.model_fields)
    if key in ("data", "columns"):
        return f"{key}: unknown key; {', '.join(names)} stand at the top of this file, not below {key!r}"
    return f"{key}: unknown key{did_you_mean(key, names, otherwise=f'; keys here: {listed(names)}', show=str)}"


def _problems(mapping: dict[str, object]) -> list[str]:
    """The configuration's own words for what is wrong with the section, as part of an experiment."""
    experiment = {"data": {"train": {"format": "columns", "columns": mapping}}}
    try:
        ExperimentConfig.model_validate_json(json.dumps(experiment), strict=True)
    except ValidationError as error:
        return [line.replace(_PLACE, "") for line in schema_problems(error) if line.startswith(_PLACE)]
    raise AssertionError("an experiment without a model is refused")


def prepare_from_options(
    *,
    format: str,
    output: Path,
    input: Path | None = None,
    columns: Path | None = None,
    dedup: bool = False,
    tokenizer: Path | None = None,
    vocab_path: Path | None = None,
    merges_file_path: Path | None = None,
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
    holds the section of that name; vocab_path and merges_file_path: the tokenizer's files in place of its folder;
    workers: processes that tokenize, None: one per processor.
    Raises ConfigError for a value that its section refuses, else as `load_tokenizer` and `prepare_dataset`.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: must be >= 1, got {workers}")
    tokenizer = _tokenizer_folder(tokenizer, vocab_path, merges_file_path)
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


def _tokenizer_folder(folder: Path | None, vocab: Path | None, merges: Path | None) -> Path | None:
    """The folder that is named, or that of the two files, which are read by their usual names."""
    if vocab is None and merges is None:
        return folder
    if vocab is None or merges is None:
        given, other = (
            ("--merges_file_path", "--vocab_path") if vocab is None else ("--vocab_path", "--merges_file_path")
        )
        raise ConfigError(f"{other}: missing; {given} names one of the tokenizer's two files")
    if folder is not None:
        raise ConfigError(
            f"--tokenizer: {folder}, but --vocab_path and --merges_file_path name a tokenizer too; drop one"
        )
    for option, path, name in (("--vocab_path", vocab, "vocab.json"), ("--merges_file_path", merges, "merges.txt")):
        if path.name != name:
            raise ConfigError(f"{option}: {path} must be called {name}; rename it, or give the folder as --tokenizer")
        if not path.is_file():
            raise ConfigError(f"{option}: {path} does not exist")
    if vocab.parent.resolve() != merges.parent.resolve():
        raise ConfigError(
            f"--merges_file_path: {merges} is not in the folder of --vocab_path, {vocab.parent}; put both in one"
        )
    return vocab.parent
