"""Rules about an experiment's inputs that the run and `mindgspo check` share. No MindSpore."""

from __future__ import annotations

from mindgspo.config import ModelSection
from mindgspo.errors import ConfigError
from mindgspo.rewards import Candidate
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Prompt

NUM_TRIAL_ROWS = 2
"""Rows on which the reward functions are tried out before a model loads."""

# Seed of generated held-out rows. Not the run's: runs with different seeds are compared on the same problems.
HELD_OUT_SEED = 0

# Not part of the architecture: where weights lie, whose cells compute, in which type, how random ones are drawn.
_FREE = {"path", "backend", "dtype", "initializer_range"}


def check_architecture(configured: ModelSection, found: ModelSection) -> None:
    """Raises ConfigError naming every field of the `model` section that the folder's config.json contradicts."""
    ours, theirs = configured.model_dump(exclude=_FREE), found.model_dump(exclude=_FREE)
    differing = [f"model.{key}: {ours[key]!r}, there {theirs[key]!r}" for key in ours if ours[key] != theirs[key]]
    if differing:
        raise ConfigError(
            f"{found.path}/config.json describes another model than the `model` section: " + "; ".join(differing)
        )


def trial_candidate(prompt: Prompt, tokenizer: Tokenizer) -> Candidate:
    """A response that ought to be right: the row's own solution; without one, its gold answer in every form that a
    data set asks for."""
    gold = prompt.answer
    text = prompt.solution or f"\\boxed{{{gold}}}\nAnswer: {gold}\n#### {gold}"
    return Candidate(
        text=text,
        gold=gold,
        data_source=prompt.data_source,
        index=prompt.index,
        num_tokens=len(tokenizer.encode(text)),
        extra_info=prompt.extra_info,
    )
