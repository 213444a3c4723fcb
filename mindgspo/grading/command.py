"""The work behind `mindgspo reward score`, free of any argument parser.

What enters: plain values as a user types them. What leaves: the scored file and lines for people.
"""

from __future__ import annotations

from pathlib import Path

from mindgspo.config.reward import (
    WITH_TOKENS,
    AnswerMode,
    RewardSection,
    RewardWorkersSection,
    file_function,
    reward_file_problems,
    reward_problems,
)
from mindgspo.errors import ConfigError
from mindgspo.grading.confusion import Confusion
from mindgspo.grading.score_file import RowKeys, score_file
from mindgspo.rewards import Scorer


def grade(
    *,
    function: str,
    input: Path,
    output: Path,
    keys: RowKeys,
    answer: AnswerMode = "flexible",
    workers: int = 2,
    timeout_s: float = 10.0,
    examples: int = 5,
) -> Confusion:
    """Score `input` into `output` with one function.

    function: as an entry of `reward.functions`; the path of a file counts from the current folder. Raises ConfigError
    for an unknown name or a missing file, RewardError for a file that cannot be loaded, DataError for bad rows.
    """
    if input.resolve() == output.resolve():
        raise ConfigError(f"--output {output}: is the input; choose another file")
    if output.is_dir():
        raise ConfigError(f"--output {output}: is a folder; give the file to write, e.g. {output / 'scored.jsonl'}")
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}")
    file = file_function(function)
    name = function if file is None else f"{file.path.absolute()}:{file.name}"
    if name in WITH_TOKENS:
        raise ConfigError(f"--function {name}: judges a length in tokens, and a file of texts has none")
    section = RewardSection(
        functions=(name,),
        weights=(1.0,),
        answer=answer,
        workers=RewardWorkersSection(count=workers, timeout_s=timeout_s),
    )
    problems = reward_problems(section) + reward_file_problems(section)
    if problems:
        raise ConfigError(
            "--function: " + "; ".join(problem.removeprefix("reward.functions: ") for problem in problems)
        )
    with Scorer(section) as scorer:
        scorer.start()
        return score_file(scorer, input, output, keys, max_examples=examples)
