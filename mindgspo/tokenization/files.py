"""The files that define a tokenizer, read once into memory, or made there for the arithmetic task.

So the fingerprint, the export and the running tokenizer can never disagree. The files are untrusted and checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, pre_tokenizers

from mindgspo.errors import TokenizerError
from mindgspo.io import check_is_fetched, decoded, parse_json, read_bytes, unique_keys
from mindgspo.text import hub_hint

VOCAB = "vocab.json"
MERGES = "merges.txt"
TOKENIZER_JSON = "tokenizer.json"
CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
NAMES = (VOCAB, MERGES, TOKENIZER_JSON, CONFIG, CHAT_TEMPLATE, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
SENTENCEPIECE_SUFFIX = ".model"
TIKTOKEN = "tiktoken.model"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The files of one tokenizer, in memory."""

    origin: str
    """The folder's path, or a phrase for the built-in one."""
    contents: Mapping[str, bytes]
    """{file name: bytes}."""

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def where(self, name: str) -> str:
        """The file's path for messages."""
        return f"{self.origin}/{name}"

    def text(self, name: str) -> str:
        """The file's text. Raises TokenizerError if it is not UTF-8."""
        try:
            return decoded(self.contents[name])
        except ValueError as error:
            raise TokenizerError(f"{self.where(name)}: {error}") from error

    def json_object(self, name: str) -> dict[str, Any]:
        """The file's JSON object. Raises TokenizerError if it is none."""
        try:
            value = parse_json(self.contents[name], object_pairs_hook=unique_keys)
        except ValueError as error:
            raise TokenizerError(f"{self.where(name)}: {error}") from error
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
        raise TokenizerError(f"tokenizer.path: {folder}: {what}{hub_hint(folder)}")
    wanted = [path for path in sorted(folder.iterdir()) if path.name in NAMES or path.suffix == SENTENCEPIECE_SUFFIX]
    try:
        contents = {path.name: read_bytes(path) for path in wanted}
    except OSError as error:
        raise TokenizerError(f"tokenizer.path: {folder}: cannot be read ({error})") from error
    for name, content in contents.items():
        check_is_fetched(folder / name, content, TokenizerError)
    return TokenizerFiles(origin=str(folder), contents=contents)


FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


# What transformers' classes take where no file names a token.
_OF_CLASS: Mapping[str, Mapping[str, str]] = {
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}


def family_of(files: TokenizerFiles) -> str:
    """The class of transformers that the files name, without "Fast"; "" where none is named, and for a LlamaTokenizer
    of bytes (Llama 3 and later), which is none for transformers either."""
    family = str(files.config().get("tokenizer_class", "")).removesuffix("Fast")
    is_bytes = b'"ByteLevel"' in files.contents.get(TOKENIZER_JSON, b"")
    return "" if family == "LlamaTokenizer" and is_bytes else family


def special_tokens(files: TokenizerFiles) -> dict[str, str]:
    """{"bos_token": "<s>", ...}: the text of every special token that has a name, as transformers 5 hands them to chat
    templates: those that the files name, before those of the class."""
    found = {**_OF_CLASS.get(family_of(files), {}), **_named_tokens(files)}
    return {name: text for name, value in found.items() if (text := token_text(value))}


def _named_tokens(files: TokenizerFiles) -> dict[str, object]:
    """special_tokens_map.json counts, before tokenizer_config.json, where that has no added_tokens_decoder."""
    found: dict[str, object] = {}
    for source in _token_sources(files):
        extra = source.get("extra_special_tokens")
        found |= {key: value for key, value in source.items() if key.endswith("_token")}
        found |= extra if isinstance(extra, dict) else {}
    return found


def named_token(files: TokenizerFiles, name: str) -> str:
    """The text of a special token that the files name; "" where they do not."""
    return token_text(_named_tokens(files).get(name))


def unnamed_special_tokens(files: TokenizerFiles) -> list[str]:
    """The texts of the special tokens that are only listed."""
    keys = ("additional_special_tokens", "extra_special_tokens")
    found = [source.get(key) for source in _token_sources(files) for key in keys]
    lists = [one for one in found if isinstance(one, list)]
    return [text for one in lists for value in one if (text := token_text(value))]


def token_text(token: object) -> str:
    """A token's text, which stands there as text or as {"content": text}; "" for anything else."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _token_sources(files: TokenizerFiles) -> list[dict[str, object]]:
    config = files.config()
    is_read = SPECIAL_TOKENS_MAP in files and config.get("added_tokens_decoder") is None
    return [config, files.json_object(SPECIAL_TOKENS_MAP)] if is_read else [config]


def read_added_tokens(files: TokenizerFiles) -> dict[int, AddedToken]:
    """{id: token} of added_tokens_decoder, or without it of added_tokens.json, by id; empty if both are absent.
    Raises TokenizerError if malformed."""
    where = f"{files.where(CONFIG)}: added_tokens_decoder"
    table = files.config().get("added_tokens_decoder")
    if table is None and ADDED_TOKENS in files:
        where = files.where(ADDED_TOKENS)
        special = {*special_tokens(files).values(), *unnamed_special_tokens(files)}
        table = {
            str(number): {"content": text, "special": text in special, "normalized": text not in special}
            for text, number in files.json_object(ADDED_TOKENS).items()
        }
    table = {} if table is None else table
    if not isinstance(table, dict):
        raise TokenizerError(f"{where}: expected an object of id -> token, got {type(table).__name__}")
    return dict(sorted(_entry(where, key, value) for key, value in table.items()))


def _entry(where: str, key: str, value: object) -> tuple[int, AddedToken]:
    if not key.isascii() or not key.isdigit():
        raise TokenizerError(f"{where}: the key {key!r} is not a token id")
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        raise TokenizerError(f"{where}.{key}: expected an object with a non-empty text 'content', got {value!r}")
    flags = {flag: value.get(flag, False) for flag in FLAGS}
    wrong = [flag for flag, setting in flags.items() if not isinstance(setting, bool)]
    if wrong:
        raise TokenizerError(f"{where}.{key}.{wrong[0]}: expected true or false, got {flags[wrong[0]]!r}")
    return int(key), AddedToken(value["content"], **flags)


ORIGIN = "the built-in arithmetic tokenizer"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BLANK = "\u0120"  # how byte-level BPE writes the space

WORDS_AFTER_BLANK = (
    *("has", "had", "and", "buys", "gets", "sold", "lost", "more", "today", "before"),
    *("How", "many", "now", "in", "all", "are", "left"),
    *("apples", "pens", "coins", "cards", "books", "eggs", "shells", "stamps"),
)
WORDS_AT_START = ("Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Zoe", "user", "assistant")

# ChatML without a default system prompt: short prompts keep the quickstart fast.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def is_built_in(files: TokenizerFiles) -> bool:
    """Whether these are the built-in tokenizer's files, byte for byte, wherever they lie."""
    return files.contents == arithmetic_files().contents


@cache
def arithmetic_files() -> TokenizerFiles:
    """The built-in tokenizer of the arithmetic task: a byte-level BPE of a few hundred ids in Qwen2's form.

    Built by hand instead of trained, so that it is the same everywhere: 256 bytes, then merges that spell each word of
    the task (one token with the blank in front of it), then the special tokens; digits stay single. Returns
    vocab.json, merges.txt and tokenizer_config.json as transformers' Qwen2Tokenizer reads them.
    """
    merges = _merges()
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    assert len(set(tokens)) == len(tokens), "a merge makes a token that exists already"
    vocab = {token: i for i, token in enumerate(tokens)}
    lines = [f"{left} {right}" for left, right in merges]
    contents = {
        VOCAB: json.dumps(vocab, ensure_ascii=False, indent=0).encode(),
        MERGES: ("#version: 0.2\n" + "\n".join(lines) + "\n").encode(),
        CONFIG: json.dumps(_config(first_special_id=len(tokens)), indent=2).encode(),
    }
    return TokenizerFiles(origin=ORIGIN, contents=contents)


def _merges() -> list[tuple[str, str]]:
    """Letter by letter from the front. Words with a blank come first, so their merges outrank the rest."""
    merges: dict[tuple[str, str], None] = {}
    for word in [BLANK + word for word in WORDS_AFTER_BLANK] + list(WORDS_AT_START):
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
    merges["#", "#"] = None
    merges["##", "##"] = None
    return list(merges)


def _config(first_special_id: int) -> dict[str, object]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "added_tokens_decoder": {
            str(first_special_id + i): {"content": token, **flags} for i, token in enumerate(SPECIAL_TOKENS)
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
