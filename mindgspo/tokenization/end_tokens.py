"""Which tokens end a response of a Hugging Face model folder, from what its files say.

What enters: the model's folder and the tokenizer's. What leaves: a `tokenizer` section. Called where a folder is used
without an experiment's YAML. All that one of these names ends a response; a base model knows one, a chat model both:

    eos_token_id         of generation_config.json, else of config.json
    eos_token            of tokenizer_config.json
    the end of a turn    the special token that the chat template writes behind an assistant's message
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.tokenization.chat import read_chat_template
from mindgspo.tokenization.files import TokenizerFiles, read_files
from mindgspo.tokenization.load import load_backend
from mindgspo.tokenization.tokenizer import Backend

_SAID = "the-answer"


def tokenizer_section_of(model_dir: Path, tokenizer_dir: Path, eos_tokens: Sequence[str] = ()) -> TokenizerSection:
    """The section for `tokenizer_dir` with the tokens that end this model's responses; eos_tokens: these instead.

    Raises TokenizerError: no tokenizer there, an id without a special token, or no such token named anywhere.
    """
    backend, files = load_backend(tokenizer_dir), read_files(tokenizer_dir)
    names = {backend.id_of(name): name for name in backend.special_names()}
    named = list(eos_tokens) or [
        *_names_of(_eos_ids(model_dir), names, model_dir, tokenizer_dir),
        *_text_of(files.config().get("eos_token")),
        *_turn_end(files, backend),
    ]
    if not named:
        raise TokenizerError(
            f"{model_dir}: neither generation_config.json, config.json nor tokenizer_config.json names a token that "
            "ends a response; name one with --eos-token"
        )
    padding = _text_of(files.config().get("pad_token")) or named
    return TokenizerSection(path=tokenizer_dir.absolute(), eos_tokens=tuple(dict.fromkeys(named)), pad_token=padding[0])


def _eos_ids(model_dir: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        found = read_json(model_dir / name).get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if any(type(one) is int for one in ids):
            return [one for one in ids if type(one) is int]
    return []


def read_json(path: Path) -> Mapping[str, object]:
    """The object of a JSON file; empty where the file is absent. Raises TokenizerError where it holds no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
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


def _text_of(token: object) -> list[str]:
    """tokenizer_config.json has tokens as text or as {"content": text}."""
    text = token.get("content") if isinstance(token, dict) else token
    return [text] if isinstance(text, str) and text else []


def _turn_end(files: TokenizerFiles, backend: Backend) -> list[str]:
    """The special token that directly follows what an assistant says; none where the template has it otherwise."""
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
