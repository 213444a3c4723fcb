"""Qwen2's form, compared with transformers on real and hand-picked texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config.data import TokenizerSection
from mindgspo.tokenization import Tokenizer, load_tokenizer

pytestmark = pytest.mark.shared_data
HAND_PICKED = [
    "",
    " ",
    "\n",
    "\r\n\r\n  \n x",
    "   three blanks   ",
    "\t\ttabs\n\n\nlines",
    "I'll don't WE'RE it's 'S 'LL",
    "1234567890 3.14 1,000 ½ ² ١٢٣ Ⅷ",
    "小明有47个苹果,又买了38个。现在一共有多少个?",
    "求所有满足 $x^2+y^2=1$ 的整数解。",
    "日本語 한국어 Ελληνικά русский العربية עברית हिन्दी ไทย",
    "emoji 🙂👍🏽👨‍👩‍👧‍👦🇨🇳 ok",
    "e\u0301 a\u030a \u212b \ufb01 composed and decomposed",
    "def f(x):\n    return {k: v**2 for k, v in x.items()}  # comment\n",
    "<html><body onload='x()'>&amp;</body></html>",
    "\\frac{4}{5} \\boxed{42} $AB = \\sqrt{2}$",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "before<|endoftext|>after <|im_end|> <tool_call>{}</tool_call><|fim_prefix|>x<|file_sep|>",
    "<|im_start <|im_start|",
    "zero\u200bwidth\u00a0nbsp\u3000ideographic\ufeffbom",
    "\x00\x01\x7f control",
    "word" * 200,
]


def _texts() -> list[str]:
    data = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
    gsm8k = [json.loads(line) for line in (data / "gsm8k" / "test.jsonl").read_text().split("\n")[:200]]
    dapo = [json.loads(line) for line in (data / "dapo-math-17k" / "dapo_math_512.jsonl").open()][:100]
    return [
        *HAND_PICKED,
        *(row["question"] + "\n" + row["answer"] for row in gsm8k),
        *(row["prompt"][0]["content"] for row in dapo),
    ]


@pytest.fixture(scope="module")
def theirs(qwen_folder: Path):
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(qwen_folder)


@pytest.mark.parity
def test_ids_and_text_equal_transformers(qwen: Tokenizer, theirs):
    for text in _texts():
        ids = qwen.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert qwen.decode(ids) == theirs.decode(ids), text
        assert qwen.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.parity
def test_chat_rendering_equals_transformers(qwen: Tokenizer, theirs):
    conversations = [[{"role": "user", "content": text}] for text in (*HAND_PICKED, "a system prompt comes by itself")]
    conversations += [
        [{"role": "system", "content": "简洁。"}, {"role": "user", "content": "2+2?"}],
        [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "and 3+3?"},
        ],
    ]
    for messages in conversations:
        for prompt in (True, False):
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert qwen.render_chat(messages, add_generation_prompt=prompt) == expected
        ids = theirs.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)["input_ids"]
        assert qwen.encode(qwen.render_chat(messages)) == ids


@pytest.mark.parity
def test_tokenizer_json_gives_the_same_ids(qwen: Tokenizer, theirs, tmp_path: Path):
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").unlink(missing_ok=True)
    (tmp_path / "merges.txt").unlink(missing_ok=True)
    assert (tmp_path / "tokenizer.json").is_file()
    from_json = load_tokenizer(TokenizerSection(path=tmp_path))
    assert (from_json.eos_ids, from_json.pad_id, from_json.vocab_size) == ((151645, 151643), 151643, 151665)
    for text in _texts():
        assert from_json.encode(text) == qwen.encode(text), text
    messages = [{"role": "user", "content": "hi"}]
    assert from_json.render_chat(messages) == qwen.render_chat(messages)


def test_known_ids_without_transformers(qwen: Tokenizer):
    assert (qwen.vocab_size, qwen.eos_ids, qwen.pad_id) == (151665, (151645, 151643), 151643)
    for text, ids in (("<|im_start|>", [151644]), ("12", [16, 17]), ("Hello world", [9707, 1879])):
        assert qwen.encode(text) == ids
    assert qwen.decode(np.int32([9707, 151935, 151664 + 1, 1879])) == "Hello world", "padding of the embeddings"
