"""GGUF files as Hugging Face folders: by hand, and against transformers' own reading of the same file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf_files import TOKENS, entries, shapes, write_gguf

from mindgspo.checkpoint.convert import Conversion, write_model
from mindgspo.cli import main
from mindgspo.errors import TokenizerError, WeightsError
from mindgspo.tensor_files.writer import read_safetensors
from mindgspo.tokenization.backends import load_here
from mindgspo.tokenization.files import read_files
from mindgspo_gguf.file import TYPES, OpenGguf
from mindgspo_gguf.model import GgufModel

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")


def converted(path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    out = path.with_suffix("")
    with GgufModel(path) as model:
        write_model(model.source, Conversion(source=path, out=out))
    return out, read_safetensors(out / "model.safetensors")


def test_a_llama_by_hand(tmp_path: Path) -> None:
    stored = write_gguf(tmp_path / "model.gguf", packed="F32")
    out, weights = converted(tmp_path / "model.gguf")
    assert np.array_equal(weights["model.layers.1.mlp.down_proj.weight"], stored["blk.1.ffn_down.weight"])
    # Heads of 8 rows: llama.cpp has the rows of a pair, 0 and 4, 1 and 5, ..., side by side.
    head = [0, 2, 4, 6, 1, 3, 5, 7]
    expected = stored["blk.0.attn_k.weight"][[*head, *(8 + row for row in head)]]
    assert np.array_equal(weights["model.layers.0.self_attn.k_proj.weight"], expected)
    config = json.loads((out / "config.json").read_text())
    assert config["tie_word_embeddings"] and config["rms_norm_eps"] == 1e-5 and config["vocab_size"] == len(TOKENS)
    assert config["eos_token_id"] == json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.parametrize("packed", [one for one in TYPES if not one.endswith("_K")])
def test_types_of_tensors(tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindgspo.checkpoint.convert._CHUNK_BYTES", 300)  # runs of two rows, and of whole heads
    stored = write_gguf(tmp_path / "model.gguf", "qwen2", packed=packed)
    _, weights = converted(tmp_path / "model.gguf")
    assert np.array_equal(weights["model.embed_tokens.weight"], stored["token_embd.weight"])
    assert np.array_equal(weights["model.layers.1.self_attn.q_proj.bias"], stored["blk.1.attn_q.bias"])


@pytest.mark.parity
@pytest.mark.parametrize("packed", ["Q8_0", "Q4_0", "Q4_1", *(one for one in TYPES if one.endswith("_K"))])
def test_blocks_are_unpacked_as_transformers_does(tmp_path: Path, packed: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.integrations.gguf.dequant")
    kind = GGMLQuantizationType[packed]
    elements, num_bytes = GGML_QUANT_SIZES[kind]
    # Bytes below 60: no scale in float16 is a NaN.
    data = np.random.default_rng(0).integers(0, 60, (4, 512 // elements * num_bytes), dtype=np.uint8)
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with OpenGguf(tmp_path / "model.gguf") as file:
        ours = file.rows("weight", 0, 4)
    assert ours.shape == (4, 512)
    expected = theirs.dequantize(torch.from_numpy(data), getattr(theirs, f"GGML_{packed}")).float()
    assert np.array_equal(ours, expected.reshape(4, 512).numpy())


@pytest.mark.parity
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_as_transformers_reads_them(tmp_path: Path, architecture: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    write_gguf(tmp_path / "model.gguf", architecture, tensors=shapes(architecture, tied=architecture == "llama"))
    out, _ = converted(tmp_path / "model.gguf")
    read = transformers.AutoModelForCausalLM.from_pretrained
    config = (
        transformers.AutoConfig.from_pretrained(out) if architecture == "qwen3" else None
    )  # it takes 128 wide heads
    theirs = read(tmp_path, gguf_file="model.gguf", dtype=torch.float32, config=config).eval()
    ours = read(out, dtype=torch.float32).eval()
    ids = torch.arange(24)[None]
    assert torch.equal(theirs(ids).logits, ours(ids).logits)


@pytest.mark.parity
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm"])
def test_ids_as_transformers_reads_them(tmp_path: Path, pre: str) -> None:
    transformers = pytest.importorskip("transformers")
    write_gguf(tmp_path / "model.gguf", of=entries("llama", **{"tokenizer.ggml.pre": pre}))
    out, _ = converted(tmp_path / "model.gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    ours = load_here(read_files(out))
    for text in ("ab abab, it's 3.5 of them!", "<s>ab</s>\n\nab", "\u00e4\u6c49\U0001f600 <think>1 a"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids, text


@pytest.mark.parametrize(("pre", "pieces"), [("gpt-2", ["\u010a\u010a", "12"]), ("smollm", ["\u010a\u010a", "1", "2"])])
def test_the_way_of_splitting_is_only_a_name(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    """Where digits stand alone, the blanks before one stay together, which transformers 5.24 does not know."""
    write_gguf(tmp_path / "model.gguf", of=entries("llama", **{"tokenizer.ggml.pre": pre}))
    out, _ = converted(tmp_path / "model.gguf")
    ids = load_here(read_files(out)).encode("\n\n12" if pre == "smollm" else "\n\n")
    assert [TOKENS[one] for one in ids] == (pieces if pre == "smollm" else pieces[:1])


def test_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{code:02X}>" for code in range(256)), "\u2581", "a", "b", "ab", "\u2581ab"]
    more = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * 259 + [-5.0, -6.0, -7.0, -1.0, -2.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
    }
    tensors = shapes("llama") | {"token_embd.weight": (len(pieces), 32)}
    write_gguf(tmp_path / "model.gguf", tensors=tensors, of=entries("llama", **more))
    out, _ = converted(tmp_path / "model.gguf")
    backend = load_here(read_files(out))
    ids = backend.encode("ab ab\u00e4</s>")
    assert [pieces[one] for one in ids] == ["\u2581ab", "\u2581ab", "<0xC3>", "<0xA4>", "</s>"]
    assert backend.decode(ids, skip_special_tokens=True) == "ab ab\u00e4"


def test_the_frequencies_of_llama_3(tmp_path: Path) -> None:
    """128 features, theta 500,000: the fastest pairs stay as they are, the slowest turn 8 times slower."""
    sizes = {"llama.attention.key_length": 128, "llama.rope.freq_base": 500000.0, "llama.rope.dimension_count": 128}
    waves = 2 * np.pi * 500000.0 ** (np.arange(64) / 64)
    smooth = np.clip((8192 / waves - 1) / 3, 0, 1)
    entry = entries("llama", **sizes)
    tensors = {"rope_freqs.weight": (64,)} | shapes("llama")
    for layer in range(2):
        for name, shape in (("q", (512, 32)), ("k", (256, 32)), ("v", (256, 32)), ("output", (32, 512))):
            tensors[f"blk.{layer}.attn_{name}.weight"] = shape
    write_gguf(tmp_path / "model.gguf", tensors=tensors, of=entry)
    with pytest.raises(WeightsError, match=r"rope_freqs\.weight is not Llama 3's"):
        converted(tmp_path / "model.gguf")
    content = bytearray((tmp_path / "model.gguf").read_bytes())
    opened = OpenGguf(tmp_path / "model.gguf")
    start = opened.tensors["rope_freqs.weight"].start
    opened.close()
    content[start : start + 256] = (1 / ((1 - smooth) / 8 + smooth)).astype("<f4").tobytes()
    (tmp_path / "model.gguf").write_bytes(content)
    out, _ = converted(tmp_path / "model.gguf")
    found = json.loads((out / "config.json").read_text())["rope_scaling"]
    assert (found["rope_type"], found["factor"], found["original_max_position_embeddings"]) == ("llama3", 8.0, 8192)


@pytest.mark.parametrize(("more", "expected"), [
    ({"type": "linear", "factor": 2.5}, {"rope_type": "linear", "factor": 2.5}),
    ({"type": "yarn", "factor": 4.0, "original_context_length": 16, "finetuned": True},
     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    ({"type": "yarn", "factor": 4.0, "original_context_length": 16, "yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0},
     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 2.0}),
])  # fmt: skip
def test_stretched_positions_are_read_from_the_entries(more: dict, expected: dict, tmp_path: Path) -> None:
    scaling = {f"llama.rope.scaling.{key}": value for key, value in more.items()}
    write_gguf(tmp_path / "model.gguf", of=entries("llama", **scaling, **{"llama.context_length": 64}))
    out, _ = converted(tmp_path / "model.gguf")
    assert json.loads((out / "config.json").read_text())["rope_scaling"] == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"general.architecture": "gemma3"}, "architecture gemma3; supported: llama, qwen2, qwen3, qwen3moe"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type is longrope; not implemented"),
        (
            {"llama.rope.scaling.type": "yarn"} | {"llama.rope.scaling.yarn_log_multiplier": 0.1},
            "rope.scaling.yarn_log_multiplier with yarn; not implemented",
        ),
        ({"llama.attention.sliding_window": 4096}, "attention.sliding_window is 4096; not implemented"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count is 4, not head_dim 8"),
        ({"llama.attention.head_count": 0}, "no llama.attention.head_count"),
        ({"llama.attention.head_count": 8}, "wrong shape"),
        ({"llama.block_count": 3}, "missing"),
        ({"llama.block_count": 1 << 31}, "2147483648 layers with 0 experts; at most 131072"),
        ({"llama.attention.key_length": 1 << 31, "llama.rope.dimension_count": 8}, "8, not head_dim 2147483648"),
        ({"llama.embedding_length": "many"}, "llama.attention.head_count"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps"),
        ({"split.count": 3}, "one of 3 parts; join them"),
        ({"general.alignment": 0}, "general.alignment 0"),
        ({"tokenizer.ggml.pre": "smolm"}, "'smolm', a way of splitting text that is not known here; did you mean 'sm"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model is bert; known are gpt2"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "2 tokens, 1 of them twice"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "tokenizer.ggml.token_type: 2 elements"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "tokenizer.ggml.merges do not fit the tokens"),
        ({"tokenizer.ggml.eos_token_id": 99999}, "eos_token_id is 99999"),
        (
            {
                "tokenizer.ggml.tokens": ["$x", *TOKENS[1:]],
                "tokenizer.ggml.bos_token_id": 0,
                "tokenizer.ggml.add_bos_token": True,
            },
            "tokenizer.ggml.bos_token_id: '$x' cannot begin a text",
        ),
        ({"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id is 2; expected int"),
    ],
)
def test_what_is_refused(tmp_path: Path, more: dict[str, object], message: str) -> None:
    architecture = str(more.pop("general.architecture", "llama"))
    write_gguf(tmp_path / "model.gguf", architecture, tensors=shapes("llama"), of=entries("llama", **more))
    with pytest.raises((WeightsError, TokenizerError), match=r"model\.gguf") as caught:
        converted(tmp_path / "model.gguf")
    assert message in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_damaged_files_end_in_one_line(tmp_path: Path) -> None:
    """Cut off anywhere, or with any byte of the header changed, a file is read or refused, in bounded memory."""
    path = tmp_path / "model.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    header = len(whole) - sum(4 * int(np.prod(shape)) for shape in shapes("llama").values()) // 4
    rng = np.random.default_rng(3)
    for cut in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:cut])
        with pytest.raises(WeightsError):
            OpenGguf(path)
    outcomes = set()
    for place in rng.integers(0, header, 300):
        path.write_bytes(whole[:place] + bytes([rng.integers(256)]) + whole[place + 1 :])
        try:
            out, _ = converted(path)
            for file in out.iterdir():
                file.unlink()
            outcomes.add("read")
        except (WeightsError, TokenizerError) as error:
            assert len(str(error)) < 4000
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "model.gguf")
    assert main(["convert", "gguf", str(tmp_path / "model.gguf"), "--out", str(tmp_path / "out")]) == 0
    assert "20 weights" in capsys.readouterr().out
    assert main(["convert", "gguf", str(tmp_path), "--out", str(tmp_path / "other")]) != 0
    assert "is no regular file" in capsys.readouterr().err
