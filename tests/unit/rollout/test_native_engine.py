"""Generation by the compiled graphs: the same tokens and log-probs as the full forward pass, however it is laid out.

One tiny random model with weights wide enough that its distributions are peaked; engines of several shapes share it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from small_plans import drawn_model, small_model

from mindgspo.rollout.protocol import Purpose, RandomStream, Rollout, SamplingFilter, SamplingSettings
from mindgspo.types import FinishReason, Prompt, Response

pytestmark = pytest.mark.usefixtures("cpu_runtime")

SECTION = small_model(rope_theta=10_000.0, tie_word_embeddings=True, initializer_range=0.2)
EOS_IDS = (3, 11, 20, 29, 47)
MAX_PROMPT, MAX_NEW = 7, 12
VERSION = 1


@pytest.fixture(scope="module")
def model(cpu_runtime):
    return drawn_model(SECTION, seed=5)


def make_engine(model, *, eos_ids=EOS_IDS, num_slots=5, prefill_width=2, length_multiple=4, **sampler):
    from mindgspo.rollout.engine import NativeEngine

    engine = NativeEngine(
        model, eos_ids=eos_ids, num_slots=num_slots, prefill_width=prefill_width, max_prompt_length=MAX_PROMPT,
        max_new_tokens=MAX_NEW, length_multiple=length_multiple, **sampler,
    )  # fmt: skip
    engine.load_weights(VERSION)
    return engine


@pytest.fixture(scope="module")
def engine(model):
    return make_engine(model)


@pytest.fixture(scope="module")
def endless_engine(model):
    """Without a stop token: every response has full length."""
    return make_engine(model, eos_ids=())


def make_prompts(num_prompts: int, seed: int = 0) -> list[Prompt]:
    """Lengths 1, 2, ..., MAX_PROMPT, 1, ...; indices that are not positions."""
    rng = np.random.default_rng(seed)
    return [
        Prompt(
            index=100 + 3 * i, ids=rng.integers(0, SECTION.vocab_size, 1 + i % MAX_PROMPT).astype(np.int32), text="",
            answer="", data_source="test",
        ) for i in range(num_prompts)
    ]  # fmt: skip


def sampling(num_samples=3, temperature=1.0, max_new_tokens=MAX_NEW, step=2) -> SamplingSettings:
    stream = RandomStream(seed=9, purpose=Purpose.TRAINING, step=step)
    return SamplingSettings(
        num_samples=num_samples, temperature=temperature, max_new_tokens=max_new_tokens, stream=stream
    )


def generate(engine, prompts: Sequence[Prompt], settings: SamplingSettings) -> Rollout:
    return engine.generate(prompts, settings, weight_version=VERSION)


def flat(rollout: Rollout) -> list[Response]:
    return [response for group in rollout.responses for response in group]


def tokens_of(rollout: Rollout) -> dict[tuple[int, int], list[int]]:
    return {(r.prompt_index, r.sample_index): r.ids.tolist() for r in flat(rollout)}


def full_logits(model, prompts: Sequence[Prompt], rollout: Rollout) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids [L], logits [L, V] they were drawn from) of every response, by one full forward pass over all rows."""
    from mindspore import Tensor

    from mindgspo.parallel.ops.device import attention_segments, takes_packed

    rows = [
        (p.ids.size, np.concatenate([p.ids, r.ids])) for p, g in zip(prompts, rollout.responses, strict=True) for r in g
    ]
    width = MAX_PROMPT + MAX_NEW
    ids = np.stack([np.pad(row, (0, width - row.size)) for _, row in rows]).astype(np.int32)
    segments = np.stack([np.arange(width) < row.size for _, row in rows]).astype(np.int32)
    positions = np.tile(np.arange(width, dtype=np.int32), (len(rows), 1))
    ends = attention_segments(segments, is_packed=takes_packed(model))
    hidden = model(Tensor(ids), Tensor(positions), Tensor(ends)).asnumpy()
    logits = (hidden @ model.output_weight().asnumpy().T).reshape(len(rows), width, -1)
    return [(row[start:], logits[i, start - 1 : row.size - 1]) for i, (start, row) in enumerate(rows)]


def test_greedy_tokens_are_the_argmax_of_the_full_forward_pass(model, engine, endless_engine) -> None:
    prompts = make_prompts(9)
    for some_engine in (engine, endless_engine):
        rollout = generate(some_engine, prompts, sampling(num_samples=1, temperature=0.0))
        smallest_gap = np.inf
        for ids, logits in full_logits(model, prompts, rollout):
            assert ids.tolist() == logits.argmax(axis=1).tolist()
            top_two = np.sort(logits, axis=1)[:, -2:]
            smallest_gap = min(smallest_gap, (top_two[:, 1] - top_two[:, 0]).min())
        assert smallest_gap > 1e-4, "a near tie: this model cannot tell right from wrong"
    # The endless engine ran every row to the last column of its cache.
    assert all(response.length == MAX_NEW for response in flat(rollout))


def test_greedy_log_probs_are_those_at_temperature_one(model, endless_engine) -> None:
    prompts = make_prompts(3)
    rollout = generate(endless_engine, prompts, sampling(num_samples=1, temperature=0.0))
    for response, (ids, logits) in zip(flat(rollout), full_logits(model, prompts, rollout), strict=True):
        log_probs = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(response.logprobs, log_probs[np.arange(len(ids)), ids], atol=1e-4)
        assert response.temperature == 0


def trainer_gap(model, engine, temperature: float) -> float:
    """Largest difference between the sampler's log-probs and the trainer's."""
    from mindgspo.batches.rows import TrainingSample, lay_out
    from mindgspo.models.scoring import PolicyScorer

    prompts = make_prompts(8)
    rollout = generate(engine, prompts, sampling(temperature=temperature))
    samples = [
        TrainingSample(prompt_ids=p.ids, response_ids=r.ids, rollout_logp=r.logprobs, number=0)
        for p, group in zip(prompts, rollout.responses, strict=True)
        for r in group
    ]
    batches = lay_out(samples, samples_per_micro_batch=12, length_multiple=MAX_PROMPT + MAX_NEW, pad_id=0)
    scores = PolicyScorer(model, temperature=temperature).score(batches)
    gaps = [np.abs(s.logp_NK - b.rollout_logp_NK).max() for s, b in zip(scores, batches, strict=True)]
    assert min(b.rollout_logp_NK.min() for b in batches) < -1, "only certain tokens: nothing was compared"
    return float(max(gaps))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_trainer_have_the_same_log_probs(model, engine, temperature: float) -> None:
    """Bit for bit: kernels add up a token's numbers alike in every batch."""
    assert trainer_gap(model, engine, temperature) == 0.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_they_are_the_same_in_16_bits_and_with_weights_held_in_them(cpu_runtime, dtype: str) -> None:
    import mindspore as ms

    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import hold_in_compute_type, initialize_weights
    from mindgspo.parallel.ops.device import takes_packed

    section = SECTION.model_copy(update={"dtype": dtype})
    trained, generating = build_model(section), build_model(section)
    if not takes_packed(trained):
        pytest.skip("there are no kernels")
    hold_in_compute_type(generating)
    for built in (trained, generating):
        initialize_weights(built, section, seed=5)
        for parameter in built.get_parameters():  # norms and biases that have to be rounded
            values = parameter.asnumpy()
            if values.ndim == 1:
                values[...] = 1 + 0.3 * np.random.default_rng(values.size).standard_normal(values.size)
    engine = make_engine(trained, eos_ids=())
    assert {matrix.dtype for matrix in engine.cache} == {trained.dtype} != {ms.float32}
    assert trainer_gap(trained, engine, 0.7) == 0.0
    assert trainer_gap(trained, make_engine(generating, eos_ids=(), cache_dtype="float32"), 1.0) == 0.0


def test_the_graphs_read_the_present_weights(model, engine) -> None:
    from mindgspo.models.weights import initialize_weights

    prompts, settings = make_prompts(4), sampling()
    before = tokens_of(generate(engine, prompts, settings))
    initialize_weights(model, SECTION, seed=6)
    engine.load_weights(VERSION)
    try:
        assert tokens_of(generate(engine, prompts, settings)) != before
        assert trainer_gap(model, engine, 1.0) < 1e-4
    finally:
        initialize_weights(model, SECTION, seed=5)
        engine.load_weights(VERSION)
    assert tokens_of(generate(engine, prompts, settings)) == before


@pytest.mark.parametrize(
    ("num_slots", "prefill_width", "length_multiple"), [(1, 3, 1), (40, 16, 16)], ids=["one slot", "wide"]
)
def test_a_sample_does_not_depend_on_the_engine_s_shape(
    model, engine, num_slots: int, prefill_width: int, length_multiple: int
) -> None:
    prompts = make_prompts(9)
    expected = tokens_of(generate(engine, prompts, sampling()))
    other = make_engine(model, num_slots=num_slots, prefill_width=prefill_width, length_multiple=length_multiple)
    rollout = generate(other, prompts, sampling())
    assert tokens_of(rollout) == expected
    assert rollout.counters.prefilled_prompts == len(prompts)
    assert len({tuple(tokens) for tokens in expected.values()}) > 18, "too many equal samples"


def test_a_sample_does_not_depend_on_other_prompts_or_their_order(engine) -> None:
    prompts = make_prompts(9)
    expected = tokens_of(generate(engine, prompts, sampling()))
    backwards = generate(engine, prompts[::-1], sampling())
    assert [group[0].prompt_index for group in backwards.responses] == [p.index for p in prompts[::-1]]
    assert tokens_of(backwards) == expected
    for some in ([prompts[4]], prompts[3:8:2]):
        alone = tokens_of(generate(engine, some, sampling()))
        assert alone == {key: expected[key] for key in alone} and len(alone) == 3 * len(some)


def test_a_sample_does_not_depend_on_how_many_siblings_it_has_or_on_the_length_limit(engine) -> None:
    prompts = make_prompts(4)
    many = tokens_of(generate(engine, prompts, sampling(num_samples=5)))
    few = tokens_of(generate(engine, prompts, sampling(num_samples=2, max_new_tokens=4)))
    assert few == {key: many[key][:4] for key in few}


def test_responses_end_with_their_first_eos_or_at_the_limit(engine) -> None:
    rollout = generate(engine, make_prompts(9), sampling())
    reasons = set()
    for response in flat(rollout):
        *body, last = response.ids.tolist()
        assert not set(body) & set(EOS_IDS), "a token was sampled after an EOS"
        assert response.finish_reason == (FinishReason.STOP if last in EOS_IDS else FinishReason.LENGTH)
        assert last in EOS_IDS or response.length == MAX_NEW
        reasons.add(response.finish_reason)
    assert reasons == set(FinishReason), "the samples must end in both ways"


def test_top_k_of_one_is_greedy(model, endless_engine) -> None:
    prompts = make_prompts(4)
    greedy = tokens_of(generate(endless_engine, prompts, sampling(num_samples=1, temperature=0.0)))
    assert tokens_of(generate(make_engine(model, eos_ids=(), top_k=1), prompts, sampling(num_samples=1))) == greedy


def test_a_cut_of_ones_own_leaves_the_engines_alone(model, endless_engine) -> None:
    prompts, drawn = make_prompts(4), sampling(num_samples=1)
    filtered = replace(drawn, sampling_filter=SamplingFilter(top_k=1))
    same = replace(drawn, sampling_filter=SamplingFilter())
    greedy = sampling(num_samples=1, temperature=0.0)
    found = [tokens_of(generate(endless_engine, prompts, one)) for one in (drawn, greedy, filtered, drawn, same)]
    assert found[0] != found[1] == found[2] and found[0] == found[3] == found[4]


def test_counters_and_busy_slots_on_mixed_lengths(engine) -> None:
    prompts = make_prompts(12)
    rollout = generate(engine, prompts, sampling(num_samples=8))
    lengths = [response.length for response in flat(rollout)]
    assert len(set(lengths)) > 6, "the lengths must be mixed"
    counters = rollout.counters
    assert counters.prefilled_prompts == len(prompts)
    assert counters.generated_tokens == counters.busy_slot_steps == sum(lengths)
    assert counters.slot_steps == 5 * counters.decode_steps
    assert (counters.preemptions, counters.most_blocks) == (0, 5), "a block per sequence"
    assert counters.busy_share >= 0.9
    assert 0 < counters.fastest_us <= counters.slowest_us
    assert counters.slowest_response in lengths and counters.slowest_prompt in {p.ids.size for p in prompts}


def test_a_cache_of_another_type_rounds_keys_and_values_alone(model, endless_engine) -> None:
    import mindspore as ms

    halves = make_engine(model, eos_ids=(), cache_dtype="float16")
    assert {matrix.dtype for matrix in halves.cache} == {ms.float16}
    assert {matrix.dtype for matrix in endless_engine.cache} == {ms.float32}
    # float16 keeps 11 bits; over two layers the rounding of keys and values moves log-probs in the third digit.
    assert 1e-5 < trainer_gap(model, halves, 1.0) < 1e-2


@pytest.mark.parametrize("tokens_per_sync", [3, 8])
def test_a_sample_does_not_depend_on_tokens_per_sync(model, engine, tokens_per_sync: int) -> None:
    prompts = make_prompts(9)
    rollout = generate(make_engine(model, tokens_per_sync=tokens_per_sync), prompts, sampling())
    for response, other in zip(flat(rollout), flat(generate(engine, prompts, sampling())), strict=True):
        assert response.ids.tolist() == other.ids.tolist() and response.finish_reason == other.finish_reason
        assert response.logprobs.tolist() == other.logprobs.tolist(), "bit for bit"
    counters = rollout.counters
    assert counters.generated_tokens == counters.busy_slot_steps < counters.slot_steps


@pytest.mark.parametrize("tokens_per_sync", [1, 4])
def test_preemption_changes_no_token(model, engine, endless_engine, tokens_per_sync: int) -> None:
    """Blocks of four tokens: five for the longest sequence, and a cache of nine for five sequences."""
    for eos_ids, reference in ((EOS_IDS, engine), ((), endless_engine)):
        prompts = make_prompts(9)
        tight = make_engine(model, eos_ids=eos_ids, block=4, num_blocks=10, tokens_per_sync=tokens_per_sync)
        rollout, expected = generate(tight, prompts, sampling()), generate(reference, prompts, sampling())
        assert tokens_of(rollout) == tokens_of(expected)
        for response, other in zip(flat(rollout), flat(expected), strict=True):
            np.testing.assert_allclose(response.logprobs, other.logprobs, atol=1e-5)
        assert rollout.counters.most_blocks <= 9
    assert rollout.counters.preemptions > 0, "nobody had to leave"


def test_weights_of_another_version_are_refused(model, engine) -> None:
    from mindgspo.rollout.engine import NativeEngine

    with pytest.raises(AssertionError, match="version 1, trainer is at 2"):
        engine.generate(make_prompts(1), sampling(), weight_version=2)
    fresh = NativeEngine(
        model, eos_ids=(), num_slots=1, prefill_width=1, max_prompt_length=1, max_new_tokens=1, length_multiple=1
    )
    with pytest.raises(AssertionError, match="version None"):
        fresh.generate(make_prompts(1), sampling(max_new_tokens=1), weight_version=VERSION)


def test_more_tokens_than_the_cache_holds_are_refused(engine) -> None:
    with pytest.raises(AssertionError):
        generate(engine, make_prompts(1), sampling(max_new_tokens=MAX_NEW + 1))
