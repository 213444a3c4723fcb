"""A run as a Python program asks for it: settings as values, a function as its reward, rows instead of files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mindgspo.checkpoint.run_folder import RunStatus, open_run_folder
from mindgspo.config import ExperimentConfig
from mindgspo.config.paths import experiment_file
from mindgspo.config.reward import IN_PROCESS
from mindgspo.errors import ConfigError, DataError
from mindgspo.io import make_folder, write_file
from mindgspo.planner import with_cache_budget
from mindgspo.rewards import RewardFunction
from mindgspo.text import shorten
from mindgspo.trainer.callbacks import GivenObjects, check_callbacks
from mindgspo.trainer.start import RunRequest

Overrides = Sequence[str] | Mapping[str, object]
"""["optimizer.lr=1e-6", ...] as on the command line, or {"optimizer.lr": 1e-6, ...}."""
Reward = RewardFunction | str | Sequence[RewardFunction | str] | None
RowMappings = Iterable[Mapping[str, object]] | None
_DATA_KEYS = {"data": "train", "eval_data": "eval"}
_NOT_OF_ROWS = (None, "arithmetic", "prepared", "mindrlhf")


def python_request(
    config: str | PathLike[str] | Mapping[str, object],
    overrides: Overrides,
    reward: Reward,
    callbacks: Sequence[object],
    rows: Mapping[str, RowMappings],
    *,
    overwrite: bool,
) -> tuple[RunRequest, Path]:
    """The request of `mindgspo.train` and its run folder, into which the rows are written. rows: of data and eval_data.
    Raises ConfigError, DataError, RunFolderError."""
    if not isinstance(config, str | PathLike | Mapping):
        raise ConfigError(f"config: expected the path of a YAML file or a mapping, got {type(config).__name__}")
    check_callbacks(callbacks)
    objects, own = _reward_settings(reward)
    request = RunRequest(
        command="run",
        config=None if isinstance(config, Mapping) else experiment_file(Path(config)),
        overrides=(*(_texts(config) if isinstance(config, Mapping) else ()), *own, *_texts(overrides)),
        overwrite=overwrite,
        complete=with_cache_budget,
        given=GivenObjects(rewards=objects, callbacks=callbacks),
    )
    layers = request.layers().get("data")
    given = layers if isinstance(layers, Mapping) else {}
    files = [_file_of(name, found, given.get(_DATA_KEYS[name])) for name, found in rows.items() if found is not None]
    resolved = _with_files(request, files, Path("data")).experiment(check_files=False)
    _check_one_process(resolved, request.given)
    assert resolved.run_dir is not None, "config is not resolved"
    return (_held(request, resolved, files) if files else request), resolved.run_dir


def _texts(settings: Overrides) -> list[str]:
    """Settings as they are written after --set."""
    if isinstance(settings, str):
        raise ConfigError(f"overrides: expected a mapping or a list of texts, got one text; write [{settings!r}]")
    if isinstance(settings, Mapping):
        return [f"{key}={_as_json(str(key), value)}" for key, value in settings.items()]
    return list(settings)


def _as_json(key: str, value: object) -> str:
    """The value as JSON, which YAML reads as well. Raises ConfigError for what no file can hold."""

    def plain(part: object) -> object:
        if isinstance(part, PathLike):
            return fspath(part)
        if isinstance(part, np.generic | np.ndarray):
            return part.tolist()
        if callable(part):
            named = repr(_importable_name(part))
            raise ConfigError(f"{key}: settings name functions; write {named}, or train(..., reward=...), got {part!r}")
        raise ConfigError(f"{key}: expected text, numbers, lists and mappings, got {shorten(repr(part))}")

    return json.dumps(value, default=plain)


def _importable_name(function: Callable[..., object]) -> str:
    """How settings name a function; FILE.py stands for a file that is still to be written."""
    name = getattr(function, "__name__", type(function).__name__)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    is_importable = getattr(function, "__qualname__", "") == name and name.isidentifier() and Path(file).is_file()
    return f"{file if is_importable else 'FILE.py'}:{name if name.isidentifier() else 'NAME'}"


def _reward_settings(reward: Reward) -> tuple[dict[str, RewardFunction], list[str]]:
    """Function objects by their entries in reward.functions, and the settings that name them."""
    if reward is None:
        return {}, []
    objects: dict[str, RewardFunction] = {}
    names: list[str] = []
    for one in reward if isinstance(reward, list | tuple) else [reward]:
        if not isinstance(one, str) and not callable(one):
            raise ConfigError(f"reward: expected a function, a name or a list of these, got {shorten(repr(one))}")
        if isinstance(one, str):
            names.append(one)
        else:
            label = re.sub(r"\W", "", getattr(one, "__name__", type(one).__name__))  # <lambda> has signs
            names.append(f"{IN_PROCESS}{label}")
            objects[names[-1]] = one
    return objects, [f"reward.functions={json.dumps(names)}", "reward.weights=null"]


class _RowsFile(NamedTuple):
    """Rows in place of a data set. key: train or eval. source: how they are read, as the settings of that section."""

    key: str
    name: str
    content: bytes
    source: Mapping[str, object]


def _file_of(name: str, found: RowMappings, given: object) -> _RowsFile:
    """The file is called by its content, so that other rows are another file. given: the section that rows replace."""
    if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
        raise DataError(f"{name}: expected a list of rows, got {type(found).__name__}")
    rows = list(found)
    content = "".join(f"{_as_json(f'{name}[{number}]', row)}\n" for number, row in enumerate(rows)).encode()
    file = f"rows-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    if isinstance(given, Mapping) and given.get("format") not in _NOT_OF_ROWS:
        return _RowsFile(_DATA_KEYS[name], file, content, given)
    keys = list(dict.fromkeys(key for row in rows if isinstance(row, Mapping) for key in row))
    columns: dict[str, object] = {key: key for key in ("prompt", "answer")}
    columns |= {key: key for key in ("solution", "data_source") if key in keys}
    columns |= {} if "data_source" in keys else {"data_source_name": "rows"}
    columns["extra_info"] = [key for key in keys if key not in columns]
    return _RowsFile(_DATA_KEYS[name], file, content, {"format": "columns", "columns": columns})


def _with_files(request: RunRequest, files: Sequence[_RowsFile], folder: Path) -> RunRequest:
    """The request with its data sections replaced as a whole."""
    texts = list(request.overrides)
    for file in files:
        source = {**file.source, "path": str(folder / file.name)}
        texts += [f"data.{file.key}=null", f"data.{file.key}={json.dumps(source)}"]
    return replace(request, overrides=tuple(texts))


def _held(request: RunRequest, config: ExperimentConfig, files: Sequence[_RowsFile]) -> RunRequest:
    """The request with the rows in files of the run folder, in which a resumed run finds its own."""
    assert config.run_dir is not None, "config is not resolved"
    folder = open_run_folder(config.run_dir, resume=config.resume, overwrite=request.overwrite, restore=config.restore)
    with closing(folder):
        if folder.moved_aside is not None:
            print(f"the former run was moved to {folder.moved_aside}")
        make_folder(folder.data)
        for file in files:
            path = folder.data / file.name
            if folder.status is not RunStatus.NEW and not path.exists():
                raise DataError(f"data.{file.key}: the run in {folder.root} has other rows; give it the same")
            write_file(path, file.content)
    return replace(_with_files(request, files, folder.data), overwrite=False)


def _check_one_process(config: ExperimentConfig, given: GivenObjects) -> None:
    """Raises ConfigError for objects that the run would not use, or that its processes would not have."""
    number, functions = config.plans.train.world_size, config.reward.functions
    for name, function in given.rewards.items():
        if name not in functions:
            raise ConfigError(f"reward: is given, and overrides set reward.functions={list(functions)}; leave one out")
        if number > 1:
            raise ConfigError(
                f"reward: the plans need {number} processes, which import functions by name; write "
                f"{_importable_name(function)!r}, got {function!r}"
            )
    if given.callbacks and number > 1:
        raise ConfigError(
            f"callbacks: they are called in this process, but the plans need {number} others; read "
            f"mindgspo.Run.load({str(config.run_dir)!r}) while the run goes on, or take plans of one process"
        )
