"""Prompts as people give them, and answers as they read them: text, conversations, files, pieces. No MindSpore."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mindgspo.data.source_rows import messages_of
from mindgspo.errors import DataError
from mindgspo.io import decoded, parse_json, read_lines
from mindgspo.tokenization import ChatMessage, Tokenizer
from mindgspo.types import Int32Array

PromptText = str | Sequence[ChatMessage]
"""A question, or a conversation that ends with one."""


def encode_prompt(
    tokenizer: Tokenizer, prompt: PromptText, where: str, *, system_prompt: str | None = None, is_raw: bool = False
) -> Int32Array:
    """The ids of a prompt, up to where the answer begins. where: what errors call it. system_prompt: of a conversation
    without one of its own. is_raw: text to go on with; no chat template.

    Raises DataError for a prompt without a token, TokenizerError where the chat template is missing or fails.
    """
    if is_raw:
        if not isinstance(prompt, str):
            raise DataError(f"{where}: a conversation goes through the chat template; raw prompts are text")
        text = prompt
    else:
        messages = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, str):
            messages = [*messages_of(list(prompt) if isinstance(prompt, Sequence) else prompt, where)]
        if system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system_prompt})
        text = tokenizer.render_chat(messages)
    ids = tokenizer.encode(text)
    if not ids:
        raise DataError(f"{where}: holds no token")
    return np.array(ids, dtype=np.int32)


def read_prompts(path: Path) -> list[PromptText]:
    """The prompts of a file: of *.jsonl the key `prompt`, a text or a list of messages, or `messages`; of any other
    every line that is not empty. Raises DataError naming file and line."""
    found: list[PromptText] = []
    try:
        for number, line in read_lines(path, DataError):
            where = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                found.append(_row(parse_json(line), where) if path.suffix == ".jsonl" else decoded(line).rstrip("\r\n"))
            except ValueError as error:
                raise error if isinstance(error, DataError) else DataError(f"{where}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a file with prompts") from error
    if not found:
        raise DataError(f"{path}: holds no prompt")
    return found


def _row(row: object, where: str) -> PromptText:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
    keys = [key for key in ("prompt", "messages") if key in row]
    if len(keys) != 1:
        raise DataError(f'{where}: expected either "prompt" or "messages", got {", ".join(keys) or "neither"}')
    value = row[keys[0]]
    return value if isinstance(value, str) and keys == ["prompt"] else messages_of(value, f"{where}: {keys[0]}")


class TextPieces:
    """The text of a growing list of tokens, piece by piece.

    A tokenizer may write a token otherwise at the beginning of a text, and a character may take several tokens: a piece
    is what is new behind the last few tokens, and it waits while its last character is broken.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start = self._told = 0

    def of(self, ids: Int32Array, *, is_last: bool = False) -> str:
        """What is new. ids: all tokens so far. is_last: broken characters come as U+FFFD."""
        before, whole = self._text(ids[self._start : self._told]), self._text(ids[self._start :])
        if len(whole) <= len(before) or (whole.endswith("\ufffd") and not is_last):
            return ""
        self._start, self._told = self._told, len(ids)
        return whole[len(before) :]

    def _text(self, ids: Int32Array) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
