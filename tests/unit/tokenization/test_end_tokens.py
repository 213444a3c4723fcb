"""Which tokens end a response, by the files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.errors import TokenizerError
from mindgspo.tokenization.tokenizer import tokenizer_section_of

END_OF_TEXT, TURN_END = "<|endoftext|>", "<|im_end|>"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def says(folder: Path, name: str, **fields: object) -> None:
    (folder / name).write_text(json.dumps(fields))


def test_all_that_the_files_name_ends_a_response(model_dir: Path, edit_config, builtin) -> None:
    """A base model: its files name the end of text, its chat template ends a turn with another token."""
    assert tokenizer_section_of(model_dir, edit_config(eos_token=None)).eos_tokens == (TURN_END,), "by the template"
    says(model_dir, "config.json", eos_token_id=builtin.backend.id_of(END_OF_TEXT))
    folder = edit_config(eos_token=END_OF_TEXT, pad_token=None)
    section = tokenizer_section_of(model_dir, folder)
    assert (section.eos_tokens, section.pad_token) == ((END_OF_TEXT, TURN_END), END_OF_TEXT)
    assert tokenizer_section_of(model_dir, folder, ["<|im_start|>"]).eos_tokens == ("<|im_start|>",), "named instead"
    says(model_dir, "generation_config.json", eos_token_id=[builtin.backend.id_of(TURN_END)])
    section = tokenizer_section_of(model_dir, edit_config(eos_token={"content": TURN_END}, pad_token=END_OF_TEXT))
    assert section.eos_tokens == (TURN_END,) and section.pad_token == END_OF_TEXT, "it goes before config.json"


def test_the_map_of_special_tokens_names_them_too(model_dir: Path, edit_config) -> None:
    folder = edit_config(eos_token=None, pad_token=None, chat_template=None, added_tokens_decoder=None)
    tokens = [END_OF_TEXT, "<|im_start|>", TURN_END]
    says(folder, "added_tokens.json", **{token: 376 + i for i, token in enumerate(tokens)})
    says(folder, "special_tokens_map.json", eos_token={"content": TURN_END, "lstrip": False}, pad_token=END_OF_TEXT)
    section = tokenizer_section_of(model_dir, folder)
    assert (section.eos_tokens, section.pad_token) == ((TURN_END,), END_OF_TEXT)


def test_what_names_no_token_of_the_tokenizer_is_refused(model_dir: Path, edit_config) -> None:
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        tokenizer_section_of(model_dir, model_dir)
    folder = edit_config(eos_token=None, chat_template="{{ messages[0].content }}")
    with pytest.raises(TokenizerError, match="--eos-token"):
        tokenizer_section_of(model_dir, folder)
    says(model_dir, "config.json", eos_token_id=151645)
    with pytest.raises(TokenizerError, match="151645 is no special token of the tokenizer .* --tokenizer"):
        tokenizer_section_of(model_dir, folder)


@pytest.mark.shared_data
def test_the_real_tokenizer_of_a_base_model(qwen_folder: Path) -> None:
    assert tokenizer_section_of(qwen_folder, qwen_folder).eos_tokens == (END_OF_TEXT, TURN_END)
