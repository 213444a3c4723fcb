"""The name table, random initial weights, and strict loading."""

from pathlib import Path

import numpy as np
import pytest
from small_plans import drawn_model, plan

from mindgspo.config import ModelSection
from mindgspo.errors import WeightsError
from mindgspo.models.initial_values import DrawnTensors
from mindgspo.models.names import hugging_face_names, parameter_shapes, weight_shapes
from mindgspo.parallel.plans.placement import Placement

pytestmark = pytest.mark.usefixtures("cpu_runtime")

WHERE = Path("some/folder")


def make_section(**changes: object) -> ModelSection:
    shape: dict[str, object] = {
        "vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 16,
    }  # fmt: skip
    return ModelSection(**{**shape, **changes})


def make_model(section: ModelSection):
    from mindgspo.models.policy import build_model

    return build_model(section)


def random_arrays(section: ModelSection, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in weight_shapes(section).items()}


def loaded(section: ModelSection, arrays: dict[str, np.ndarray], model=None):
    """The model, a new one unless given, with these weights."""
    from mindgspo.models.weights import load_weights

    model = model or make_model(section)
    load_weights(model, section, arrays, where=WHERE)
    return model


def read(model, section: ModelSection) -> dict[str, np.ndarray]:
    from mindgspo.rollout.weight_transfer import weights_as_numpy

    return weights_as_numpy(model, section)


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_table_names_every_trainable_parameter_and_no_other(tied: bool) -> None:
    section = make_section(tie_word_embeddings=tied)
    model = make_model(section)
    parameters = {parameter.name: tuple(parameter.shape) for parameter in model.trainable_params()}
    shapes = weight_shapes(section)
    assert parameters == {ours: shapes[one.names[0]] for ours, one in hugging_face_names(section).items()}
    assert parameters == parameter_shapes(section)
    # Two tables, two layers with twelve weights each, one norm.
    assert len(shapes) == (2 if tied else 3) + 2 * 12
    assert {parameter.name for parameter in model.get_parameters()} == set(parameters)


def test_names_and_shapes_are_those_of_hugging_face() -> None:
    shapes = weight_shapes(make_section())
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (4, 8)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (8, 12)
    assert shapes["lm_head.weight"] == shapes["model.embed_tokens.weight"] == (13, 8)
    assert "lm_head.weight" not in weight_shapes(make_section(tie_word_embeddings=True))


def test_qwen3_has_norms_of_heads_instead_of_biases() -> None:
    shapes = weight_shapes(make_section(architecture="qwen3", head_dim=6))
    attention = "model.layers.1.self_attn."
    assert shapes[f"{attention}q_norm.weight"] == shapes[f"{attention}k_norm.weight"] == (6,)
    assert shapes[f"{attention}q_proj.weight"] == (24, 8) and shapes[f"{attention}o_proj.weight"] == (8, 24)
    assert not [name for name in shapes if name.endswith("bias")] and len(shapes) == 3 + 2 * 11


@pytest.mark.parametrize("has_biases", [True, False])
def test_glm4_has_norms_of_outputs_and_files_that_join_gate_and_up(has_biases: bool) -> None:
    section = make_section(architecture="glm4", attention_bias=has_biases, head_dim=6, partial_rotary_factor=0.34)
    shapes, layer = weight_shapes(section), "model.layers.1."
    assert shapes[f"{layer}mlp.gate_up_proj.weight"] == (24, 8) and f"{layer}mlp.up_proj.weight" not in shapes
    assert shapes[f"{layer}post_self_attn_layernorm.weight"] == shapes[f"{layer}post_mlp_layernorm.weight"] == (8,)
    assert len(shapes) == 3 + 2 * (10 + 3 * has_biases)
    model, arrays = make_model(section), random_arrays(section)
    assert {one.name: tuple(one.shape) for one in model.trainable_params()} == parameter_shapes(section)
    found = read(loaded(section, arrays, model), section)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    up = next(one for one in model.get_parameters() if one.name == f"{layer}mlp.up_proj.weight")
    np.testing.assert_array_equal(up.asnumpy(), arrays[f"{layer}mlp.gate_up_proj.weight"][12:])
    initial = initial_weights(section, seed=3)
    drawn = DrawnTensors(section, 3, path=WHERE)
    assert drawn.tensors.keys() == initial.keys()
    for name, array in initial.items():
        np.testing.assert_array_equal(drawn.read(name), array, err_msg=name)
    missing = {name: array for name, array in arrays.items() if "layers.1.mlp.gate_up" not in name}
    with pytest.raises(WeightsError, match=r"missing \(1\)[^,]*layers.1.mlp.gate_up_proj.weight"):
        loaded(section, missing, model)


def test_a_rank_reads_its_rows_of_gate_and_of_up() -> None:
    section = make_section(vocab_size=14, architecture="glm4")
    arrays, two = random_arrays(section), plan(1, 2)
    joined = arrays["model.layers.0.mlp.gate_up_proj.weight"]
    for rank in (0, 1):
        model = loaded(section, arrays, drawn_model(section, 0, Placement(plan=two, rank=rank)))
        held = {one.name: one.asnumpy() for one in model.get_parameters()}
        for number, name in enumerate(("gate", "up")):
            rows = slice(12 * number + 6 * rank, 12 * number + 6 * rank + 6)
            np.testing.assert_array_equal(held[f"model.layers.0.mlp.{name}_proj.weight"], joined[rows])


def initial_weights(section: ModelSection, seed: int) -> dict[str, np.ndarray]:
    return read(drawn_model(section, seed), section)


def test_initial_weights_depend_on_the_seed_and_the_name_only() -> None:
    two_layers, three_layers = make_section(), make_section(num_hidden_layers=3)
    weights = initial_weights(two_layers, seed=4)
    assert_equal(initial_weights(two_layers, seed=4), weights)
    deeper = initial_weights(three_layers, seed=4)
    assert_equal({name: deeper[name] for name in weights}, weights)
    other_seed = initial_weights(two_layers, seed=5)
    matrices = [name for name, array in weights.items() if array.ndim == 2]
    assert not any(np.array_equal(other_seed[name], weights[name]) for name in matrices)
    # Matrices of one shape in different places must not be copies of each other.
    assert len({weights[name].reshape(-1)[:4].tobytes() for name in matrices}) == len(matrices)


def test_initial_weights_have_the_values_hugging_face_starts_from() -> None:
    section = make_section(vocab_size=500, hidden_size=64, intermediate_size=96, initializer_range=0.05)
    for name, array in initial_weights(section, seed=0).items():
        if array.ndim == 2:
            assert array.std() == pytest.approx(0.05, rel=0.1), name
            assert abs(array.mean()) < 0.005, name
        else:
            assert (array == (1.0 if "norm" in name else 0.0)).all(), name


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_loaded_weights_come_back_bit_for_bit_as_copies(tied: bool, dtype: type) -> None:
    section = make_section(tie_word_embeddings=tied)
    arrays = {name: array.astype(dtype) for name, array in random_arrays(section).items()}
    model = loaded(section, arrays)
    before = read(model, section)
    assert {array.dtype for array in before.values()} == {np.dtype(np.float32)}
    loaded(section, random_arrays(section, 1), model)
    assert_equal(before, {name: array.astype(np.float32) for name, array in arrays.items()})


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_padding_of_tables_is_zeros_and_stays_inside(tied: bool) -> None:
    """13 tokens in tables of 16 rows: files have 13, and random weights are those of 13."""
    from mindgspo.models.weights import initialize_weights

    section, padded = (make_section(tie_word_embeddings=tied, table_rows=rows) for rows in (None, 16))
    model, arrays = make_model(padded), random_arrays(padded)
    tables = [parameter for parameter in model.get_parameters() if parameter.shape == (16, 8)]
    assert len(tables) == (1 if tied else 2) and arrays["model.embed_tokens.weight"].shape == (13, 8)
    assert_equal(read(loaded(padded, arrays, model), padded), arrays)
    assert not any(table.asnumpy()[13:].any() for table in tables)
    initialize_weights(model, padded, 5)
    assert_equal(read(model, padded), initial_weights(section, 5))
    assert not any(table.asnumpy()[13:].any() for table in tables)


NORM, BIAS = "model.norm.weight", "model.layers.1.self_attn.q_proj.bias"


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(("gone", "changed", "message"), [
    (NORM, lambda arrays: {}, r"missing \(1\):\s+model\.norm\.weight"),
    ("lm_head.weight", lambda arrays: {}, "lm_head.weight"),
    (None, lambda arrays: {"model.layers.2.mlp.up_proj.weight": np.zeros((12, 8), np.float32)},
     r"unexpected \(1\):\s+model\.layers\.2\.mlp\.up_proj\.weight"),
    (None, lambda arrays: {UP: arrays[UP].T},
     r"wrong shape \(1\):\s+model\.layers\.0\.mlp\.up_proj\.weight: the model has \(12, 8\)"),
    (BIAS, lambda arrays: {f"{BIAS}s": arrays[BIAS]},
     r"q_proj\.bias; did you mean model\.layers\.1\.self_attn\.q_proj\.biass\?"),
    (None, lambda arrays: {BIAS: arrays[BIAS].astype(np.int8)},
     r"not floating point.*\s+model\.layers\.1\.self_attn\.q_proj\.bias: I8"),
], ids=["missing", "no head", "unexpected", "transposed", "misspelt", "quantised"])  # fmt: skip
def test_arrays_that_do_not_fit_are_refused_and_nothing_changes(gone: str | None, changed, message: str) -> None:
    section = make_section()
    model, arrays = loaded(section, random_arrays(section, 0)), random_arrays(section, 1)
    arrays |= changed(arrays)
    arrays.pop(gone, None)
    with pytest.raises(WeightsError, match=message) as caught:
        loaded(section, arrays, model)
    assert str(WHERE) in str(caught.value)
    assert_equal(read(model, section), random_arrays(section, 0))


def test_a_tied_model_takes_a_copy_of_its_table_but_no_other_head() -> None:
    section = make_section(tie_word_embeddings=True)
    arrays = random_arrays(section)
    table = arrays["model.embed_tokens.weight"]
    assert_equal(read(loaded(section, {**arrays, "lm_head.weight": table.copy()}), section), arrays)
    with pytest.raises(WeightsError, match="lm_head.weight"):
        loaded(section, {**arrays, "lm_head.weight": table + 1})
