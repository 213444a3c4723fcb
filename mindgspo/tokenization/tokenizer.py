"""The `Tokenizer`, and its loading from the configuration's `tokenizer` section or beside a model folder.

Token ids travel end to end through a run: prompts are encoded once, and what is sampled is decoded for people and
rewards only, never encoded again. Nothing is guessed: the form follows from the files present, and the EOS set and the
pad token are those named in the section.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypedDict

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.io import read_json, unique_keys, write_file
from mindgspo.text import did_you_mean, listed
from mindgspo.tokenization.backends import load_here
from mindgspo.tokenization.chat import ChatTemplate, read_chat_template
from mindgspo.tokenization.confined import ConfinedTokenizer, confined
from mindgspo.tokenization.files import (
    CHAT_TEMPLATE,
    CONFIG,
    TokenizerFiles,
    arithmetic_files,
    is_built_in,
    named_token,
    read_files,
)

RENDERING = 2
"""The way of making prompts of messages, recorded in dataset.json. 1: only the bos, eos, pad and unk tokens of
tokenizer_config.json were known to chat templates, and sentencepiece's `legacy` was not."""


JsonObject = Mapping[str, object]


class ChatMessage(TypedDict):
    """One turn of a conversation: role is system, user, assistant or tool."""

    role: str
    content: str


class Backend(Protocol):
    """The interface to a library. special_names: the tokens matched in text. plain: as of `Tokenizer.encode`."""

    @property
    def num_ids(self) -> int:
        """Highest id + 1."""
        ...

    def encode(self, text: str, plain: Sequence[tuple[int, int]] = ()) -> list[int]: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def id_of(self, token: str) -> int | None: ...

    def special_names(self) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Ids of text, text of ids, and the few ids that others must know. Made by `load_tokenizer`."""

    name: str
    """Source, for messages."""
    eos_ids: tuple[int, ...]
    """Tokens that end a response; the first one is appended to supervised answers."""
    pad_id: int
    """Written into padded slots, never searched for; it may also be in eos_ids."""
    backend: Backend
    files: TokenizerFiles
    template: ChatTemplate | None

    @property
    def vocab_size(self) -> int:
        """Highest id + 1. A model's embedding may have more rows."""
        return self.backend.num_ids

    def encode(self, text: str, *, plain: Sequence[tuple[int, int]] = ()) -> list[int]:
        """Ids of a text; nothing is put before or after them.

        The text of a special token inside `text` becomes that token's single id, as with Hugging Face: chat
        templates rely on it, and it also holds for such text inside a question.

        plain: parts of the text, (start, stop) in characters, that come from outside. There no token that was added to
        the vocabulary is matched, special (<|im_end|>) or not (<tool_call>), nor one of which such a part is a piece:
        its text is spelled in ordinary ids. Only runs of blanks and single characters are matched there too.
        """
        return self.backend.encode(text, plain)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Text of ids (also numpy integers). Ids without a token give no text; broken UTF-8 gives U+FFFD."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def render_chat(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True, tools: Sequence[JsonObject] = ()
    ) -> str:
        """The conversation as one text, ending where the assistant begins to speak.

        tools: JSON schemas of functions that the template may present. Raises TokenizerError if the tokenizer has no
        chat template, the template fails, or a schema is no JSON.
        """
        if self.template is None:
            raise TokenizerError(
                f"{self.name}: no chat template. Add {CHAT_TEMPLATE}, or the field chat_template to {CONFIG} there"
            )
        return self.template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def presents(self, tools: Sequence[JsonObject]) -> bool:
        """Whether the chat template writes anything about these tools: many templates ignore them."""
        asks: list[ChatMessage] = [{"role": "user", "content": "?"}]
        return self.render_chat(asks, tools=tools) != self.render_chat(asks)

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over the files' names and bytes and the EOS and pad ids; not over the path."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.contents.items()):
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        digest.update(json.dumps({"eos_ids": self.eos_ids, "pad_id": self.pad_id}).encode())
        return digest.hexdigest()

    def in_own_process(self) -> Tokenizer:
        """The same tokenizer in a child process of its own; itself if it needs none."""
        if is_built_in(self.files):
            return self
        child = ConfinedTokenizer(self.files)
        return replace(self, backend=child, template=read_chat_template(self.files, child))

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into `folder`, so that transformers' AutoTokenizer can load it.

        Each file is written aside and then put in its place.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.contents.items():
            write_file(folder / name, content, sync=False)


def load_tokenizer(section: TokenizerSection, vocab_size: int | None = None) -> Tokenizer:
    """Load the tokenizer that `section` names; without a path, the built-in one of the arithmetic task.

    vocab_size: rows of the model's embedding; a tokenizer with more ids than that is refused.
    Raises TokenizerError: a missing or malformed file, an unknown EOS or pad token, too many ids.
    """
    files = arithmetic_files() if section.path is None else read_files(section.path)
    backend = _load_backend(files)
    eos_ids = tuple(
        _id_of(token, f"tokenizer.eos_tokens[{i}]", backend, files) for i, token in enumerate(section.eos_tokens)
    )
    tokenizer = Tokenizer(
        name=files.origin,
        eos_ids=eos_ids,
        pad_id=_id_of(section.pad_token, "tokenizer.pad_token", backend, files),
        backend=backend,
        files=files,
        template=read_chat_template(files),
    )
    if tokenizer.template is not None:
        tokenizer.template.check_tokens(backend.id_of)
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise TokenizerError(
            f"model.vocab_size = {vocab_size} is too small for the tokenizer {files.origin} with ids up to "
            f"{tokenizer.vocab_size - 1}: set it to {tokenizer.vocab_size} or more"
        )
    return tokenizer


def load_backend(folder: Path) -> Backend:
    """The bare encoder of a folder, without a choice of EOS and pad tokens. Raises TokenizerError."""
    return _load_backend(read_files(folder))


def _load_backend(files: TokenizerFiles) -> Backend:
    """Loaded here if these are this project's own files, else in a child process with limits."""
    if is_built_in(files):
        return load_here(files)
    backend = confined(files)
    backend.load()
    return backend


def _id_of(token: str, key: str, backend: Backend, files: TokenizerFiles) -> int:
    found = backend.id_of(token)
    if found is not None:
        return found
    names = backend.special_names()
    special = f"; its special tokens are {listed(names, 12) or 'none'}"
    hint = did_you_mean(token, names, otherwise=special, cutoff=0.5)
    raise TokenizerError(f"{key}: {files.origin} has no token {token!r}{hint}")


_SAID = "the-answer"


def tokenizer_section_of(model_dir: Path, tokenizer_dir: Path, eos_tokens: Sequence[str] = ()) -> TokenizerSection:
    """The section for `tokenizer_dir` with the tokens that end this model's responses; eos_tokens: these instead.

    Raises TokenizerError: no tokenizer there, an id without a special token, or no such token named anywhere.
    """
    backend, files = load_backend(tokenizer_dir), read_files(tokenizer_dir)
    names = {backend.id_of(name): name for name in backend.special_names()}
    named = list(eos_tokens) or [
        *_names_of(_eos_ids(model_dir), names, model_dir, tokenizer_dir),
        *filter(None, [named_token(files, "eos_token")]),
        *_turn_end(files, backend),
    ]
    if not named:
        raise TokenizerError(
            f"{model_dir}: neither generation_config.json, config.json nor tokenizer_config.json names a token that "
            "ends a response; name one with --eos-token"
        )
    padding = named_token(files, "pad_token") or named[0]
    return TokenizerSection(path=tokenizer_dir.absolute(), eos_tokens=tuple(dict.fromkeys(named)), pad_token=padding)


def _eos_ids(model_dir: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        found = read_object(model_dir / name).get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if any(type(one) is int for one in ids):
            return [one for one in ids if type(one) is int]
    return []


def read_object(path: Path) -> Mapping[str, object]:
    """The object of a JSON file; empty if the file is absent. Raises TokenizerError if it holds no object."""
    try:
        value = read_json(path, object_pairs_hook=unique_keys) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _names_of(ids: Sequence[int], names: Mapping[int | None, str], model_dir: Path, tokenizer_dir: Path) -> list[str]:
    for one in ids:
        if one not in names:
            raise TokenizerError(
                f"{model_dir}: eos_token_id {one} is no special token of the tokenizer {tokenizer_dir}; give the "
                "model's own with --tokenizer, or name the token with --eos-token"
            )
    return [names[one] for one in ids]


def _turn_end(files: TokenizerFiles, backend: Backend) -> list[str]:
    """The special token that directly follows what an assistant says; none if the template has it otherwise."""
    template = read_chat_template(files)
    if template is None:
        return []
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
    try:
        text = template.render(messages, add_generation_prompt=False)
    except TokenizerError:  # a template that takes no answers; whether it takes questions, the first prompt shows
        return []
    _, said, rest = text.rpartition(_SAID)
    ends = [name for name in backend.special_names() if said and rest.lstrip().startswith(name)]
    return [max(ends, key=len)] if ends else []
