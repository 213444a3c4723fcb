"""Foreign files: read, and told apart by what stands in them.

What enters: a path. What leaves: the name of the suite and a `Reading`. Raises ConfigError with path and reason for
what cannot be read. Called by `convert`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from mindgspo.config.yaml_dialect import explain
from mindgspo.errors import ConfigError
from mindgspo.integrations.foreign_configs.reading import Reading
from mindgspo.integrations.foreign_configs.verl_source import read_overrides
from mindgspo.integrations.foreign_configs.yaml_source import read_yaml

_MOST_BYTES = 1_000_000
_MINDRLHF = ("rl_config.", "actor_config.", "generate_config.")
_MINDFORMERS = ("run_mode", "model.model_config.", "parallel_config.", "runner_config.", "pretrained_model_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One foreign file. suite: the table that reads it."""

    path: Path
    suite: str
    reading: Reading

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.path.name


def read_source(path: Path, suite: str | None) -> Source:
    """The file, as one of `suite`, or of the one that its keys tell."""
    text = _text(path)
    if suite == "verl" or (suite is None and path.suffix not in (".yaml", ".yml")):
        return Source(path=path, suite="verl", reading=_overrides(path, text))
    reading = _yaml(path, text)
    found = suite or _suite_of(reading)
    if found is None:
        raise ConfigError(
            f"{path}: no key of MindFormers (run_mode, parallel_config, ...) or MindRLHF (rl_config, ...) in it; verl "
            "is read from a command line or a list of overrides; if it is one of them, say so with --from"
        )
    return Source(path=path, suite=found, reading=reading)


def _text(path: Path) -> str:
    try:
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: has {path.stat().st_size:,} bytes, a configuration at most {_MOST_BYTES:,}")
        with path.open("rb") as file:  # a pipe or device does not say how long it is
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ConfigError(f"{path}: longer than the {_MOST_BYTES:,} bytes that a configuration has at most")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _overrides(path: Path, text: str) -> Reading:
    try:
        return read_overrides(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _yaml(path: Path, text: str) -> Reading:
    try:
        values, twice = read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {explain(error)}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    reading = Reading(values=values)
    for key in twice:
        reading.remark(key, "", "given twice in one place; the last one counts")
    return reading


def _suite_of(reading: Reading) -> str | None:
    for suite, marks in (("mindrlhf", _MINDRLHF), ("mindformers", _MINDFORMERS)):
        if any(
            key == mark or (mark.endswith(".") and key.startswith(mark)) for key in reading.values for mark in marks
        ):
            return suite
    return None
