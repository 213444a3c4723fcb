"""The tokenizer that every other room uses.

What enters: text, or chat messages. What leaves: lists of ids, or text. Token ids travel end to end through a
run: prompts are encoded once, and what is sampled is decoded for people and rewards only, never encoded
again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict

from mindgspo.errors import TokenizerError
from mindgspo.io import write_file
from mindgspo.tokenization.chat import ChatTemplate
from mindgspo.tokenization.files import CHAT_TEMPLATE, CONFIG, TokenizerFiles


class ChatMessage(TypedDict):
    """One turn of a conversation: role is system, user or assistant."""

    role: str
    content: str


class Backend(Protocol):
    """What a library must offer. num_ids: highest id + 1; special_names: the tokens matched in text."""

    num_ids: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def id_of(self, token: str) -> int | None: ...

    def special_names(self) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Ids of text, text of ids, and the few ids that others must know. Made by `load_tokenizer`.

    name: where it came from, for messages. eos_ids: tokens that end a response; the first one is appended to
    supervised answers. pad_id: written into padded slots, never searched for (it may also be in eos_ids).
    """

    name: str
    eos_ids: tuple[int, ...]
    pad_id: int
    backend: Backend
    files: TokenizerFiles
    template: ChatTemplate | None

    @property
    def vocab_size(self) -> int:
        """Highest id + 1. A model's embedding may have more rows."""
        return self.backend.num_ids

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is put in front or behind.

        The text of a special token inside `text` becomes that token's single id, as with Hugging Face: chat
        templates rely on it, and it also holds for such text inside a question.
        """
        return self.backend.encode(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of ids (also numpy integers). Ids without a token give no text; broken UTF-8 gives U+FFFD."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def render_chat(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """The conversation as one text, ending where the assistant begins to speak.

        Raises TokenizerError where the tokenizer has no chat template or the template fails.
        """
        if self.template is None:
            raise TokenizerError(
                f"{self.name}: no chat template. Add {CHAT_TEMPLATE}, or the field chat_template to {CONFIG} there"
            )
        return self.template.render(messages, add_generation_prompt=add_generation_prompt)

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over the files' names and bytes and the EOS and pad ids; not over the path."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.contents.items()):
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        digest.update(json.dumps({"eos_ids": self.eos_ids, "pad_id": self.pad_id}).encode())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into `folder`, so that transformers' AutoTokenizer can load it.

        Each file is written aside and then put in its place.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.contents.items():
            write_file(folder / name, content, sync=False)
