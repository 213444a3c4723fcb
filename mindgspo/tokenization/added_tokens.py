"""The `added_tokens_decoder` table of tokenizer_config.json: tokens that are matched before anything else.

What enters: `TokenizerFiles`. What leaves: `AddedToken` records in order of id. The file is untrusted, so
every field is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.files import CONFIG, TokenizerFiles

FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """One entry: its id, its text, and Hugging Face's five flags."""

    id: int
    content: str
    special: bool
    lstrip: bool
    rstrip: bool
    single_word: bool
    normalized: bool


def read_added_tokens(files: TokenizerFiles) -> list[AddedToken]:
    """Entries sorted by id; empty where the table is absent. Raises TokenizerError if malformed."""
    table = files.config().get("added_tokens_decoder", {})
    where = f"{files.where(CONFIG)}: added_tokens_decoder"
    if not isinstance(table, dict):
        raise TokenizerError(f"{where}: expected an object of id -> token, got {type(table).__name__}")
    return sorted((_entry(where, key, value) for key, value in table.items()), key=lambda token: token.id)


def _entry(where: str, key: str, value: object) -> AddedToken:
    if not key.isascii() or not key.isdigit():
        raise TokenizerError(f"{where}: the key {key!r} is not a token id")
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        raise TokenizerError(f"{where}.{key}: expected an object with a non-empty text 'content', got {value!r}")
    flags = {flag: value.get(flag, False) for flag in FLAGS}
    wrong = [flag for flag, setting in flags.items() if not isinstance(setting, bool)]
    if wrong:
        raise TokenizerError(f"{where}.{key}.{wrong[0]}: expected true or false, got {flags[wrong[0]]!r}")
    return AddedToken(id=int(key), content=value["content"], **flags)
