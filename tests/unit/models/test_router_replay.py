"""Routing of a mixture of experts: what the sampler records, and what replaying it does to log-probs and gradients."""

from dataclasses import replace

import numpy as np
import pytest
from small_plans import MIXTURE, drawn_model, small_model

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.routing import (
    RoutingDifference,
    expert_dtype,
    expert_loads,
    load_metrics,
    routing_difference,
    with_experts,
)
from mindgspo.batches.rows import TrainingSample, gathered
from mindgspo.config import AlgorithmSection, OptimizerSection, with_recipe
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.types import Batch, Prompt, Response

pytestmark = pytest.mark.usefixtures("cpu_runtime")

LAYERS, EXPERTS, CHOSEN = 2, 6, 2
SECTION = small_model(**MIXTURE | {"num_experts": EXPERTS}, initializer_range=0.2)
PLAIN = BatchLayout(samples_per_micro_batch=12, length_multiple=8, pad_id=0)
PACKED = BatchLayout(max_tokens_per_micro_batch=64, packing=True, length_multiple=8, pad_id=0)
ONE_ROW = replace(PACKED, in_one_row=True)
# Without clipping of the norm the first moment after one update is (1 - beta1) times the gradient.
OPTIMIZER = OptimizerSection(lr=1e-3, beta1=0.0, max_grad_norm=1e9)
MAX_PROMPT, MAX_NEW = 7, 12
PROMPTS = [
    Prompt(
        index=number, ids=(np.arange(2 + number, dtype=np.int32) * 7 + number) % 61, text="", answer="",
        data_source="test",
    )
    for number in range(4)
]  # fmt: skip


def make_model():
    return drawn_model(SECTION, seed=5)


def turn_routers(model) -> None:
    """Other routers, by which many tokens go to other experts."""
    from mindgspo.parallel.platform.parameter_memory import set_values, values_of

    for layer in model.layers:
        gate = values_of(layer.mlp.gate)
        set_values(layer.mlp.gate, np.ascontiguousarray(gate[::-1] * np.float32(0.9)))


def sampled(model, *, records: bool = True, purpose: Purpose = Purpose.TRAINING, **sizes) -> list[Response]:
    """Three responses to each prompt."""
    from mindgspo.rollout.engine import NativeEngine

    settings = {"num_slots": 5, "prefill_width": 2, "length_multiple": 4, **sizes}
    engine = NativeEngine(
        model, eos_ids=(3, 11, 20), max_prompt_length=MAX_PROMPT, max_new_tokens=MAX_NEW, records_experts=records,
        **settings,
    )  # fmt: skip
    engine.load_weights(1)
    stream = RandomStream(seed=9, purpose=purpose, step=2)
    sampling = SamplingSettings(num_samples=3, temperature=1.0, max_new_tokens=MAX_NEW, stream=stream)
    rollout = engine.generate(PROMPTS, sampling, weight_version=1)
    assert "num_blocks" not in sizes or rollout.counters.preemptions > 0
    return [response for group in rollout.responses for response in group]


def laid_out(responses: list[Response], layout: BatchLayout) -> list[Batch]:
    samples = [
        TrainingSample(
            prompt_ids=PROMPTS[one.prompt_index].ids, response_ids=one.ids, rollout_logp=one.logprobs, number=number
        )
        for number, one in enumerate(responses)
    ]
    routing = {number: one.routing for number, one in enumerate(responses)}
    like = responses[0].routing.response_LX
    return [with_experts(batch, routing, like=like) for batch in micro_batches(samples, layout)]


def scores(model, batches: list[Batch], **kinds):
    from mindgspo.models.scoring import PolicyScorer

    return PolicyScorer(model, temperature=1.0, **kinds).score(batches)


def log_probs(model, batches: list[Batch], num_samples: int, **kinds) -> np.ndarray:
    found = scores(model, batches, **kinds)
    return np.concatenate(gathered(batches, [score.logp_NK for score in found], num_samples))


def updated(model, batches: list[Batch], **kinds):
    """(result, gradient by weight) of one update of GSPO with every advantage 1 or -1."""
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.models.policy import PolicyLogProbs

    section = with_recipe(AlgorithmSection(name="gspo"), max_new_tokens=MAX_NEW)
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False, **kinds)
    updater = Updater(policy, build_policy_loss(section), OPTIMIZER)
    filled = [
        replace(
            batch, old_logp_NK=batch.rollout_logp_NK,
            advantages_NK=np.where(batch.mask_NK, 1 - 2 * (batch.samples_N[:, None] % 2), 0).astype(np.float32),
        ) for batch in batches
    ]  # fmt: skip
    result, first = updater.step(filled, lr=1e-3), updater.state()
    return result, {weight.name: first[f"adamw.m.{weight.name}"] for weight in updater.weights}


def choices_of_whole_rows(model, responses: list[Response]) -> list[np.ndarray]:
    """What routers choose for prompt and response in one pass: [tokens, X] by response."""
    from mindspore import Tensor, nn

    from mindgspo.parallel.ops.device import attention_segments, takes_packed

    class Choices(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.model = model

        def construct(self, *inputs):
            return self.model.with_choices(*inputs)[1]

    choose, found = Choices(), []
    positions = np.arange(MAX_PROMPT + MAX_NEW, dtype=np.int32)[None]
    for response in responses:
        ids = np.concatenate([PROMPTS[response.prompt_index].ids, response.ids])
        padded = np.pad(ids, (0, positions.size - ids.size))[None]
        is_token = (positions < ids.size).astype(np.int32)
        segments = attention_segments(is_token, is_packed=takes_packed(model))
        layers = choose(*(Tensor(array) for array in (padded, positions, segments)))
        found.append(np.concatenate([one.asnumpy() for one in layers], axis=1)[: ids.size])
    return found


@pytest.fixture(scope="module")
def model(cpu_runtime):
    return make_model()


@pytest.fixture(scope="module")
def responses(model) -> list[Response]:
    return sampled(model)


def test_the_sampler_records_what_its_routers_choose(model, responses) -> None:
    some = responses[::4]
    for response, choices in zip(some, choices_of_whole_rows(model, some), strict=True):
        routing, prompt = response.routing, PROMPTS[response.prompt_index].ids
        assert routing.response_LX.dtype == np.uint8 and routing.response_LX.shape == (response.length, LAYERS * CHOSEN)
        assert len(routing.prompt_LX) == prompt.size - 1
        np.testing.assert_array_equal(routing.whole, choices[:-1])
    siblings = [one for one in responses if one.prompt_index == 3]
    assert all(one.routing.prompt_LX is siblings[0].routing.prompt_LX for one in siblings)


def assert_same(responses: list[Response], others: list[Response]) -> None:
    for one, other in zip(responses, others, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.routing.whole, other.routing.whole)


# Blocks of 2 tokens, too few for all sequences: some are pre-empted and run again.
@pytest.mark.parametrize(
    "sizes", [{"num_slots": 2, "prefill_width": 1, "tokens_per_sync": 3}, {"block": 2, "num_blocks": 18}]
)
def test_recorded_routing_does_not_depend_on_the_layout(model, responses, sizes: dict[str, int]) -> None:
    assert_same(responses, sampled(model, **sizes))


@pytest.mark.parametrize("kinds", [{"records": False}, {"purpose": Purpose.EVALUATION}], ids=["unasked", "evaluation"])
def test_only_training_records_and_only_when_asked(model, kinds: dict[str, object]) -> None:
    assert all(one.routing is None for one in sampled(model, **kinds))


def test_small_operators_record_the_same(responses) -> None:
    from mindgspo.parallel.ops.device import composed_ops

    with composed_ops():
        assert_same(responses, sampled(make_model()))


@pytest.mark.parametrize("layout", [PLAIN, PACKED, ONE_ROW], ids=["plain", "packed", "one_row"])
def test_own_routing_replayed_changes_no_bit(model, responses, layout: BatchLayout) -> None:
    batches = laid_out(responses, layout)
    free = log_probs(model, batches, len(responses))
    np.testing.assert_array_equal(log_probs(model, batches, len(responses), replays_experts=True), free)
    np.testing.assert_array_equal(free, np.concatenate([one.logprobs for one in responses]))


def test_turned_routers_differ_unless_routing_is_replayed(responses) -> None:
    model = make_model()
    batches = laid_out(responses, replace(ONE_ROW, max_tokens_per_micro_batch=512))
    assert len(batches) == 1
    turn_routers(model)
    free = scores(model, batches, returns_routing=True)
    differing, total = [0] * LAYERS, 0
    for response, choices in zip(responses, choices_of_whole_rows(model, responses), strict=True):
        now = choices[:-1].reshape(-1, LAYERS, CHOSEN)
        before = response.routing.whole.reshape(-1, LAYERS, CHOSEN)
        # A shared prompt is computed, and counted, once.
        first = 0 if response.sample_index == 0 else len(PROMPTS[response.prompt_index].ids)
        for layer in range(LAYERS):
            for one, other in zip(before[first:, layer], now[first:, layer], strict=True):
                differing[layer] += len(set(one.tolist()) - set(other.tolist()))
        total += CHOSEN * len(now[first:])
    parts = [score.mismatch for score in free]
    assert tuple(sum(part.differing[layer] for part in parts) for layer in range(LAYERS)) == tuple(differing)
    assert sum(part.total for part in parts) == total and sum(differing) > total / 4
    # What the turned routers chose replays as their own choice; what they are given leaves their choice as it is.
    own = [replace(batch, experts_RTX=score.experts_RTX) for batch, score in zip(batches, free, strict=True)]
    replayed = scores(model, own, replays_experts=True, returns_routing=True)
    for one, other in zip(free, replayed, strict=True):
        np.testing.assert_array_equal(one.logp_NK, other.logp_NK)
        assert sum(other.mismatch.differing) == 0
    # The first layer's routers read the same states, whoever is replayed.
    as_sampled = scores(model, batches, replays_experts=True, returns_routing=True)
    assert sum(score.mismatch.differing[0] for score in as_sampled) == differing[0]
    assert any((one.logp_NK != other.logp_NK).any() for one, other in zip(free, as_sampled, strict=True))


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "small_ops"])
def test_gradients_flow_through_the_weights_of_replayed_experts(kernels: bool) -> None:
    """Against central differences of a float64 twin: a block whose experts are given."""
    from contextlib import nullcontext

    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from mindgspo.models.mixture_of_experts import MixtureOfExperts
    from mindgspo.parallel.ops.device import composed_ops
    from mindgspo.parallel.plans.placement import ALONE
    from mindgspo.parallel.platform.parameter_memory import set_values

    class Sum(nn.Cell):
        def __init__(self, block):
            super().__init__(auto_prefix=False)
            self.block, self.total = block, ops.ReduceSum()

        def construct(self, x_MH, given_MK, d_MH, tokens):
            return self.total(self.block(x_MH, (tokens, tokens, tokens), given_MK)[0] * d_MH)

    class Gradients(nn.Cell):
        def __init__(self, cell, weights):
            super().__init__(auto_prefix=False)
            self.cell, self.weights = cell, weights
            self.grad = ops.GradOperation(get_all=True, get_by_list=True)

        def construct(self, *inputs):
            return self.grad(self.cell, self.weights)(*inputs)

    rng, tokens = np.random.default_rng(3), 9
    with nullcontext() if kernels else composed_ops():
        block = MixtureOfExperts(SECTION, ms.float32, "mlp", ALONE)
        weights = ms.ParameterTuple([block.gate, block.gate_proj, block.up_proj, block.down_proj])
        values = [rng.standard_normal(weight.shape) * 0.4 for weight in weights]
        for weight, value in zip(weights, values, strict=True):
            set_values(weight, value.astype(np.float32))
        x, d = rng.standard_normal((tokens, 32)), rng.standard_normal((tokens, 32))
        given_MK = rng.permuted(np.tile(np.arange(EXPERTS), (tokens, 1)), axis=1)[:, :CHOSEN].astype(np.int32)
        inputs = (Tensor(x, ms.float32), Tensor(given_MK), Tensor(d, ms.float32), Tensor([tokens], ms.int32))
        of_inputs, of_weights = Gradients(Sum(block), weights)(*inputs)

    def twin(x, gate, gate_proj, up_proj, down_proj) -> float:
        logits = x @ gate.T
        probs = np.exp(logits - logits.max(-1, keepdims=True))
        total = 0.0
        for m in range(tokens):
            own = probs[m, given_MK[m]]
            for share, expert in zip(own / own.sum(), given_MK[m], strict=True):
                of_gate, of_up = gate_proj[expert] @ x[m], up_proj[expert] @ x[m]
                total += share * d[m] @ (down_proj[expert] @ (of_gate / (1 + np.exp(-of_gate)) * of_up))
        return total

    exact = [array.astype(np.float32).astype(np.float64) for array in (x, *values)]
    for number, found in enumerate([of_inputs[0], *of_weights]):
        found = found.asnumpy()
        for place in [tuple(rng.integers(0, size) for size in found.shape) for _ in range(12)]:
            ahead, behind = [array.copy() for array in exact], [array.copy() for array in exact]
            ahead[number][place] += 1e-5
            behind[number][place] -= 1e-5
            wanted = (twin(*ahead) - twin(*behind)) / 2e-5
            np.testing.assert_allclose(found[place], wanted, rtol=2e-4, atol=2e-4)


def test_an_update_that_replays_its_own_routing_is_the_same_update(responses) -> None:
    batches = laid_out(responses, ONE_ROW)
    free, free_gradients = updated(make_model(), batches, returns_routing=True)
    replayed, gradients = updated(make_model(), batches, returns_routing=True, replays_experts=True)
    assert free.loss == replayed.loss and free.grad_norm == replayed.grad_norm
    for name, gradient in free_gradients.items():
        np.testing.assert_array_equal(gradients[name], gradient, err_msg=name)
    assert free.drift.share == replayed.drift.share == 0.0


def test_updates_measure_how_far_routers_have_moved(responses) -> None:
    batches, model = laid_out(responses, PACKED), make_model()
    turn_routers(model)
    result, _ = updated(model, batches, returns_routing=True)
    wanted = [score.mismatch for score in scores(model, batches, returns_routing=True)]
    assert result.drift.total == sum(one.total for one in wanted)
    assert 0.25 < result.drift.share < 1


def test_routings_differ_by_the_choices_that_one_lacks() -> None:
    # Two layers, two experts per token. The order of a token's experts does not count.
    one = np.array([[0, 1, 2, 3], [4, 5, 2, 3]], np.uint8)
    other = np.array([[1, 0, 3, 5], [0, 1, 4, 5]], np.uint8)
    found = routing_difference(one, other, 2)
    assert found == RoutingDifference(differing=(2, 3), total=4) and found.share == 5 / 8
    assert RoutingDifference.of(found.array) == found
    assert RoutingDifference.sum([found, found]) == RoutingDifference(differing=(4, 6), total=8)
    assert (expert_dtype(256), expert_dtype(257)) == (np.uint8, np.int16)


def test_loads_of_experts_by_hand() -> None:
    experts = np.array([[0, 1, 3, 3], [0, 2, 3, 3]], np.uint8)
    loads = expert_loads(experts, 2, 4)
    assert loads.tolist() == [[2, 1, 1, 0], [0, 0, 0, 4]]
    metrics = load_metrics(loads)
    assert metrics["router/layer_0/load_max_over_mean"] == 2 and metrics["router/load_max_over_mean"] == 4
    # Half of the tokens and twice a quarter: 1.5 of 2 bits.
    assert metrics["router/layer_0/load_entropy"] == pytest.approx(0.75) and metrics["router/load_entropy"] == 0
    assert metrics["router/layer_1/dead_experts"] == 3 and metrics["router/dead_expert_share"] == 0.5
    assert load_metrics(np.zeros_like(loads)) == {}
