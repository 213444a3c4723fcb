"""Reward functions by name, and which of them fits a data source.

What enters: names from the configuration, `data_source` of a row. What leaves: a `RewardFunction`.
Called by `scorer`. To add a function: one entry in `FUNCTIONS`, and its data sources in `_SOURCES`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Protocol

from mindgspo.errors import ConfigError, DataError
from mindgspo.rewards.gsm8k import GSM8K
from mindgspo.rewards.math_dapo import MATH_DAPO
from mindgspo.types import Score

AUTO = "auto"


class RewardFunction(Protocol):
    """Judges one response against its row's gold answer."""

    def read_gold(self, gold: str) -> object | None:
        """Whatever the gold answer means to this function; None: unreadable."""

    def score(self, text: str, gold: str) -> Score:
        """The reward of `text`, the response up to EOS, before weighting."""


FUNCTIONS: dict[str, RewardFunction] = {"gsm8k": GSM8K, "math_dapo": MATH_DAPO}

_SOURCES: dict[str, str] = {
    "openai/gsm8k": "gsm8k",
    "gsm8k": "gsm8k",
    "arithmetic": "gsm8k",
    "math_dapo": "math_dapo",
    "BytedTsinghua-SIA/DAPO-Math-17k": "math_dapo",
}
_SOURCE_PREFIXES = ("math_dapo", "BytedTsinghua-SIA/DAPO-Math-17k")


def check_name(name: str) -> None:
    """Raises ConfigError if `name` is neither a function nor "auto"."""
    if name not in FUNCTIONS and name != AUTO:
        raise ConfigError(
            f"reward.functions: unknown reward function {name!r}{_did_you_mean(name, [*FUNCTIONS, AUTO])}; "
            f"known: {', '.join(sorted(FUNCTIONS))}, {AUTO}"
        )


def function_for(data_source: str) -> str:
    """Name of the function that "auto" chooses for a data source; DataError if there is none."""
    if data_source in _SOURCES:
        return _SOURCES[data_source]
    for prefix in _SOURCE_PREFIXES:
        if data_source.startswith(prefix):
            return _SOURCES[prefix]
    raise DataError(
        f"no reward function for data_source {data_source!r}{_did_you_mean(data_source, list(_SOURCES))}; "
        f"known: {', '.join(_SOURCES)}. Or name one for all rows: --set reward.functions=[gsm8k]"
    )


def _did_you_mean(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
