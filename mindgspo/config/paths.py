"""Paths in a config: checks that names are legal, inputs exist and a run folder can be made; and the files that come
with this package."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from mindgspo.config.distillation_rules import KEY, teacher_folder_problems
from mindgspo.config.hub import ROW_SUFFIXES
from mindgspo.config.huggingface_config import FILE, nearest_model
from mindgspo.config.reward import file_function, missing_file_problems, reward_file_problems
from mindgspo.config.rules import data_sources
from mindgspo.config.schema import ExperimentConfig
from mindgspo.text import hub_hint, shorten

_LONGEST_NAME, _LONGEST_PATH = 255, 4095
"""In bytes, as Linux has them."""


def path_problems(config: ExperimentConfig) -> list[str]:
    """Every path that no file system can hold."""
    files = [file.path for file in map(file_function, config.reward.functions) if file is not None]
    resume = [("resume", config.resume)] if isinstance(config.resume, Path) else []
    paths = [
        ("run_dir", config.run_dir),
        ("swap.path", config.swap.path),
        *resume,
        *_inputs(config),
        *(("reward.functions", path) for path in files),
    ]
    return [line for key, path in paths if path is not None for line in _name_problems(key, path)]


def _name_problems(key: str, path: Path) -> Iterator[str]:
    name = max((os.fsencode(part) for part in path.parts), key=len, default=b"")
    if "\0" in str(path):
        yield f"{key}: {shorten(repr(str(path)), 200)}: the character NUL can be in no file's name"
    elif len(name) > _LONGEST_NAME:
        yield f"{key}: {shorten(path, 200)}: a name of {len(name)} bytes; a file's name has at most {_LONGEST_NAME}"
    elif len(os.fsencode(path)) > _LONGEST_PATH:
        yield f"{key}: {shorten(path, 200)}: {len(os.fsencode(path))} bytes; a path has at most {_LONGEST_PATH}"


def file_problems(config: ExperimentConfig) -> list[str]:
    """Every input path that does not exist, or is a file where a folder is read, or the reverse; and a run folder that
    cannot be made."""
    missing = [_missing(key, path) for key, path in _inputs(config) if path is not None and not path.exists()]
    if isinstance(config.resume, Path) and not (resume := config.resume.expanduser()).exists():
        missing.append(f"{_missing('resume', resume.absolute())}, or --set resume=auto")
    wrong = [*missing, *_wrong_kinds(config)]
    return [
        *wrong,
        *(() if wrong else teacher_folder_problems(config)),
        *reward_file_problems(config.reward),
        *_environment_file_problems(config),
        *_run_dir_problems(config),
    ]


def _environment_file_problems(config: ExperimentConfig) -> list[str]:
    if config.environment is None or (file := file_function(config.environment.path)) is None:
        return []
    return missing_file_problems("environment.path", [file])


def _inputs(config: ExperimentConfig) -> list[tuple[str, Path | None]]:
    lora = config.model.lora
    paths = [("model.path", config.model.path), ("tokenizer.path", config.tokenizer.path)]
    paths.append(("model.lora.path", None if lora is None else lora.path))
    distillation = config.algorithm.distillation
    teachers = () if distillation is None else distillation.teachers
    paths += [(f"{KEY}.teachers[{number}].path", one.path) for number, one in enumerate(teachers)]
    return paths + [(f"{key}.path", source.path) for key, source in data_sources(config)]


def _missing(key: str, path: Path) -> str:
    is_data = key.startswith("data.")
    may_be_of_hub = path.suffix not in ROW_SUFFIXES if is_data else key in ("model.path", "tokenizer.path")
    by_set = "" if "[" in key else f"; set it with --set {key}=..."
    mend = (hub_hint(path, is_data=is_data) if may_be_of_hub else "") or by_set
    return f"{key}: {path} does not exist (nearest existing folder: {_nearest(path.parent)}){mend}"


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest above it that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def _run_dir_problems(config: ExperimentConfig) -> Iterator[str]:
    assert config.run_dir is not None, "config is not resolved"
    found = _nearest(config.run_dir.expanduser().absolute())
    if not found.is_dir():
        yield f"run_dir: {found} is a file; choose a folder with --set run_dir=..."
    elif not os.access(found, os.W_OK | os.X_OK):
        yield f"run_dir: {config.run_dir}: nothing can be written into {found}; choose another with --set run_dir=..."


def _wrong_kinds(config: ExperimentConfig) -> Iterator[str]:
    weights = config.model.path
    if weights is not None and weights.is_file():
        yield f"model.path: {weights} is a file; give the folder with config.json and *.safetensors"
    elif weights is not None and weights.is_dir() and not (weights / FILE).is_file():
        yield f"model.path: {weights} has no {FILE}; give {nearest_model(weights) or 'a Hugging Face folder'}"
    for key, source in data_sources(config):
        if source.format == "prepared" and source.path is not None and source.path.is_file():
            yield f"{key}.path: {source.path} is a file; give the prepared folder, or set {key}.format"


def shipped_folder() -> Path:
    """The folder with `examples` and `model_configs`: of the repository, or where pip has put them."""
    repository = Path(__file__).resolve().parents[2]
    if (repository / "examples").is_dir():
        return repository
    return Path(sysconfig.get_path("data"), "share", "mindgspo")


def shipped_experiments() -> dict[str, Path]:
    """Those that come with this package, by their names: `quickstart`, `gsm8k/gspo_qwen2_5_7b`, ..."""
    examples = shipped_folder() / "examples"
    found = {str(path.relative_to(examples).with_suffix("")): path for path in sorted(examples.glob("*/*.yaml"))}
    return {"quickstart": examples / "arithmetic" / "gspo.yaml", **found}


def experiment_file(path: Path) -> Path:
    """A user's file by its path; else a shipped one, by its name or its path below `shipped_folder`."""
    if path.exists() or path.is_absolute():
        return path
    shipped = shipped_experiments().get(str(path), shipped_folder() / path)
    return shipped if shipped.is_file() else path
