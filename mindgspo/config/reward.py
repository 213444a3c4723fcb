"""The section `reward` and its rules.

The names of the functions stand here, so that a misspelt one is refused before anything else is imported; what they do
is in `rewards`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from math_answers.findings import AnswerMode, Unevaluated
from mindgspo.config.section import Section, is_changed
from mindgspo.text import did_you_mean

AUTO = "auto"
"""Stands for the function that fits a row's data_source."""

VERIFIERS: Mapping[str, str] = {
    "gsm8k": "1 for the right number, else 0",
    "math_dapo": "+1 for the right answer, else -1, as in DAPO",
    "math": "1 for an equivalent expression, else 0",
    "multiple_choice": "1 for exactly the right letters, else 0",
    "verl_strict": "as verl's gsm8k with method strict, its blind spots included",
    "verl_flexible": "as verl's gsm8k with method flexible, its blind spots included",
    "environment": "the reward with which the environment ended the episode",
}
"""Functions that compare with the gold answer: correct or not."""

SHAPERS: Mapping[str, str] = {
    "format": "1 for <think>...</think><answer>...</answer>, else 0",
    "length": "short right answers and long wrong ones are paid more",
    "overlong": "a penalty near the longest length, as in DAPO",
    "repetition": "a penalty on repeated word sequences",
}
"""Functions that look at the shape of a response only."""

WITH_TOKENS = ("length", "overlong")
"""Functions that need the length of a response in tokens."""
_WITH_SETTINGS = ("math_dapo", "overlong", "length", "repetition")
_ANSWER_IS_NOT_READ_BY = ("verl_strict", "verl_flexible", "environment")


class FileFunction(NamedTuple):
    """A user's own function: `name` in the Python file `path`."""

    path: Path
    name: str

    @property
    def label(self) -> str:
        """The name under which its values are logged."""
        return f"{self.path.stem}.{self.name}"

    @property
    def task(self) -> str:
        """The name by which worker processes know it."""
        return f"{self.path}:{self.name}"


def file_function(text: str) -> FileFunction | None:
    """ "folder/file.py:compute_score" taken apart; None for anything else, which must be a name of the tables."""
    path, colon, name = text.rpartition(":")
    return FileFunction(Path(path), name) if colon and path.endswith(".py") else None


IN_PROCESS = "python:"
"""Before the name of a function object that `mindgspo.train` was given; only that process has it."""


def function_label(text: str) -> str:
    """The name under which a function of `reward.functions` is logged."""
    file = file_function(text)
    return text.removeprefix(IN_PROCESS) if file is None else file.label


def is_own(text: str) -> bool:
    """Whether an entry of `reward.functions` is a user's function, in a file or as an object."""
    return text.startswith(IN_PROCESS) or file_function(text) is not None


class MathDapoSection(Section):
    """Settings of `math_dapo`."""

    strict_box: bool = False
    r"""Only the last \boxed{} counts, instead of the line "Answer: n" (verl: strict_box_verify)."""


class OverlongSection(Section):
    """Settings of `overlong` (DAPO, arXiv 2503.14476, eq. 13)."""

    buffer_len: int = Field(default=4096, ge=1)
    """Tokens before max_len within which the penalty grows from 0 to factor (verl: overlong_buffer.len)."""
    factor: float = Field(default=1.0, ge=0)
    """Largest penalty (verl: overlong_buffer.penalty_factor)."""
    max_len: int | None = Field(default=None, ge=1)
    """Response length in tokens at which it is reached. None: rollout.max_new_tokens."""


class LengthSection(Section):
    """Settings of `length`: a cosine from the value of an empty response to that of one of max_len tokens
    (the cosine reward of arXiv 2502.03373)."""

    correct_short: float = 0.0
    """Value of a correct response of no length."""
    correct_long: float = -0.5
    """Value of a correct response of max_len tokens."""
    wrong_short: float = -0.5
    """Value of a response of no length that is not correct."""
    wrong_long: float = 0.0
    """Value of a response of max_len tokens that is not correct: thinking longer is not punished twice."""
    max_len: int | None = Field(default=None, ge=1)
    """Length in tokens at which the cosine ends. None: rollout.max_new_tokens."""


class RepetitionSection(Section):
    """Settings of `repetition` (the n-gram penalty of arXiv 2502.03373)."""

    ngram_size: int = Field(default=20, ge=1)
    """Words in a row that are compared; a CJK character is a word."""
    factor: float = Field(default=1.0, ge=0)
    """The penalty of a response in which every n-gram is a repetition."""


class WorkersSection(Section):
    """Child processes in which code runs that may be slow or broken."""

    key: ClassVar[str] = "reward.workers"
    """The section's place in a configuration, for messages."""
    count: int = Field(default=2, ge=1, le=1024)
    """Children; they start when the first response needs one."""
    timeout_s: float = Field(default=10.0, gt=0, le=86_400)
    """Wall-clock seconds one response may take; then its child is killed and its verdict is timeout."""
    startup_timeout_s: float = Field(default=120.0, gt=0, le=86_400)
    """Wall-clock seconds a child may take for its imports, those of your file included."""
    memory_mb: int = Field(default=4096, ge=256)
    """Memory a child may take (MiB); a response that needs more is left out as error."""


class RewardWorkersSection(WorkersSection):
    """Child processes in which symbolic comparison and your own functions run."""

    on_timeout: Literal["wrong", "leave_out"] = "wrong"
    """Pay of a response of math with verdict timeout. wrong: it is paid like a wrong answer if its gold answer
    is quickly compared with another number, because an answer too slow to compare would escape its negative advantage.
    leave_out: it has no reward. Responses on which your own function runs out of time are always left out."""


class RewardSection(Section):
    """Which reward functions score a response."""

    functions: tuple[str, ...] = Field(default=(AUTO,), min_length=1)
    """Names: gsm8k, math_dapo, math, multiple_choice, verl_strict, verl_flexible, environment, format, length,
    overlong, repetition; your own path/to/file.py:function, the path from this file's folder; auto: by each row's
    data_source (MindRLHF: verifier_function); python:name in the config.yaml of a run whose function is an object that
    `mindgspo.train` was given. The first that verifies the answer decides whether it is correct."""
    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """One weight per function, in the same order; the reward is the weighted sum (MindRLHF: verifier_weight). None: 1
    each."""
    answer: AnswerMode = "flexible"
    """Where the answer is looked for. strict: only in the form that the data set asks for. flexible: there first, then
    in other usual forms, the final number last. first, last: the first or last of all forms that states a value."""
    math_dapo: MathDapoSection = MathDapoSection()
    """Settings of the function math_dapo."""
    overlong: OverlongSection = OverlongSection()
    """Settings of the function overlong (verl: overlong_buffer)."""
    length: LengthSection = LengthSection()
    """Settings of the function length."""
    repetition: RepetitionSection = RepetitionSection()
    """Settings of the function repetition."""
    workers: RewardWorkersSection = RewardWorkersSection()
    """Child processes for whatever may take long."""
    unevaluated: Unevaluated = "refuse"
    """Verdict of math on an answer that is left to be computed (12 x 6, 2^10, a sum, an integral) where the gold answer
    is its result. refuse: it is wrong, because a policy could learn to leave calculations to its grader. accept: it
    is paid for its value."""

    @property
    def resolved_weights(self) -> tuple[float, ...]:
        """One weight per function, also where none are set."""
        return self.weights or (1.0,) * len(self.functions)

    @property
    def is_own(self) -> bool:
        """Whether a user's function, and no verifier of this package, says what an answer is worth."""
        return any(map(is_own, self.functions)) and not any(
            name == AUTO or name in VERIFIERS for name in self.functions
        )


def reward_problems(reward: RewardSection) -> list[str]:
    """Every violated rule that needs no file."""
    return [*_name_problems(reward), *_weight_problems(reward), *_setting_problems(reward)]


def reward_file_problems(reward: RewardSection) -> list[str]:
    """Every user's file that does not exist."""
    return missing_file_problems("reward.functions", filter(None, map(file_function, reward.functions)))


def missing_file_problems(key: str, files: Iterable[FileFunction]) -> list[str]:
    """Every file, named by `key`, that does not exist."""
    return [_missing_file(key, file) for file in files if not file.path.is_file()]


def _missing_file(key: str, file: FileFunction) -> str:
    path = file.path
    if path.is_dir():
        return f"{key}: {path} is a folder; give a Python file, as in path/to/file.py:{file.name}"
    beside = sorted(one.name for one in path.parent.glob("*.py")) if path.parent.is_dir() else []
    # Without the suffix, which makes any two short names look alike.
    others = f" (Python files there: {', '.join(beside) or 'none'})"
    stems = [name.removesuffix(".py") for name in beside]
    hint = did_you_mean(path.stem, stems, otherwise=others, show=lambda stem: f"{stem}.py")
    return f"{key}: {path} does not exist{hint}"


def _name_problems(reward: RewardSection) -> Iterator[str]:
    for text in reward.functions:
        if text in VERIFIERS or text in SHAPERS or text == AUTO or text.startswith(IN_PROCESS):
            continue
        file = file_function(text)
        if file is None:
            yield _unknown_name(text)
        elif not file.name.isidentifier():
            yield f"reward.functions: {text!r}: after the colon stands the name of a function, as in file.py:score"
    counted = Counter(map(function_label, reward.functions))
    for label, count in counted.items():
        if count > 1:
            yield f"reward.functions: {label} stands there {count} times; name each function once and raise its weight"


def _unknown_name(text: str) -> str:
    known = [*VERIFIERS, *SHAPERS, AUTO]
    if text.endswith(".py"):
        return f"reward.functions: {text!r} names no function; write {text}:compute_score"
    hint = did_you_mean(text, known, cutoff=0.5)
    return f"reward.functions: unknown function {text!r}{hint} (known: {', '.join(known)}, or path/to/file.py:function)"


def _weight_problems(reward: RewardSection) -> Iterator[str]:
    assert reward.weights is not None, "a resolved section has weights"
    if len(reward.weights) != len(reward.functions):
        yield (
            f"reward.weights: {len(reward.weights)} weights for {len(reward.functions)} reward.functions; "
            "give one weight per function"
        )
    elif not any(reward.weights):
        yield "reward.weights: all are 0, so that every response gets the same reward; give one a weight"


def _setting_problems(reward: RewardSection) -> Iterator[str]:
    dapo_may_run = "math_dapo" in reward.functions or AUTO in reward.functions
    for name in _WITH_SETTINGS:
        used = dapo_may_run if name == "math_dapo" else name in reward.functions
        if not used and _changed(getattr(reward, name)):
            yield f"reward.{name}: is not read, because reward.functions does not name {name}; add it, or remove this"
    if "length" in reward.functions and all(name in SHAPERS for name in reward.functions):
        yield (
            "reward.functions: length pays by whether the answer is correct, but no function here verifies the answer; "
            f"add one of {', '.join(VERIFIERS)}"
        )
    if "overlong" in reward.functions and reward.overlong.max_len is not None:
        buffer_len, max_len = reward.overlong.buffer_len, reward.overlong.max_len
        if buffer_len > max_len:
            yield (
                f"reward.overlong.buffer_len: {buffer_len} is longer than reward.overlong.max_len {max_len} "
                f"(rollout.max_new_tokens where it is not set); nearest legal: {max_len}"
            )
    if reward.unevaluated != "refuse" and not {"math", AUTO} & set(reward.functions):
        yield f"reward.unevaluated: {reward.unevaluated} is read by math alone; remove it, or name math a function"
    if reward.answer != "flexible" and all(name in _ANSWER_IS_NOT_READ_BY for name in reward.functions):
        yield f"reward.answer: {reward.answer} is not read by {', '.join(reward.functions)}; remove it"


def _changed(section: Section) -> bool:
    """Whether the user has set something; max_len is filled in for everybody."""
    return any(is_changed(section, key) for key in type(section).model_fields if key != "max_len")
