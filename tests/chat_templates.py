"""Tokenizers with the chat templates of published models, where their files are to be had."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from mindgspo.config.data import TokenizerSection

QWEN = Path(__file__).resolve().parents[2] / "shared" / "data" / "qwen2.5-tokenizer"
SMOLLM2 = Path("/tmp/smo/model")
TRL = importlib.util.find_spec("trl")
LLAMA_TOKENS = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>")
TURN_ENDS = {"llama3": "<|eot_id|>", "llama3_1": "<|eot_id|>", "llama3_2": "<|eot_id|>"}


def chat_tokenizer(name: str, folder: Path) -> TokenizerSection:
    """Qwen2.5's tokenizer with one of the templates that trl has ("qwen3 without thoughts" are two words of one) and
    the tokens of Llama 3's, written to `folder`; or SmolLM2's as it is. Skips the test where files are absent."""
    if name == "smollm2":
        if not SMOLLM2.is_dir():
            pytest.skip(f"{SMOLLM2} is absent: the tokenizer of SmolLM2")
        return TokenizerSection(path=SMOLLM2, eos_tokens=("<|im_end|>",), pad_token="<|im_end|>")
    if not QWEN.is_dir():
        pytest.skip(f"{QWEN} is absent: the Qwen2.5 tokenizer lies beside the project")
    if TRL is None or TRL.origin is None:
        pytest.skip("needs the chat templates of trl (the extra `trl`)")
    name, _, thoughts = name.partition(" without ")
    source = (Path(TRL.origin).parent / "chat_templates" / f"{name}.jinja").read_text()
    shutil.copytree(QWEN, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text("{% set enable_thinking = false %}" * bool(thoughts) + source)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    first = max(map(int, config["added_tokens_decoder"])) + 1
    added = {str(first + i): {"content": text, "special": True} for i, text in enumerate(LLAMA_TOKENS)}
    config["added_tokens_decoder"] |= added
    config["bos_token"] = "<|begin_of_text|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    eos = (TURN_ENDS.get(name, "<|im_end|>"), "<|endoftext|>")
    return TokenizerSection(path=folder, eos_tokens=eos, pad_token="<|endoftext|>")
