"""Rules of the `reward` section that join several fields, and those that look at a user's file.

What enters: a resolved config. What leaves: lines "key: what is wrong; what to write instead". Called by
`config.validate` and, for a section alone, by the command `mindgspo reward score`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mindgspo.config.reward_section import (
    AUTO,
    JUDGES,
    SHAPERS,
    RewardSection,
    file_function,
    function_label,
)
from mindgspo.config.section import Section, is_changed
from mindgspo.text import did_you_mean

_WITH_SETTINGS = ("math_dapo", "overlong", "length", "repetition")
_ANSWER_IS_NOT_READ_BY = ("verl_strict", "verl_flexible")


def reward_problems(reward: RewardSection) -> list[str]:
    """Every violated rule that needs no file."""
    return [*_name_problems(reward), *_weight_problems(reward), *_setting_problems(reward)]


def reward_file_problems(reward: RewardSection) -> list[str]:
    """Every user's file that does not exist."""
    files = [file for file in map(file_function, reward.functions) if file is not None]
    return [_missing_file(file.path) for file in files if not file.path.is_file()]


def _missing_file(path: Path) -> str:
    if path.is_dir():
        return f"reward.functions: {path} is a folder; give a Python file, as in path/to/file.py:compute_score"
    beside = sorted(one.name for one in path.parent.glob("*.py")) if path.parent.is_dir() else []
    # Without the suffix, which makes any two short names look alike.
    others = f" (Python files there: {', '.join(beside) or 'none'})"
    stems = [name.removesuffix(".py") for name in beside]
    hint = did_you_mean(path.stem, stems, otherwise=others, show=lambda stem: f"{stem}.py")
    return f"reward.functions: {path} does not exist{hint}"


def _name_problems(reward: RewardSection) -> Iterator[str]:
    for text in reward.functions:
        if text in JUDGES or text in SHAPERS or text == AUTO:
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
    known = [*JUDGES, *SHAPERS, AUTO]
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
            "reward.functions: length pays by whether the answer is correct, but no function here judges the answer; "
            f"add one of {', '.join(JUDGES)}"
        )
    if "overlong" in reward.functions and reward.overlong.max_len is not None:
        buffer_len, max_len = reward.overlong.buffer_len, reward.overlong.max_len
        if buffer_len > max_len:
            yield (
                f"reward.overlong.buffer_len: {buffer_len} is longer than reward.overlong.max_len {max_len} "
                f"(rollout.max_new_tokens where it is not set); nearest legal: {max_len}"
            )
    if reward.answer != "flexible" and all(name in _ANSWER_IS_NOT_READ_BY for name in reward.functions):
        yield f"reward.answer: {reward.answer} is not read by {', '.join(reward.functions)}; remove it"


def _changed(section: Section) -> bool:
    """Whether the user has set something; max_len is filled in for everybody."""
    return any(is_changed(section, key) for key in type(section).model_fields if key != "max_len")
