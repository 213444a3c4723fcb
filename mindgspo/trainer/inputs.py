"""Rules about an experiment's inputs that the run and `mindgspo check` share. No MindSpore."""

from __future__ import annotations

from mindgspo.config import ModelSection
from mindgspo.errors import ConfigError

# Seed of generated held-out rows. Not the run's: runs with different seeds are compared on the same problems.
HELD_OUT_SEED = 0

# Not part of the architecture: where weights lie, in which type they compute, how random ones are drawn.
_FREE = {"path", "dtype", "initializer_range"}


def check_architecture(configured: ModelSection, found: ModelSection) -> None:
    """Raises ConfigError naming every field of the `model` section that the folder's config.json contradicts."""
    ours, theirs = configured.model_dump(exclude=_FREE), found.model_dump(exclude=_FREE)
    differing = [f"model.{key}: {ours[key]!r}, there {theirs[key]!r}" for key in ours if ours[key] != theirs[key]]
    if differing:
        raise ConfigError(
            f"{found.path}/config.json describes another model than the `model` section: " + "; ".join(differing)
        )
