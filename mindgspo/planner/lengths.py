"""Lengths of responses for a forecast: those of a run or file, or a distribution with a long tail.

Responses to one prompt resemble each other: hard problems take long whatever the sample. So a file's groups stay
groups, and the distribution has a part that the siblings of a prompt share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig
from mindgspo.errors import DataError
from mindgspo.io import parse_json, read_lines
from mindgspo.metrics.files import SAMPLES_FILE
from mindgspo.text import counted, did_you_mean, shorten

MOST_LENGTHS = 1_000_000
_LONGEST = 2**31


class LengthSource(Protocol):
    """note: one line that says what the lengths are."""

    @property
    def note(self) -> str: ...

    def draw(self, rng: np.random.Generator, prompts: int, group: int) -> NDArray[np.int64]:
        """int64 [prompts, group], tokens of each response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Cut off at max_new_tokens. median, sigma: of the lengths before that, sigma of their logarithm. prompt_share: of
    the logarithm's variance, that between prompts."""

    median: float
    sigma: float
    prompt_share: float
    max_new_tokens: int
    note: str

    def draw(self, rng: np.random.Generator, prompts: int, group: int) -> NDArray[np.int64]:
        """See `LengthSource`."""
        of_prompt = rng.standard_normal((prompts, 1)) * np.sqrt(self.prompt_share)
        of_sample = rng.standard_normal((prompts, group)) * np.sqrt(1 - self.prompt_share)
        lengths = self.median * np.exp(self.sigma * (of_prompt + of_sample))
        return np.clip(np.rint(lengths), 1, self.max_new_tokens).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """groups: lengths of siblings; a group of one stands for itself, and is mixed with others."""

    groups: tuple[NDArray[np.int64], ...]
    note: str

    def draw(self, rng: np.random.Generator, prompts: int, group: int) -> NDArray[np.int64]:
        """See `LengthSource`. Prompts of the file in random order; siblings again where a prompt has too few."""
        if all(each.size == 1 for each in self.groups):
            return rng.choice(np.concatenate(self.groups), (prompts, group))
        chosen = rng.integers(len(self.groups), size=prompts)
        return np.array([rng.choice(self.groups[i], group, replace=self.groups[i].size < group) for i in chosen])


# Lengths of Qwen3-32B's first step of DAPO-Math-17k with 64 prompts x 16 responses (verl's published log): mean
# 7,385, 3.9 % at the limit of 20,480 give median and sigma. Prompt and 16 responses together had 33,676 tokens at the
# least and 326,471 at the most, 1,952 and 20,252 per response; a share of 0.6 has 1,922 and 17,862 on average.
_PUBLISHED_LIMIT = 20_480
_PUBLISHED = {"median": 6041.0, "sigma": 0.693, "prompt_share": 0.6}
NAMED = {"qwen3_32b_dapo": _PUBLISHED}
"""Distributions that --lengths knows by name."""


def length_source(given: str | None, experiment: ExperimentConfig) -> LengthSource:
    """given: a run folder, a file or a name of `NAMED`; None: the published shape, stretched to rollout.max_new_tokens.

    A file is a run's samples.jsonl, or has on each line one length, or those of one prompt as a list. DataError.
    """
    limit = experiment.rollout.max_new_tokens
    if given is None:
        stretched = {**_PUBLISHED, "median": _PUBLISHED["median"] * limit / _PUBLISHED_LIMIT}
        change = f", stretched from {_PUBLISHED_LIMIT:,} to {limit:,} tokens" if limit != _PUBLISHED_LIMIT else ""
        note = (
            f"assumed: as Qwen3-32B's on DAPO-Math-17k{change}: lognormal, median {stretched['median']:,.0f}, 60 % of "
            f"the variance between prompts, 4 % cut off at {limit:,}"
        )
        return Lognormal(**stretched, max_new_tokens=limit, note=note)
    path = Path(given)
    if given in NAMED and not path.exists():
        note = f"{given}: lognormal, median {NAMED[given]['median']:,.0f}, cut off at {limit:,}"
        return Lognormal(**NAMED[given], max_new_tokens=limit, note=note)
    path = path / SAMPLES_FILE if path.is_dir() else path
    if not path.is_file():
        names = ", ".join(NAMED)
        hint = did_you_mean(given, NAMED, otherwise="; give a run folder, a file with one length per line, or a name")
        raise DataError(f"--lengths: {shorten(given)} is no file and no known name ({names}){hint}")
    return _recorded(path, limit)


def _recorded(path: Path, limit: int) -> Recorded:
    groups: dict[object, list[int]] = {}
    total = 0
    for key, lengths in _groups_of(path):
        groups.setdefault(key, []).extend(lengths)
        total += len(lengths)
        if total >= MOST_LENGTHS:
            break
    if not groups:
        raise DataError(f"{path}: holds no length; write the tokens of one response on each line")
    arrays = tuple(np.array(lengths, np.int64) for lengths in groups.values())
    cut = int(sum((array > limit).sum() for array in arrays))
    whole = np.concatenate(arrays)
    note = (
        f"{path}: {counted(total, 'response')} to {counted(len(arrays), 'prompt')}, mean {whole.mean():,.0f}, longest "
        f"{whole.max():,}" + (f"; {cut:,} cut off at rollout.max_new_tokens {limit:,}" if cut else "")
    )
    return Recorded(groups=tuple(np.minimum(array, limit) for array in arrays), note=note)


def _groups_of(path: Path) -> Iterator[tuple[object, list[int]]]:
    """(what names the prompt, lengths) line by line."""
    for number, line in read_lines(path, DataError):
        text = line.strip()
        if not text:
            continue
        try:
            value = parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}; write a number, a list of numbers, or JSON") from None
        key: object = number
        if isinstance(value, dict):
            key = (value.get("step"), value.get("prompt_index", value.get("prompt")))
            value = value.get("length")
        lengths = value if isinstance(value, list) else [value]
        if not lengths or not all(_is_length(each) for each in lengths):
            raise DataError(
                f"{path}, line {number}: {shorten(repr(value))} is no length; write whole numbers from 1 on, e.g. 512 "
                "or [512, 640], or lines of samples.jsonl with their `length`"
            )
        yield (repr(key), lengths)


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < _LONGEST
