"""Tiny random Qwen3 models made and saved by Hugging Face transformers: the same logits, tokens and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mindgspo.checkpoint import export_huggingface
from mindgspo.config import ModelSection, OptimizerSection
from mindgspo.models.huggingface_config import generation_config, huggingface_config, read_model_section

torch = pytest.importorskip("torch", reason="needs the `parity` extra")
transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("cpu_runtime")]

VOCAB_SIZE, ROPE_THETA, TEMPERATURE = 97, 12345.0, 0.9
# Heads wider and narrower than hidden_size / num_attention_heads, which is 12.
SHAPES = {
    "tied, wide heads": {
        "tie_word_embeddings": True,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    "untied, narrow heads": {
        "tie_word_embeddings": False,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 10,
    },
}


@dataclass(frozen=True)
class Pair:
    """One model twice: theirs in memory and saved in `folder`, ours loaded from there."""

    folder: Path
    reference: object
    section: ModelSection
    model: object


def make_reference(shape: dict):
    """Weights wide enough that no greedy choice is a near tie."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        max_position_embeddings=256,
        rope_theta=ROPE_THETA,
        initializer_range=0.2,
        use_sliding_window=False,
        **shape,
    )
    reference = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():  # norm weights start as ones: give them values that can be told apart
        for parameter in reference.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return reference


def load_ours(folder: Path):
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import load_huggingface

    section = read_model_section(folder)
    model = build_model(section)
    load_huggingface(model, section, folder)
    return section, model


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def pair(request, tmp_path_factory, cpu_runtime) -> Pair:
    folder = tmp_path_factory.mktemp("qwen3")
    reference = make_reference(request.param)
    reference.save_pretrained(folder)
    return Pair(folder, reference, *load_ours(folder))


IDS_RT = np.random.default_rng(1).integers(0, VOCAB_SIZE, (2, 40)).astype(np.int32)


def our_logits(model) -> np.ndarray:
    from mindspore import Tensor

    positions_RT = np.tile(np.arange(IDS_RT.shape[1], dtype=np.int32), (len(IDS_RT), 1))
    hidden = model(Tensor(IDS_RT), Tensor(positions_RT), Tensor(np.ones_like(IDS_RT))).asnumpy()
    return (hidden @ model.output_weight().asnumpy().T).reshape(*IDS_RT.shape, VOCAB_SIZE)


def their_logits(reference) -> np.ndarray:
    with torch.no_grad():
        return reference(torch.tensor(IDS_RT, dtype=torch.long)).logits.float().numpy()


def test_the_section_is_the_models(pair: Pair) -> None:
    assert pair.section.architecture == "qwen3"
    assert pair.section.head_dim == pair.reference.config.head_dim != 48 // 4
    assert pair.section.rope_theta == ROPE_THETA


def test_logits(pair: Pair) -> None:
    expected = their_logits(pair.reference)
    assert np.abs(expected).max() > 1, "the comparison needs logits away from zero"
    assert np.abs(our_logits(pair.model) - expected).max() < 1e-4


def test_32_greedy_tokens_of_the_decode_graph(pair: Pair) -> None:
    from mindgspo.rollout.engine import NativeEngine
    from mindgspo.rollout.protocol import SamplingSettings
    from mindgspo.rollout.random import Purpose, RandomStream
    from mindgspo.types import Prompt

    prompts = [
        Prompt(index=i, ids=IDS_RT[i % 2, i : i + length], text="", answer="", data_source="test")
        for i, length in enumerate([1, 5, 16])
    ]
    engine = NativeEngine(
        pair.model,
        eos_ids=(),
        num_slots=3,
        prefill_width=2,
        max_prompt_length=16,
        max_new_tokens=32,
        length_multiple=16,
    )
    engine.load_weights(1)
    stream = RandomStream(seed=0, purpose=Purpose.EVALUATION, step=0)
    settings = SamplingSettings(num_samples=1, temperature=0.0, max_new_tokens=32, stream=stream)
    responses = engine.generate(prompts, settings, weight_version=1).responses
    varied = 0
    for prompt, (response,) in zip(prompts, responses, strict=True):
        ids = torch.tensor(prompt.ids[None], dtype=torch.long)
        generated = pair.reference.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32, pad_token_id=0
        )
        expected = generated[0, prompt.ids.size :].tolist()
        assert len(expected) == 32 and response.ids.tolist() == expected
        varied += len(set(expected))
    assert varied > 12, "three loops over a single token would prove little"


def test_log_probs_and_gradients(pair: Pair) -> None:
    """Of the mean negative log-likelihood of responses of several lengths."""
    from mindgspo.algorithms.supervised import SupervisedLoss
    from mindgspo.algorithms.update import PolicyUpdater
    from mindgspo.data.rows import TrainingSample, lay_out
    from mindgspo.models.names import hugging_face_names
    from mindgspo.models.policy import PolicyLogProbs, PolicyScorer
    from mindgspo.models.weights import load_huggingface

    random = np.random.default_rng(2)
    samples = [
        TrainingSample(
            prompt_ids=random.integers(0, VOCAB_SIZE, 1 + number).astype(np.int32),
            response_ids=random.integers(0, VOCAB_SIZE, 10 - number).astype(np.int32),
            rollout_logp=np.zeros(10 - number, np.float32),
            number=number,
        )
        for number in range(5)
    ]
    batches = lay_out(samples, samples_per_micro_batch=3, length_multiple=16, pad_id=0)
    scores = PolicyScorer(pair.model, temperature=TEMPERATURE).score(batches)

    twin = make_reference({key: getattr(pair.section, key) for key in next(iter(SHAPES.values()))}).double()
    losses = []
    for batch, score in zip(batches, scores, strict=True):
        for row, number in enumerate(batch.samples_N):
            if number < 0:
                continue
            prompt, response = samples[number].prompt_ids, samples[number].response_ids
            ids = torch.tensor(np.concatenate([prompt, response])[None], dtype=torch.long)
            log_probs = torch.log_softmax(twin(ids).logits[0] / TEMPERATURE, dim=-1)[prompt.size - 1 : -1]
            logp = log_probs.gather(1, torch.tensor(response, dtype=torch.long)[:, None])[:, 0]
            found = score.logp_NK[row, : response.size]
            np.testing.assert_allclose(found, logp.detach().numpy(), rtol=0, atol=1e-4)
            losses.append(-logp.sum() / batch.num_tokens)
    total = sum(losses)
    total.backward()

    # beta1 = 0 and no clipping of the norm: the first moment after one update is the gradient.
    policy = PolicyLogProbs(pair.model, temperature=TEMPERATURE, with_entropy=False)
    updater = PolicyUpdater(policy, SupervisedLoss(), OptimizerSection(lr=1e-5, beta1=0.0, max_grad_norm=1e9))
    try:
        result = updater.update(batches, lr=1e-5)
    finally:
        load_huggingface(pair.model, pair.section, pair.folder)  # the other tests use this model too
    assert result.loss == pytest.approx(float(total.detach()), rel=1e-4)
    state, names = updater.state(), hugging_face_names(pair.section)
    gradients = {names[name]: state[f"adamw.m.{name}"] for name in names}
    expected = {name: parameter.grad.numpy() for name, parameter in twin.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        largest = np.abs(gradient).max()
        assert largest > 0, name
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=1e-4 * largest, err_msg=name)


class NoTokenizer:
    """Stands where a tokenizer would write its files."""

    def save(self, folder: Path) -> None:
        pass


def test_an_export_loads_in_transformers_with_the_same_logits(pair: Pair, tmp_path: Path) -> None:
    from mindgspo.models.weights import weights_as_numpy

    export_huggingface(
        tmp_path / "export",
        tensors=weights_as_numpy(pair.model, pair.section),
        model_config=huggingface_config(pair.section, eos_ids=(5, 7), pad_id=3),
        generation_config=generation_config(eos_ids=(5, 7), pad_id=3, max_new_tokens=17),
        tokenizer=NoTokenizer(),
    )
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export", output_loading_info=True)
    assert type(loaded) is transformers.Qwen3ForCausalLM and loaded.dtype == torch.float32
    assert not any(report.values()), report
    assert loaded.config.rope_parameters["rope_theta"] == ROPE_THETA
    np.testing.assert_array_equal(their_logits(loaded.eval()), their_logits(pair.reference))
