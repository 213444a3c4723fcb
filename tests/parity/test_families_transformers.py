"""Tiny random models made and saved by Hugging Face transformers: the same logits, tokens and gradients."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from mindgspo.algorithms.optim.updater import Updater
from mindgspo.checkpoint.export import export_huggingface
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection
from mindgspo.config.huggingface_config import generation_config, huggingface_config, read_model_section
from mindgspo.config.load import with_recipe
from mindgspo.models.rope import rope_tables
from mindgspo.models.scoring import PolicyScorer

torch = pytest.importorskip("torch", reason="needs the `parity` extra")
transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("cpu_runtime")]

VOCAB_SIZE, HIDDEN_SIZE, ROPE_THETA = 97, 48, 12345.0
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 24}
LATENTS = {
    "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "moe_intermediate_size": 24, "routed_scaling_factor": 2.5,
}  # fmt: skip
# By architecture: heads shared by all, some or one; heads wider and narrower than hidden_size / heads, which is 12.
SHAPES = {
    "qwen2, tied": {"tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen2, untied": {"tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 1},
    "qwen2, all heads": {"tie_word_embeddings": False, "num_attention_heads": 2, "num_key_value_heads": 2},
    "qwen3, tied, wide heads": {
        "tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    },
    "qwen3, untied, narrow heads": {
        "tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10,
    },
    "llama, stretched": {
        "tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_parameters": {"rope_theta": ROPE_THETA, **LLAMA3},
    },
    "qwen2, stretched by YaRN": {
        "tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_parameters": {
            "rope_theta": ROPE_THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "qwen3, stretched linearly": {
        "tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "linear", "factor": 2.5},
    },
    "llama, tied, narrow heads": {
        "tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    },
    "mistral, untied": {
        "tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": None,
    },
    "mistral, tied, wide heads": {
        "tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
        "sliding_window": 256,
    },
    "glm, untied": {
        "tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
    },
    "glm, tied, without biases": {
        "tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
        "attention_bias": False,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default", "partial_rotary_factor": 0.25},
    },
    "glm, stretched by YaRN": {
        "tie_word_embeddings": False, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20,
        "rope_parameters": {
            "rope_theta": ROPE_THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "glm4, untied, all heads": {
        "tie_word_embeddings": False, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16,
    },
    "glm4, tied, without biases": {
        "tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20,
        "attention_bias": False,
    },
    "qwen3_moe, 2 of 8, normed": {**EXPERTS, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "qwen3_moe, 3 of 5": {**EXPERTS, "num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": False},
    "qwen3_moe, 1 of 4, tied": {
        **EXPERTS, "num_experts": 4, "num_experts_per_tok": 1, "norm_topk_prob": False, "tie_word_embeddings": True,
    },
    "glm4_moe, 3 of 8 in 2 of 4 groups, normed": {
        **EXPERTS, "n_routed_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True, "n_group": 4,
        "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
        "attention_bias": True, "use_qk_norm": True,
    },
    "glm4_moe, 2 of 5, two dense layers, tied": {
        **EXPERTS, "n_routed_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": False, "n_shared_experts": 1,
        "first_k_dense_replace": 2, "routed_scaling_factor": 1.5, "attention_bias": False, "use_qk_norm": False,
        "tie_word_embeddings": True,
    },
    "deepseek_v3, groups": {
        **LATENTS, "tie_word_embeddings": False, "q_lora_rank": 20, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
    },
    "deepseek_v3, without query latents, stretched, tied": {
        **LATENTS, "tie_word_embeddings": True, "q_lora_rank": None, "n_routed_experts": 5, "num_experts_per_tok": 2,
        "n_shared_experts": 2, "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "rope_parameters": {
            "rope_theta": ROPE_THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "mscale": 0.7, "mscale_all_dim": 1.0,
        },
    },
}  # fmt: skip
CLASSES = {
    **{"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "mistral": "Mistral", "glm": "Glm", "glm4": "Glm4"},
    **{"qwen3_moe": "Qwen3Moe", "glm4_moe": "Glm4Moe", "deepseek_v3": "DeepseekV3"},
}


@dataclass(frozen=True)
class Pair:
    """One model twice: theirs in memory and saved in `folder`, ours loaded from there."""

    case: str
    folder: Path
    reference: object
    section: ModelSection
    model: object


def make_reference(case: str, seed: int = 0):
    """Weights wide enough that no greedy choice is a near tie."""
    torch.manual_seed(seed)
    kind = CLASSES[case.split(",")[0]]
    sizes = {"rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"}} | SHAPES[case]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB_SIZE, hidden_size=HIDDEN_SIZE, intermediate_size=80, num_hidden_layers=3,
        max_position_embeddings=256, initializer_range=0.2, eos_token_id=None, pad_token_id=None, **sizes,
    )  # fmt: skip
    reference = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():  # biases and norm weights start as constants: give them values that can be told apart
        for name, parameter in reference.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith("mlp.gate.weight"):  # the router: choices far from a tie in every precision
                torch.nn.init.normal_(parameter, std=0.5)
        for name, buffer in reference.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.3)
    return reference


def load_ours(folder: Path):
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import load_huggingface

    section = read_model_section(folder)
    model = build_model(section)
    load_huggingface(model, section, folder)
    return section, model


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, cpu_runtime) -> Pair:
    folder = tmp_path_factory.mktemp("model")
    reference = make_reference(request.param)
    reference.save_pretrained(folder)
    return Pair(request.param, folder, reference, *load_ours(folder))


IDS_RT = np.random.default_rng(1).integers(0, VOCAB_SIZE, (2, 40)).astype(np.int32)


def our_logits(model) -> np.ndarray:
    from mindspore import Tensor

    from mindgspo.parallel.ops.device import attention_segments, takes_packed

    positions_RT = np.tile(np.arange(IDS_RT.shape[1], dtype=np.int32), (len(IDS_RT), 1))
    segments = attention_segments(np.ones_like(IDS_RT), is_packed=takes_packed(model))
    hidden = model(Tensor(IDS_RT), Tensor(positions_RT), Tensor(segments)).asnumpy()
    return (hidden @ model.output_weight().asnumpy().T).reshape(*IDS_RT.shape, VOCAB_SIZE)


def their_logits(reference) -> np.ndarray:
    with torch.no_grad():
        return reference(torch.tensor(IDS_RT, dtype=torch.long)).logits.float().numpy()


def test_the_section_is_the_models(pair: Pair) -> None:
    section, config = pair.section, pair.reference.config
    assert section.architecture == pair.case.split(",")[0]
    by_width = SHAPES[pair.case].get("head_dim", HIDDEN_SIZE // section.num_attention_heads)
    assert section.head_dim == getattr(config, "qk_head_dim", by_width)
    assert section.rope_theta == ROPE_THETA and (section.rope_scaling is not None) == ("stretched" in pair.case)
    assert (section.num_experts, section.norm_topk_prob) == (
        SHAPES[pair.case].get("num_experts", SHAPES[pair.case].get("n_routed_experts")),
        SHAPES[pair.case].get("norm_topk_prob", False),
    )
    assert section.tie_word_embeddings == config.tie_word_embeddings


def test_logits(pair: Pair) -> None:
    expected = their_logits(pair.reference)
    assert np.abs(expected).max() > 1, "the comparison needs logits away from zero"
    assert np.abs(our_logits(pair.model) - expected).max() < 1e-4


def test_32_greedy_tokens_of_the_decode_graph(pair: Pair) -> None:
    from mindgspo.rollout.engine import NativeEngine
    from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
    from mindgspo.types import Prompt

    prompts = [
        Prompt(index=i, ids=IDS_RT[i % 2, i : i + length], text="", answer="", data_source="test")
        for i, length in enumerate([1, 2, 5, 11, 16])
    ]
    engine = NativeEngine(
        pair.model, eos_ids=(), num_slots=3, prefill_width=2, max_prompt_length=16, max_new_tokens=32,
        length_multiple=16,
    )  # fmt: skip
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
    assert varied > 20, "five loops over a single token would prove little"


def test_log_probs_of_the_command(pair: Pair, tmp_path: Path) -> None:
    from mindgspo.evaluation.log_probs import log_probs_of_file

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"ids": ids.tolist()}) + "\n" for ids in IDS_RT))
    log_probs = torch.log_softmax(torch.tensor(their_logits(pair.reference), dtype=torch.float64), dim=-1).numpy()
    for ids, expected, found in zip(IDS_RT, log_probs, log_probs_of_file(pair.folder, rows), strict=True):
        np.testing.assert_allclose(found["logprobs"], expected[np.arange(ids.size - 1), ids[1:]], rtol=0, atol=1e-4)
        assert found["next"] == expected[-1].argmax()


def torch_gspo_loss(reference, batch, *, temperature: float, clip_low: float, clip_high: float):
    """Eq. 5 and 7 of arXiv 2507.18071, row by row; and how many sequences were clipped."""
    loss, clipped = 0.0, 0
    for row, mask in enumerate(batch.mask_NK):
        if not mask.any():
            continue
        length = int((batch.segments_RT[row] == 1).sum())
        ids = torch.tensor(batch.ids_RT[row, :length][None], dtype=torch.long)
        log_probs = torch.log_softmax(reference(ids).logits[0] / temperature, dim=-1)
        count = int(mask.sum())
        logp = log_probs[length - count - 1 : length - 1].gather(1, ids[0, length - count :, None])[:, 0]
        ratio = torch.exp((logp - torch.tensor(batch.old_logp_NK[row, :count], dtype=torch.float64)).mean())
        advantage = float(batch.advantages_NK[row, 0])
        bounded = torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
        loss = loss - torch.minimum(ratio * advantage, bounded * advantage) / batch.num_sequences
        clipped += int(bounded * advantage < ratio * advantage)
    return loss, clipped


def test_gradients_of_the_gspo_loss(pair: Pair) -> None:
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.batches.rows import TrainingSample, lay_out, scattered
    from mindgspo.models.names import to_hugging_face, trained_shapes
    from mindgspo.models.policy import PolicyLogProbs
    from mindgspo.models.weights import load_huggingface

    temperature, clip = 0.9, {"clip_low": 0.05, "clip_high": 0.08}
    rng = np.random.default_rng(2)
    samples = []
    for number in range(8):
        ids = rng.integers(0, VOCAB_SIZE, rng.integers(6, 17)).astype(np.int32)
        prompt = int(rng.integers(1, 5))
        samples.append(
            TrainingSample(
                prompt_ids=ids[:prompt], response_ids=ids[prompt:],
                rollout_logp=np.zeros(ids.size - prompt, np.float32), number=number,
            )
        )  # fmt: skip
    advantages = [np.full(sample.response_ids.size, rng.normal(), np.float32) for sample in samples]
    batches = lay_out(samples, samples_per_micro_batch=3, length_multiple=16, pad_id=0)
    scores = PolicyScorer(pair.model, temperature=temperature).score(batches)
    # The old policy differs from the present one by 0.1 in the mean log-prob: some sequences leave the clip range.
    moved = [score.logp_NK + 0.1 * rng.normal(size=(len(score.logp_NK), 1)) for score in scores]
    batches = [
        replace(
            batch,
            old_logp_NK=np.where(batch.mask_NK, old, 0).astype(np.float32),
            advantages_NK=scattered(batch, advantages),
        )
        for batch, old in zip(batches, moved, strict=True)
    ]
    twin = make_reference(pair.case).double()
    if pair.section.num_experts:
        twin.set_experts_implementation("eager")  # their grouped product knows no float64
    total, clipped = 0.0, 0
    for batch in batches:
        loss, count = torch_gspo_loss(twin, batch, temperature=temperature, **clip)
        loss.backward()
        total, clipped = total + float(loss.detach()), clipped + count
    assert 0 < clipped < len(samples), "some sequences must be clipped, others not"
    # beta1 = 0 and no clipping of the norm: the first moment after one update is the gradient.
    optimizer = OptimizerSection(lr=1e-5, beta1=0.0, max_grad_norm=1e9)
    loss_cell = build_policy_loss(with_recipe(AlgorithmSection(**clip, allow_wide_clip=True), max_new_tokens=16))
    policy = PolicyLogProbs(pair.model, temperature=temperature, with_entropy=False)
    updater = Updater(policy, loss_cell, optimizer)
    try:
        result = updater.step(batches, lr=1e-5)
    finally:
        load_huggingface(pair.model, pair.section, pair.folder)  # the other tests use this model too
    state = updater.state()
    gradients = to_hugging_face(pair.section, {name: state[f"adamw.m.{name}"] for name in trained_shapes(pair.section)})
    assert result.loss == pytest.approx(total, rel=1e-4)
    assert result.metrics["pg_clipfrac_seq"] == pytest.approx(clipped / len(samples))
    expected = by_file_name({name: parameter.grad.numpy() for name, parameter in twin.named_parameters()})
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        largest = np.abs(gradient).max()
        assert largest > 0, name
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=1e-4 * largest, err_msg=name)


def by_file_name(tensors: dict) -> dict:
    """transformers holds the experts of a layer as two arrays; its files have three matrices of each."""
    found = {}
    for name, array in tensors.items():
        prefix, _, kind = name.rpartition(".")
        if not prefix.endswith(".experts"):
            found[name] = array
            continue
        for expert, matrix in enumerate(array):
            halves = np.split(matrix, 2) if kind == "gate_up_proj" else [matrix]
            for part, half in zip(kind.removesuffix("_proj").split("_"), halves, strict=True):
                found[f"{prefix}.{expert}.{part}_proj.weight"] = half
    return found


class NoTokenizer:
    """Stands where a tokenizer would write its files."""

    def save(self, folder: Path) -> None:
        pass


def test_an_export_loads_in_transformers_with_the_same_logits(pair: Pair, tmp_path: Path) -> None:
    from mindgspo.rollout.weight_transfer import weights_as_numpy

    export_huggingface(
        tmp_path / "export", tensors=weights_as_numpy(pair.model, pair.section),
        model_config=huggingface_config(pair.section, eos_ids=(5, 7), pad_id=3),
        generation_config=generation_config(eos_ids=(5, 7), pad_id=3), tokenizer=NoTokenizer(),
    )  # fmt: skip
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export", output_loading_info=True)
    assert type(loaded) is type(pair.reference) and loaded.dtype == torch.float32
    assert not any(report.values()), report
    assert loaded.config.rope_parameters["rope_theta"] == ROPE_THETA
    assert loaded.generation_config.eos_token_id == [5, 7] and loaded.generation_config.pad_token_id == 3
    assert not loaded.generation_config.do_sample and loaded.generation_config.max_new_tokens is None
    np.testing.assert_array_equal(their_logits(loaded.eval()), their_logits(pair.reference))


def test_the_old_style_of_config_json_describes_the_same_model(pair: Pair, tmp_path: Path) -> None:
    raw = json.loads((pair.folder / "config.json").read_text())
    assert "rope_theta" not in raw, "transformers 5 nests it"
    assert raw.pop("rope_parameters")["rope_theta"] == ROPE_THETA
    raw.pop("layer_types", None), raw.pop("dtype")
    scaling = SHAPES[pair.case].get("rope_parameters", {}).copy()
    scaling.pop("rope_theta", None)
    old = raw | {"rope_theta": ROPE_THETA, "rope_scaling": scaling or None, "torch_dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert read_model_section(tmp_path) == pair.section.model_copy(update={"path": tmp_path})
    # transformers itself understands it in the same way.
    assert transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"] == ROPE_THETA


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


ONE_HEAD = {
    "model_type": "qwen3", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 2048,
}  # fmt: skip


def their_tables(folder: Path, length: int) -> list[np.ndarray]:
    """cos and sin in one forward pass of so many tokens."""
    rotary = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(
        transformers.AutoConfig.from_pretrained(folder)
    )
    return [table[0].numpy() for table in rotary(torch.zeros(1), torch.arange(length)[None])]


@pytest.mark.parametrize("changes", [
    {"rope_scaling": {"type": "linear", "factor": 2.5}},
    {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    {"rope_parameters": {"rope_theta": 1e4, **LLAMA3}},
    # As Qwen2.5 and Qwen3 publish it.
    {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, "rope_theta": 1e6,
     "max_position_embeddings": 131072},
    {"rope_parameters": {**YARN, "rope_theta": 1e6, "attention_factor": None}},
    {"rope_scaling": YARN | {"factor": None}},
    {"rope_scaling": YARN | {"factor": None}, "original_max_position_embeddings": 1024},
    {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    {"rope_scaling": YARN | {"truncate": False}},
    {"rope_scaling": YARN | {"truncate": None, "beta_fast": None, "beta_slow": None}},
    {"rope_scaling": YARN | {"beta_fast": 8, "beta_slow": 2, "attention_factor": 1.25}},
    {"rope_scaling": YARN | {"beta_fast": 4.0, "beta_slow": 4.0, "mscale": 1.0}},
    {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.707}},
    {"rope_scaling": YARN | {"mscale": 0.0, "mscale_all_dim": 1}},
], ids=str)  # fmt: skip
def test_tables_of_stretched_positions(changes: dict, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ONE_HEAD | changes))
    section = read_model_section(tmp_path)
    expected = their_tables(tmp_path, section.max_position_embeddings)
    for ours, theirs in zip(rope_tables(section), expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5 * max(1, len(ours) / 1024)


def test_one_base_for_what_dynamic_stretching_does_to_the_longest_sequence(tmp_path: Path) -> None:
    """As the description of `model.rope_scaling` says: M = 8192 instead of N = 2048."""
    (tmp_path / "config.json").write_text(json.dumps(ONE_HEAD | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}))
    section = read_model_section(tmp_path)
    theta = section.rope_theta * (4.0 * 8192 / 2048 - 4.0 + 1) ** (64 / 62)
    longer = section.model_copy(update={"max_position_embeddings": 8192, "rope_theta": theta})
    np.testing.assert_allclose(rope_tables(longer), their_tables(tmp_path, 8192), atol=1e-3)


def test_shards_of_a_bfloat16_model(tmp_path: Path) -> None:
    make_reference("qwen2, untied").to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="50KB")
    assert (tmp_path / "model.safetensors.index.json").is_file() and len(list(tmp_path.glob("*.safetensors"))) > 2
    _, model = load_ours(tmp_path)
    # Read back as float32: a model cast to bfloat16 has rounded its RoPE frequencies too.
    reference = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert np.abs(our_logits(model) - their_logits(reference)).max() < 1e-4
