"""The built-in tokenizer of the arithmetic task: a byte-level BPE of a few hundred ids in Qwen2's form.

What leaves: the three files that Qwen2's form consists of, made in memory. Built by hand instead of trained,
so that it is the same everywhere: 256 bytes, then merges that spell each word of the task from its first
letter on, then the special tokens. Every such word is one token together with the blank in front of it;
digits stay single; all other text falls back to bytes.
"""

from __future__ import annotations

import json

from tokenizers import pre_tokenizers

from mindgspo.tokenization.files import CONFIG, MERGES, VOCAB, TokenizerFiles

ORIGIN = "the built-in arithmetic tokenizer"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BLANK = "\u0120"  # how byte-level BPE writes the space

WORDS_AFTER_BLANK = (
    *("has", "had", "and", "buys", "gets", "sold", "lost", "more", "today", "before"),
    *("How", "many", "now", "in", "all", "are", "left"),
    *("apples", "pens", "coins", "cards", "books", "eggs", "shells", "stamps"),
)
WORDS_AT_START = ("Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Zoe", "user", "assistant")

# ChatML without a default system prompt: short prompts keep the quickstart fast.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def arithmetic_files() -> TokenizerFiles:
    """vocab.json, merges.txt and tokenizer_config.json as transformers' Qwen2Tokenizer reads them."""
    merges = _merges()
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    assert len(set(tokens)) == len(tokens), "a merge makes a token that exists already"
    vocab = {token: i for i, token in enumerate(tokens)}
    lines = [f"{left} {right}" for left, right in merges]
    contents = {
        VOCAB: json.dumps(vocab, ensure_ascii=False, indent=0).encode(),
        MERGES: ("#version: 0.2\n" + "\n".join(lines) + "\n").encode(),
        CONFIG: json.dumps(_config(first_special_id=len(tokens)), indent=2).encode(),
    }
    return TokenizerFiles(origin=ORIGIN, contents=contents)


def _merges() -> list[tuple[str, str]]:
    """Letter by letter from the front. Words with a blank come first, so their merges outrank the rest."""
    merges: dict[tuple[str, str], None] = {}
    for word in [BLANK + word for word in WORDS_AFTER_BLANK] + list(WORDS_AT_START):
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
    merges["#", "#"] = None
    merges["##", "##"] = None
    return list(merges)


def _config(first_special_id: int) -> dict[str, object]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "added_tokens_decoder": {
            str(first_special_id + i): {"content": token, **flags} for i, token in enumerate(SPECIAL_TOKENS)
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
