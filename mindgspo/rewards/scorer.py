"""Scores a batch of responses with the functions that the configuration names.

What enters: prompts with their gold answers, and the responses' texts up to EOS. What leaves: one `Score` per
response, in input order. Called by the trainer's step and by evaluation; `check_rows` is called before any
model loads, so that a row without a reward fails in the first second instead of after the first rollout.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mindgspo.config.schema import RewardSection
from mindgspo.errors import ConfigError, DataError
from mindgspo.rewards.registry import AUTO, FUNCTIONS, check_name, function_for
from mindgspo.types import Prompt, Score, Verdict

logger = logging.getLogger(__name__)

MAX_ROWS_NAMED = 5


class Scorer:
    """Weighted sum of reward functions.

    num_errors: samples whose scorer raised, since this object was made. They carry Verdict.ERROR and value
    None: invalid, not wrong.
    """

    def __init__(self, functions: Sequence[str], weights: Sequence[float]) -> None:
        self._weights = dict(zip(functions, weights, strict=True))
        self.num_errors = 0

    def check_rows(self, prompts: Sequence[Prompt]) -> None:
        """Raises DataError unless every row has a reward function and a gold answer that it can read.

        An unknown data_source stops at its first row; unreadable gold answers are listed with their number.
        """
        unreadable = []
        for prompt in prompts:
            for name in self._functions_of(prompt):
                if FUNCTIONS[name].read_gold(prompt.answer) is None:
                    unreadable.append(f"row {prompt.index} ({name}): answer {prompt.answer[:80]!r}")
        if unreadable:
            shown = "; ".join(unreadable[:MAX_ROWS_NAMED])
            hidden = len(unreadable) - MAX_ROWS_NAMED
            more = f"; and {hidden} more" if hidden > 0 else ""
            raise DataError(
                f"{len(unreadable)} gold answers in {len(prompts)} rows are not numbers: {shown}{more}. "
                "Remove these rows, or name a reward function that fits them under reward.functions"
            )

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Score]:
        """One Score per (prompt, text), in input order; prompts repeat for the siblings of a group.

        Score.value is the weighted sum; None (invalid) as soon as one function abstains or raises. The
        verdict and the extracted answer are those of the first function, or of the first that made the
        sample invalid.
        """
        assert len(prompts) == len(texts), f"{len(prompts)} prompts, {len(texts)} texts"
        return [self._score_one(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]

    def _score_one(self, prompt: Prompt, text: str) -> Score:
        scores = {}
        for name, weight in self._functions_of(prompt).items():
            scores[name] = (weight, self._guarded(name, prompt, text))
        parts = {name: score.value for name, (_, score) in scores.items() if score.value is not None}
        invalid = [score for _, score in scores.values() if score.value is None]
        decisive = invalid[0] if invalid else next(score for _, score in scores.values())
        total = None if invalid else sum(weight * score.value for weight, score in scores.values())
        return Score(value=total, verdict=decisive.verdict, extracted=decisive.extracted, parts=parts)

    def _guarded(self, name: str, prompt: Prompt, text: str) -> Score:
        try:
            return FUNCTIONS[name].score(text, prompt.answer)
        except Exception:  # one broken sample must neither stop the run nor be paid as wrong
            self.num_errors += 1
            if self.num_errors == 1:
                logger.exception("reward function %s raised on row %d; more are counted", name, prompt.index)
            return Score(value=None, verdict=Verdict.ERROR)

    def _functions_of(self, prompt: Prompt) -> dict[str, float]:
        """Function name -> weight for this row, "auto" resolved by its data source."""
        resolved: dict[str, float] = {}
        for name, weight in self._weights.items():
            try:
                actual = function_for(prompt.data_source) if name == AUTO else name
            except DataError as error:
                raise DataError(f"row {prompt.index}: {error}") from error
            resolved[actual] = resolved.get(actual, 0.0) + weight
        return resolved


def build_scorer(section: RewardSection) -> Scorer:
    """Scorer for a configuration section; ConfigError for an unknown name or weights that do not fit."""
    for name in section.functions:
        check_name(name)
    if len(section.weights) != len(section.functions):
        raise ConfigError(
            f"reward.weights: one weight per function; got {len(section.functions)} functions "
            f"{list(section.functions)} and {len(section.weights)} weights {list(section.weights)}"
        )
    if len(set(section.functions)) != len(section.functions):
        raise ConfigError(f"reward.functions: each function once; got {list(section.functions)}")
    return Scorer(section.functions, section.weights)
