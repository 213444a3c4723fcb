"""The built-in tokenizer: small, the same everywhere, one token per word of the task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.tokenization.files import WORDS_AFTER_BLANK, WORDS_AT_START


def test_size_special_ids_and_one_token_per_word_and_digit(builtin: Tokenizer):
    assert (builtin.vocab_size, builtin.eos_ids, builtin.pad_id) == (379, (378, 376), 376)
    assert builtin.encode("<|endoftext|><|im_start|><|im_end|>") == [376, 377, 378]
    for word in (*(f" {word}" for word in WORDS_AFTER_BLANK), *WORDS_AT_START, "####"):
        assert len(builtin.encode(word)) == 1, word
    assert [builtin.decode([i]) for i in builtin.encode("47+138=185")] == list("47+138=185")


def test_chat_has_no_system_prompt_of_its_own(builtin: Tokenizer):
    text = builtin.render_chat([{"role": "user", "content": "Tom has 4 pens."}])
    assert text == "<|im_start|>user\nTom has 4 pens.<|im_end|>\n<|im_start|>assistant\n"
    spoken = builtin.render_chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], add_generation_prompt=False
    )
    assert spoken == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"


@given(st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Z", "Cc"])))
def test_round_trip_of_any_text_but_for_nfc(text: str):
    import unicodedata

    tokenizer = load_tokenizer(TokenizerSection())
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_fingerprint_is_the_same_in_another_process_which_does_not_import_mindspore(builtin: Tokenizer):
    code = (
        "import sys, mindgspo.data; from mindgspo.config.schema import TokenizerSection; from mindgspo.tokenization "
        "import load_tokenizer as load; print(load(TokenizerSection()).fingerprint, 'mindspore' in sys.modules)"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert run.stdout.split() == [builtin.fingerprint, "False"], run.stderr


def test_fingerprint_changes_with_the_eos_choice_and_the_files(builtin: Tokenizer, edit_config):
    fingerprints = {builtin.fingerprint, load_tokenizer(TokenizerSection(eos_tokens=("<|im_end|>",))).fingerprint,
                    load_tokenizer(TokenizerSection(pad_token="<|im_start|>")).fingerprint,
                    load_tokenizer(TokenizerSection(path=edit_config(chat_template="other"))).fingerprint}  # fmt: skip
    assert len(fingerprints) == 4


def test_a_saved_tokenizer_is_the_same_one(builtin: Tokenizer, tmp_path: Path):
    builtin.save(tmp_path / "export")
    again = load_tokenizer(TokenizerSection(path=tmp_path / "export"))
    assert again.fingerprint == builtin.fingerprint
    names = sorted(path.name for path in (tmp_path / "export").iterdir())
    assert names == ["merges.txt", "tokenizer_config.json", "vocab.json"]


def test_a_model_with_too_few_rows_is_refused():
    load_tokenizer(TokenizerSection(), vocab_size=379)
    with pytest.raises(TokenizerError, match="model.vocab_size = 378 .* set it to 379 or more"):
        load_tokenizer(TokenizerSection(), vocab_size=378)


@pytest.mark.parity
def test_transformers_loads_the_export(builtin: Tokenizer, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    builtin.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Tom has 47 apples and buys 38 more. How many now?"}]
    text = builtin.render_chat(messages)
    assert theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text
    for sample in (text, "7+8=15\n4+3+1=8\n#### 85<|im_end|>", "naïve 数学 🙂"):
        ids = builtin.encode(sample)
        assert theirs.encode(sample, add_special_tokens=False) == ids
        assert theirs.decode(ids) == builtin.decode(ids)
        assert theirs.decode(ids, skip_special_tokens=True) == builtin.decode(ids, skip_special_tokens=True)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (builtin.eos_ids[0], builtin.pad_id)


def test_the_splitting_pattern_keeps_digits_apart_even_where_a_merge_would_join_them(edit_config):
    table = {"377": {"content": "<|im_end|>", "special": True}, "378": {"content": "<|endoftext|>", "special": True}}
    folder = edit_config(added_tokens_decoder=table)
    vocab = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({**vocab, "12": 376}))
    with (folder / "merges.txt").open("a") as merges:
        merges.write("1 2\n")
    tokenizer = load_tokenizer(TokenizerSection(path=folder))
    assert tokenizer.encode("12") == [vocab["1"], vocab["2"]]
