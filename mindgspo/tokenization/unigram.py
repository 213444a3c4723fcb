"""Sentencepiece models (*.model) through the `sentencepiece` library.

What enters: `TokenizerFiles`. What leaves: a `SentencePieceBackend`. The model's control symbols (<s>, </s>,
...), its user-defined symbols and the configuration's added tokens are cut out of the text first, each one
id; the text between them is encoded by the model. As with Hugging Face (`legacy=False`) the model's blank in
front of a text stands only at the very start, never after such a token.
"""

from __future__ import annotations

import re

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.added_tokens import AddedToken, read_added_tokens
from mindgspo.tokenization.files import CONFIG, TokenizerFiles


class SentencePieceBackend:
    """Three views of one model: at the start of a text, after a special token, and for decoding after one."""

    def __init__(self, model: bytes, added: list[AddedToken]) -> None:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        self._start = sentencepiece.SentencePieceProcessor(model_proto=model)
        proto.normalizer_spec.add_dummy_prefix = False
        self._later = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        # Decoding strips a leading blank whenever either switch is on.
        proto.normalizer_spec.remove_extra_whitespaces = False
        self._later_decode = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())

        kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
        named = {i: p.piece for i, p in enumerate(proto.pieces) if p.type in (kinds.CONTROL, kinds.USER_DEFINED)}
        named |= {token.id: token.content for token in added}
        self._name_of = named
        self._id_of = {name: i for i, name in named.items()}
        self._skipped = {i for i, p in enumerate(proto.pieces) if p.type == kinds.CONTROL}
        self._skipped |= {token.id for token in added if token.special}
        self._num_pieces = len(proto.pieces)
        self.num_ids = max([self._num_pieces - 1, *named]) + 1
        longest_first = sorted(self._id_of, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        end = 0
        for match in self._names.finditer(text):
            ids += self._encode_between(text[end : match.start()], at_start=end == 0)
            ids.append(self._id_of[match.group()])
            end = match.end()
        return ids + self._encode_between(text[end:], at_start=end == 0)

    def _encode_between(self, text: str, *, at_start: bool) -> list[int]:
        return (self._start if at_start else self._later).encode(text) if text else []

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
        return (self._start if at_start else self._later_decode).decode(ids) if ids else ""

    def id_of(self, token: str) -> int | None:
        if token in self._id_of:
            return self._id_of[token]
        piece = self._start.piece_to_id(token)
        # The library answers the unknown piece's id for every name it does not know.
        return piece if self._start.id_to_piece(piece) == token else None

    def piece_at(self, id: int) -> str | None:
        """The model's own piece of that id; None beyond its pieces."""
        return self._start.id_to_piece(id) if id < self._num_pieces else None

    def special_names(self) -> list[str]:
        return [name for _, name in sorted(self._name_of.items())]


def load_sentencepiece(files: TokenizerFiles) -> SentencePieceBackend:
    """The folder's one *.model. Raises TokenizerError where there are several or the model is unreadable."""
    names = files.sentencepiece_names()
    if len(names) != 1:
        raise TokenizerError(f"{files.origin}: {len(names)} sentencepiece models ({', '.join(names)}); keep one")
    added = read_added_tokens(files)
    try:
        backend = SentencePieceBackend(files.contents[names[0]], added)
    except (RuntimeError, DecodeError) as error:
        raise TokenizerError(f"{files.where(names[0])}: not a sentencepiece model ({error})") from error
    for token in added:
        if (piece := backend.piece_at(token.id)) not in (None, token.content):
            raise TokenizerError(
                f"{files.where(CONFIG)}: added_tokens_decoder gives {token.content!r} the id {token.id}, but "
                f"{names[0]} gives that id to {piece!r}"
            )
    return backend
