"""The transformer that is trained: ours, or a neighbour's with the same interface, as `model.backend` says.

What enters: the configuration and this rank's placement. What leaves: a cell without values yet. Called by `build`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from mindspore import nn

from mindgspo.config import ExperimentConfig
from mindgspo.data.rows import round_up
from mindgspo.models.policy import build_model
from mindgspo.parallel.placement import Placement

# By name, since neighbours stand above this room and need packages of their own: (section, *, longest_row) -> cell.
_NEIGHBOURS = {"mindformers": "mindgspo.integrations.mindformers.model:build_mindformers_model"}


def build_trained_model(config: ExperimentConfig, place: Placement) -> nn.Cell:
    """Raises ConfigError where the neighbour is not installed."""
    if config.model.backend == "native":
        return build_model(config.model, place)
    module, _, name = _NEIGHBOURS[config.model.backend].partition(":")
    build: Callable[..., nn.Cell] = getattr(importlib.import_module(module), name)
    return build(config.model, longest_row=longest_row(config))


def longest_row(config: ExperimentConfig) -> int:
    """Token slots of the longest row of any update. A warm-up's solutions may fill the model's positions."""
    longest = config.data.max_prompt_length + config.rollout.max_new_tokens
    if config.warmup is not None:
        longest = max(longest, config.model.max_position_embeddings)
    return round_up(longest, config.trainer.length_multiple)
