"""Sentencepiece models, trained here on a few lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.tokenization import Tokenizer, load_tokenizer

CORPUS = ["Tom has 3 apples and 4 pears.", "How many does Tom have now?",
          "the quick brown fox jumps over the lazy dog 0123456789"]  # fmt: skip


def train(model_type: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS * 20), model_writer=buffer, vocab_size=100,
                                             model_type=model_type, hard_vocab_limit=False, minloglevel=2,
                                             **options)  # fmt: skip
    return buffer.getvalue()


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def model(request: pytest.FixtureRequest) -> bytes:
    return train(request.param)


@pytest.fixture
def folder(model: bytes, tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.model").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    return tmp_path


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(TokenizerSection(path=folder, eos_tokens=("</s>",), pad_token="<unk>"))


def test_plain_text_is_what_the_library_gives(tokenizer: Tokenizer, model: bytes):
    own = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in [*CORPUS, "dog", "fox dog 42", ""]:
        assert tokenizer.encode(text) == own.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == own.get_piece_size()


def test_the_models_own_special_tokens(tokenizer: Tokenizer):
    assert (tokenizer.eos_ids, tokenizer.pad_id) == ((2,), 0)
    ids = tokenizer.encode("<s>Tom has</s>")
    assert ids[0] == 1 and ids[-1] == 2 and 0 not in ids
    assert tokenizer.decode(ids) == "<s>Tom has</s>"
    assert tokenizer.decode([*ids, 5000], skip_special_tokens=True) == "Tom has", "no piece, no text"


def test_the_blank_in_front_stands_only_at_the_start_of_the_text(tokenizer: Tokenizer, model: bytes):
    own = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [own.id_to_piece(i) for i in tokenizer.encode("Tom<s>Tom<s> Tom")]
    assert "".join(pieces) == "\u2581Tom<s>Tom<s>Tom"  # the model strips extra blanks: the last one is lost
    assert tokenizer.decode([1, *own.encode("Tom")]) == "<s> Tom"


def test_added_tokens_of_the_configuration(folder: Path, tokenizer: Tokenizer):
    size = tokenizer.vocab_size

    def chat(table: dict[int, str], eos_token: str = "<|im_end|>") -> Tokenizer:
        added = {str(number): {"content": content, "special": True} for number, content in table.items()}
        (folder / "tokenizer_config.json").write_text(json.dumps({"legacy": False, "added_tokens_decoder": added}))
        return load_tokenizer(TokenizerSection(path=folder, eos_tokens=(eos_token,), pad_token="</s>"))

    found = chat({size: "<|im_start|>", size + 1: "<|im_end|>", 1: "<s>"})
    assert (found.vocab_size, found.eos_ids) == (size + 2, (size + 1,))
    text = "<|im_start|>Tom has 3<|im_end|>"
    ids = found.encode(text)
    assert (ids[0], ids[-1]) == (size, size + 1) and found.decode(ids) == text
    assert found.decode(ids, skip_special_tokens=True).strip() == "Tom has 3"
    with pytest.raises(TokenizerError, match=r"gives '<\|im_end\|>' the id 5, but tokenizer.model gives that id to"):
        chat({5: "<|im_end|>"}, "</s>")
    with pytest.raises(TokenizerError, match=r"has no token '<\|im_end\|>'"):
        chat({})


LLAMA: dict[str, object] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False,
                            "user_defined_symbols": ["<x>"]}  # fmt: skip


def pieces_of(folder: Path, text: str, model: bytes, **config: object) -> str:
    """The model's own pieces, one behind another, with a bar between them where a special token stands."""
    (folder / "m.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "unk_token": "<unk>", **config}))
    tokenizer = load_tokenizer(TokenizerSection(path=folder, eos_tokens=("</s>",), pad_token="</s>"))
    own = sentencepiece.SentencePieceProcessor(model_proto=model)
    return "".join(own.id_to_piece(i) for i in tokenizer.encode(text)).replace("\u2581", "_")


def test_with_legacy_the_blank_stands_behind_every_special_token(tmp_path: Path):
    """As transformers 5 has it: it is the default of all classes but LlamaTokenizer, which doubles no blank."""
    model = train("bpe", **LLAMA)
    llama = {"tokenizer_class": "LlamaTokenizer"}
    text = "Tom<s>Tom<s> Tom<x>dog<unk>"
    for config, expected in [
        ({**llama, "legacy": True}, "_Tom<s>_Tom<s>_Tom<x>_dog<unk>"),
        ({**llama, "legacy": False}, "_Tom<s>Tom<s>_Tom<x>dog<unk>"),
        ({"tokenizer_class": "LlamaTokenizerFast"}, "_Tom<s>Tom<s>_Tom<x>dog<unk>"),
        ({**llama, "legacy": True, "add_prefix_space": False}, "Tom<s>Tom<s>_Tom<x>dog<unk>"),
        ({"legacy": True}, "_Tom<s>_Tom<s>__Tom<x>dog<unk>"),
        ({}, "_Tom<s>_Tom<s>__Tom<x>dog<unk>"),
    ]:
        assert pieces_of(tmp_path, text, model, **config) == expected, config
    for config, expected in [
        ({**llama, "legacy": True}, "_Tom"),
        (llama, "_Tom"),
        ({}, "__Tom"),
        ({"legacy": False}, "_Tom"),
    ]:
        assert pieces_of(tmp_path, " Tom", model, **config) == expected, config


@pytest.mark.parametrize(("config", "expected"), [
    ({"tokenizer_class": "LlamaTokenizer"}, "_Tom<s>Tom<s>_Tom"),
    ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "_Tom<s>_Tom<s>_Tom"),
    ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, "Tom<s>Tom<s>_Tom"),
    ({"tokenizer_class": "PreTrainedTokenizerFast"}, "_Tom<s>_Tom<s>__Tom"),
    ({}, "_Tom<s>_Tom<s>__Tom"),
])  # fmt: skip
def test_a_tokenizer_json_of_llama_2_is_read_by_the_class(tmp_path: Path, config: dict, expected: str):
    """transformers 4 wrote "a blank in front of every text"; what the class says goes before it in transformers 5."""
    pieces = ["<unk>", "<s>", "</s>", "\u2581", *"Tom", "To", "Tom", "\u2581Tom"]
    merges = [("T", "o"), ("To", "m"), ("\u2581", "Tom")]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({name: i for i, name in enumerate(pieces)}, merges))
    inner.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    )
    inner.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in pieces[:3]])
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(TokenizerSection(path=tmp_path, eos_tokens=("</s>",), pad_token="</s>"))
    ids = tokenizer.encode("Tom<s>Tom<s> Tom")
    assert "".join(pieces[i] for i in ids).replace("\u2581", "_") == expected


@pytest.mark.parametrize(
    ("kind", "options"), [("unigram", LLAMA), ("bpe", {}), ("bpe", {**LLAMA, "add_dummy_prefix": False})]
)
def test_a_model_of_which_llama_tokenizer_makes_another_is_refused(tmp_path: Path, kind: str, options: dict):
    with pytest.raises(TokenizerError, match="m.model: its way of splitting .* tokenizer.json"):
        pieces_of(tmp_path, "Tom", train(kind, **options), tokenizer_class="LlamaTokenizer")


def test_the_added_tokens_of_an_older_folder(folder: Path, tokenizer: Tokenizer):
    size = tokenizer.vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({"<b>": size + 1, "<a>": size}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<a>"]}))
    found = load_tokenizer(TokenizerSection(path=folder, eos_tokens=("<a>",), pad_token="<b>"))
    assert found.encode("<b><a>") == [size + 1, size]
    assert found.decode([size + 1, size], skip_special_tokens=True) == "<b>", "which is not called special"
    (folder / "added_tokens.json").write_text(json.dumps({"<a>": 5}))
    with pytest.raises(TokenizerError, match="added_tokens.json gives '<a>' the id 5, but tokenizer.model gives"):
        load_tokenizer(TokenizerSection(path=folder, eos_tokens=("<a>",), pad_token="<a>"))


def test_user_defined_symbols_are_single_ids(tmp_path: Path):
    (tmp_path / "m.model").write_bytes(train("bpe", user_defined_symbols=["<|im_start|>", "<|im_end|>"]))
    tokenizer = load_tokenizer(TokenizerSection(path=tmp_path, eos_tokens=("<|im_end|>",), pad_token="<unk>"))
    assert tokenizer.encode("<|im_start|><|im_end|>") == [3, 4]


def test_unreadable_models(tmp_path: Path, model: bytes):
    section = TokenizerSection(path=tmp_path, eos_tokens=("</s>",), pad_token="<unk>")
    (tmp_path / "a.model").write_bytes(b"junk")
    with pytest.raises(TokenizerError, match="a.model: not a sentencepiece model"):
        load_tokenizer(section)
    (tmp_path / "b.model").write_bytes(model)
    with pytest.raises(TokenizerError, match="2 sentencepiece models"):
        load_tokenizer(section)


def test_a_piece_that_is_too_long_for_the_library_is_refused(folder: Path, model: bytes):
    """Versions before the lower bound end the process by SIGSEGV."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.pieces[-1].piece = "a" * 200_000
    (folder / "tokenizer.model").write_bytes(proto.SerializeToString())
    with pytest.raises(TokenizerError, match="tokenizer.model: not a sentencepiece model .*piece is too long"):
        load_tokenizer(TokenizerSection(path=folder, eos_tokens=("</s>",), pad_token="<unk>"))
