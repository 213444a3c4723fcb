"""Sentencepiece models, trained here on a few lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import sentencepiece

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.tokenization import Tokenizer, load_tokenizer

CORPUS = [
    "Tom has 3 apples and 4 pears.",
    "How many does Tom have now?",
    "the quick brown fox jumps over the lazy dog 0123456789",
]


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
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Tom has"


def test_the_blank_in_front_stands_only_at_the_start_of_the_text(tokenizer: Tokenizer, model: bytes):
    own = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [own.id_to_piece(i) for i in tokenizer.encode("Tom<s>Tom<s> Tom")]
    assert "".join(pieces) == "\u2581Tom<s>Tom<s>Tom"  # the model strips extra blanks: the last one is lost
    assert tokenizer.decode([1, *own.encode("Tom")]) == "<s> Tom"


def test_added_tokens_of_the_configuration(folder: Path, tokenizer: Tokenizer):
    size = tokenizer.vocab_size
    table = {
        str(size): {"content": "<|im_start|>", "special": True},
        str(size + 1): {"content": "<|im_end|>", "special": True},
        "1": {"content": "<s>", "special": True},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table}))
    chat = load_tokenizer(TokenizerSection(path=folder, eos_tokens=("<|im_end|>",), pad_token="</s>"))
    assert (chat.vocab_size, chat.eos_ids) == (size + 2, (size + 1,))
    text = "<|im_start|>Tom has 3<|im_end|>"
    ids = chat.encode(text)
    assert (ids[0], ids[-1]) == (size, size + 1)
    assert chat.decode(ids) == text
    assert chat.decode(ids, skip_special_tokens=True).strip() == "Tom has 3"


def test_an_id_that_contradicts_the_model_is_refused(folder: Path):
    table = {"5": {"content": "<|im_end|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table}))
    with pytest.raises(TokenizerError, match=r"gives '<\|im_end\|>' the id 5, but tokenizer.model gives that id to"):
        load_tokenizer(TokenizerSection(path=folder, eos_tokens=("</s>",), pad_token="<unk>"))


def test_ids_without_a_piece_give_no_text(tokenizer: Tokenizer):
    ids = tokenizer.encode("Tom has")
    assert tokenizer.decode([*ids, 5000]) == "Tom has"


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


def test_unknown_token_name(folder: Path):
    with pytest.raises(TokenizerError, match=r"has no token '<\|im_end\|>'"):
        load_tokenizer(TokenizerSection(path=folder, pad_token="<unk>"))
