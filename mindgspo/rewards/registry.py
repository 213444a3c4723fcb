"""Reward functions by name, and which of them fits a data source.

To add a function: its name in config/reward.py, its constructor here, and its data sources in `_SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from mindgspo.config.reward import IN_PROCESS, RewardSection, file_function
from mindgspo.errors import DataError
from mindgspo.rewards.functions.environment import EnvironmentReward
from mindgspo.rewards.functions.from_file import FromFile
from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.functions.multiple_choice import MultipleChoice
from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo, VerlGsm8k
from mindgspo.rewards.functions.shaping import CosineLength, Overlong, Repetition, ThinkFormat
from mindgspo.rewards.verification import Candidate, RewardJob, Shaper, Verifier
from mindgspo.text import did_you_mean
from mindgspo.types import Verdict

_VERIFIERS: Mapping[str, Callable[[RewardSection], Verifier]] = {
    "gsm8k": lambda section: Gsm8k(section.answer),
    "math_dapo": lambda section: MathDapo(section.answer, section.math_dapo.strict_box),
    "math": lambda section: Math(section.answer, section.unevaluated),
    "multiple_choice": lambda section: MultipleChoice(section.answer),
    "verl_strict": lambda section: VerlGsm8k("strict"),
    "verl_flexible": lambda section: VerlGsm8k("flexible"),
    "environment": lambda section: EnvironmentReward(),
}
_SHAPERS: Mapping[str, Callable[[RewardSection], Shaper]] = {
    "format": lambda section: ThinkFormat(),
    "length": lambda section: CosineLength(section.length),
    "overlong": lambda section: Overlong(section.overlong),
    "repetition": lambda section: Repetition(section.repetition),
}

_SOURCES: Mapping[str, str] = {
    "openai/gsm8k": "gsm8k",
    "gsm8k": "gsm8k",
    "arithmetic": "gsm8k",
    "math_dapo": "math_dapo",
    "math": "math",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "aime": "math_dapo",
    "dianjin": "multiple_choice",
    "dianjin_open": "math",
}
_SOURCE_PREFIXES: Mapping[str, str] = {
    "math_dapo": "math_dapo",
    "BytedTsinghua-SIA/DAPO-Math-17k": "math_dapo",
    "aime": "math_dapo",
}


def build_function(text: str, section: RewardSection) -> Verifier | Shaper:
    """The function that an entry of `reward.functions` names, with its settings from the section."""
    return _SHAPERS[text](section) if text in _SHAPERS else build_verifier(text, section)


def build_verifier(text: str, section: RewardSection) -> Verifier:
    """As `build_function`, of an entry that compares answers."""
    file = file_function(text)
    if file is not None or text.startswith(IN_PROCESS):
        return FromFile(text if file is None else file.task)
    return _VERIFIERS[text](section)


def function_for(data_source: str) -> str:
    """Name of the function that "auto" chooses for a data source; DataError if there is none."""
    name = _known_function_for(data_source)
    if name is None:
        hint = did_you_mean(data_source, _SOURCES, cutoff=0.5)
        raise DataError(
            f"no reward function for data_source {data_source!r}{hint}; known: {', '.join(_SOURCES)}. Or name one for "
            "all rows instead of auto, e.g. --set reward.functions=[gsm8k]"
        )
    return name


def gold_is_readable(data_source: str, gold: str) -> bool | None:
    """Whether the function that "auto" would choose can read a gold answer; None if it would choose none."""
    name = _known_function_for(data_source)
    return None if name is None else _default_verifier(name).can_read(gold)


def gold_is_met(data_source: str, gold: str) -> bool | None:
    r"""Whether that function pays a response that repeats the gold answer in a box; None if there is no function. A
    gold that its own repetition does not meet, such as \frac{1}{2}}, cannot be matched by any answer."""
    name = _known_function_for(data_source)
    return None if name is None else repeats_itself(name, gold)


def repeats_itself(name: str, gold: str) -> bool:
    """Whether the function `name` pays a response that repeats `gold`; True for those that do not read boxes."""
    if name not in _SOURCES.values():
        return True
    is_marked = "####" in gold or "boxed" in gold or "fbox" in gold  # a worked solution announces its answer itself
    text = gold if is_marked else rf"\boxed{{{gold}}}"
    found = _default_verifier(name).verify(Candidate(text=text, gold=gold, data_source="", index=0))
    return not isinstance(found, RewardJob) and found.verdict is Verdict.CORRECT


def _known_function_for(data_source: str) -> str | None:
    if data_source in _SOURCES:
        return _SOURCES[data_source]
    return next((name for prefix, name in _SOURCE_PREFIXES.items() if data_source.startswith(prefix)), None)


@cache
def _default_verifier(name: str) -> Verifier:
    return _VERIFIERS[name](RewardSection())
