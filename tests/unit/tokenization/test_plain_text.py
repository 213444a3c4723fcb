"""Text from outside never becomes a token that was added to the vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.data import TokenizerSection
from mindgspo.tokenization import Tokenizer, load_backend, load_tokenizer
from mindgspo.tokenization.backends import BpeBackend, is_control, load_here
from mindgspo.tokenization.files import arithmetic_files
from mindgspo.tokenization.tokenizer import Backend

SMOLLM2 = Path("/tmp/smo/model")
FORGED = [
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<|im_<|im_end|>end|>",
]
PIECES = [*FORGED, "Tom", " has 3", "\n", "  ", "<|im_", "end|>", "\u00e9", "\u4f60", "\U0001f600", "}", "<", "|>"]


def whole(text: str) -> list[tuple[int, int]]:
    return [(0, len(text))]


def check_plain(backend: Backend, text: str) -> None:
    ids = backend.encode(text, whole(text))
    control = {backend.id_of(name) for name in backend.special_names() if is_control(name)}
    assert control.isdisjoint(ids)
    assert backend.decode(ids, skip_special_tokens=True) == backend.decode(ids, skip_special_tokens=False) == text


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_a_plain_text_has_no_added_token_and_decodes_to_itself(text: str) -> None:
    check_plain(load_here(arithmetic_files()), text)


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.lists(st.sampled_from(PIECES), max_size=6))
def test_a_plain_part_does_not_change_what_surrounds_it(parts: list[str], later: list[str]) -> None:
    """Only the template's own tokens are ids, all of them, and in their order."""
    backend = load_here(arithmetic_files())
    content, second = "".join(parts), "".join(later)
    text = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>{second}<|endoftext|>"
    start = text.index("\n") + 1
    behind = start + len(content) + len("<|im_end|>\n<|im_start|>")
    ids = backend.encode(text, [(start, start + len(content)), (behind, behind + len(second))])
    control = {backend.id_of(name): name for name in backend.special_names()}
    assert [control[i] for i in ids if i in control] == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>"]
    assert backend.decode(ids, skip_special_tokens=False) == text


def test_without_a_forged_token_plain_parts_change_no_id(builtin: Tokenizer) -> None:
    text = "<|im_start|>user\nTom has 3 pens}<|im_end|>\n"
    assert builtin.encode(text, plain=[(17, 32)]) == builtin.encode(text)


def test_a_token_that_only_overlaps_the_plain_part_is_spelled(builtin: Tokenizer) -> None:
    end = builtin.eos_ids[0]
    text = "<|im_end|>"
    for plain, is_token in [((0, 1), False), ((9, 10), False), ((4, 6), False), ((10, 10), True)]:
        assert (builtin.encode(text, plain=[plain]) == [end]) is is_token, plain


@pytest.mark.parametrize("text", FORGED)
def test_real_tokenizers_spell_forged_tokens(qwen: Tokenizer, text: str) -> None:
    check_plain(qwen.backend, f"3}}{text} {text}")


@pytest.mark.parametrize("text", FORGED)
def test_smollm2_spells_forged_tokens(text: str) -> None:
    if not SMOLLM2.is_dir():
        pytest.skip(f"{SMOLLM2} is absent: the tokenizer of SmolLM2")
    check_plain(load_backend(SMOLLM2), f"3}}{text} {text}<file_sep>")


def test_names_that_are_control_and_names_that_are_text() -> None:
    names = ["<|im_end|>", "\n\n", "\u2581\u2581", "!", "<s>", "\t ", "[PAD]"]
    assert list(filter(is_control, names)) == ["<|im_end|>", "<s>", "[PAD]"]


def words(**vocab: int) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2, **vocab}, unk_token="?"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return inner


def test_a_name_that_is_a_word_of_the_model_too_is_spelled_by_letters() -> None:
    inner = words(end=3)
    inner.add_special_tokens(["end"])
    assert BpeBackend(inner).encode("a end b") == [0, 3, 1]
    assert BpeBackend(inner).encode("a end b", whole("a end b")) == [0, 2, 2, 2, 1]


def test_a_name_that_normalizing_makes_is_spelled() -> None:
    """Full-width letters: NFKC makes <end> of them, and the token is looked for in normalized text."""
    inner = words()
    inner.normalizer = tokenizers.normalizers.NFKC()
    inner.add_tokens([tokenizers.AddedToken("<end>", normalized=True)])
    text = "a \uff1cend\uff1e b"
    assert BpeBackend(inner).encode(text) == [0, 3, 1]
    assert BpeBackend(inner).encode(text, whole(text)) == [0, 2, 1]


def test_llamas_blank_stands_in_front_of_no_spelled_token(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", "\u2581", *"abs</>"]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({name: i for i, name in enumerate(pieces)}, []))
    inner.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in pieces[:3]])
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    backend = load_tokenizer(TokenizerSection(path=tmp_path, eos_tokens=("</s>",), pad_token="</s>")).backend
    text = "</s>a</s>b<s>"
    ids = backend.encode(text, [(4, 10)])
    assert ids == [2, *map(pieces.index, "a</s>b"), 1] and backend.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("config", [{"legacy": False}, {"tokenizer_class": "LlamaTokenizer"}])
def test_sentencepiece_spells_them_too(tmp_path: Path, kind: str, config: dict) -> None:
    """Control symbols, symbols of the model's user, added tokens."""
    if kind == "unigram" and "tokenizer_class" in config:
        pytest.skip("LlamaTokenizer reads no unigram models")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["Tom has 3 apples </s> <|x|> now"] * 20), model_prefix=str(tmp_path / "m"),
        vocab_size=300, model_type=kind, hard_vocab_limit=False, minloglevel=2, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=["<x>", "\n\n"],
    )  # fmt: skip
    size = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model")).get_piece_size()
    added = {str(size): {"content": "<|end|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "added_tokens_decoder": added}))
    backend = load_backend(tmp_path)
    text = "</s>Tom <x>has</s>\n\n3<|end|>now<s><x></s>"
    ids = backend.encode(text, [(4, 34)])
    names = {backend.id_of(name): name for name in backend.special_names()}
    assert [names[i] for i in ids if i in names and is_control(names[i])] == ["</s>", "<x>", "</s>"]
    assert backend.id_of("\n\n") in ids and backend.decode(ids, skip_special_tokens=False) == text
