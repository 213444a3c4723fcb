"""Tokenizers and templates that take years, all memory or the process: one message, and the next request is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from mindgspo.config.data import TokenizerSection
from mindgspo.errors import TokenizerError
from mindgspo.tokenization import load_backend, load_tokenizer
from mindgspo.tokenization.confined import ConfinedError, ConfinedTokenizer, confined
from mindgspo.tokenization.files import read_files

USER = {"messages": [{"role": "user", "content": "hello"}]}
LONG = "processor time"
LARGE = "too much memory|its process died"
EITHER = f"{LONG}|{LARGE}"
TEMPLATES = {
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": LONG,
    "{{ 'a' * 10**10 }}": LARGE,
    "{% break %}": "SyntaxError: 'break' outside loop",
    "".join(f"{{% for a{i} in range(1) %}}" for i in range(30)) + "{% endfor %}" * 30: "too many statically nested",
    "{{ '\\ud800' }}": "UnicodeEncodeError",
    "{{ namespace(1) }}": "TypeError",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}": "RecursionError",
}
MORE_TEMPLATES = {
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}": LONG,
    "{% set ns = namespace(x=3) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}": LONG,
    "{{ 'a'|center(10**10) }}": LARGE,
    "{{ '%010000000000d' % 1 }}": LARGE,
    "{{ '{:>10000000000}'.format(1) }}": LARGE,
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}": EITHER,
    "{{ ('a' * 1000)|replace('a', 'b' * 100000)|replace('b', 'c' * 1000) }}": EITHER,
    "{{ 'a' * 20000000 }}": "wrote 20,000,000 characters; at most 16,777,216 are taken",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}": "RecursionError",
}


@pytest.fixture(scope="module")
def child(builtin, tmp_path_factory: pytest.TempPathFactory) -> ConfinedTokenizer:
    """The built-in tokenizer as if it came from outside."""
    folder = tmp_path_factory.mktemp("outside")
    builtin.save(folder)
    return ConfinedTokenizer(read_files(folder), request_s=0.5, memory_bytes=1 << 30)


@pytest.mark.parametrize(("template", "said"), [
    *TEMPLATES.items(), *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE_TEMPLATES.items())
], ids=lambda value: value[:30])  # fmt: skip
def test_a_template_is_stopped_and_the_next_one_rendered(child, template: str, said: str) -> None:
    with pytest.raises(ConfinedError, match=said):
        child.ask("render", source=template, variables=USER)
    assert child.ask("render", source="{{ messages[0].content }}", variables=USER) == "hello"


def test_the_child_encodes_as_this_process_does(child, builtin) -> None:
    text = "Tom has 3 pens<|im_end|>\u4f60\u597d \ud83d"[:-1] + "\n"
    ids = builtin.encode(text)
    assert child.encode(text) == ids
    assert child.decode([*ids, 376], skip_special_tokens=True) == builtin.decode([*ids, 376], skip_special_tokens=True)
    assert (child.num_ids, child.special_names()) == (builtin.vocab_size, builtin.backend.special_names())
    assert [child.id_of(name) for name in ("7", "<|im_end|>", "none")] == [
        builtin.backend.id_of(name) for name in ("7", "<|im_end|>", "none")
    ]


def outside(folder: Path, **changes: object) -> Path:
    """A folder with the tokenizer.json of a few letters, with these changes."""
    vocab = {letter: i for i, letter in enumerate(" abcdefghijklmnopqrstuvwxyz!")}
    content = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[])).to_str())
    (folder / "tokenizer.json").write_text(json.dumps(content | changes))
    return folder


def split(pattern: str) -> dict[str, object]:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}}


DOUBLED = [{"type": "Replace", "pattern": {"String": "n"}, "content": "nn"}] * 60


@pytest.mark.parametrize(("changes", "said"), [
    (split("(?:[a-z ]|[a-z ])*$"), "retry-limit-in-match"),
    pytest.param(split("([a-z ]*)([a-z ]*)([a-z ]*)$"), "processor time", marks=pytest.mark.slow),
    pytest.param({"normalizer": {"type": "Sequence", "normalizers": DOUBLED}}, "its process died|processor time",
                 marks=pytest.mark.slow),
], ids=["at one place", "at every place", "a text that doubles"])  # fmt: skip
def test_a_tokenizer_is_stopped(tmp_path: Path, changes: dict, said: str) -> None:
    child = ConfinedTokenizer(read_files(outside(tmp_path, **changes)), request_s=2, memory_bytes=1 << 30)
    text = "one pen and another " * 18 + "!"  # 15 take a fast processor 2 s at every place; 20 are too many at one
    where = f"{tmp_path}: the tokenizer fails on a text of {len(text)} characters"
    with pytest.raises(TokenizerError, match=f"{where}: .*({said})"):
        child.encode(text)
    assert child.id_of("a") == 1


@pytest.mark.slow
def test_a_decoder_is_stopped(tmp_path: Path) -> None:
    changes = {"decoder": {"type": "Sequence", "decoders": DOUBLED}}
    child = ConfinedTokenizer(read_files(outside(tmp_path, **changes)), request_s=0.5, memory_bytes=1 << 30)
    with pytest.raises(TokenizerError, match="the tokenizer fails on 3 ids: "):
        child.decode([14, 15, 14], skip_special_tokens=False)


@pytest.mark.parametrize("changes", [
    split("("), {"model": {"type": "BPE", "vocab": {}, "merges": []}},
    {"model": {"type": "Unigram", "unk_id": 99, "vocab": [["a", 0.0]], "byte_fallback": False}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "//////////8="}},
])  # fmt: skip
def test_a_tokenizer_that_cannot_be_is_refused(tmp_path: Path, changes: dict) -> None:
    with pytest.raises(TokenizerError, match=str(tmp_path)):
        load_backend(outside(tmp_path, **changes)).encode("a b c")


@pytest.mark.parametrize("content", [b"", b"\x0a\xff\xff\xff\xff\x7f", bytes(1000), b"\x93" * 5000])
def test_a_sentencepiece_model_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=str(tmp_path)):
        load_backend(tmp_path)


def test_equal_files_share_a_child_and_the_built_in_ones_need_none(small_folder: Path, edit_config, builtin) -> None:
    assert type(load_tokenizer(TokenizerSection(path=small_folder)).backend) is type(builtin.backend)
    files = read_files(edit_config(chat_template="{{ messages[0].content }}"))
    assert confined(files) is confined(read_files(small_folder))
