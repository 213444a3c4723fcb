"""The door through which every experiment enters: YAML and overrides in, a frozen and resolved config out.

Called by the command line before any device is touched, and by tests. `dump_config` writes what `load_config`
reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mindgspo.config.algorithm_section import AlgorithmSection, ReferenceSection
from mindgspo.config.ascend_rules import default_cache_dtype
from mindgspo.config.layers import read_layers, with_overrides
from mindgspo.config.messages import schema_problems
from mindgspo.config.penalty_rules import default_kl_agg_mode
from mindgspo.config.policy_losses import POLICY_LOSSES
from mindgspo.config.reward_section import RewardSection
from mindgspo.config.schema import ExperimentConfig, PlansSection
from mindgspo.config.validate import file_problems, joined_problems
from mindgspo.config.yaml_dialect import write_document
from mindgspo.errors import ConfigError


def load_config(path: str | PathLike[str], overrides: Iterable[str] = (), check_files: bool = True) -> ExperimentConfig:
    """The experiment at `path` with `overrides` ("section.key=value", later wins), checked and resolved.

    A relative `path` in a file counts from that file's folder, one in an override from the current folder.
    check_files: also refuse data, tokenizer and weight paths that do not exist.
    Raises ConfigError with every problem found, one per line.
    """
    return _checked(str(path), read_layers(Path(path), overrides), check_files=check_files)


def load_mapping(source: str, mapping: Mapping[str, Any], overrides: Iterable[str] = ()) -> ExperimentConfig:
    """As `load_config`, of an experiment that a program puts together instead of a file; its paths are absolute.

    source: what errors call it.
    """
    return _checked(source, with_overrides(mapping, overrides), check_files=True)


def _checked(source: str, mapping: dict[str, Any], *, check_files: bool) -> ExperimentConfig:
    resolved = resolve(_parse(source, mapping))
    problems = joined_problems(resolved) + (file_problems(resolved) if check_files else [])
    if problems:
        raise config_error(source, problems)
    return resolved


def resolve(config: ExperimentConfig) -> ExperimentConfig:
    """The config with its derived defaults filled in: run_dir, what the chosen algorithm's paper says, the reward's
    weights and lengths, the cache's type, and the layout of tied tables."""
    run_dir = config.run_dir if config.run_dir is not None else Path("runs") / config.experiment
    longest = config.rollout.max_new_tokens
    algorithm = with_recipe(config.algorithm, max_new_tokens=longest)
    reward = with_lengths(config.reward, max_new_tokens=longest)
    rollout = config.rollout.model_copy(
        update={"cache_dtype": config.rollout.cache_dtype or default_cache_dtype(config)}
    )
    own = {"algorithm": algorithm, "reward": reward, "rollout": rollout, "plans": _with_tied_tables(config)}
    return config.model_copy(update={"run_dir": run_dir, **own})


def _with_tied_tables(config: ExperimentConfig) -> PlansSection:
    """The plans, which split a tied table as the output table is split, unless they say otherwise."""
    own = {}
    for name, plan in config.plans:
        is_said = plan is None or "vocab_emb_dp" in plan.model_fields_set
        if config.model.tie_word_embeddings and not is_said and plan.model_parallel > 1:
            own[name] = plan.model_copy(update={"vocab_emb_dp": False})
    return config.plans.model_copy(update=own)


def config_mapping(config: ExperimentConfig) -> dict[str, Any]:
    """The config as nested mappings of JSON values (paths as text, tuples as lists), in the schema's
    order."""
    return config.model_dump(mode="json")


def dump_config(config: ExperimentConfig) -> str:
    """YAML that `load_config` reads back as an equal config, from any folder."""
    return write_document(config_mapping(config))


def with_recipe(algorithm: AlgorithmSection, *, max_new_tokens: int) -> AlgorithmSection:
    """The section with whatever is None filled in from `policy_losses`. A loss without clip range keeps None."""
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
    """Through JSON, because pydantic's strict JSON mode knows that text may be a path and a list a tuple."""
    try:
        return ExperimentConfig.model_validate_json(json.dumps(mapping), strict=True)
    except ValidationError as error:
        raise config_error(source, schema_problems(error)) from None


def config_error(source: str, problems: list[str]) -> ConfigError:
    """The error that lists all problems of a file, one per line."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ConfigError("\n  ".join([f"{source}: {count}", *problems]))
