"""A user's mistakes with tokenizer files, each with a message that names the file and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.tokenization import load_tokenizer


def load(folder: Path, **fields: object):
    return load_tokenizer(TokenizerSection(path=folder, **fields))


def test_folders_without_a_tokenizer(tmp_path: Path, small_folder: Path):
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (tmp_path / "nowhere", r"tokenizer.path: .*nowhere: no such folder"),
        (small_folder / "vocab.json", "is a file; name the folder"),
        (tmp_path / "empty", r"holds no tokenizer; expected vocab.json \+ merges.txt, or tokenizer.json"),
    ):
        with pytest.raises(TokenizerError, match=message):
            load(folder)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_missing_file(small_folder: Path, name: str):
    (small_folder / name).unlink()
    with pytest.raises(TokenizerError, match=f"small/{name}: missing"):
        load(small_folder)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("vocab.json", b"{", "vocab.json: not JSON"),
    ("vocab.json", b"[1]", "vocab.json: expected a JSON object, got list"),
    ("vocab.json", b'{"a": "b"}', "vocab.json: expected an object of token -> id"),
    ("vocab.json", b'{"a": 1, "b": 1, "c": 2}', "vocab.json: 1 tokens share an id"),
    ("vocab.json", b'{"a": true}', "vocab.json: expected an object of token -> id"),
    ("vocab.json", b"\xff\xfe", "vocab.json: not UTF-8 text .* `iconv -f UTF-16 -t UTF-8`"),
    ("vocab.json", b'{"a": 1, "b": 2, "a": 3}', "vocab.json: 'a' is given twice, as 1 and as 3"),
    ("tokenizer_config.json", b'{"eos_token": "a", "eos_token": "b"}', "'eos_token' is given twice"),
    ("merges.txt", b"#version: 0.2\na b\nabc\n", "merges.txt:3: expected two tokens and one space, got 'abc'"),
    ("merges.txt", b"q z\n", "merges.txt: does not fit vocab.json"),
    ("tokenizer_config.json", b"null", "tokenizer_config.json: expected a JSON object"),
    ("tokenizer.json", b"{}", "tokenizer.json: not a tokenizer file"),
    ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", "tokenizer.json: a Git LFS pointer"),
    ("tokenizer.json", b"\x00\xff", "tokenizer.json: not UTF-8 text"),
])  # fmt: skip
def test_malformed_file(small_folder: Path, name: str, content: bytes, message: str):
    (small_folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        load(small_folder)


def test_another_familys_vocabulary_is_refused(edit_config):
    with pytest.raises(TokenizerError, match="tokenizer_class is 'GPT2Tokenizer'.* add its tokenizer.json"):
        load(edit_config(tokenizer_class="GPT2Tokenizer"))


@pytest.mark.parametrize(("table", "message"), [
    ([], "expected an object of id -> token, got list"),
    ({"x": {"content": "a"}}, "the key 'x' is not a token id"),
    ({"376": "a"}, "expected an object with a non-empty text 'content'"),
    ({"376": {"content": ""}}, "expected an object with a non-empty text 'content'"),
    ({"376": {"content": "<a>", "special": "yes"}}, "376.special: expected true or false"),
    ({"400": {"content": "<a>"}}, "gives '<a>' the id 400, but the vocabulary beside it gives it 376"),
])  # fmt: skip
def test_bad_added_tokens(edit_config, table: object, message: str):
    with pytest.raises(TokenizerError, match=message):
        load(edit_config(added_tokens_decoder=table))


def test_unknown_tokens_name_the_key_and_the_nearest_or_what_there_is(small_folder: Path):
    nearest = r"tokenizer.eos_tokens\[1\]: .*no token '<\|imend\|>'; did you mean '<\|im_end\|>'"
    with pytest.raises(TokenizerError, match=nearest):
        load(small_folder, eos_tokens=("<|endoftext|>", "<|imend|>"))
    with pytest.raises(TokenizerError, match=r"tokenizer.pad_token: .*'zzz'; its special tokens are <\|endoftext\|>, "):
        load(small_folder, pad_token="zzz")
