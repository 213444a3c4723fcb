"""Byte-level BPE through the `tokenizers` library: Qwen2's two files, or any tokenizer.json.

What enters: `TokenizerFiles`. What leaves: a `BpeBackend`. Qwen2's form: NFC, then its own splitting pattern
(every digit stands alone), then bytes; tokens of `added_tokens_decoder` are cut out of the text before all
that.
"""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.added_tokens import AddedToken, read_added_tokens
from mindgspo.tokenization.files import CONFIG, MERGES, TOKENIZER_JSON, VOCAB, TokenizerFiles

# Contractions, letters with one leading mark or space, one digit, punctuation, line breaks, spaces.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")


class BpeBackend:
    """A `tokenizers.Tokenizer` behind the room's own small protocol."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        self.num_ids = max(inner.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> list[int]:
        # Templates write their own BOS; letting a post-processor add another one would double it.
        return self._inner.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return self._inner.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_of(self, token: str) -> int | None:
        return self._inner.token_to_id(token)

    def special_names(self) -> list[str]:
        return [token.content for _, token in sorted(self._inner.get_added_tokens_decoder().items())]


def load_qwen2(files: TokenizerFiles) -> BpeBackend:
    """Qwen2's tokenizer from vocab.json, merges.txt and the added tokens of tokenizer_config.json.

    Raises TokenizerError where a file is missing or malformed, or where tokenizer_class names another family:
    the splitting pattern is not in the files, so another family's would be silently wrong.
    """
    for name in (VOCAB, MERGES, CONFIG):
        if name not in files:
            raise TokenizerError(f"{files.where(name)}: missing; {VOCAB} + {MERGES} need it beside them")
    family = files.config().get("tokenizer_class")
    if family not in QWEN2_CLASSES:
        raise TokenizerError(
            f"{files.where(CONFIG)}: tokenizer_class is {family!r}, but {VOCAB} + {MERGES} are read in "
            f"Qwen2's form ({' or '.join(QWEN2_CLASSES)}). For another family add its {TOKENIZER_JSON}"
        )
    inner = tokenizers.Tokenizer(_bpe_model(files))
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(QWEN2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    _add_tokens(inner, read_added_tokens(files), files)
    return BpeBackend(inner)


def load_tokenizer_json(files: TokenizerFiles) -> BpeBackend:
    """Any tokenizer.json, plus those added tokens of tokenizer_config.json that it lacks.

    Raises TokenizerError where the file is malformed or contradicts tokenizer_config.json.
    """
    try:
        inner = tokenizers.Tokenizer.from_str(files.text(TOKENIZER_JSON))
    except Exception as error:  # the library raises bare Exception for every malformed file
        raise TokenizerError(f"{files.where(TOKENIZER_JSON)}: not a tokenizer file ({error})") from error
    # Whoever wrote the file may have left truncation or padding switched on; both would change ids silently.
    inner.no_truncation()
    inner.no_padding()
    _add_tokens(inner, read_added_tokens(files), files)
    return BpeBackend(inner)


def _bpe_model(files: TokenizerFiles) -> models.BPE:
    vocab = files.json_object(VOCAB)
    if not all(type(value) is int and value >= 0 for value in vocab.values()):
        raise TokenizerError(f"{files.where(VOCAB)}: expected an object of token -> id")
    merges = []
    # Not splitlines(): only "\n" ends a line here.
    for number, line in enumerate(files.text(MERGES).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version:")):
            continue
        pair = tuple(line.rstrip("\r").split(" "))
        if len(pair) != 2:
            raise TokenizerError(f"{files.where(MERGES)}:{number}: expected two tokens and one space, got {line!r}")
        merges.append(pair)
    try:
        return models.BPE(vocab=vocab, merges=merges)
    except Exception as error:  # the library raises bare Exception, e.g. for a merge whose result has no id
        raise TokenizerError(f"{files.where(MERGES)}: does not fit {VOCAB} ({error})") from error


def _add_tokens(inner: tokenizers.Tokenizer, tokens: list[AddedToken], files: TokenizerFiles) -> None:
    """Add what is missing, in order of id, and insist on the ids that the configuration states."""
    known = inner.get_added_tokens_decoder()
    inner.add_tokens(
        [
            tokenizers.AddedToken(
                token.content,
                special=token.special,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=token.normalized,
            )
            for token in tokens
            if token.id not in known
        ]
    )
    for token in tokens:
        if inner.token_to_id(token.content) != token.id:
            raise TokenizerError(
                f"{files.where(CONFIG)}: added_tokens_decoder gives {token.content!r} the id {token.id}, but "
                f"the vocabulary beside it gives it {inner.token_to_id(token.content)}"
            )
