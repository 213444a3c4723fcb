"""Weights of MindFormers' mcore models: rows by hand, and there and back bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from weight_files import write_safetensors

from mindgspo.checkpoint.convert import Conversion, convert_model
from mindgspo.cli import main
from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.errors import WeightsError
from mindgspo.models.mcore import UnfusedTensors, fused_tensors
from mindgspo.models.names import weight_shapes
from mindgspo.tensor_files.tensors import ArraySource

SIZES = {
    "vocab_size": 11,
    "hidden_size": 6,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 7}
MODELS = {
    "qwen3": {"architecture": "qwen3"},
    "qwen3 tied": {"architecture": "qwen3", "tie_word_embeddings": True},
    "qwen3_moe": {"architecture": "qwen3_moe", **EXPERTS},
    "glm4": {"architecture": "glm4", "partial_rotary_factor": 0.5},
    "glm4 without biases": {"architecture": "glm4", "attention_bias": False},
}
each_model = pytest.mark.parametrize("name", MODELS)


def section(name: str) -> ModelSection:
    return ModelSection(**SIZES | MODELS[name])


def weights(model: ModelSection) -> dict[str, np.ndarray]:
    """Every element another number."""
    rng = np.random.default_rng(1)
    shapes = weight_shapes(model)
    drawn = rng.permutation(sum(int(np.prod(shape)) for shape in shapes.values())).astype(np.float32)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(drawn, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def fused(model: ModelSection, arrays: dict[str, np.ndarray], *contiguous: str) -> dict[str, np.ndarray]:
    source, names = ArraySource(arrays, path=Path("of the test")), {name: name for name in arrays}
    return {
        tensor.name: np.concatenate(list(tensor.fused(source, names))).reshape(tensor.shape)
        for tensor in fused_tensors(model, contiguous)
    }


def test_names_of_a_dense_layer() -> None:
    theirs = [name for name in fused(section("qwen3"), weights(section("qwen3"))) if ".1." not in name]
    layer = "decoder.layers.0"
    assert sorted(theirs) == sorted([
        "embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight",
        f"{layer}.input_layernorm.weight", f"{layer}.self_attention.linear_qkv.weight",
        f"{layer}.self_attention.linear_proj.weight", f"{layer}.self_attention.q_layernorm.weight",
        f"{layer}.self_attention.k_layernorm.weight", f"{layer}.pre_mlp_layernorm.weight",
        f"{layer}.mlp.linear_fc1.weight", f"{layer}.mlp.linear_fc2.weight",
    ])  # fmt: skip
    of_glm = fused(section("glm4"), weights(section("glm4")))
    assert {f"{layer}.post_self_attn_layernorm.weight", f"{layer}.post_mlp_layernorm.weight"} <= of_glm.keys()
    assert of_glm[f"{layer}.self_attention.linear_qkv.bias"].shape == (40,)


def test_rows_of_queries_keys_and_values_take_turns_by_groups_of_heads() -> None:
    """Two groups, each of three query heads, a key head and a value head of 4 features."""
    model = section("glm4")
    arrays = weights(model)
    attention = "model.layers.1.self_attn"
    for ending in ("weight", "bias"):
        q, k, v = (arrays[f"{attention}.{one}_proj.{ending}"] for one in "qkv")
        found = fused(model, arrays)[f"decoder.layers.1.self_attention.linear_qkv.{ending}"]
        np.testing.assert_array_equal(found, np.concatenate([q[:12], k[:4], v[:4], q[12:], k[4:], v[4:]]))
        found = fused(model, arrays, "qkv")[f"decoder.layers.1.self_attention.linear_qkv.{ending}"]
        np.testing.assert_array_equal(found, np.concatenate([q, k, v]))


@pytest.mark.parametrize("name", ["qwen3", "glm4"])
def test_rows_of_gate_and_up_alternate(name: str) -> None:
    model = section(name)
    arrays = weights(model)
    layer = "model.layers.0.mlp"
    joined = arrays.get(f"{layer}.gate_up_proj.weight")
    gate, up = (
        (arrays[f"{layer}.{one}_proj.weight"] for one in ("gate", "up")) if joined is None else np.split(joined, 2)
    )
    found = fused(model, arrays)["decoder.layers.0.mlp.linear_fc1.weight"]
    np.testing.assert_array_equal(found[0::2], gate)
    np.testing.assert_array_equal(found[1::2], up)
    found = fused(model, arrays, "fc1")["decoder.layers.0.mlp.linear_fc1.weight"]
    np.testing.assert_array_equal(found, np.concatenate([gate, up]))


def test_experts_are_stacked_and_transposed() -> None:
    model = section("qwen3_moe")
    arrays = weights(model)
    theirs, layer = fused(model, arrays), "model.layers.0.mlp.experts"
    first, second = (theirs[f"decoder.layers.0.mlp.experts.weight{number}"] for number in (1, 2))
    assert (first.shape, second.shape) == ((3 * 6, 2 * 7), (3 * 7, 6))
    for e in range(3):
        gate, up, down = (arrays[f"{layer}.{e}.{one}_proj.weight"] for one in ("gate", "up", "down"))
        np.testing.assert_array_equal(first[6 * e : 6 * e + 6], np.concatenate([gate.T, up.T], axis=1))
        np.testing.assert_array_equal(second[7 * e : 7 * e + 7], down.T)
    router = theirs["decoder.layers.0.mlp.router.weight"]
    np.testing.assert_array_equal(router, arrays["model.layers.0.mlp.gate.weight"])


@each_model
@pytest.mark.parametrize("contiguous", [(), ("qkv",), ("fc1",), ("fc1", "qkv")])
def test_there_and_back(name: str, contiguous: tuple[str, ...]) -> None:
    model = section(name)
    arrays = weights(model)
    source = ArraySource(fused(model, arrays, *contiguous), path=Path("of the test"))
    back = UnfusedTensors(source, model, contiguous)
    assert list(back.tensors) == list(arrays)
    for weight, array in arrays.items():
        assert back.tensors[weight].shape == array.shape
        np.testing.assert_array_equal(back.read(weight), array)
        np.testing.assert_array_equal(back.read_slice(weight, (slice(1, 3),)), array[1:3])
        np.testing.assert_array_equal(np.concatenate(list(back.chunks(weight, 12))), array.reshape(-1))


def test_experts_with_an_axis_of_their_own_are_read() -> None:
    model = section("qwen3_moe")
    arrays = weights(model)
    theirs = {
        name: array.reshape(3, -1, array.shape[1]) if ".experts." in name else array
        for name, array in fused(model, arrays).items()
    }
    back = UnfusedTensors(ArraySource(theirs, path=Path("of the test")), model)
    for weight, array in arrays.items():
        np.testing.assert_array_equal(back.read(weight), array)


def test_what_does_not_fit_is_named_as_in_the_file() -> None:
    model = section("qwen3")
    theirs = fused(model, weights(model))
    theirs["decoder.layers.0.mlp.linear_fc1.bias"] = theirs.pop("decoder.layers.0.mlp.linear_fc1.weight")
    with pytest.raises(WeightsError, match=r"missing.*\n.*decoder\.layers\.0\.mlp\.linear_fc1\.weight"):
        UnfusedTensors(ArraySource(theirs, path=Path("of the test")), model)
    with pytest.raises(WeightsError, match="llama: only qwen3, qwen3_moe, glm4 have names of MindFormers' mcore"):
        fused_tensors(ModelSection(**{**SIZES, "head_dim": None}, architecture="llama"))


def folder_of(model: ModelSection, folder: Path) -> Path:
    """Of type bfloat16."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(huggingface_config(model, eos_ids=(1,), pad_id=0)))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors", weights(model), dtype="bfloat16")
    return folder


@each_model
def test_files_go_there_and_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    source, theirs, back = folder_of(section(name), tmp_path / "source"), tmp_path / "theirs", tmp_path / "back"
    assert main(["convert", "weights", str(source), str(theirs), "--layout", "mindformers-mcore"]) == 0
    (file,) = theirs.glob("*.safetensors")
    assert file.name == "model-0000000-0000001.safetensors"
    file.rename(theirs / "qwen3-model-0000000-0000001.safetensors")  # as its callback names it
    assert main(["convert", "weights", str(theirs), str(back)]) == 0
    assert (back / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_slices_of_ranks_are_refused(tmp_path: Path) -> None:
    source, theirs = folder_of(section("qwen3"), tmp_path / "source"), tmp_path / "theirs"
    convert_model(Conversion(source=source, out=theirs, layout="mindformers-mcore"))
    (theirs / "model-0000001-0000002.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    with pytest.raises(
        WeightsError, match="2 files of MindFormers' ranks, model-0000000-0000001.safetensors and so on"
    ):
        convert_model(Conversion(source=theirs, out=tmp_path / "back"))
    assert main(["convert", "weights", str(source), str(tmp_path / "x"), "--layout", "mindformers-mcore",
                 "--max-shard-size", "1KB"]) == 2  # fmt: skip
