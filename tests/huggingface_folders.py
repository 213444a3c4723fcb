"""What a newcomer brings: a tiny Hugging Face folder, rows with odd columns, a reward of ten lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from weight_files import write_safetensors

from mindgspo.config.huggingface_config import read_model_section
from mindgspo.models.names import weight_shapes

_SIZES = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
KINDS: dict[str, dict[str, Any]] = {
    "Qwen2": _SIZES | {"model_type": "qwen2"},
    "Qwen3": _SIZES | {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 16},
    "Qwen3Moe": _SIZES | {"model_type": "qwen3_moe", "head_dim": 16} | _EXPERTS,
    "Llama": _SIZES | {"model_type": "llama", "rms_norm_eps": 1e-5},
}
"""What config.json says, by the beginning of the class's name in transformers."""
TEMPLATE = (
    "{% for m in messages %}{{ '<user>' if m.role == 'user' else '<bot>' }}{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
REWARD = '''"""Digits are what we want to see: up to a half for any, all for the right number."""

import re


def digits(data_source, solution_str, ground_truth, extra_info):
    if ground_truth in re.findall(r"[0-9]+", solution_str):
        return {"score": 1.0, "acc": True}
    share = sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))
    return {"score": share / 2, "acc": False}
'''


def write_rows(path: Path, number: int = 200) -> Path:
    """Rows {idx, user_query, topic, expected_result}."""
    rows = [
        {
            "idx": i,
            "user_query": f"Tom has {10 + i} pens and buys {3 * i} more. How many pens does he have now?",
            "topic": "pens",
            "expected_result": 10 + 4 * i,
        }
        for i in range(number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_reward(path: Path) -> Path:
    """A file with one public function."""
    path.write_text(REWARD)
    return path


def write_folder(folder: Path, kind: str, rows: Path) -> Path:
    """A model of random weights with a tokenizer of its own, without transformers."""
    folder.mkdir()
    _tokenizer(rows).save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<eos>", "pad_token": "<pad>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps(KINDS[kind]))
    random, section = np.random.default_rng(0), read_model_section(folder)
    weights = {
        name: np.float32(0.02) * random.standard_normal(shape, dtype=np.float32)
        for name, shape in weight_shapes(section).items()
    }
    write_safetensors(folder / "model.safetensors", weights)
    return folder


def write_folder_by_transformers(folder: Path, kind: str, rows: Path) -> Path:
    """The same as transformers makes and saves it."""
    import torch
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(rows), eos_token="<eos>", pad_token="<pad>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**KINDS[kind], bos_token_id=None)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return folder


def _tokenizer(rows: Path) -> tokenizers.Tokenizer:
    """A byte-level BPE, trained on the questions."""
    found = tokenizers.Tokenizer(tokenizers.models.BPE())
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=_SIZES["vocab_size"],
        special_tokens=["<pad>", "<eos>", "<user>", "<bot>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator((json.loads(line)["user_query"] for line in rows.open()), trainer)
    return found
