"""Low-rank adapters against PEFT: the same logits, log-probs, gradients and steps of AdamW, and its folders.

transformers stacks the experts of a mixture in two parameters, gate and up in one, and PEFT adapts these as they are;
what it makes of our adapters, it makes when it loads our folder (peft.utils.transformers_weight_conversion).
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor
from running import sets, write_experiment

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import TrainingSample, lay_out, scattered
from mindgspo.checkpoint.export import export_adapters
from mindgspo.cli import main
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.load import with_recipe
from mindgspo.config.lora import LoraSection
from mindgspo.config.schema import SwapSection
from mindgspo.models.lora import merged_weights
from mindgspo.models.names import adapter_name, trained_shapes, trained_weight_shapes
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.principal import plain_adapters, plain_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weight_check import check_weights
from mindgspo.models.weights import fill_model, load_trained, load_weights
from mindgspo.parallel.ops.device import attention_segments, takes_packed
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.swap.swap import Swap
from mindgspo.tensor_files.tensors import ArraySource
from mindgspo.tensor_files.writer import write_tensor_file
from mindgspo.trainer.principal_parts import PrincipalParts

torch = pytest.importorskip("torch", reason="needs the `parity` extra")
transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")
peft = pytest.importorskip("peft", reason="needs peft")

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("cpu_runtime")]

VOCAB_SIZE, TEMPERATURE = 97, 0.9
CLIP = {"clip_low": 0.05, "clip_high": 0.08}
SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = SIZES | {"head_dim": 16}
EXPERTS = WIDE | {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 24}
ALL = ("all",)
# Kind, sizes, and the adapter: all projections, some, another scale.
CASES = {
    "qwen2": ("Qwen2", SIZES | {"tie_word_embeddings": True}, {"targets": ALL, "rank": 6, "alpha": 9.0}),
    "qwen3": ("Qwen3", WIDE, {"targets": ("q_proj", "v_proj", "down_proj"), "rank": 4, "alpha": 8.0}),
    "llama": ("Llama", WIDE, {"targets": ALL, "rank": 5, "alpha": 4.0, "use_rslora": True}),
    "glm4": ("Glm4", WIDE, {"targets": ALL, "rank": 5, "alpha": 7.0}),
    "norms": ("Qwen3Moe", EXPERTS, {"targets": ("attention",), "rank": 4, "alpha": 8.0, "train_norms": True}),
    "router": ("Qwen3Moe", EXPERTS, {"targets": (*ALL, "router"), "rank": 3, "alpha": 6.0, "train_norms": True}),
    "experts": ("Qwen3Moe", EXPERTS, {"targets": ALL, "rank": 4, "alpha": 6.0}),
    "pissa": ("Qwen3", WIDE, {"targets": ALL, "rank": 4, "alpha": 10.0, "init": "pissa"}),
}
SLOW = ("qwen3", "llama", "glm4", "norms", "experts", "pissa")


@dataclass(frozen=True)
class Pair:
    """One base model with one adapter, in both."""

    base: Path
    theirs: object
    """In float64, so that torch's own rounding does not hide ours."""
    section: ModelSection
    ours: object
    parts: dict[str, np.ndarray] | None = None
    """Principal parts that ours began with."""


def peft_adapters(base, lora: LoraSection):
    modules = {name.rpartition(".")[2] for name, _ in base.named_modules()}
    wanted = {*lora.projections, *({"gate_up_proj"} if "gate_proj" in lora.projections else ())}
    return peft.get_peft_model(base, peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, task_type="CAUSAL_LM",
        target_modules=sorted(modules & wanted),
        use_rslora=lora.use_rslora, init_lora_weights=lora.init if lora.init == "pissa" else True,
        modules_to_save=["input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm"]
        if lora.train_norms else None,
    )).eval()  # fmt: skip


@pytest.fixture(
    scope="module", params=[pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES]
)
def pair(request, tmp_path_factory, cpu_runtime) -> Pair:
    kind, sizes, lora = CASES[request.param]
    has_parts = lora.get("init") == "pissa"
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB_SIZE, hidden_size=48, intermediate_size=80, num_hidden_layers=2, max_position_embeddings=64,
        initializer_range=0.1, eos_token_id=None, pad_token_id=None, **sizes,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("lora")
    base = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if parameter.ndim == 1:  # biases and norms, which begin as constants
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif name.endswith("mlp.gate.weight"):  # choices of experts far from a tie
                torch.nn.init.normal_(parameter, std=0.5)
            elif has_parts and "proj" in name:  # a gap at the rank, without which PEFT's float32 finds parts to 1e-5
                left, values, right = torch.linalg.svd(parameter, full_matrices=False)
                values[lora["rank"] :] /= 4
                parameter.copy_(left * values @ right)
    base.save_pretrained(folder / "base")
    section = LoraSection(**lora, path=None if has_parts else folder / "adapter")
    model = read_model_section(folder / "base").model_copy(update={"lora": section})
    ours = build_model(model)
    if model.num_experts and "gate_proj" in section.projections:
        export_drawn(model, folder / "adapter")
        theirs = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).eval()
    else:
        theirs = peft_adapters(base, section)
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                if "lora_B" in name or "modules_to_save" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        theirs.save_pretrained(folder / "adapter")
    fill_model(ours, model, 0)
    made = Pair(folder / "base", in_float64(theirs), model, ours)
    return begun_with_parts(made) if has_parts else made


def in_float64(theirs):
    for module in theirs.modules():
        if hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")  # their grouped product knows no float64
    return theirs.double().eval()


def begun_with_parts(pair: Pair) -> Pair:
    """Ours has weights that its own principal parts leave, and then the adapters of PEFT."""
    parts = PrincipalParts(pair.ours, pair.section, 0, Swap(SwapSection(), None)).arrays()
    trained = {name: one.values() for name, one in trained_by_peft(pair).items()}
    load_trained(pair.ours, pair.section, ArraySource(trained, path=pair.base))
    return replace(pair, parts=parts)


def export_drawn(model: ModelSection, folder: Path) -> None:
    """A random adapter as a PEFT folder."""
    random = np.random.default_rng(4)
    scales = {"A": 0.2, "B": 0.05}
    tensors = {
        name: (len(shape) == 1) + scales.get(name[-8], 0.1) * random.standard_normal(shape, np.float32)
        for name, shape in trained_weight_shapes(model).items()
    }
    export_adapters(folder, model, tensors)


IDS_RT = np.random.default_rng(1).integers(0, VOCAB_SIZE, (2, 40)).astype(np.int32)


def logits_of(model) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(IDS_RT, dtype=torch.long)).logits.numpy()


def our_logits(pair: Pair) -> np.ndarray:
    positions_RT = np.tile(np.arange(IDS_RT.shape[1], dtype=np.int32), (len(IDS_RT), 1))
    segments = attention_segments(np.ones_like(IDS_RT), is_packed=takes_packed(pair.ours))
    hidden = pair.ours(Tensor(IDS_RT), Tensor(positions_RT), Tensor(segments)).asnumpy()
    return (hidden @ pair.ours.output_weight().asnumpy().T).reshape(*IDS_RT.shape, VOCAB_SIZE)


def test_logits(pair: Pair) -> None:
    expected = logits_of(pair.theirs)
    with pair.theirs.disable_adapter():
        assert np.abs(logits_of(pair.theirs) - expected).max() > 0.1, "an adapter that does nothing would prove little"
    assert np.abs(our_logits(pair) - expected).max() < 1e-5


def gspo_batches(pair: Pair):
    """Eight responses whose old policy differs from the present one: some sequences leave the clip range."""
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
    theirs = {
        name.replace(".default", "").replace("modules_to_save.", "").removeprefix("base_model.model."): one
        for name, one in pair.theirs.named_parameters()
        if one.requires_grad
    }
    shapes, found = trained_shapes(pair.section), {}
    for name in shapes:
        half = ("gate_proj" in name, "up_proj.lora_B" in name and "gate_up" not in name)
        if pair.section.architecture == "glm4" and any(half):  # rows of B of both
            whole = theirs[re.sub("gate_proj|up_proj", "gate_up_proj", name)]
            number = half.index(True)
            found[name] = Trained(whole, lambda tensor, number=number: tensor.chunk(2)[number])
        elif ".experts." not in name:
            found[name] = Trained(theirs.pop(name))
    theirs = {name: one for name, one in theirs.items() if not name.endswith("mlp.gate_up_proj.lora_B.weight")}
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
    """Brings both models back to what they were, since the other tests use them too."""
    theirs = {name: one.detach().clone() for name, one in pair.theirs.named_parameters()}
    ours = weights_as_numpy(pair.ours, pair.section)
    yield
    load_weights(pair.ours, pair.section, ours, where=pair.base)
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
    section, tensors = pair.section, weights_as_numpy(pair.ours, pair.section)
    if pair.parts is not None:
        trained = {name: tensors[name] for name in trained_weight_shapes(section)}
        section, tensors = plain_model(section), plain_adapters(trained, pair.parts)
    export_adapters(tmp_path / "adapter", section, tensors)
    base = transformers.AutoModelForCausalLM.from_pretrained(pair.base).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # PEFT's; transformers deprecates what PEFT calls
        loaded = in_float64(peft.PeftModel.from_pretrained(base, tmp_path / "adapter"))
    exact = 0 if pair.parts is None else 1e-5
    np.testing.assert_allclose(logits_of(loaded), logits_of(pair.theirs), rtol=0, atol=exact)


def test_merged_weights_compute_the_same_in_transformers(pair: Pair, tmp_path: Path) -> None:
    write_tensor_file(
        tmp_path / "model.safetensors", merged_weights(pair.section, weights_as_numpy(pair.ours, pair.section)),
        metadata={"format": "pt"},
    )  # fmt: skip
    (tmp_path / "config.json").write_bytes((pair.base / "config.json").read_bytes())
    check_weights(pair.section.base, tmp_path)
    loaded = in_float64(transformers.AutoModelForCausalLM.from_pretrained(tmp_path))
    assert np.abs(logits_of(loaded) - logits_of(pair.theirs)).max() < 1e-5


@pytest.mark.parametrize("pair", ["pissa"], indirect=True)
@pytest.mark.slow
def test_principal_parts_are_those_of_peft_and_the_first_policy_is_the_base(pair: Pair, unchanged: None) -> None:
    """By their product, since the sign of a singular vector is anyone's."""
    base = transformers.AutoModelForCausalLM.from_pretrained(pair.base).eval()
    first = logits_of(base)
    theirs = peft_adapters(base, pair.section.lora)
    assert np.abs(logits_of(theirs) - first).max() < 1e-5
    load_trained(pair.ours, pair.section, ArraySource(pair.parts, path=pair.base))
    assert np.abs(our_logits(pair) - first).max() < 1e-5
    left = weights_as_numpy(pair.ours, pair.section)
    layers = [name for name in left if adapter_name(name, "A") in left]
    assert len(layers) == 14
    for name in layers:
        layer = theirs.get_submodule(f"base_model.model.{name.removesuffix('.weight')}")
        a, b = (getattr(layer, f"lora_{one}")["default"].weight.detach().numpy() for one in "AB")
        own_a, own_b = (left[adapter_name(name, matrix)] for matrix in "AB")
        np.testing.assert_allclose(2.5 * own_b @ own_a, 2.5 * b @ a, rtol=0, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(np.abs(own_a), np.abs(a), rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(left[name], layer.base_layer.weight.detach().numpy(), rtol=0, atol=1e-6)


def of_peft(kind=peft.LoraConfig, **changes):
    return kind(**{"r": 4, "target_modules": ["q_proj", "v_proj"]} | changes)


TOKENS = {"num_virtual_tokens": 4, "task_type": "CAUSAL_LM"}
MERGE = "; where PEFT can merge it into the base (merge_and_unload), set model.path to the result"
OTHERS = (
    of_peft(peft.LoHaConfig), of_peft(peft.LoKrConfig), of_peft(peft.AdaLoraConfig, total_step=10),
    of_peft(peft.VeraConfig, target_modules=["q_proj", "o_proj"]),
    peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
    peft.PrefixTuningConfig(**TOKENS), peft.PromptTuningConfig(**TOKENS),
)  # fmt: skip


@pytest.mark.parametrize(("adapter", "said"), [
    (of_peft(), None),
    (of_peft(init_lora_weights="orthogonal"), None),
    (of_peft(target_modules=["layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "self_attn.v_proj"]), None),
    (of_peft(init_lora_weights="pissa"), "init_lora_weights is 'pissa', which changes the base weights too"),
    (of_peft(use_dora=True), f"use_dora is set (True); not implemented{MERGE}"),
    (of_peft(layers_to_transform=[1]), f"layers_to_transform is set ([1]); not implemented{MERGE}"),
    *((one, f"peft_type is '{one.peft_type.value}'; only LORA is implemented{MERGE}") for one in OTHERS),
])  # fmt: skip
def test_a_folder_that_peft_wrote_fits_or_is_refused_in_one_line(adapter, said, tmp_path, capsys) -> None:
    config = write_experiment(tmp_path)
    base = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=2, max_position_embeddings=64, **SIZES,
    ))  # fmt: skip
    base.save_pretrained(tmp_path / "base")
    peft.get_peft_model(base, adapter).save_pretrained(tmp_path / "adapter")
    lora = f"{{path: {tmp_path / 'adapter'}, rank: 4, alpha: 8, targets: [q_proj, v_proj]}}"
    capsys.readouterr()
    code = main(["check", str(config), *sets(f"model.path={tmp_path / 'base'}", f"model.lora={lora}")])
    printed = capsys.readouterr()
    if said is None:
        assert code == 0 and f"adapters: {tmp_path / 'adapter'}: they fit model.lora\n" in printed.out, printed.err
    else:
        where = tmp_path / "adapter" / "adapter_config.json"
        assert code == 1 and printed.err.startswith(f"error: {where}: {said}") and printed.err.count("\n") == 1
