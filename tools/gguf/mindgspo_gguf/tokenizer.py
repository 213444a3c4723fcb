"""The tokenizer of a GGUF file as Hugging Face's files.

A GGUF holds tokens, their kinds and merges or scores; how text is split before merging stands there only as a name. The
rules of the names below are those of the published tokenizers, as llama.cpp has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mindgspo.errors import TokenizerError
from mindgspo.text import did_you_mean, listed, shorten
from mindgspo.tokenization.backends import QWEN2_PATTERN, splitting_into_bytes
from mindgspo.tokenization.files import CONFIG, TOKENIZER_JSON, TokenizerFiles

_LLAMA3_PATTERN = QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_QWEN2 = ("qwen2", "deepseek-r1-qwen")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
# Kinds of tokens.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_SPLITTING: Mapping[str, pre_tokenizers.PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "gpt2"), _GPT2),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2]),
    **dict.fromkeys(_QWEN2, splitting_into_bytes(QWEN2_PATTERN)),
    **dict.fromkeys(_LLAMA3, splitting_into_bytes(_LLAMA3_PATTERN)),
}
"""How text is split before merging, by `tokenizer.ggml.pre`."""


class _Entries:
    """The entries `tokenizer.ggml.*`, of the type that is asked for."""

    def __init__(self, entries: Mapping[str, object], where: str) -> None:
        self._entries, self.where = entries, where

    def get(self, key: str, kind: type, default: object) -> object:
        """The entry; the default where there is none. Raises TokenizerError: of another type."""
        found = self._entries.get(f"tokenizer.ggml.{key}", default)
        if found is not None and type(found) is not kind:
            raise self.bad(f"tokenizer.ggml.{key} is {shorten(found)}; expected {kind.__name__}")
        return found

    def array(self, key: str, kind: type, length: int | None = None) -> list:
        """An array of one type, of that length if one is given; empty where there is none."""
        found = self.get(key, list, [])
        assert isinstance(found, list)
        if found and (type(found[0]) is not kind or (length is not None and len(found) != length)):
            raise self.bad(f"tokenizer.ggml.{key}: {len(found)} elements of {type(found[0]).__name__}")
        return found

    def bad(self, what: str) -> TokenizerError:
        """The error for what cannot be read."""
        return TokenizerError(f"{self.where}: {what}")


def gguf_tokenizer_files(entries: Mapping[str, object], where: str) -> TokenizerFiles:
    """The files of the tokenizer that a GGUF's entries describe. where: the file, for messages.

    Raises TokenizerError: a kind of tokenizer or a way of splitting that is not known here, or entries that contradict
    each other.
    """
    of = _Entries(entries, where)
    tokens, kind = of.array("tokens", str), of.get("model", str, None)
    if len(set(tokens)) < len(tokens) or not tokens:
        raise of.bad(f"tokenizer.ggml.tokens: {len(tokens)} tokens, {len(tokens) - len(set(tokens))} of them twice")
    kinds = of.array("token_type", int, len(tokens)) or [1] * len(tokens)
    named = _special_tokens(of, tokens)
    config: dict[str, object] = {**named, "clean_up_tokenization_spaces": False, "model_max_length": 1 << 30}
    template = entries.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    if kind == "gpt2":
        name, content = TOKENIZER_JSON, _byte_level(of, tokens, kinds, named)
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    elif kind == "llama":
        name, content = "tokenizer.model", _sentencepiece(of, tokens, kinds)
        config |= {"tokenizer_class": "LlamaTokenizer", "legacy": False}
    else:
        raise of.bad(f"tokenizer.ggml.model is {shorten(kind)}; known are gpt2 (bytes) and llama (sentencepiece)")
    return TokenizerFiles(
        origin=where, contents={name: content, CONFIG: json.dumps(config, ensure_ascii=False, indent=2).encode()}
    )


def _special_tokens(of: _Entries, tokens: Sequence[str]) -> dict[str, str]:
    """{"eos_token": text, ...} of those that the file names."""
    found = {}
    for key, name in _SPECIAL.items():
        number = of.get(f"{key}_token_id", int, None)
        if isinstance(number, int) and not 0 <= number < len(tokens):
            raise of.bad(f"tokenizer.ggml.{key}_token_id is {number}, of {len(tokens)} tokens")
        if isinstance(number, int):
            found[name] = tokens[number]
    return found


def _byte_level(of: _Entries, tokens: list[str], kinds: list[int], named: Mapping[str, str]) -> bytes:
    """tokenizer.json of a byte-level BPE."""
    pre = str(of.get("pre", str, "gpt-2"))
    if pre not in _SPLITTING:
        raise of.bad(
            f"tokenizer.ggml.pre is {shorten(pre)!r}, a way of splitting text that is not known here"
            f"{did_you_mean(pre, _SPLITTING)} (known: {listed([*_SPLITTING])}); take the model's Hugging Face folder"
        )
    merges = [tuple(merge.split(" ")) for merge in of.array("merges", str)]
    vocab = {token: number for number, token in enumerate(tokens) if kinds[number] != _UNUSED}
    try:
        inner = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _LLAMA3))  # type: ignore[arg-type]
    except Exception as error:  # the library raises bare Exception
        raise of.bad(f"tokenizer.ggml.merges do not fit the tokens ({error})") from error
    inner.pre_tokenizer = _SPLITTING[pre]
    inner.normalizer = normalizers.NFC() if pre in _QWEN2 else None
    inner.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    inner.add_tokens(added)
    if of.get("add_bos_token", bool, False) and "bos_token" in named:
        bos = named["bos_token"]
        try:
            inner.post_processor = processors.TemplateProcessing(
                single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, tokens.index(bos))]
            )
        except Exception as error:  # as above: a token that reads as a place of the template
            raise of.bad(f"tokenizer.ggml.bos_token_id: {shorten(bos)!r} cannot begin a text ({error})") from error
    return inner.to_str().encode()


def _sentencepiece(of: _Entries, tokens: list[str], kinds: list[int]) -> bytes:
    """tokenizer.model of a sentencepiece BPE, whose kinds of pieces have the same numbers."""
    scores = of.array("scores", float, len(tokens))
    if not scores or not set(kinds) <= set(range(1, 7)):
        raise of.bad("tokenizer.ggml.scores or token_type: missing, or not sentencepiece's")
    proto = sentencepiece_model_pb2.ModelProto()
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        proto.pieces.add(piece=token, score=score, type=kind)
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = 6 in kinds
    proto.trainer_spec.unk_id = kinds.index(2) if 2 in kinds else 0
    proto.trainer_spec.vocab_size = len(tokens)
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = bool(of.get("add_space_prefix", bool, True))
    proto.normalizer_spec.remove_extra_whitespaces = False
    return proto.SerializeToString()
