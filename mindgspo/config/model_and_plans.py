"""Model and plans of a YAML file: of an experiment, or of a file of model_configs/, which holds nothing else.

What enters: YAML and overrides. What leaves: the two sections, checked as `load_config` checks them. Called where no
data, reward or trainer is needed: strategy files, memory plans.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from mindgspo.config.layers import read_layers
from mindgspo.config.load import config_error, load_config
from mindgspo.config.messages import schema_problems
from mindgspo.config.model_section import ModelSection
from mindgspo.config.schema import PlansSection
from mindgspo.config.section import Section
from mindgspo.config.validate import model_and_plan_problems


class ModelAndPlans(NamedTuple):
    """What a model's layouts follow from."""

    model: ModelSection
    plans: PlansSection


class _ModelFile(Section):
    """What a file of model_configs/ may hold."""

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
    mapping = read_layers(Path(path), overrides)
    problems = [f"{key}: the file holds model and plans only; leave it out" for key in _other_keys(mapping)]
    if problems:
        raise config_error(str(path), problems)
    try:
        found = _ModelFile.model_validate_json(json.dumps(mapping), strict=True)
    except ValidationError as error:
        raise config_error(str(path), schema_problems(error)) from None
    problems = model_and_plan_problems(found.model, found.plans)
    if problems:
        raise config_error(str(path), problems)
    return ModelAndPlans(found.model, found.plans)


def _other_keys(mapping: Mapping[str, Any]) -> list[str]:
    return [key for key in mapping if key not in _ModelFile.model_fields]
