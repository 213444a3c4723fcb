"""The reward function that scores the responses, and the instruction that it needs in the prompt."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from mindgspo.config.reward import SHAPERS, VERIFIERS, RewardSection, file_function, reward_file_problems
from mindgspo.data.benchmarks import INSTRUCTIONS, Benchmark
from mindgspo.data.rendering import FORMATS_WITH_INSTRUCTION
from mindgspo.errors import ConfigError, DataError
from mindgspo.init.rows import MOST_ANSWER, MOST_UNUSABLE, READERS, RowAccount
from mindgspo.io import read_bytes
from mindgspo.text import counted, listed

_MOST_BYTES = 1 << 20
_USUAL_NAME = "compute_score"  # verl's


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarding:
    """The chosen reward function."""

    function: str
    """The entry of reward.functions."""
    instruction: str | None
    """Text put after each question; None: the user is to write one."""
    why: str
    """The reason for the choice, for a person."""


def choose_reward(account: RowAccount, given: str | None) -> Rewarding:
    """given: "FILE.py" or "FILE.py:function", None for a function of this project. Raises ConfigError for a file
    without such a function, DataError if none of ours reads the gold answers."""
    if given is not None:
        function = _own_function(given)
        has_own = account.source.format in FORMATS_WITH_INSTRUCTION
        return Rewarding(function=function, instruction="" if has_own else None, why="yours")
    if account.source.format != "columns":
        known = Benchmark(label="", format=account.source.format, path=account.source.path)
        return Rewarding(function=known.function, instruction=known.instruction_suffix, why="the data set's own")
    counts = {name: account.num_rows - len(unread.rows) for name, unread in account.unread.items()}
    most = (1 - MOST_UNUSABLE) * account.num_rows
    best = max(READERS, key=lambda name: counts[name])  # of equal ones the first, the most particular
    unread = account.unread[best]
    is_met = best != "math" or unread.num_long <= MOST_UNUSABLE * account.num_rows
    reads = f"{best} reads {counts[best]} of {account.num_rows}"
    others = f"; the first it does not: {unread.first}" if unread.rows else ""
    if best == "math" and unread.num_long:
        long = f"{counted(unread.num_long, 'answer')} of more than {MOST_ANSWER} characters"
        others += f"; {long}, which a model hardly writes again: {unread.first_long}"
    if counts[best] < most or not is_met:
        raise DataError(
            f"{account.source.path}: no reward function of this project reads enough answers ({reads}{others}); write "
            "one and give it with --reward FILE.py:function"
        )
    # If a more specific function reads nearly all answers, the remaining ones are irregular.
    for name in READERS[: READERS.index(best)]:
        if counts[name] >= most:
            others += f"; {name} reads {counts[name]}, the first it does not: {account.unread[name].first}"
    why = reads + others if others else "it can read every answer"
    return Rewarding(function=best, instruction=INSTRUCTIONS[best], why=why)


def _own_function(given: str) -> str:
    """ "FILE.py:function" with an absolute path; the file is parsed, not run."""
    named = file_function(given)
    if given in VERIFIERS or given in SHAPERS:
        raise ConfigError(f"--reward {given}: takes a file of yours; leave it out, and set reward.functions=[{given}]")
    path = (named.path if named is not None else Path(given)).absolute()
    for problem in reward_file_problems(RewardSection(functions=(f"{path}:{_USUAL_NAME}",))):
        raise ConfigError(problem.replace("reward.functions", "--reward", 1))
    try:
        tree = ast.parse(read_bytes(path, _MOST_BYTES), filename=str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"--reward: {path}: cannot be read as Python ({error})") from error
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    public = [name for name in names if not name.startswith("_")]
    if named is not None:
        name = named.name
    else:
        name = _USUAL_NAME if _USUAL_NAME in names else public[0] if len(public) == 1 else ""
    if name not in names:
        what = f"there is no function {name!r}" if name else "which function scores a response is not clear"
        raise ConfigError(f"--reward: {path}: {what}; give {path.name}:NAME (there are: {listed(names) or 'none'})")
    return f"{path}:{name}"
