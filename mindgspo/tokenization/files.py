"""A tokenizer's files, read once into memory.

What enters: a folder. What leaves: `TokenizerFiles`, the bytes of every file that matters to encoding or chat
rendering, so that the fingerprint, the export and the running tokenizer can never disagree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import TokenizerError

VOCAB = "vocab.json"
MERGES = "merges.txt"
TOKENIZER_JSON = "tokenizer.json"
CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
NAMES = (VOCAB, MERGES, TOKENIZER_JSON, CONFIG, CHAT_TEMPLATE, "special_tokens_map.json", "added_tokens.json")
SENTENCEPIECE_SUFFIX = ".model"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """origin: the folder's path, or a phrase for the built-in one. contents: file name -> bytes."""

    origin: str
    contents: Mapping[str, bytes]

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def where(self, name: str) -> str:
        """The file's path for messages."""
        return f"{self.origin}/{name}"

    def text(self, name: str) -> str:
        """The file's text. Raises TokenizerError where it is not UTF-8."""
        try:
            return self.contents[name].decode("utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{self.where(name)}: not UTF-8 text ({error})") from error

    def json_object(self, name: str) -> dict[str, object]:
        """The file's JSON object. Raises TokenizerError where it is none."""
        try:
            value = json.loads(self.text(name))
        except json.JSONDecodeError as error:
            raise TokenizerError(f"{self.where(name)}: not valid JSON ({error})") from error
        if not isinstance(value, dict):
            raise TokenizerError(f"{self.where(name)}: expected a JSON object, got {type(value).__name__}")
        return value

    def config(self) -> dict[str, object]:
        """tokenizer_config.json, or an empty object where the folder has none."""
        return self.json_object(CONFIG) if CONFIG in self else {}

    def sentencepiece_names(self) -> list[str]:
        """Names of the sentencepiece models."""
        return sorted(name for name in self.contents if name.endswith(SENTENCEPIECE_SUFFIX))


def read_files(folder: Path) -> TokenizerFiles:
    """Read the files of `folder` that define a tokenizer; TokenizerError if it is no folder."""
    if not folder.is_dir():
        what = "is a file; name the folder that holds it" if folder.exists() else "no such folder"
        raise TokenizerError(f"tokenizer.path: {folder}: {what}")
    wanted = [path for path in sorted(folder.iterdir()) if path.name in NAMES or path.suffix == SENTENCEPIECE_SUFFIX]
    try:
        contents = {path.name: path.read_bytes() for path in wanted}
    except OSError as error:
        raise TokenizerError(f"tokenizer.path: {folder}: cannot be read ({error})") from error
    return TokenizerFiles(origin=str(folder), contents=contents)
