"""What a plan adds to the model of one process, strategies, stages and recomputation, changes no number."""

from typing import NamedTuple

import numpy as np
import pytest

from mindgspo.config import ModelSection, ParallelPlan

pytestmark = pytest.mark.usefixtures("composed_runtime")

SHAPE = {
    "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.3,
}  # fmt: skip
SECTIONS = {
    "qwen2": ModelSection(**SHAPE, tie_word_embeddings=True),
    "qwen3": ModelSection(**SHAPE, architecture="qwen3", head_dim=6),
    "qwen3_moe": ModelSection(
        **SHAPE, architecture="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    ),
    "llama": ModelSection(**SHAPE, architecture="llama"),
}
PLANS = {
    "1x4x2": ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=2, vocab_emb_dp=False),
    "2x4x1, sequence split": ParallelPlan(data_parallel=2, model_parallel=4, use_seq_parallel=True),
}
# Packed, padded and whole rows.
SEGMENTS_RT = np.array([[1, 1, 1, 2, 2, 2, 0, 0], [1] * 8], np.int32)
POSITIONS_RT = np.array([[0, 1, 2, 0, 1, 2, 0, 0], range(8)], np.int32)


class Outcome(NamedTuple):
    hidden_MH: np.ndarray
    gradients: dict[str, np.ndarray]


def outcome(section: ModelSection, place) -> Outcome:
    """Hidden states, and the gradients of a sum over them and the output table."""
    from mindspore import ParameterTuple, Tensor, nn, ops

    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import initialize_weights

    model = build_model(section, place)
    initialize_weights(model, section, seed=1)
    random = np.random.default_rng(0)
    ids = random.integers(0, section.vocab_size, SEGMENTS_RT.shape).astype(np.int32)
    slopes = random.normal(size=(SEGMENTS_RT.size, section.hidden_size)).astype(np.float32)
    weights = ParameterTuple(model.trainable_params())

    class WeightedSum(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.model = model

        def construct(self, ids, positions, segments, slopes):
            hidden = self.model(ids, positions, segments)
            return (hidden * slopes).sum() + ops.square(self.model.output_weight()).sum(), hidden

    class Both(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.value_and_grad = ops.value_and_grad(WeightedSum(), None, weights, has_aux=True)

        def construct(self, ids, positions, segments, slopes):
            (_, hidden), gradients = self.value_and_grad(ids, positions, segments, slopes)
            return hidden, gradients

    hidden, gradients = Both()(*map(Tensor, (ids, POSITIONS_RT, SEGMENTS_RT, slopes)))
    names = [weight.name for weight in weights]
    return Outcome(hidden.asnumpy(), {name: array.asnumpy() for name, array in zip(names, gradients, strict=True)})


@pytest.fixture(scope="module", params=SECTIONS.values(), ids=SECTIONS)
def section(request: pytest.FixtureRequest) -> ModelSection:
    return request.param


@pytest.fixture(scope="module")
def alone(section: ModelSection, composed_runtime) -> Outcome:
    from mindgspo.parallel.placement import ALONE

    found = outcome(section, ALONE)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in found.gradients.values()), "each weight has a gradient"
    return found


def assert_same_bits(found: Outcome, expected: Outcome) -> None:
    np.testing.assert_array_equal(found.hidden_MH, expected.hidden_MH)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        np.testing.assert_array_equal(found.gradients[name], gradient, err_msg=name)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_strategies_and_stages(section: ModelSection, alone: Outcome, plan: ParallelPlan) -> None:
    from mindgspo.parallel.placement import auto_parallel_placement

    assert_same_bits(outcome(section, auto_parallel_placement(plan, section.num_key_value_heads)), alone)


@pytest.mark.parametrize("extent", ["selective", "full"])
@pytest.mark.parametrize("is_logical", [False, True], ids=["own slices", "logical"])
def test_recomputation(section: ModelSection, alone: Outcome, extent: str, is_logical: bool) -> None:
    from mindgspo.parallel.placement import Placement, auto_parallel_placement

    plan = ParallelPlan(recompute=extent)
    place = auto_parallel_placement(plan, section.num_key_value_heads) if is_logical else Placement(plan=plan, rank=0)
    assert place.recompute == extent
    assert_same_bits(outcome(section, place), alone)


# Cells of a layer that are computed again as a whole; Qwen2 has no norms of heads.
SELECTED = {
    "input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "self_attn.rotate.query",
    "self_attn.rotate.key", "self_attn.attention", "mlp.swiglu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("extent", "expected"),
    [("none", set()), ("selective", SELECTED), ("full", {""})],
    ids=["none", "selective", "full"],
)
def test_what_is_computed_again(section: ModelSection, extent: str, expected: set[str]) -> None:
    from mindgspo.models.policy import build_model
    from mindgspo.parallel.placement import Placement

    model = build_model(section, Placement(plan=ParallelPlan(recompute=extent), rank=0))
    has_norms = section.architecture in ("qwen3", "qwen3_moe")
    of_family = {name for name in expected if has_norms or name.split(".")[-1][1:] != "_norm"}
    if section.num_experts:
        of_family = {name.replace("mlp.swiglu", "mlp.share.swiglu") for name in of_family}
    for layer in model.layers:
        wrapped = {
            name.removesuffix("_recompute_cell").rstrip(".")
            for name, _ in layer.cells_and_names()
            if name.endswith("_recompute_cell")
        }
        assert wrapped == of_family
