"""GGUF files of tiny models, written by llama.cpp's own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

TOKENS = ["<unk>", "<s>", "</s>", "<think>", *(chr(0x100 + code) for code in range(33)), *map(chr, range(33, 127))]
TOKENS += [chr(code) for code in (*range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x121, 0x144))]
TOKENS += ["\u0120a", "ab", "12", "\u010a\u010a"]
KINDS = [3, 3, 3, 4, *[1] * (len(TOKENS) - 4)]
MERGES = ["\u0120 a", "a b", "1 2", "\u010a \u010a"]
LAYER = ("attn_q", "attn_k", "attn_v", "attn_output")


def entries(architecture: str, **more: object) -> dict[str, object]:
    """The entries of a model of two layers, 32 wide, whose 4 heads share 2 of keys and values."""
    of = architecture
    sizes = {"block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64}
    attention = {"head_count": 4, "head_count_kv": 2, "layer_norm_rms_epsilon": 1e-5}
    experts = {
        "expert_count": 3,
        "expert_used_count": 2,
        "expert_feed_forward_length": 768,
    }  # transformers knows no other
    return {
        **{f"{of}.{key}": value for key, value in sizes.items()},
        **{f"{of}.attention.{key}": value for key, value in attention.items()},
        **({f"{of}.{key}": value for key, value in experts.items()} if of == "qwen3moe" else {}),
        **({f"{of}.attention.key_length": 8, f"{of}.attention.value_length": 8} if of.startswith("qwen3") else {}),
        f"{of}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0].content }}",
        **more,
    }


def shapes(architecture: str, *, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """The tensors of that model."""
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), 32), "output_norm.weight": (32,)}
    found |= {} if tied else {"output.weight": (len(TOKENS), 32)}
    width = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 64, "ffn_up": 64}
    for layer in range(2):
        block = f"blk.{layer}."
        found |= {f"{block}{name}.weight": (32,) for name in ("attn_norm", "ffn_norm")}
        found |= {f"{block}{name}.weight": (rows, 32) for name, rows in width.items()}
        found[f"{block}ffn_down.weight"] = (32, 64)
        if architecture == "qwen2":
            found |= {f"{block}{name}.bias": (width[name],) for name in LAYER[:3]}
        if architecture.startswith("qwen3"):
            found |= {f"{block}{name}.weight": (8,) for name in ("attn_q_norm", "attn_k_norm")}
        if architecture == "qwen3moe":
            for name in ("ffn_gate", "ffn_up", "ffn_down"):
                del found[f"{block}{name}.weight"]
                found[f"{block}{name}_exps.weight"] = (3, 32, 768) if name == "ffn_down" else (3, 768, 32)
            found[f"{block}ffn_gate_inp.weight"] = (3, 32)
    return found


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    packed: str = "Q8_0",
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    of: Mapping[str, object] | None = None,
) -> dict[str, np.ndarray]:
    """Write random weights, matrices as type `packed`; return what they unpack to, by the file's names."""
    from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize

    writer = GGUFWriter(path, architecture)
    for key, value in (entries(architecture) if of is None else of).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)  # type: ignore[operator]
    rng, found = np.random.default_rng(5), {}
    for name, shape in (shapes(architecture) if tensors is None else tensors).items():
        values = rng.normal(size=shape).astype(np.float32)
        kind = GGMLQuantizationType["F32" if len(shape) == 1 else packed]
        data = quantize(values, kind)
        found[name] = np.asarray(dequantize(data, kind), np.float32).reshape(shape)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found
