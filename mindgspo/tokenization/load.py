"""From the `tokenizer` section of the configuration to a `Tokenizer`.

Called by trainer/build.py, the command line and tools. Nothing is guessed: the form follows from the files
present, and the EOS set and the pad token are those named in the section.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.errors import TokenizerError
from mindgspo.text import did_you_mean, listed
from mindgspo.tokenization.arithmetic_vocab import arithmetic_files
from mindgspo.tokenization.bpe import load_qwen2, load_tokenizer_json
from mindgspo.tokenization.chat import read_chat_template
from mindgspo.tokenization.files import MERGES, TOKENIZER_JSON, VOCAB, TokenizerFiles, read_files
from mindgspo.tokenization.tokenizer import Backend, Tokenizer
from mindgspo.tokenization.unigram import load_sentencepiece

if TYPE_CHECKING:
    from mindgspo.config.data import TokenizerSection


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
    """tokenizer.json before vocab.json + merges.txt before *.model, as transformers prefers them."""
    if TOKENIZER_JSON in files:
        return load_tokenizer_json(files)
    if VOCAB in files or MERGES in files:
        return load_qwen2(files)
    if files.sentencepiece_names():
        return load_sentencepiece(files)
    raise TokenizerError(
        f"tokenizer.path: {files.origin}: holds no tokenizer; expected {VOCAB} + {MERGES}, or "
        f"{TOKENIZER_JSON}, "
        "or one sentencepiece *.model"
    )


def _id_of(token: str, key: str, backend: Backend, files: TokenizerFiles) -> int:
    found = backend.id_of(token)
    if found is not None:
        return found
    names = backend.special_names()
    special = f"; its special tokens are {listed(names, 12) or 'none'}"
    hint = did_you_mean(token, names, otherwise=special, cutoff=0.5)
    raise TokenizerError(f"{key}: {files.origin} has no token {token!r}{hint}")
