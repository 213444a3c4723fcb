"""A YAML file that holds a `ColumnsSection`, for `--columns`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from mindgspo.config.data import ColumnsSection
from mindgspo.config.load import read_layers
from mindgspo.config.messages import schema_problems
from mindgspo.config.schema import ExperimentConfig
from mindgspo.errors import ConfigError
from mindgspo.text import did_you_mean, listed

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
