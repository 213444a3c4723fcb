"""Moonlight's tokenizer, from the ranks of tiktoken.model."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.backends import load_here, splitting_into_bytes
from mindgspo.tokenization.files import read_files
from mindgspo.tokenization.tiktoken_ranks import _LETTERS, PATTERN

DOCS = Path(__file__).resolve().parents[3] / "docs"
CODE = "tokenization_moonshot.TikTokenTokenizer"
BYTES = [bytes([byte]) for byte in range(256)]


def write(folder: Path, tokens: list[bytes], named: dict[int, str] | None = None, code: object = (CODE, None)) -> Path:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("".join(lines))
    added = {str(number): {"content": text, "special": True} for number, text in (named or {}).items()}
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": code},
        "added_tokens_decoder": added,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_ids_by_hand(tmp_path: Path) -> None:
    # 256: "ab", 257: "bc", 258: "abcd", which no two tokens make, 259: "12", 260: "123", 261: a Han of three bytes.
    han = "\u4eba".encode()
    tokens = [*BYTES, b"ab", b"bc", b"abcd", b"12", b"123", han[:2], han]
    named = {263: "[BOS]", 266: "<|im_end|>"}
    backend = load_here(read_files(write(tmp_path, tokens, named)))
    assert backend.encode("abc") == [256, ord("c")], "the lower rank goes first"
    assert backend.encode("abcd") == [258], "a whole word is one token, whatever merges"
    assert backend.encode("1234") == [260, ord("4")], "three digits"
    assert backend.encode("\u4ebaab") == [262, 256], "Han stands alone"
    assert backend.encode("[BOS]ab<|im_end|>") == [263, 256, 266]
    assert backend.num_ids == 267 and backend.id_of("<|reserved_token_265|>") == 265
    assert backend.encode("ab<|im_end|>", [(0, 12)])[:2] == [256, ord("<")], "written by a user, no special token"
    assert backend.decode([263, 262, 256, 266], skip_special_tokens=True) == "\u4ebaab"


def test_ids_are_those_of_tiktoken(tmp_path: Path) -> None:
    """On a vocabulary learnt from the pages in both languages: every line of them, and random text."""
    tiktoken = pytest.importorskip("tiktoken")
    pages = [path.read_text() for path in sorted(DOCS.glob("*.md"))]
    learnt = tokenizers.Tokenizer(models.BPE())
    learnt.pre_tokenizer = splitting_into_bytes(PATTERN)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learnt.train_from_iterator(
        pages, trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    )
    of_letter = {letter: byte for byte, letter in _LETTERS.items()}
    by_id = sorted(learnt.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(of_letter[letter] for letter in text) for text, _ in by_id]
    backend = load_here(read_files(write(tmp_path, tokens)))
    theirs = tiktoken.Encoding(
        name="moonlight", pat_str=PATTERN, mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens={},
    )  # fmt: skip
    draw = random.Random(7)
    letters = (
        "aAbBzZ\u00e9\u00c9\u01c5\u4eba\u5de5\u667a\u80fd\u3002\uff0c\u3042\uac00\u0301\u0967\u00b2"
        " \u00a0\u3000\t\n\r'stdm1234567890_-*#{}\U0001f600"
    )
    drawn = ["".join(draw.choices(letters, k=draw.randrange(1, 40))) for _ in range(5_000)]
    texts = [*(line for page in pages for line in page.split("\n")), *pages[:4], *drawn]
    for text in texts:
        assert backend.encode(text) == theirs.encode_ordinary(text), repr(text)
    assert len(texts) > 15_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": ["tokenization_other.TikTokenTokenizer", None]}, "how texts are cut .*_other.*tokenizer.json"),
        ({"tokens": BYTES[:255]}, "tiktoken.model: not every byte has a rank"),
        ({"tokens": [*BYTES, b"a"]}, "tiktoken.model:257: expected a new token"),
        ({"tokens": [*BYTES, b"a" * 513]}, "tiktoken.model:257: expected a new token of up to 512 bytes"),
        ({"tokens": BYTES, "named": {10**12: "[BOS]"}}, "far beyond tiktoken.model's 256 ids"),
        ({"tokens": BYTES, "named": {7: "[BOS]"}}, "gives '.BOS.' the id 7, but"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_here(read_files(write(tmp_path, **{"tokens": BYTES} | change)))


def test_a_line_that_is_none(tmp_path: Path) -> None:
    write(tmp_path, BYTES)
    with open(tmp_path / "tiktoken.model", "a") as file:
        file.write("YWI= 257\n")
    with pytest.raises(TokenizerError, match="tiktoken.model:257: expected .* the rank 256, got b'YWI= 257'"):
        load_here(read_files(tmp_path))
