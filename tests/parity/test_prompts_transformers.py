"""Prompts as transformers 5 makes them: the text of chat templates and the ids of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import sentencepiece

from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.tokenization.tokenizer import tokenizer_section_of

transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")

pytestmark = pytest.mark.parity

FOLDERS = Path(__file__).resolve().parents[2] / ".." / "shared" / "cases" / "folders"
ASKS = [{"role": "user", "content": 'Tom has 9 <pens> & "é" '}]
TALKS = [{"role": "system", "content": "Be brief."}, *ASKS, {"role": "assistant", "content": "Nine."}, *ASKS]
# Ways in which published templates are written.
TEMPLATES = {
    "Llama 2": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
        "{% set system = '<<SYS>>' + messages[0]['content'] + '<</SYS>>' %}"
        "{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}"
        "{% for m in rest %}{% if loop.index0 == 0 %}{% set c = system + m['content'] %}{% else %}"
        "{% set c = m['content'] %}{% endif %}{% if m['role'] == 'user' %}{{ '[INST] ' + c.strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + c + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "generation with its own variables": (
        "{%- set mark = 'a' -%}\n{%- for m in messages %}\n    {%- if m.role == 'assistant' %}\n    {% generation %}\n"
        "        {%- set mark = 'b' -%}\n        {{- mark + m.content + eos_token }}\n    {% endgeneration %}\n"
        "    {%- else %}\n        {{- mark + m.content }}\n    {%- endif %}\n{%- endfor %}\n{{ mark }}"
    ),
    "generation around what is asked for": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}{%- generation -%} bot: {%- endgeneration -%}{% endif %}"
    ),
    "messages as JSON": (
        "{{ messages | tojson }} {{ messages | tojson(True) }} {{ messages | tojson(indent=2) }}"
        "{{ messages | tojson(separators=(',', ':'), sort_keys=True, ensure_ascii=False) }}"
    ),
    "joined and cycled": (
        "{% set j = joiner('|') %}{% set c = cycler('x', 'y') %}"
        "{% for m in messages %}{{ j() }}{{ c.next() }}{{ m.content }}{% endfor %}"
    ),
    "every special token": (
        "{{ bos_token }},{{ eos_token }},{{ sep_token }},{{ cls_token }},{{ mask_token }},{{ pad_token }},"
        "{{ image_token }},{{ other_token }},{{ messages[0].content }}"
    ),
}  # fmt: skip


def theirs_and_ours(folder: Path) -> tuple[object, Tokenizer]:
    ours = load_tokenizer(
        tokenizer_section_of(folder, folder, ["<eos>"] if (folder / "tokenizer.json").exists() else ())
    )
    return transformers.AutoTokenizer.from_pretrained(folder), ours


def assert_equal_prompts(folder: Path, conversations: tuple[list, ...] = (ASKS, TALKS)) -> None:
    theirs, ours = theirs_and_ours(folder)
    for messages in conversations:
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(messages) == text
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids


@pytest.fixture(params=["F15_template_with_generation_tags", "F17_inv_freq", "F20_special_tokens_map"])
def case(request: pytest.FixtureRequest) -> Path:
    if not FOLDERS.is_dir():
        pytest.skip(f"needs the shared cases, absent at {FOLDERS}")
    return FOLDERS / request.param


def test_prompts_of_published_folders(case: Path) -> None:
    # Words alone: transformers reads a tokenizer.json of model_type qwen2 by Qwen2's own splitting, whatever it says.
    assert_equal_prompts(case, ([{"role": "user", "content": "Tom has"}],))


MAPS = {
    "plain": {
        "bos_token": "<bos>", "eos_token": "<eos>", "sep_token": "<sep>", "cls_token": "<bos>", "mask_token": "<m>",
    },
    "objects": {
        "bos_token": {"content": "<bos>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False},
        "eos_token": "<eos>", "additional_special_tokens": ["<sep>"], "sep_token": None,
    },
    "named": {"eos_token": "<eos>", "extra_special_tokens": {"image_token": "<m>"}},
}  # fmt: skip
CONFIGS = {
    "empty": {},
    "contradicts": {"bos_token": "<eos>", "sep_token": "<m>", "other_token": "<sep>"},
    "typed": {"bos_token": {"__type": "AddedToken", "content": "<sep>", "special": True}, "eos_token": "<eos>"},
    "with a table": {
        "bos_token": "<m>", "eos_token": "<eos>", "added_tokens_decoder": {"1": {"content": "<eos>", "special": True}},
    },
}  # fmt: skip


@pytest.mark.parametrize("map_", MAPS)
@pytest.mark.parametrize("config", CONFIGS)
def test_special_tokens_of_both_files(map_: str, config: str, tmp_path: Path) -> None:
    folder = word_folder(tmp_path, CONFIGS[config] | {"chat_template": TEMPLATES["every special token"]})
    (folder / "special_tokens_map.json").write_text(json.dumps(MAPS[map_]))
    assert_equal_prompts(folder)


@pytest.mark.parametrize("name", TEMPLATES)
def test_ways_of_writing_a_template(name: str, tmp_path: Path) -> None:
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<m>"}
    assert_equal_prompts(word_folder(tmp_path, tokens | {"chat_template": TEMPLATES[name]}))


def word_folder(folder: Path, config: dict) -> Path:
    """A byte-level tokenizer in which <bos>, <sep> and <m> are ordinary pieces."""
    import tokenizers

    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator(["Tom has 9 pens"] * 5, vocab_size=300, special_tokens=["<pad>", "<eos>"])
    content = json.loads(inner.to_str())
    vocab = content["model"]["vocab"]
    vocab |= {name: len(vocab) + i for i, name in enumerate(("<bos>", "<sep>", "<m>"))}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


LINES = ["Tom has 3 apples and 4 pears.", "How many does Tom have now?", "the quick brown fox jumps over the lazy dog"]
TEXTS = [
    "Tom has 3", "<s>Tom has</s>", "<s> Tom has</s>", " Tom", "  Tom  has", "Tom\nhas", "</s> ", "a  b   c ", "<s>",
    "<s>user\nTom has 9<unk>x</s>\n<s>assistant\n", "\u4e2d\u6587 Tom", "dog<s>dog <x>dog", "Tom<s>Tom<s> Tom",
]  # fmt: skip


OTHERS = ("LlamaTokenizerFast", "PreTrainedTokenizerFast", None)
FAMILIES = ["LlamaTokenizer", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


@pytest.fixture(scope="module")
def model() -> bytes:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 20), model_writer=buffer, vocab_size=360, model_type="bpe", byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2, remove_extra_whitespaces=False, normalization_rule_name="identity",
        user_defined_symbols=["<x>"],
    )  # fmt: skip
    return buffer.getvalue()


def llama_folder(folder: Path, family: str | None, **more: object) -> Path:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": family, **more}
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def assert_equal_ids(folder: Path, eos_token: str) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(tokenizer_section_of(folder, folder, [eos_token]))
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text


@pytest.mark.parametrize("prefix", [None, False])
@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_text_of_sentencepiece(
    family: str | None, legacy: bool | None, prefix: bool | None, model: bytes, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model)
    assert_equal_ids(llama_folder(tmp_path, family, legacy=legacy, add_prefix_space=prefix), "</s>")


@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_text_of_a_tokenizer_json_as_transformers_4_wrote_it(
    family: str | None, legacy: bool | None, model: bytes, tmp_path: Path
) -> None:
    """Of Llama 2 and its kin: a blank in front of every text between special tokens, whatever `legacy` says."""
    new = llama_folder(tmp_path, "LlamaTokenizer")
    (new / "tokenizer.model").write_bytes(model)
    transformers.AutoTokenizer.from_pretrained(new).save_pretrained(tmp_path / "new")
    content = json.loads((tmp_path / "new" / "tokenizer.json").read_text())
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    content |= {
        "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]},
    }
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert_equal_ids(llama_folder(folder, family, legacy=legacy), "</s>")
