"""A model's weights against what a file holds: every difference is listed."""

from pathlib import Path

import numpy as np
import pytest

from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.model import RopeScalingSection
from mindgspo.errors import WeightsError
from mindgspo.models.names import weight_shapes
from mindgspo.models.weight_check import check_names, check_weights, require_weights
from mindgspo.tensor_files.tensors import ArraySource, TensorInfo, bfloat16_bits
from mindgspo.tensor_files.writer import write_tensor_file

FOLDER = Path(__file__).parents[3] / ".." / "shared" / "cases" / "folders" / "F17_inv_freq"


def info(dtype: str, *shape: int) -> TensorInfo:
    return TensorInfo(dtype=dtype, shape=shape)


def test_matching_names_pass() -> None:
    check_names({"w": (5, 3), "b": ()}, {"w": info("F32", 5, 3), "b": info("BF16")}, where=Path("m"))


def test_both_sides_are_listed_with_near_names() -> None:
    expected = {"model.norm.weight": (3,), "lm_head.weight": (5, 3), "bias": (2,), "scale": (1,)}
    found = {"model.norm.weigth": info("F32", 3), "rotary.inv_freq": info("F16", 4)}
    found |= {"bias": info("F32", 3), "scale": info("I8", 1)}
    with pytest.raises(WeightsError) as caught:
        check_names(expected, found, where=Path("some/folder"))
    assert str(caught.value).startswith("some/folder: ")
    for words in (
        "4 weights expected, 4 found", "missing (2):", "    lm_head.weight\n",
        "model.norm.weight; did you mean model.norm.weigth?", "unexpected (2):", "    rotary.inv_freq\n",
        "model.norm.weigth; did you mean model.norm.weight?", "bias: the model has (2,), the file (3,)", "scale: I8",
    ):  # fmt: skip
        assert words in str(caught.value)


def test_a_table_of_another_vocabulary_names_both_sizes() -> None:
    """Tables that were cut to the tokenizer's 151,665 ids, beside the config.json of the padded ones."""
    table = "model.embed_tokens.weight"
    with pytest.raises(WeightsError, match="vocab_size 151665, and config.json says 151936"):
        check_names({table: (151936, 8)}, {table: info("BF16", 151665, 8)}, where=Path("m"))
    with pytest.raises(WeightsError) as caught:
        check_names({table: (151936, 8)}, {table: info("BF16", 151665, 16)}, where=Path("m"))
    assert "vocab_size" not in str(caught.value)


def test_a_long_list_is_cut_and_counted() -> None:
    with pytest.raises(WeightsError, match=r"missing \(100\):(\n    w\d+){8}\n    ... and 92 more"):
        check_names({f"w{number}": (1,) for number in range(100)}, {}, where=Path("m"))


LLAMA = ModelSection(
    architecture="llama", vocab_size=13, hidden_size=16, intermediate_size=12, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16, rope_theta=10_000.0,
)  # fmt: skip
# theta ** (-2 i / 8), by hand.
FREQUENCIES = np.array([1.0, 0.1, 0.01, 0.001], np.float32)


def kept(**extra: np.ndarray) -> set[str]:
    """Names that are taken of all weights and the extra tensors; points stand for underlines."""
    arrays = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(LLAMA).items()}
    arrays |= {name.replace("__", "."): array for name, array in extra.items()}
    source = ArraySource(arrays, path=Path("m"))
    return set(require_weights(LLAMA, source, {name: name for name in arrays}))


@pytest.mark.parametrize("name", ["model__layers__1__self_attn__rotary_emb__inv_freq", "model__rotary_emb__inv_freq"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_frequencies_of_the_rotary_embedding_follow_from_config_json(name: str, dtype: type) -> None:
    assert kept(**{name: FREQUENCIES.astype(dtype)}) == set(weight_shapes(LLAMA))


@pytest.mark.parametrize(("values", "said"), [
    (FREQUENCIES[:3], r"unexpected \(1\):\n    model.rotary_emb.inv_freq"),
    (FREQUENCIES.astype(np.int32), "unexpected"),
    # 500,000 ** (-2 i / 8)
    (np.array([1, 0.0376060309, 0.00141421356, 5.31829589e-05], np.float32), "10000 but about those of 5e.05"),
    (FREQUENCIES / 4, "is not the frequencies of rope_theta 10000"),
    (np.full(4, np.nan, np.float32), "is not the frequencies"),
    (np.zeros(4, np.float32), "is not the frequencies"),
])  # fmt: skip
def test_frequencies_of_another_model_are_refused(values: np.ndarray, said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        kept(model__rotary_emb__inv_freq=values)


@pytest.mark.parametrize("values", [FREQUENCIES, FREQUENCIES / 4])
def test_frequencies_of_a_stretched_model_are_in_its_file_as_trained_or_stretched(values: np.ndarray) -> None:
    model = LLAMA.model_copy(update={"rope_scaling": RopeScalingSection(rope_type="linear", factor=4.0)})
    arrays = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(model).items()}
    arrays["model.rotary_emb.inv_freq"] = values
    assert set(require_weights(model, ArraySource(arrays, path=Path("m")), {name: name for name in arrays})) == set(
        weight_shapes(model)
    )


def test_frequencies_in_bfloat16(tmp_path: Path) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(LLAMA).items()}
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = FREQUENCIES
    bits = {name: bfloat16_bits(array) for name, array in arrays.items()}
    write_tensor_file(tmp_path / "model.safetensors", bits, bfloat16_bits=True)
    check_weights(LLAMA, tmp_path)


def test_a_published_folder_with_frequencies_is_taken() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"needs the shared cases, absent at {FOLDER}")
    check_weights(read_model_section(FOLDER), FOLDER)
