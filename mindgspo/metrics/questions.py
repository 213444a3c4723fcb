"""What a prompt asks, without its chat template: headings of samples would be all alike with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

_USER = re.compile(
    r"<[|\uff5c](?:im_start|turn)[|\uff5c]?>\s*user\n"
    r"|<\|start_header_id\|>user<\|end_header_id\|>\s*"
    r"|<start_of_turn>user\n"
    r"|<[|\uff5c](?:user|User|USER_TOKEN)[|\uff5c]>\s*"
    r"|\[INST\]\s*|<reserved_106>"
    r"|(?:^|\n)(?:### )?(?:User|USER|Human|Instruction|Question)\s*:\s*"
)
_END = re.compile(
    r"<[|\uff5c][^<>]{1,40}[|\uff5c]>|<turn\|>|<end_of_turn>|\[/INST\]|<reserved_107>|</s>"
    r"|\n(?:### )?(?:Assistant|ASSISTANT|Response|Answer)\s*:\s*$"
)


def questions(prompts: Sequence[str]) -> list[str]:
    """The last turn of the user in each prompt, without the lines with which all of them begin or end."""
    turns = [_last_turn(prompt).splitlines(keepends=True) for prompt in prompts]
    start = _shared(turns)
    end = _shared([turn[start:][::-1] for turn in turns])
    asked = ("".join(turn[start : len(turn) - end]).strip() for turn in turns)
    return [text or prompt.strip() for text, prompt in zip(asked, prompts, strict=True)]


def _shared(turns: Sequence[Sequence[str]]) -> int:
    """With how many lines all of them begin; none where they are all the same."""
    if all(turn == turns[0] for turn in turns):
        return 0
    return next(number for number, lines in enumerate(zip_longest(*turns)) if len(set(lines)) > 1)


def _last_turn(prompt: str) -> str:
    starts = [match.end() for match in _USER.finditer(prompt)]
    turn = prompt[starts[-1] :] if starts else prompt
    end = _END.search(turn)
    return (turn[: end.start()] if end and turn[: end.start()].strip() else turn).strip()
