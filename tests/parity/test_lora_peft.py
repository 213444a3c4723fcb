"""Low-rank adapters against PEFT: the same logits, log-probs, gradients and steps of AdamW, and its folders.

transformers stacks the experts of a mixture in two parameters, gate and up in one, and PEFT adapts these as they are;
what it makes of our adapters, it makes when it loads our folder (peft.utils.transformers_weight_conversion).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from mindgspo.algorithms.optim.updater import Updater
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.load import with_recipe
from mindgspo.config.lora import LoraSection
from mindgspo.models.scoring import PolicyScorer

torch = pytest.importorskip("torch", reason="needs the `parity` extra")
transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")
peft = pytest.importorskip("peft", reason="needs peft")

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("cpu_runtime")]

VOCAB_SIZE, TEMPERATURE = 97, 0.9
CLIP = {"clip_low": 0.05, "clip_high": 0.08}
SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = SIZES | {"head_dim": 16}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 24}
# Kind, sizes, and the adapter: all projections, some, another scale.
CASES = {
    "qwen2": ("Qwen2", SIZES | {"tie_word_embeddings": True}, {"targets": ("all",), "rank": 6, "alpha": 9.0}),
    "qwen3": ("Qwen3", WIDE, {"targets": ("q_proj", "v_proj", "down_proj"), "rank": 4, "alpha": 8.0}),
    "llama": ("Llama", WIDE, {"targets": ("all",), "rank": 5, "alpha": 4.0, "use_rslora": True}),
    "qwen3_moe": (
        "Qwen3Moe",
        WIDE | EXPERTS,
        {"targets": ("attention",), "rank": 4, "alpha": 8.0, "train_norms": True},
    ),
    "experts": ("Qwen3Moe", WIDE | EXPERTS, {"targets": ("all", "router"), "rank": 3, "alpha": 6.0}),
}


@dataclass(frozen=True)
class Pair:
    """One base model with one adapter, in both."""

    base: Path
    adapter: Path
    theirs: object
    """In float64, so that torch's own rounding does not hide ours."""
    section: ModelSection
    ours: object


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory, cpu_runtime) -> Pair:
    from mindgspo.models.policy import build_model
    from mindgspo.models.weights import fill_model

    kind, sizes, lora = CASES[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=80, num_hidden_layers=2, max_position_embeddings=64,
        initializer_range=0.1, eos_token_id=None, **sizes,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("lora")
    base = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if parameter.ndim == 1:  # biases and norms, which begin as constants
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif name.endswith("mlp.gate.weight"):  # choices of experts far from a tie
                torch.nn.init.normal_(parameter, std=0.5)
    base.save_pretrained(folder / "base")
    section = LoraSection(**lora, path=folder / "adapter")
    model = read_model_section(folder / "base").model_copy(update={"lora": section})
    ours = build_model(model)
    if request.param == "experts":
        export_drawn(ours, model, folder / "adapter")
        theirs = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).eval()
    else:
        settings = peft.LoraConfig(
            r=section.rank, lora_alpha=section.alpha, target_modules=list(section.projections), task_type="CAUSAL_LM",
            use_rslora=section.use_rslora, init_lora_weights=True,
            modules_to_save=["input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm"]
            if section.train_norms else None,
        )  # fmt: skip
        theirs = peft.get_peft_model(base, settings).eval()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                if "lora_B" in name or "modules_to_save" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        theirs.save_pretrained(folder / "adapter")
    fill_model(ours, model, 0)
    theirs = theirs.double()
    if model.num_experts:
        theirs.get_base_model().set_experts_implementation("eager")  # their grouped product knows no float64
    return Pair(folder / "base", folder / "adapter", theirs, model, ours)


def export_drawn(ours, model: ModelSection, folder: Path) -> None:
    """A random adapter as a PEFT folder."""
    from mindgspo.checkpoint.export import export_adapters
    from mindgspo.models.names import trained_weight_shapes

    random = np.random.default_rng(4)
    scales = {"A": 0.2, "B": 0.05}
    tensors = {
        name: scales[name[-8]] * random.standard_normal(shape, np.float32)
        for name, shape in trained_weight_shapes(model).items()
    }
    export_adapters(folder, model, tensors)


IDS_RT = np.random.default_rng(1).integers(0, VOCAB_SIZE, (2, 40)).astype(np.int32)


def logits_of(model) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(IDS_RT, dtype=torch.long)).logits.numpy()


def test_logits(pair: Pair) -> None:
    from mindspore import Tensor

    from mindgspo.parallel.ops.device import attention_segments, takes_packed

    positions_RT = np.tile(np.arange(IDS_RT.shape[1], dtype=np.int32), (len(IDS_RT), 1))
    segments = attention_segments(np.ones_like(IDS_RT), is_packed=takes_packed(pair.ours))
    hidden = pair.ours(Tensor(IDS_RT), Tensor(positions_RT), Tensor(segments)).asnumpy()
    found = (hidden @ pair.ours.output_weight().asnumpy().T).reshape(*IDS_RT.shape, VOCAB_SIZE)
    expected = logits_of(pair.theirs)
    with pair.theirs.disable_adapter():
        assert np.abs(logits_of(pair.theirs) - expected).max() > 0.1, "an adapter that does nothing would prove little"
    assert np.abs(found - expected).max() < 1e-5


def gspo_batches(pair: Pair):
    """Eight responses whose old policy differs from the present one: some sequences leave the clip range."""
    from mindgspo.batches.rows import TrainingSample, lay_out, scattered

    rng = np.random.default_rng(2)
    samples = []
    for number in range(8):
        ids = rng.integers(0, VOCAB_SIZE, rng.integers(6, 17)).astype(np.int32)
        prompt = int(rng.integers(1, 5))
        none = np.zeros(ids.size - prompt, np.float32)
        samples.append(
            TrainingSample(prompt_ids=ids[:prompt], response_ids=ids[prompt:], rollout_logp=none, number=number)
        )
    advantages = [np.full(sample.response_ids.size, rng.normal(), np.float32) for sample in samples]
    batches = lay_out(samples, samples_per_micro_batch=3, length_multiple=16, pad_id=0)
    scores = [score.logp_NK for score in PolicyScorer(pair.ours, temperature=TEMPERATURE).score(batches)]
    moved = [logp + 0.1 * rng.normal(size=(len(logp), 1)) for logp in scores]
    return scores, [
        replace(
            batch,
            old_logp_NK=np.where(batch.mask_NK, old, 0).astype(np.float32),
            advantages_NK=scattered(batch, advantages),
        )
        for batch, old in zip(batches, moved, strict=True)
    ]


def torch_gspo_loss(model, batch):
    """Eq. 5 and 7 of arXiv 2507.18071, row by row, and the log-probs of each."""
    loss, logps = 0.0, []
    for row, mask in enumerate(batch.mask_NK):
        if not mask.any():
            continue
        ids = torch.tensor(batch.ids_RT[row, : int((batch.segments_RT[row] == 1).sum())][None], dtype=torch.long)
        log_probs = torch.log_softmax(model(ids).logits[0] / TEMPERATURE, dim=-1)
        length, count = ids.shape[1], int(mask.sum())
        logp = log_probs[length - count - 1 : length - 1].gather(1, ids[0, length - count :, None])[:, 0]
        ratio = torch.exp((logp - torch.tensor(batch.old_logp_NK[row, :count], dtype=torch.float64)).mean())
        advantage = float(batch.advantages_NK[row, 0])
        bounded = torch.clamp(ratio, 1 - CLIP["clip_low"], 1 + CLIP["clip_high"])
        loss = loss - torch.minimum(ratio * advantage, bounded * advantage) / batch.num_sequences
        logps.append(logp.detach().numpy())
    return loss, logps


def updater_of(pair: Pair, section: OptimizerSection) -> Updater:
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.models.policy import PolicyLogProbs

    loss = build_policy_loss(with_recipe(AlgorithmSection(**CLIP, allow_wide_clip=True), max_new_tokens=16))
    return Updater(PolicyLogProbs(pair.ours, temperature=TEMPERATURE, with_entropy=False), loss, section)


@dataclass(frozen=True)
class Trained:
    """A parameter of PEFT's, and the part of it that is one of ours."""

    whole: object
    of: Callable = lambda tensor: tensor

    def values(self) -> np.ndarray:
        return self.of(self.whole.detach()).numpy().copy()

    def gradient(self) -> np.ndarray:
        return self.of(self.whole.grad).numpy().copy()


def trained_by_peft(pair: Pair) -> dict[str, Trained]:
    from mindgspo.models.names import trained_shapes

    theirs = {
        name.replace(".default", "").replace("modules_to_save.", "").removeprefix("base_model.model."): one
        for name, one in pair.theirs.named_parameters()
        if one.requires_grad
    }
    shapes, found = trained_shapes(pair.section), {}
    for name in shapes:
        if ".experts." not in name:
            found[name] = Trained(theirs.pop(name))
    for name in (name for name in list(theirs) if ".experts." in name):
        layer, matrix = name.split(".experts.")[0] + ".experts.", name[-len("lora_A.weight") :]
        projections = ("gate_proj", "up_proj") if "base_layer" in name else ("down_proj",)
        for i, projection in enumerate(projections):
            ours = f"{layer}{projection}.{matrix}"
            found[ours] = Trained(theirs[name], stacked_part(shapes[ours], i, len(projections), matrix[5]))
        if len(projections) == 2 and matrix[5] == "B":
            mask = torch.zeros_like(theirs[name])
            for projection in projections:
                found[f"{layer}{projection}.{matrix}"].of(mask).fill_(1)
            theirs[name].register_hook(lambda gradient, mask=mask: gradient * mask)
        del theirs[name]
    assert not theirs and found.keys() == shapes.keys()
    return {name: found[name] for name in shapes}


def stacked_part(shape: tuple[int, int, int], number: int, count: int, matrix: str) -> Callable:
    """Matrix A or B of projection `number` of `count` that are one parameter, [E, ...]. PEFT has A as [E r, I], and B,
    a diagonal of blocks of which we train no others, as [O, r E]."""
    experts, rows, columns = shape
    if matrix == "A":
        run = slice(number * rows, (number + 1) * rows)
        return lambda tensor: tensor.reshape(experts, count * rows, columns)[:, run]
    outs, ranks = (slice(number * size, (number + 1) * size) for size in (rows, columns))
    return lambda tensor: tensor.reshape(count * rows, count * columns, experts)[outs, ranks].permute(2, 0, 1)


@pytest.fixture
def unchanged(pair: Pair):
    """Brings both models back to the adapter's folder, since the other tests use them too."""
    from mindgspo.models.weights import load_adapters

    theirs = {name: one.detach().clone() for name, one in pair.theirs.named_parameters()}
    yield
    load_adapters(pair.ours, pair.section, pair.adapter)
    with torch.no_grad():
        for name, one in pair.theirs.named_parameters():
            one.copy_(theirs[name])
            one.grad = None


def test_log_probs_loss_and_gradients_of_a_gspo_update(pair: Pair, unchanged: None) -> None:
    scores, batches = gspo_batches(pair)
    total = 0.0
    for batch, score in zip(batches, scores, strict=True):
        loss, logps = torch_gspo_loss(pair.theirs, batch)
        loss.backward()
        total += float(loss.detach())
        for own, mask, expected in zip(score, batch.mask_NK, logps, strict=False):
            np.testing.assert_allclose(own[mask], expected, rtol=0, atol=1e-5)
    # beta1 = 0 and no clipping of the norm: the first moment after one update is the gradient.
    updater = updater_of(pair, OptimizerSection(lr=1e-5, beta1=0.0, max_grad_norm=1e9))
    result, expected = updater.step(batches, lr=1e-5), trained_by_peft(pair)
    assert result.loss == pytest.approx(total, rel=1e-5)
    state = updater.state()
    assert state.keys() - {"adamw.updates"} == {f"adamw.{kind}.{name}" for kind in "mv" for name in expected}
    for name, parameter in expected.items():
        gradient = parameter.gradient()
        assert np.abs(gradient).max() > 1e-4, name
        np.testing.assert_allclose(state[f"adamw.m.{name}"], gradient, rtol=0, atol=1e-5, err_msg=name)


def test_ten_steps_of_adamw(pair: Pair, unchanged: None) -> None:
    _, batches = gspo_batches(pair)
    section = OptimizerSection(lr=1e-3, weight_decay=0.1, eps=1e-6)
    updater, theirs = updater_of(pair, section), trained_by_peft(pair)
    before = {name: parameter.values() for name, parameter in theirs.items()}
    whole = [one for one in pair.theirs.parameters() if one.requires_grad]
    groups = [{"params": [one for one in whole if one.ndim > 1]},
              {"params": [one for one in whole if one.ndim == 1], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(
        groups, lr=section.lr, betas=(section.beta1, section.beta2), eps=section.eps,
        weight_decay=section.weight_decay,
    )  # fmt: skip
    for _ in range(10):
        updater.step(batches, lr=section.lr)
        optimizer.zero_grad()
        sum(torch_gspo_loss(pair.theirs, batch)[0] for batch in batches).backward()
        torch.nn.utils.clip_grad_norm_(whole, section.max_grad_norm)
        optimizer.step()
    ours = {parameter.name: parameter.asnumpy() for parameter in pair.ours.get_parameters()}
    for name, parameter in theirs.items():
        assert np.abs(parameter.values() - before[name]).max() > 1e-3, name
        np.testing.assert_allclose(ours[name], parameter.values(), rtol=0, atol=1e-5, err_msg=name)


def test_a_folder_that_we_write_loads_in_peft_without_a_warning(pair: Pair, tmp_path: Path) -> None:
    from mindgspo.checkpoint.export import export_adapters
    from mindgspo.rollout.weight_transfer import weights_as_numpy

    export_adapters(tmp_path / "adapter", pair.section, weights_as_numpy(pair.ours, pair.section))
    base = transformers.AutoModelForCausalLM.from_pretrained(pair.base).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # PEFT's; transformers deprecates what PEFT calls
        loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").double().eval()
    if pair.section.num_experts:
        loaded.get_base_model().set_experts_implementation("eager")
    np.testing.assert_array_equal(logits_of(loaded), logits_of(pair.theirs))


def test_merged_weights_compute_the_same_in_transformers(pair: Pair, tmp_path: Path) -> None:
    from mindgspo.models.lora import merged_weights
    from mindgspo.models.weight_check import check_weights
    from mindgspo.rollout.weight_transfer import weights_as_numpy
    from mindgspo.tensor_files.writer import write_tensor_file

    write_tensor_file(
        tmp_path / "model.safetensors", merged_weights(pair.section, weights_as_numpy(pair.ours, pair.section)),
        metadata={"format": "pt"},
    )  # fmt: skip
    (tmp_path / "config.json").write_bytes((pair.base / "config.json").read_bytes())
    check_weights(pair.section.base, tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).double().eval()
    if pair.section.num_experts:
        loaded.set_experts_implementation("eager")
    assert np.abs(logits_of(loaded) - logits_of(pair.theirs)).max() < 1e-5


def test_the_principal_parts_are_those_of_peft(tmp_path: Path, cpu_runtime) -> None:
    """By their product, since the sign of a singular vector is anyone's."""
    from mindgspo.models.principal import principal_parts, without_parts

    torch.manual_seed(0)
    weight = torch.nn.Linear(40, 24, bias=False)
    before = weight.weight.detach().numpy().copy()
    settings = peft.LoraConfig(r=5, lora_alpha=8, target_modules=["0"], init_lora_weights="pissa")
    theirs = peft.get_peft_model(torch.nn.Sequential(weight), settings).base_model.model[0]
    a, b = (getattr(theirs, f"lora_{one}")["default"].weight.detach().numpy() for one in "AB")
    lora = LoraSection(rank=5, alpha=8.0, init="pissa")
    own_a, own_b = principal_parts(lora, before)
    np.testing.assert_allclose(own_b @ own_a, b @ a, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.abs(own_a), np.abs(a), rtol=0, atol=1e-5)
    left = without_parts(lora, before, own_a, own_b)
    np.testing.assert_allclose(left, theirs.base_layer.weight.detach().numpy(), rtol=0, atol=1e-6)
