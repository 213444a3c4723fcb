"""Load experiments: YAML files with includes and overrides in, a frozen and resolved config out.

Renamed settings are read under their new names. The config.yaml of a run begins with `schema: N`, the version of the
names in it; a file written by hand may leave the number out.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from mindgspo.config.algorithm import POLICY_LOSSES, AlgorithmSection, ReferenceSection
from mindgspo.config.algorithm_rules import default_kl_agg_mode
from mindgspo.config.data import OVERALL, OVERALL_REWARD, ColumnsSection
from mindgspo.config.deployment_rules import compiler_problems, default_cache_dtype
from mindgspo.config.hub import Fetch, hub_names, is_hub_name, with_hub_folders
from mindgspo.config.huggingface_config import with_model_folder, with_tokenizer_folder
from mindgspo.config.messages import config_error, schema_problems
from mindgspo.config.model import ModelSection
from mindgspo.config.paths import file_problems, path_problems
from mindgspo.config.plan import check_same_world
from mindgspo.config.reward import RewardSection, file_function
from mindgspo.config.rules import joined_problems, model_and_plan_problems
from mindgspo.config.schema import ExperimentConfig, PlansSection
from mindgspo.config.section import Section
from mindgspo.config.yaml_dialect import explain, parse_document, parse_value, write_document
from mindgspo.errors import ConfigError
from mindgspo.io import decoded, read_bytes
from mindgspo.text import did_you_mean, listed, shorten

SCHEMA = 3
"""Grows with every entry of RENAMES."""
SCHEMA_KEY = "schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A setting that got a new name."""

    since: int
    """The first schema without the old name."""
    old: str
    """Dotted key."""
    new: str
    """Dotted key."""
    value: Callable[[object], object] = lambda value: value
    """Returns the new setting's value for the old one's; raises ValueError for a value that the old setting could not
    have."""


def _trackers(is_on: object) -> list[str]:
    if not isinstance(is_on, bool):
        raise ValueError("expected true or false")
    return ["tensorboard"] if is_on else []


RENAMES = (
    Rename(since=2, old="logging.tensorboard", new="logging.trackers", value=_trackers),
    Rename(since=3, old="rollout.tokens_per_look", new="rollout.tokens_per_sync"),
)


def migrated(mapping: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The mapping of a file or an override without `schema`, old names replaced; a line on standard error lists them
    for text without a number, that is, for files written by hand. where: what errors call it.

    Raises ConfigError: a number of a newer version, an old and its new name at once, a value that the old one could not
    have.
    """
    found = copy.deepcopy(dict(mapping))
    number = found.pop(SCHEMA_KEY, None)
    if number is not None and (type(number) is not int or number < 1):
        raise ConfigError(f"{where}: {SCHEMA_KEY}: expected a whole number from 1, got {shorten(repr(number))}")
    if number is not None and number > SCHEMA:
        raise ConfigError(
            f"{where}: {SCHEMA_KEY}: {number} is of a newer mindgspo, this one reads up to {SCHEMA}; install that one, "
            f"or remove the line and whatever this version then names as unknown"
        )
    for rename in RENAMES:
        if number is not None and number >= rename.since:
            continue
        section, old = _section_of_key(found, rename.old)
        if section is None or old not in section:
            continue
        value = section.pop(old)
        try:
            new = rename.value(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {rename.old}: {error}, got {shorten(repr(value))}") from None
        target, key = _section_of_key(found, rename.new)
        assert target is not None, "a setting is renamed within its section"
        if key in target:
            raise ConfigError(f"{where}: {rename.old} is called {rename.new} now, and both are set; remove it")
        target[key] = new
        if number is None:
            print(f"note: {where}: {rename.old} is called {rename.new} now: {new}", file=sys.stderr)
    return found


def _section_of_key(mapping: dict[str, Any], dotted: str) -> tuple[dict[str, Any] | None, str]:
    """The innermost section of a dotted key, None if there is none, and the key in it."""
    *sections, key = dotted.split(".")
    found: Any = mapping
    for name in sections:
        found = found.get(name) if isinstance(found, dict) else None
    return (found if isinstance(found, dict) else None), key


MOST_BYTES, _MOST_FILES, _MOST_KEYS = 1 << 18, 100, 10
"""Bytes of a file, files with all that they include, keys in the path to a setting. Real ones have 10 KB, 3 and 4."""


def read_layers(path: Path, overrides: Iterable[str]) -> dict[str, Any]:
    """The merged mapping of the file, what it includes, and the overrides in their order.

    Raises ConfigError for a missing or unreadable file, an include cycle, an override that is not
    `a.b=value`.
    """
    return with_overrides(_read_file(path, (), read=[]), overrides)


def with_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The mapping with the overrides in their order. Raises ConfigError for one that is not `a.b=value`."""
    merged = dict(mapping)
    for override in overrides:
        merged = merge(merged, _read_override(override))
    return merged


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`: mappings are merged key by key at every depth, anything else (lists too) is
    replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _read_file(path: Path, including: tuple[Path, ...], *, read: list[Path]) -> dict[str, Any]:
    """One file merged over its includes. `including`: the files that include it, outermost first. read: collects every
    file that is read."""
    resolved = path.resolve()
    read.append(resolved)
    if len(read) > _MOST_FILES:
        raise ConfigError(f"{including[-1]}: include: more than {_MOST_FILES} files in all; put them into fewer files")
    if resolved in including:
        chain = " -> ".join(str(one) for one in (*including, resolved))
        raise ConfigError(f"{including[-1]}: include makes a circle: {chain}; remove one of these includes")
    own = migrated(_parse_file(path, including), str(path))
    included: dict[str, Any] = {}
    for name in _included_names(path, own.pop("include", None)):
        included = merge(included, _read_file(path.parent / name, (*including, resolved), read=read))
    return merge(included, _with_absolute_paths(own, path.parent))


def _parse_file(path: Path, including: tuple[Path, ...]) -> Mapping[str, Any]:
    named_by = f"{including[-1]}: include: " if including else ""
    try:
        text = decoded(read_bytes(path, MOST_BYTES))
    except FileNotFoundError:
        raise ConfigError(f"{named_by}{path}: no such file{_similar_files(path)}") from None
    except ValueError as error:
        raise ConfigError(f"{named_by}{path}: {error}") from None
    except IsADirectoryError:
        kept = path / "config.yaml"  # of a run
        fix = f"give {kept}" if kept.is_file() else "give the YAML file of an experiment; `mindgspo init` writes one"
        raise ConfigError(f"{named_by}{path}: is a folder; {fix}") from None
    except OSError as error:
        raise ConfigError(f"{named_by}{path}: cannot be read: {error.strerror}") from None
    try:
        document = parse_document(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{named_by}{path}: {explain(error)}") from None
    if document is None and not including:
        raise ConfigError(f"{path}: is empty; `mindgspo init` writes an experiment, examples/ has some")
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{named_by}{path}: expected `section: ...` lines, got {type(document).__name__}")
    return document


def _included_names(path: Path, include: object) -> list[str]:
    names: list[str] = []
    for name in [] if include is None else include if isinstance(include, list) else [include]:
        if not isinstance(name, str):
            raise ConfigError(f"{path}: include: expected a path or a list of paths, got {shorten(repr(name))}")
        if "\0" in name:
            raise ConfigError(f"{path}: include: {name!r}: the character NUL can be in no file's name")
        names.append(name)
    return names


def _read_override(override: str) -> dict[str, Any]:
    """ "a.b=c" as {"a": {"b": c}}."""
    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    said = f"--set {shorten(override, 100)}"
    if not equals or not all(keys) or len(keys) > _MOST_KEYS:
        raise ConfigError(f"{said}: expected section.key=value, e.g. --set trainer.max_steps=20")
    try:
        value = parse_value(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{said}: {explain(error)}") from None
    return _with_absolute_paths(migrated(_nested(keys, value), said), Path.cwd())


def override_of(key: str, value: Any, folder: Path) -> str:
    """ "a.b=c" of a value that stands in a file of `folder`, from which its relative paths count."""
    keys = key.split(".")
    found: Any = _with_absolute_paths(_nested(keys, value), folder)
    for name in keys:
        found = found[name]
    return f"{key}={json.dumps(found, ensure_ascii=False)}"


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return value


def _with_absolute_paths(mapping: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Every key named `path`, at any depth, made absolute unless it is a name on a hub; so are the files of
    `functions`."""

    def absolute(key: str, value: Any, section: str) -> Any:
        if isinstance(value, Mapping):
            return {name: absolute(name, below, section) for name, below in value.items()}
        if key == "path" and isinstance(value, str):
            return value if is_hub_name(value, section, folder) else str(_absolute_path(value, folder))
        if key == "functions" and isinstance(value, list):
            return [_absolute_function(text, folder) for text in value]
        if isinstance(value, list):
            return [absolute("", one, section) for one in value]
        return value

    return {key: absolute(key, value, key) for key, value in mapping.items()}


def _absolute_function(text: Any, folder: Path) -> Any:
    """A user's "file.py:function" with the file made absolute; anything else as it is."""
    file = file_function(text) if isinstance(text, str) else None
    return text if file is None else f"{_absolute_path(str(file.path), folder)}:{file.name}"


def _absolute_path(text: str, folder: Path) -> Path:
    """`text` relative to `folder`, `~/` expanded. The last name is not resolved: a download cache may link
    `train.jsonl` to a file without a suffix."""
    path = folder / (Path.home() / text[2:] if text.startswith("~/") else text)
    return path.parent.resolve() / path.name


def _similar_files(path: Path) -> str:
    """'; did you mean x.yaml?' from the YAML files beside the missing one, and the shipped experiments."""
    from mindgspo.config.paths import shipped_experiments

    there_is_none = "" if path.parent.is_dir() else f" (there is no folder {path.parent})"
    beside = [] if there_is_none else [str(one) for one in path.parent.iterdir() if one.suffix in (".yaml", ".yml")]
    return did_you_mean(path, [*sorted(beside), *shipped_experiments()], otherwise=there_is_none, show=str)


def load_config(
    path: str | PathLike[str],
    overrides: Iterable[str] = (),
    check_files: bool = True,
    *,
    fetch: Fetch | None = None,
) -> ExperimentConfig:
    """The experiment at `path` with `overrides` ("section.key=value", later wins), checked and resolved.

    A relative `path` in a file counts from that file's folder, one in an override from the current folder.
    check_files: also reject data, tokenizer and weight paths that do not exist, and settings that this machine cannot
    compute. fetch: of what is named on a hub; None: all with check_files, else what tells the sizes of models. Raises
    ConfigError with every problem found, one per line.
    """
    mapping = read_layers(Path(path), overrides)
    return _checked(str(path), mapping, check_files=check_files, fetch=fetch)


def load_columns(path: Path) -> ColumnsSection:
    """The columns that a YAML file maps, keys `prompt`, `answer`, ... at its top level.

    Raises ConfigError for a missing file or other YAML, with every problem of its keys.
    """
    mapping, names = read_layers(path, ()), list(ColumnsSection.model_fields)
    unknown = [key for key in mapping if key not in names]
    problems = [
        f"{key}: unknown key{did_you_mean(key, names, otherwise=f'; keys at the top here: {listed(names)}', show=str)}"
        for key in unknown
    ]
    # As part of an experiment, so that the messages are the configuration's own.
    place, known = "data.train.columns.", {key: value for key, value in mapping.items() if key in names}
    try:
        ExperimentConfig.model_validate_json(
            json.dumps({"data": {"train": {"format": "columns", "columns": known}}}), strict=True
        )
    except ValidationError as error:
        problems += [line.replace(place, "") for line in schema_problems(error) if line.startswith(place)]
    if problems:
        raise ConfigError("\n  ".join([f"{path}: wrong columns", *problems]))
    return ColumnsSection.model_validate_json(json.dumps(known), strict=True)


def load_mapping(
    source: str, mapping: Mapping[str, Any], overrides: Iterable[str] = (), *, check_files: bool = True
) -> ExperimentConfig:
    """Like `load_config`, for an experiment that a program assembles instead of a file; its paths are absolute."""
    return _checked(source, with_overrides(mapping, overrides), check_files=check_files)


def _checked(
    source: str, mapping: dict[str, Any], *, check_files: bool, fetch: Fetch | None = None
) -> ExperimentConfig:
    found = with_hub_folders(source, mapping, fetch or (Fetch.ALL if check_files else Fetch.SIZES))
    resolved = resolve(_parse(source, with_tokenizer_folder(with_model_folder(source, found))))
    of_paths = path_problems(resolved) or (file_problems(resolved) if check_files else [])
    of_machine = compiler_problems(resolved) if check_files else ()
    problems = [*joined_problems(resolved), *of_paths, *of_machine]
    if problems:
        raise config_error(source, problems)
    return resolved


def resolve(config: ExperimentConfig) -> ExperimentConfig:
    """The config with its derived defaults filled in: run_dir, what the chosen algorithm's paper says, the reward's
    weights and lengths, the cache's type, how often the host looks, whether experts are recorded, the cuts and
    the best metric of evaluation, and the layout of tied tables."""
    run_dir = config.run_dir if config.run_dir is not None else Path("runs") / config.experiment
    longest = config.rollout.max_new_tokens
    algorithm = with_recipe(config.algorithm, max_new_tokens=longest)
    reward = with_lengths(config.reward, max_new_tokens=longest)
    rollout = config.rollout.model_copy(
        update={
            "cache_dtype": config.rollout.cache_dtype or default_cache_dtype(config),
            "record_experts": _records_experts(config),
            "tokens_per_sync": config.rollout.tokens_per_sync or (8 if config.device == "Ascend" else 1),
        }
    )
    evaluation = {key: getattr(rollout, key) for key in ("top_p", "top_k") if getattr(config.eval, key) is None}
    evaluation["best_metric"] = config.eval.best_metric or (OVERALL_REWARD if reward.is_own else OVERALL)
    plans = _with_tied_tables(config.model, config.plans)
    own = {"algorithm": algorithm, "reward": reward, "rollout": rollout, "plans": plans}
    return config.model_copy(update={"run_dir": run_dir, "eval": config.eval.model_copy(update=evaluation), **own})


def _records_experts(config: ExperimentConfig) -> bool:
    given = config.rollout.record_experts
    return config.algorithm.router_replay == "rollout" if given is None else given


def _with_tied_tables(model: ModelSection, plans: PlansSection) -> PlansSection:
    """The plans, which split a tied table like the output table unless they say otherwise."""
    own = {}
    for name, plan in plans:
        if plan is None or "vocab_emb_dp" in plan.model_fields_set:
            continue
        if model.tie_word_embeddings and plan.model_parallel > 1:
            own[name] = plan.model_copy(update={"vocab_emb_dp": False})
    return plans.model_copy(update=own)


def config_mapping(config: ExperimentConfig) -> dict[str, Any]:
    """The config as nested mappings of JSON values (paths as text, tuples as lists), in the schema's
    order. What was fetched from a hub has its name there."""
    return hub_names(config.model_dump(mode="json"))


def dotted_items(mapping: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted key, value) of nested mappings, in their order; of a list of mappings, that of each."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from dotted_items(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            for number, one in enumerate(value):
                yield from dotted_items(one, f"{prefix}{key}[{number}].")
        else:
            yield f"{prefix}{key}", value


def dump_config(config: ExperimentConfig) -> str:
    """YAML that `load_config` reads back as an equal config, from any folder."""
    return write_document({SCHEMA_KEY: SCHEMA, **config_mapping(config)})


def with_recipe(algorithm: AlgorithmSection, *, max_new_tokens: int) -> AlgorithmSection:
    """The section with None values filled in from the loss's recipe. A loss without clip range keeps None."""
    recipe = POLICY_LOSSES[algorithm.name]
    low, high = recipe.clip or (None, None)
    defaults = {
        "clip_low": low,
        "clip_high": high,
        "clip_ratio_c": recipe.clip_ratio_c,
        "loss_agg_mode": recipe.agg_mode,
        "loss_scale_factor": float(max_new_tokens),
    }
    filled = {key: value for key, value in defaults.items() if getattr(algorithm, key) is None}
    if algorithm.advantage.estimator is None:
        filled["advantage"] = algorithm.advantage.model_copy(update={"estimator": recipe.advantage})
    kl: dict[str, object] = {"reference": with_averaging(algorithm.kl.reference)}
    if algorithm.kl.agg_mode is None:
        kl["agg_mode"] = default_kl_agg_mode(algorithm.loss_agg_mode or recipe.agg_mode)
    filled["kl"] = algorithm.kl.model_copy(update=kl)
    return algorithm.model_copy(update=filled)


def with_averaging(reference: ReferenceSection) -> ReferenceSection:
    """The section of a moving average with whatever is None filled in."""
    if reference.mode != "ema":
        return reference
    every, decay = reference.every or 1, reference.decay or 0.99
    return reference.model_copy(update={"every": every, "decay": decay})


def with_lengths(reward: RewardSection, *, max_new_tokens: int) -> RewardSection:
    """The section with a weight for every function, and max_len where it is None."""
    filled: dict[str, object] = {"weights": reward.resolved_weights}
    for key in ("overlong", "length"):
        section = getattr(reward, key)
        if section.max_len is None:
            filled[key] = section.model_copy(update={"max_len": max_new_tokens})
    return reward.model_copy(update=filled)


def _parse(source: str, mapping: dict[str, Any]) -> ExperimentConfig:
    """Via JSON, because pydantic's strict JSON mode accepts text as a path and a list as a tuple."""
    try:
        return ExperimentConfig.model_validate_json(json.dumps(mapping), strict=True)
    except ValidationError as error:
        raise config_error(source, schema_problems(error)) from None


class ModelAndPlans(NamedTuple):
    """The two sections that the layouts of a model follow from."""

    model: ModelSection
    plans: PlansSection


class _ModelFile(Section):
    """The content of a file of model_configs/."""

    model: ModelSection
    plans: PlansSection = PlansSection()


def load_model_and_plans(path: str | PathLike[str], overrides: Iterable[str] = ()) -> ModelAndPlans:
    """The two sections of the file at `path` with `overrides`; a file with other sections must be a whole experiment.

    Raises ConfigError with every problem found, one per line. Paths of data and weights need not exist.
    """
    overrides = tuple(overrides)
    if _other_keys(read_layers(Path(path), ())):
        config = load_config(path, overrides, check_files=False)
        return ModelAndPlans(config.model, config.plans)
    layers = with_hub_folders(str(path), read_layers(Path(path), overrides), Fetch.SIZES)
    mapping = with_model_folder(str(path), layers)
    problems = [f"{key}: the file holds model and plans only; leave it out" for key in _other_keys(mapping)]
    if problems:
        raise config_error(str(path), problems)
    try:
        found = _ModelFile.model_validate_json(json.dumps(mapping), strict=True)
    except ValidationError as error:
        raise config_error(str(path), schema_problems(error)) from None
    problems = model_and_plan_problems(found.model, found.plans)
    if found.plans.infer.cards is None:
        problems += check_same_world(found.plans.train, found.plans.infer)
    if problems:
        raise config_error(str(path), problems)
    return ModelAndPlans(found.model, _with_tied_tables(found.model, found.plans))


def _other_keys(mapping: Mapping[str, Any]) -> list[str]:
    return [key for key in mapping if key not in _ModelFile.model_fields]
