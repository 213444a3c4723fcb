"""Low-rank adapters: names, layouts, first values, what is trained, and PEFT's folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_plans import GLM4, MIXTURE, drawn_model, plan, small_model

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import TrainingSample, lay_out, scattered
from mindgspo.checkpoint.export import export_adapters
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection, with_recipe
from mindgspo.config.lora import LoraSection
from mindgspo.errors import WeightsError
from mindgspo.models.lora import BASE_KEY, check_peft_folder, merged_weights, peft_config, peft_names
from mindgspo.models.names import (
    adapter_name,
    parameter_shapes,
    to_hugging_face,
    trained_shapes,
    trained_weight_shapes,
    weight_shapes,
)
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import load_adapters, load_weights
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, parameter_layouts
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.tensor_files.tensors import ArraySource

pytestmark = pytest.mark.usefixtures("cpu_runtime")

LAYER = "model.layers.1."


def adapted(**changes: object) -> ModelSection:
    return small_model(lora=LoraSection(**{"rank": 4, "alpha": 6.0} | changes))


def test_shapes_of_the_trained_matrices() -> None:
    shapes = trained_shapes(adapted(targets=("k_proj", "down_proj")))
    assert {name.removeprefix(LAYER): shape for name, shape in shapes.items() if name.startswith(LAYER)} == {
        "self_attn.k_proj.lora_A.weight": (4, 32), "self_attn.k_proj.lora_B.weight": (16, 4),
        "mlp.down_proj.lora_A.weight": (4, 48), "mlp.down_proj.lora_B.weight": (32, 4),
    }  # fmt: skip
    assert len(shapes) == 8 and trained_shapes(small_model()) == parameter_shapes(small_model())


def test_the_side_that_a_layer_splits_is_split() -> None:
    section, two = small_model(vocab_size=64, lora=LoraSection(rank=4)), plan(2, 2)
    layouts = parameter_layouts(parameter_shapes(section), section, two)
    sliced = {name.removeprefix(LAYER): layout.slice_shape for name, layout in layouts.items() if LAYER in name}
    assert sliced["self_attn.k_proj.lora_A.weight"] == (4, 32) and sliced["self_attn.k_proj.lora_B.weight"] == (8, 4)
    assert sliced["mlp.down_proj.lora_A.weight"] == (4, 24) and sliced["mlp.down_proj.lora_B.weight"] == (32, 4)
    # A whole matrix gets a part of its gradient from each rank's own features: also summed over model_parallel.
    ranks = gradient_ranks(layouts, section, two, 1)
    assert ranks[f"{LAYER}mlp.gate_proj.lora_A.weight"] == ranks[f"{LAYER}mlp.down_proj.lora_B.weight"] == (0, 1, 2, 3)
    assert ranks[f"{LAYER}mlp.gate_proj.lora_B.weight"] == ranks[f"{LAYER}mlp.down_proj.lora_A.weight"] == (1, 3)


EXPERTS = MIXTURE | {"num_experts": 6}


def test_experts_and_routers_have_adapters_as_their_weights_are_stacked() -> None:
    section = small_model(**EXPERTS, lora=LoraSection(rank=4, targets=("experts", "router")))
    shapes = trained_shapes(section)
    assert {name.removeprefix(f"{LAYER}mlp."): shape for name, shape in shapes.items() if name.startswith(LAYER)} == {
        "gate.lora_A.weight": (4, 32), "gate.lora_B.weight": (6, 4),
        "experts.gate_proj.lora_A.weight": (6, 4, 32), "experts.gate_proj.lora_B.weight": (6, 16, 4),
        "experts.up_proj.lora_A.weight": (6, 4, 32), "experts.up_proj.lora_B.weight": (6, 16, 4),
        "experts.down_proj.lora_A.weight": (6, 4, 16), "experts.down_proj.lora_B.weight": (6, 32, 4),
    }  # fmt: skip
    name = "model.layers.1.mlp.experts.5.down_proj.lora_B.weight"
    assert peft_names(section)[name] == f"base_model.model.{name}" and weight_shapes(section)[name] == (32, 4)
    assert len(peft_names(section)) == 2 * (2 + 6 * 6)


def test_gate_and_up_of_one_matrix_share_its_adapter() -> None:
    section = small_model(**GLM4, vocab_size=64, lora=LoraSection(rank=4, targets=("mlp",)))
    block, two = f"{LAYER}mlp.", plan(2, 2)
    shapes = {name.removeprefix(block): one for name, one in trained_shapes(section).items() if name.startswith(block)}
    assert shapes == {
        "gate_up_proj.lora_A.weight": (4, 32), "gate_proj.lora_B.weight": (48, 4), "up_proj.lora_B.weight": (48, 4),
        "down_proj.lora_A.weight": (4, 48), "down_proj.lora_B.weight": (32, 4),
    }  # fmt: skip
    assert trained_weight_shapes(section)[f"{block}gate_up_proj.lora_B.weight"] == (96, 4)
    assert set(peft_config(section)["target_modules"]) == {"gate_up_proj", "down_proj"}
    layouts = parameter_layouts(parameter_shapes(section), section, two)
    assert layouts[f"{block}gate_up_proj.lora_A.weight"].slice_shape == (4, 32)
    assert layouts[f"{block}up_proj.lora_B.weight"].slice_shape == (24, 4)
    assert gradient_ranks(layouts, section, two, 1)[f"{block}gate_up_proj.lora_A.weight"] == (0, 1, 2, 3)
    model = drawn_model(section, 1)
    held = {one.name: one for one in model.get_parameters()}
    assert held.keys() == parameter_shapes(section).keys()
    # By our names, as where the sampler gets merged weights, and by those in files.
    random = np.random.default_rng(0)
    ours = {name: random.standard_normal(shape, np.float32) for name, shape in parameter_shapes(section).items()}
    merged = to_hugging_face(section.base, merged_weights(section, ours))
    found = merged_weights(section, to_hugging_face(section, ours))
    assert merged.keys() == found.keys() == weight_shapes(section.base).keys()
    a, joined = ours[f"{block}gate_up_proj.lora_A.weight"].astype(float), f"{block}gate_up_proj.weight"
    expected = np.concatenate([
        ours[f"{block}{name}_proj.weight"] + 8.0 * (ours[f"{block}{name}_proj.lora_B.weight"] @ a)
        for name in ("gate", "up")
    ])  # fmt: skip
    for each in (merged, found):
        np.testing.assert_allclose(each[joined], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("changes", "a_of_gate", "b_of_gate", "a_of_down", "b_of_down"), [
    ({}, (6, 4, 32), (6, 8, 4), (6, 4, 8), (6, 32, 4)),
    ({"expert_parallel": 2, "expert_tensor_parallel": 1}, (3, 4, 32), (3, 16, 4), (3, 4, 16), (3, 32, 4)),
    ({"expert_parallel": 2}, (3, 4, 32), (3, 8, 4), (3, 4, 8), (3, 32, 4)),
])  # fmt: skip
def test_adapters_of_experts_are_cut_as_experts_are(changes, a_of_gate, b_of_gate, a_of_down, b_of_down) -> None:
    section = small_model(vocab_size=64, **EXPERTS, lora=LoraSection(rank=4, targets=("experts",)))
    two = plan(2, 2, **changes)
    layouts = parameter_layouts(parameter_shapes(section), section, two)
    experts = f"{LAYER}mlp.experts."
    found = {name.removeprefix(experts): one.slice_shape for name, one in layouts.items() if name.startswith(experts)}
    assert found["gate_proj.lora_A.weight"] == a_of_gate and found["up_proj.lora_B.weight"] == b_of_gate
    assert found["down_proj.lora_A.weight"] == a_of_down and found["down_proj.lora_B.weight"] == b_of_down
    for rank in range(4):
        ranks = gradient_ranks(layouts, section, two, rank)
        # The whole side of an expert's adapter: its gradient comes from all slices of the expert.
        held = layouts[f"{experts}gate_proj.lora_A.weight"].ranks_with_slice_of(rank)
        assert ranks[f"{experts}gate_proj.lora_A.weight"] == held == ranks[f"{experts}down_proj.lora_B.weight"]


def test_a_mixture_with_adapters_computes_what_its_merged_weights_do(form: str, tmp_path: Path) -> None:
    """And trains adapters and norms alone, which a PEFT folder brings to another model bit for bit."""
    lora = LoraSection(rank=4, targets=("q_proj", "v_proj", "o_proj", "mlp", "router"), train_norms=True)
    section = small_model(**EXPERTS, tie_word_embeddings=True, initializer_range=0.2, lora=lora)
    model, merged = drawn_model(section, 1), drawn_model(section.base, 2)
    random = np.random.default_rng(3)
    tensors = weights_as_numpy(model, section)
    tensors |= {name: 0.1 * random.standard_normal(array.shape, np.float32) for name, array in tensors.items()
                if name.endswith("lora_B.weight")}  # fmt: skip
    load_weights(model, section, tensors, where=Path("drawn"))
    load_weights(merged, section.base, merged_weights(section, tensors), where=Path("merged"))
    batches = some_batches()
    scores = [PolicyScorer(one, temperature=1.0).score(batches)[0].logp_NK for one in (model, merged)]
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-5)
    updater = updated(model, OptimizerSection(lr=1e-3, weight_decay=0.1), 2)
    after, trained = weights_as_numpy(model, section), trained_weight_shapes(section)
    names = trained_shapes(section).keys()
    assert {weight.name for weight in updater.weights} == names
    assert updater.state().keys() == {f"adamw.{kind}.{name}" for kind in "mv" for name in names} | {"adamw.updates"}
    assert any(name.endswith("q_norm.weight") for name in trained) and f"{LAYER}mlp.gate.weight" not in trained
    export_adapters(tmp_path / "adapter", section, after)
    other = drawn_model(section, 2)
    load_adapters(other, section, tmp_path / "adapter")
    read = weights_as_numpy(other, section)
    for name, array in tensors.items():
        assert (after[name] == array).all() == (name not in trained), name
        assert (read[name] == after[name]).all() or name not in trained, name


def test_first_values_are_those_of_peft() -> None:
    def values(**changes: object) -> dict[str, np.ndarray]:
        section = small_model(hidden_size=256, head_dim=64, architecture="qwen3", lora=LoraSection(rank=8, **changes))
        return weights_as_numpy(drawn_model(section, 3), section)

    kaiming, gaussian = values(), values(init="gaussian")
    name = f"{LAYER}self_attn.q_proj.lora_A.weight"
    bound = 256**-0.5  # sqrt(6 / ((1 + 5) * 256))
    assert 0.95 * bound < np.abs(kaiming[name]).max() <= bound and abs(kaiming[name].mean()) < 0.05 * bound
    assert kaiming[name].std() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert gaussian[name].std() == pytest.approx(1 / 8, rel=0.05)
    assert not any(array.any() for key, array in kaiming.items() if key.endswith("lora_B.weight"))
    base = weights_as_numpy(drawn_model(small_model(hidden_size=256, head_dim=64, architecture="qwen3"), 3),
                            small_model(hidden_size=256, head_dim=64, architecture="qwen3"))  # fmt: skip
    for key, array in base.items():
        np.testing.assert_array_equal(kaiming[key], array, err_msg=key)


def some_batches():
    """Six samples."""
    random = np.random.default_rng(4)
    samples = [
        TrainingSample(
            prompt_ids=random.integers(1, 61, 3).astype(np.int32), number=i,
            response_ids=random.integers(1, 61, 5 + i).astype(np.int32),
            rollout_logp=np.full(5 + i, -4.0, np.float32),
        ) for i in range(6)
    ]  # fmt: skip
    old = [np.full(5 + i, -4.1, np.float32) for i in range(6)]
    advantages = [np.full(5 + i, value, np.float32) for i, value in enumerate((1.0, -1.0, 0.5, 2.0, -0.3, 0.8))]
    return [
        replace(one, old_logp_NK=scattered(one, old), advantages_NK=scattered(one, advantages))
        for one in lay_out(samples, samples_per_micro_batch=6, length_multiple=16, pad_id=0)
    ]


def updated(model, section: OptimizerSection, number: int):
    """The updater after so many updates on six samples."""
    wide = AlgorithmSection(name="gspo", clip_low=0.9, clip_high=9.0, allow_wide_clip=True)
    loss = build_policy_loss(with_recipe(wide, max_new_tokens=16))
    updater = Updater(PolicyLogProbs(model, temperature=1.0, with_entropy=False), loss, section)
    for _ in range(number):
        updater.step(some_batches(), lr=section.lr)
    return updater


def test_with_a_the_identity_a_layer_trains_as_in_full_training() -> None:
    """y = x W^T + (x I^T) B^T = x (W + B)^T, so that dL/dB = dL/dy^T x = dL/dW at the same sum. From B = 0 both see the
    same gradients, hence the same moments, and without weight decay AdamW's steps depend on nothing else: W + B of the
    one is W of the other after every update."""
    name, number = f"{LAYER}self_attn.o_proj", 5
    section = small_model(lora=LoraSection(rank=32, alpha=32.0, targets=("o_proj",)))
    optimizer = OptimizerSection(lr=1e-3, weight_decay=0.0, eps=1e-4)
    adapted, full = drawn_model(section, 1), drawn_model(section.base, 1)
    for parameter in adapted.get_parameters():
        parameter.requires_grad = parameter.name == f"{name}.lora_B.weight"
        if parameter.name == f"{name}.lora_A.weight":
            parameter.asnumpy()[...] = np.eye(32)
    for parameter in full.get_parameters():
        parameter.requires_grad = parameter.name == f"{name}.weight"
    first = weights_as_numpy(full, section.base)[f"{name}.weight"]
    updated(adapted, optimizer, number), updated(full, optimizer, number)
    found = merged_weights(section, weights_as_numpy(adapted, section))[f"{name}.weight"]
    expected = weights_as_numpy(full, section.base)[f"{name}.weight"]
    assert np.abs(expected - first).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("sizes", "targets", "number"), [
    ({}, ("k_proj",), 2), (EXPERTS, ("v_proj", "experts", "router"), 2 * (1 + 3 * 6 + 1)),
])  # fmt: skip
def test_merging_adds_the_scaled_product(sizes: dict, targets: tuple[str, ...], number: int) -> None:
    section = small_model(**sizes, lora=LoraSection(rank=4, alpha=6.0, targets=targets))
    random = np.random.default_rng(0)
    tensors = {name: random.standard_normal(shape, np.float32) for name, shape in weight_shapes(section).items()}
    found = merged_weights(section, tensors)
    assert found.keys() == weight_shapes(section.base).keys()
    merged = {name for name in found if found[name] is not tensors[name]}
    assert merged == {name for name in found if adapter_name(name, "A") in tensors} and len(merged) == number
    for name in merged:
        weight, a, b = (tensors[one].astype(float) for one in (name, *(adapter_name(name, one) for one in "AB")))
        np.testing.assert_allclose(found[name], weight + 1.5 * (b @ a), rtol=1e-6, atol=1e-6, err_msg=name)


def folder_of(path: Path, section: ModelSection, **changes: object) -> tuple[Path, ArraySource]:
    """A PEFT folder's configuration with changes, and tensors of its adapter."""
    (path / "adapter_config.json").write_text(json.dumps(peft_config(section) | changes))
    shapes = trained_weight_shapes(section)
    arrays = {theirs: np.zeros(shapes[ours], np.float32) for ours, theirs in peft_names(section).items()}
    return path, ArraySource(arrays, path=path)


@pytest.mark.parametrize(("changes", "message"), [
    ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; only LORA is implemented"),
    ({"use_dora": True}, "use_dora is set .True.; not implemented"),
    ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is set .*; not implemented"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is .*lm_head.*, and model.lora.train_norms=false means none"),
    ({"modules_to_save": "norm"}, "modules_to_save is 'norm', and .* only all norms can be trained"),
    ({"a_later_switch": "on"}, "a_later_switch is set .on.; not implemented"),
    ({"bias": "all"}, "bias is 'all'; biases are not trained"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base weights too"),
    ({"r": 8}, "r is 8, and model.lora.rank is 4; set them alike"),
    ({"lora_alpha": 4}, "lora_alpha is 4, and model.lora.alpha is 6.0; set them alike"),
    ({"use_rslora": True}, "use_rslora is True, and model.lora.use_rslora is False"),
    ({"target_modules": ["self_attn.q_proj"]}, "target_modules is q_proj, and model.lora.targets means k_proj, q_proj"),
    ({"target_modules": ".*proj"}, r"target_modules is '\.\*proj'; a list of names is read"),
])  # fmt: skip
def test_another_adapter_is_refused_in_one_line(tmp_path: Path, changes: dict, message: str) -> None:
    section = adapted(targets=("q_proj", "k_proj"))
    folder, source = folder_of(tmp_path, section, lora_dropout=0.05, target_modules=["attn.q_proj", "k_proj"])
    check_peft_folder(section, folder, source, base="aa")  # a file that names no base may belong to any
    source.metadata = {BASE_KEY: "aa"}
    check_peft_folder(section, folder, source, base="aa")
    with pytest.raises(WeightsError, match="trained on another base than the random one .digest aa, here bb.; set mod"):
        check_peft_folder(section, folder, source, base="bb")
    with pytest.raises(WeightsError, match=f"adapter_config.json: {message}") as refusal:
        check_peft_folder(section, *folder_of(tmp_path, section, **changes))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("sizes", "targets"), [({}, "q_proj"), (EXPERTS, "experts")])
def test_missing_and_misshapen_tensors_are_named(tmp_path: Path, sizes: dict, targets: str) -> None:
    section = small_model(**sizes, lora=LoraSection(rank=4, targets=(targets,)))
    folder, source = folder_of(tmp_path, section)
    arrays = {name: source.read(name) for name in source.tensors}
    first, second = list(arrays)[:2]
    arrays["base_model.model.lm_head.lora_A.weight"] = arrays.pop(first)
    arrays[second] = arrays[second][:3]
    with pytest.raises(WeightsError) as refusal:
        check_peft_folder(section, folder, ArraySource(arrays, path=folder))
    for part in (first, second, "lm_head.lora_A.weight", "missing", "unexpected", "wrong shape", "the adapter's base"):
        assert part in str(refusal.value)
