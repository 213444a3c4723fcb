"""Encoders: byte-level BPE (Qwen2's two files, Moonlight's tiktoken.model or any tokenizer.json) by `tokenizers`, other
*.model by `sentencepiece`.

Qwen2's form: NFC, then its own splitting pattern (every digit stands alone), then bytes; tokens of
`added_tokens_decoder` are cut out of the text before all that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import sentencepiece
import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.files import (
    ADDED_TOKENS,
    CONFIG,
    MERGES,
    TIKTOKEN,
    TOKENIZER_JSON,
    VOCAB,
    TokenizerFiles,
    family_of,
    read_added_tokens,
    special_tokens,
    unnamed_special_tokens,
)
from mindgspo.tokenization.tiktoken_ranks import PATTERN, ranked_bpe

# Contractions, letters with one leading mark or space, one digit, punctuation, line breaks, spaces.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLANK = "\u2581"  # how sentencepiece writes the space
_MOST_RESERVED = 4096
QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")

Span = tuple[int, int]
"""Start and stop of a part of a text, in characters."""


def load_here(files: TokenizerFiles) -> AnyBackend:
    """The encoder of these files, in this process; tokenizer.json before vocab.json + merges.txt before *.model, as
    transformers prefers them. Raises TokenizerError."""
    if TOKENIZER_JSON in files:
        return load_tokenizer_json(files)
    if VOCAB in files or MERGES in files:
        return load_qwen2(files)
    if TIKTOKEN in files:
        return load_tiktoken(files)
    if files.sentencepiece_names():
        return load_sentencepiece(files)
    raise TokenizerError(
        f"tokenizer.path: {files.origin}: holds no tokenizer; expected {VOCAB} + {MERGES}, or {TOKENIZER_JSON}, or one "
        "sentencepiece *.model; another folder is named by tokenizer.path, of a command by --tokenizer"
    )


def is_control(name: str) -> bool:
    """Whether a token that is cut out of texts must not be made of text from outside. Runs of blanks, which some
    vocabularies add as tokens, and single characters are text like any other."""
    return len(name) > 1 and bool(name.strip(f" \t\r\n{BLANK}"))


def _touches(start: int, stop: int, plain: Sequence[Span]) -> bool:
    return any(start < last and first < stop for first, last in plain)


class BpeBackend:
    """A `tokenizers.Tokenizer` as a `Backend`."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        self.num_ids = max(inner.get_vocab(with_added_tokens=True).values()) + 1
        added = inner.get_added_tokens_decoder()
        self._control = {number for number, token in added.items() if is_control(token.content)}

    def encode(self, text: str, plain: Sequence[Span] = ()) -> list[int]:
        # Templates write their own BOS; letting a post-processor add another one would double it.
        encoded = self._inner.encode(text, add_special_tokens=False)
        if not plain:
            return encoded.ids
        places = zip(encoded.ids, encoded.offsets, strict=True)
        found = [(number, start, stop) for number, (start, stop) in places if number in self._control]
        if not any(_touches(start, stop, plain) for _, start, stop in found):
            return encoded.ids
        ids: list[int] = []
        end = 0
        for number, start, stop in found:
            if not _touches(start, stop, plain):
                ids += [*self._spelled(text[end:start]), number]
                end = stop
        return ids + self._spelled(text[end:])

    def _spelled(self, text: str) -> list[int]:
        """Ids of a text inside of a longer one, by the model alone, which knows no added tokens."""
        inner, model = self._inner, self._inner.model
        pieces = [text if inner.normalizer is None else inner.normalizer.normalize_str(text)]
        cutter = inner.pre_tokenizer
        if isinstance(cutter, pre_tokenizers.Metaspace):  # puts a blank before a text, but not inside of one
            cutter = pre_tokenizers.Metaspace(cutter.replacement, prepend_scheme="never", split=cutter.split)
        if cutter is not None:
            pieces = [piece for piece, _ in cutter.pre_tokenize_str(pieces[0])]
        ids: list[int] = []
        for piece in filter(None, pieces):
            found = [token.id for token in model.tokenize(piece)]
            if not self._control.isdisjoint(found):  # an added token that is also a word of the model's own
                found = [token.id for letter in piece for token in model.tokenize(letter)]
            ids += found
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return self._inner.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_of(self, token: str) -> int | None:
        return self._inner.token_to_id(token)

    def special_names(self) -> list[str]:
        return [token.content for _, token in sorted(self._inner.get_added_tokens_decoder().items())]


def load_qwen2(files: TokenizerFiles) -> BpeBackend:
    """Qwen2's tokenizer from vocab.json, merges.txt and the added tokens of tokenizer_config.json.

    Raises TokenizerError if a file is missing or malformed, or if tokenizer_class names another family: the splitting
    pattern is not in the files, so another family's would be silently wrong.
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
    inner.pre_tokenizer = splitting_into_bytes(QWEN2_PATTERN)
    inner.decoder = decoders.ByteLevel()
    _add_tokens(inner, files)
    return BpeBackend(inner)


def load_tiktoken(files: TokenizerFiles) -> BpeBackend:
    """The tokenizer of Moonlight and Kimi; see `ranked_bpe`. Ids between those that tokenizer_config.json names are
    reserved, by the names that their code gives them. Raises TokenizerError."""
    inner = tokenizers.Tokenizer(ranked_bpe(files))
    inner.pre_tokenizer, inner.decoder = splitting_into_bytes(PATTERN), decoders.ByteLevel()
    named, first = read_added_tokens(files), inner.get_vocab_size()
    last = max(named, default=first)
    if last - first > _MOST_RESERVED:
        raise TokenizerError(
            f"{files.where(CONFIG)}: added_tokens_decoder: {last} is far beyond {TIKTOKEN}'s {first} ids"
        )
    reserved = {id: tokenizers.AddedToken(f"<|reserved_token_{id}|>", normalized=False) for id in range(first, last)}
    inner.add_tokens([token for _, token in sorted((reserved | named).items())])
    _add_tokens(inner, files)
    return BpeBackend(inner)


def splitting_into_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into the matches of a pattern and what lies between them, then spells the pieces in bytes."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def load_tokenizer_json(files: TokenizerFiles) -> BpeBackend:
    """Any tokenizer.json, plus those added tokens of tokenizer_config.json that it lacks.

    Raises TokenizerError if the file is malformed or contradicts tokenizer_config.json.
    """
    text = files.text(TOKENIZER_JSON)
    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for every malformed file
        raise TokenizerError(f"{files.where(TOKENIZER_JSON)}: not a tokenizer file ({error})") from error
    # The file may have truncation or padding switched on; both would change ids silently.
    inner.no_truncation()
    inner.no_padding()
    if is_llama(files) and isinstance(inner.model, models.BPE):
        # transformers 5 takes the vocabulary and the merges alone; its class has the rest.
        scheme = blanks(files)
        inner.normalizer = None
        inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme=scheme, split=False)
        strip = [] if scheme == "never" else [decoders.Strip(content=" ", left=1)]
        inner.decoder = decoders.Sequence(
            [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
    _add_tokens(inner, files)
    return BpeBackend(inner)


def blanks(files: TokenizerFiles) -> Literal["always", "first", "never"]:
    """Where a sentencepiece model inserts a blank before a text, by Hugging Face's `legacy` and `add_prefix_space`.

    After every special token too, only at the very start, or nowhere. What the files leave open is as in transformers
    5.
    """
    config, llama = files.config(), is_llama(files)
    if llama and config.get("add_prefix_space") is False:
        return "never"
    return "always" if config.get("legacy", not llama) else "first"


def is_llama(files: TokenizerFiles) -> bool:
    """Whether transformers reads the files with its LlamaTokenizer, which does not handle byte-level ones."""
    return family_of(files) == "LlamaTokenizer"


def _bpe_model(files: TokenizerFiles) -> models.BPE:
    vocab = files.json_object(VOCAB)
    if not all(type(value) is int and value >= 0 for value in vocab.values()):
        raise TokenizerError(f"{files.where(VOCAB)}: expected an object of token -> id")
    if len(set(vocab.values())) < len(vocab):
        raise TokenizerError(f"{files.where(VOCAB)}: {len(vocab) - len(set(vocab.values()))} tokens share an id")
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


def _add_tokens(inner: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Add missing tokens in order of id, and require the ids that the configuration states. A token of the vocabulary
    that it calls special becomes special."""
    tokens, known = read_added_tokens(files), inner.get_added_tokens_decoder()
    inner.add_tokens([token for number, token in tokens.items() if number not in known])
    for number, token in tokens.items():
        if inner.token_to_id(token.content) != number:
            raise TokenizerError(
                f"{files.where(_table_name(files))} gives {token.content!r} the id {number}, but the vocabulary "
                f"beside it gives it {inner.token_to_id(token.content)}"
            )
    added = {token.content for token in inner.get_added_tokens_decoder().values()}
    named = [text for text in _all_special(files) if text not in added and inner.token_to_id(text) is not None]
    inner.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in named])


def _table_name(files: TokenizerFiles) -> str:
    return ADDED_TOKENS if files.config().get("added_tokens_decoder") is None else f"{CONFIG}: added_tokens_decoder"


def _all_special(files: TokenizerFiles) -> list[str]:
    return [*dict.fromkeys([*special_tokens(files).values(), *unnamed_special_tokens(files)])]


class SentencePieceBackend:
    """Three views of one model: at the start of a text, after a special token, and for decoding after one.

    Control symbols (<s>, ...), user-defined symbols, added tokens and pieces that are called special are cut out of the
    text first, each one id, but not out of its plain spans. blanks: where the model's blank stands in front of a text.
    llama: as Hugging Face's LlamaTokenizer has it, which puts no second blank in front of one; other classes treat
    user-defined symbols as part of the text.
    """

    def __init__(
        self,
        model: bytes,
        added: Mapping[int, tokenizers.AddedToken],
        special: Sequence[str],
        *,
        blanks: str,
        llama: bool,
    ) -> None:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        self._start = sentencepiece.SentencePieceProcessor(model_proto=model)
        proto.normalizer_spec.add_dummy_prefix = False
        self._later = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        # Decoding strips a leading blank whenever either switch is on.
        proto.normalizer_spec.remove_extra_whitespaces = False
        self._later_decode = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())

        kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
        named = {i: p.piece for i, p in enumerate(proto.pieces) if p.type in (kinds.CONTROL, kinds.USER_DEFINED)}
        named |= {number: token.content for number, token in added.items()}
        ids = {p.piece: i for i, p in enumerate(proto.pieces)}
        marked = {ids[text]: text for text in special if text in ids and text not in named.values()}
        named |= marked
        self._name_of = named
        self._id_of = {name: i for i, name in named.items()}
        self._skipped = {i for i, p in enumerate(proto.pieces) if p.type == kinds.CONTROL}
        self._skipped |= {*marked, *(number for number, token in added.items() if token.special)}
        self._num_pieces = len(proto.pieces)
        self.num_ids = max([self._num_pieces - 1, *named]) + 1
        longest_first = sorted(self._id_of, key=len, reverse=True)
        self._blanks, self._doubles_blanks = blanks, blanks == "always" and not llama
        user_defined = {i for i, p in enumerate(proto.pieces) if p.type == kinds.USER_DEFINED}
        self._inside = set() if llama else user_defined - added.keys()
        self._names = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._control = {i for i, name in named.items() if is_control(name)}

    def encode(self, text: str, plain: Sequence[Span] = ()) -> list[int]:
        ids: list[int] = []
        is_prefixed = self._blanks != "never"
        for part, is_name in self._parts(text, plain):
            if is_name:
                ids.append(self._id_of[part])
                is_prefixed = self._blanks == "always" and ids[-1] not in self._inside
            elif part:
                found = self._encode_between(part, is_prefixed=is_prefixed)
                if plain and not self._control.isdisjoint(found):  # the model's normalization made a name
                    found = [i for letter in part for i in self._later.encode(letter)]
                ids += found
                is_prefixed = False
        return ids

    def _parts(self, text: str, plain: Sequence[Span]) -> Iterator[tuple[str, bool]]:
        """The text in parts: special tokens, and what lies between. A forged one is divided behind its first character,
        because the model would find it."""
        end = 0
        while match := self._names.search(text, end):
            start, stop = match.span()
            if is_control(match[0]) and _touches(start, stop, plain):
                end, part = start + 1, text[end : start + 1]
                yield part, False
            else:
                yield text[end:start], False
                yield match[0], True
                end = stop
        yield text[end:], False

    def _encode_between(self, text: str, *, is_prefixed: bool) -> list[int]:
        if not text.startswith((" ", BLANK)) or self._doubles_blanks:
            return (self._start if is_prefixed else self._later).encode(text) if text else []
        return self._later.encode(text)

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        if skip_special_tokens:
            ids = [i for i in ids if i not in self._skipped]
        texts: list[str] = []
        run: list[int] = []
        for i in ids:
            if i in self._name_of:
                texts += [self._decode_between(run, at_start=not texts), self._name_of[i]]
                run = []
            elif 0 <= i < self._num_pieces:
                run.append(i)
        return "".join([*texts, self._decode_between(run, at_start=not texts)])

    def _decode_between(self, ids: list[int], *, at_start: bool) -> str:
        return (self._start if at_start and self._blanks != "never" else self._later_decode).decode(ids) if ids else ""

    def id_of(self, token: str) -> int | None:
        if token in self._id_of:
            return self._id_of[token]
        piece = self._start.piece_to_id(token)
        # The library returns the unknown piece's id for every name it does not know.
        return piece if self._start.id_to_piece(piece) == token else None

    def piece_at(self, id: int) -> str | None:
        """The model's own piece of that id; None beyond its pieces."""
        return self._start.id_to_piece(id) if id < self._num_pieces else None

    def special_names(self) -> list[str]:
        return [name for _, name in sorted(self._name_of.items())]


def load_sentencepiece(files: TokenizerFiles) -> SentencePieceBackend:
    """The folder's one *.model. Raises TokenizerError if there are several or the model is unreadable."""
    names = files.sentencepiece_names()
    if len(names) != 1:
        raise TokenizerError(f"{files.origin}: {len(names)} sentencepiece models ({', '.join(names)}); keep one")
    added = read_added_tokens(files)
    llama = is_llama(files)
    try:
        model = files.contents[names[0]]
        if llama and _is_unlike_llama(sentencepiece_model_pb2.ModelProto.FromString(model)):
            raise TokenizerError(
                f"{files.where(names[0])}: its way of splitting or normalizing text is not that of transformers' "
                f"LlamaTokenizer, which {CONFIG} names, so that ids would differ; put the {TOKENIZER_JSON} beside it "
                "that transformers' save_pretrained writes"
            )
        backend = SentencePieceBackend(model, added, _all_special(files), blanks=blanks(files), llama=llama)
    except (RuntimeError, DecodeError) as error:
        raise TokenizerError(f"{files.where(names[0])}: not a sentencepiece model ({error})") from error
    for number, token in added.items():
        if (piece := backend.piece_at(number)) not in (None, token.content):
            raise TokenizerError(
                f"{files.where(_table_name(files))} gives {token.content!r} the id {number}, but {names[0]} "
                f"gives that id to {piece!r}"
            )
    return backend


def _is_unlike_llama(proto: sentencepiece_model_pb2.ModelProto) -> bool:
    """Whether LlamaTokenizer, which rebuilds a model from its pieces alone, would build a different one."""
    text = proto.normalizer_spec
    return (
        proto.trainer_spec.model_type != sentencepiece_model_pb2.TrainerSpec.BPE
        or bool(text.precompiled_charsmap)
        or text.remove_extra_whitespaces
        or not text.add_dummy_prefix
        or not text.escape_whitespaces
    )


AnyBackend = BpeBackend | SentencePieceBackend
