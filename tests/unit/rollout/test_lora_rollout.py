"""Generation with adapters: beside the base, or merged into its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_plans import LATENTS, MIXTURE, drawn_model, small_model

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection, with_recipe
from mindgspo.config.lora import LoraSection
from mindgspo.config.schema import ReshardSection
from mindgspo.errors import WeightsError
from mindgspo.models.lora import ADAPTER_WEIGHTS, merged_weight, merged_weights
from mindgspo.models.names import is_adapter, trained_shapes, trained_weight_shapes
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import hold_in_compute_type, load_weights, weight_views
from mindgspo.parallel.ops.device import has_kernels
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.rollout.weight_transfer import WeightTransfer, weights_as_numpy
from mindgspo.types import Prompt, Response

pytestmark = pytest.mark.usefixtures("cpu_runtime")

MAX_PROMPT, MAX_NEW, VERSION = 7, 12, 1
NAME = "model.layers.1.self_attn.k_proj"


def adapted(**changes: object) -> ModelSection:
    """With adapters on some projections of each half of a layer, and on all of a row-parallel one."""
    lora = LoraSection(rank=4, alpha=6.0, targets=("k_proj", "o_proj", "mlp"))
    return small_model(tie_word_embeddings=True, initializer_range=0.2, lora=lora, **changes)


def trained(section: ModelSection, seed: int = 5):
    """A model whose adapters do something."""
    model = drawn_model(section, seed=seed)
    for parameter in model.get_parameters():
        if parameter.name.endswith("lora_B.weight"):
            random = np.random.default_rng([seed, *parameter.name.encode()])
            parameter.asnumpy()[...] = 0.1 * random.standard_normal(parameter.shape, np.float32)
    return model


def engine_of(model, *, merges: bool):
    engine = NativeEngine(
        model, eos_ids=(), num_slots=5, prefill_width=2, max_prompt_length=MAX_PROMPT, max_new_tokens=MAX_NEW,
        length_multiple=4, merges_adapters=merges,
    )  # fmt: skip
    engine.load_weights(VERSION)
    return engine


@pytest.fixture(autouse=True)
def needs_kernels(cpu_runtime) -> None:
    if not has_kernels():
        pytest.skip("weights are packed for kernels")


def prompts(number: int) -> list[Prompt]:
    random = np.random.default_rng(0)
    return [
        Prompt(
            index=i, ids=random.integers(0, 61, 1 + i % MAX_PROMPT).astype(np.int32), text="", answer="",
            data_source="test",
        ) for i in range(number)
    ]  # fmt: skip


def responses(engine, number: int, *, num_samples: int = 1, temperature: float = 0.0) -> list[Response]:
    settings = SamplingSettings(
        num_samples=num_samples, temperature=temperature, max_new_tokens=MAX_NEW,
        stream=RandomStream(seed=9, purpose=Purpose.TRAINING, step=2),
    )  # fmt: skip
    rollout = engine.generate(prompts(number), settings, weight_version=VERSION)
    return [response for group in rollout.responses for response in group]


def trainer_gap(model, engine) -> float:
    """Largest difference between the sampler's log-probs and the trainer's."""
    drawn = responses(engine, 8, num_samples=2, temperature=1.0)
    samples = [
        TrainingSample(
            prompt_ids=prompts(8)[one.prompt_index].ids, response_ids=one.ids, rollout_logp=one.logprobs, number=0
        ) for one in drawn
    ]  # fmt: skip
    batches = lay_out(samples, samples_per_micro_batch=16, length_multiple=20, pad_id=0)
    scores = PolicyScorer(model, temperature=1.0).score(batches)
    return max(float(np.abs(s.logp_NK - b.rollout_logp_NK).max()) for s, b in zip(scores, batches, strict=True))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampler_and_trainer_agree_bit_for_bit_beside_the_base_and_nearly_with_merged_weights(
    dtype: str, architecture: str
) -> None:
    model = trained(adapted(dtype=dtype, architecture=architecture))
    assert trainer_gap(model, engine_of(model, merges=False)) == 0.0
    gap = trainer_gap(model, engine_of(model, merges=True))
    assert 0.0 < gap < (1e-5 if dtype == "float32" else 0.1)


def test_latents_with_adapters_everywhere_train_adapters_alone_and_sample_as_they_are_scored() -> None:
    lora = LoraSection(rank=4, alpha=6.0, targets=("all", "router"))
    section = small_model(**LATENTS, initializer_range=0.2, lora=lora)
    model = trained(section)
    before = weights_as_numpy(model, section)
    samples = [
        TrainingSample(
            prompt_ids=one.ids, response_ids=one.ids[::-1].copy(), rollout_logp=np.full(one.ids.size, -4, np.float32),
            number=number,
        ) for number, one in enumerate(prompts(6))
    ]  # fmt: skip
    batches = [
        replace(batch, old_logp_NK=batch.rollout_logp_NK, advantages_NK=batch.mask_NK.astype(np.float32))
        for batch in lay_out(samples, samples_per_micro_batch=6, length_multiple=16, pad_id=0)
    ]
    wide = AlgorithmSection(name="gspo", clip_low=0.9, clip_high=9.0, allow_wide_clip=True)
    loss = build_policy_loss(with_recipe(wide, max_new_tokens=MAX_NEW))
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False)
    assert Updater(policy, loss, OptimizerSection(lr=1e-3)).step(batches, lr=1e-3).grad_norm > 0
    after = weights_as_numpy(model, section)
    assert {name for name in after if (after[name] != before[name]).any()} == trained_weight_shapes(section).keys()
    targets = {name.split(".")[-3] for name in trained_weight_shapes(section)}
    assert {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "down_proj", "gate"} <= targets
    for merges in (False, True):
        assert trainer_gap(model, engine_of(model, merges=merges)) < 1e-4


def test_greedy_tokens_are_the_same_but_where_two_are_nearly_as_likely() -> None:
    model = trained(adapted())
    separate, merged = (responses(engine_of(model, merges=merges), 40) for merges in (False, True))
    differing = []
    for one, other in zip(separate, merged, strict=True):
        same = one.ids == other.ids
        first = int(same.argmin()) if not same.all() else MAX_NEW
        np.testing.assert_allclose(one.logprobs[:first], other.logprobs[:first], rtol=0, atol=1e-5)
        if first < MAX_NEW:  # the likeliest of both are equally likely up to rounding
            differing.append((one.prompt_index, first, float(one.logprobs[first] - other.logprobs[first])))
    assert all(abs(gap) < 1e-5 for *_, gap in differing), f"prompt, place, difference of log-probs: {differing}"
    base = drawn_model(adapted().base, seed=5)
    others = responses(engine_of(base, merges=False), 40)
    assert sum((a.ids != b.ids).any() for a, b in zip(separate, others, strict=True)) > 30, "adapters do nothing"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_panels_are_those_of_the_merged_weights(dtype: str) -> None:
    section = adapted(dtype=dtype)
    model, plain = trained(section), drawn_model(section.base, seed=6)
    load_weights(plain, section.base, merged_weights(section, weights_as_numpy(model, section)), where=Path("merged"))
    ours, theirs = (engine_of(one, merges=merges)._packed.pack for one, merges in ((model, True), (plain, False)))
    assert [one.name for one in ours.panels] == [one.name for one in theirs.panels] and len(ours.panels) >= 14
    for own, expected in zip(ours.panels, theirs.panels, strict=True):
        np.testing.assert_array_equal(own.asnumpy(), expected.asnumpy(), err_msg=own.name)
    assert (
        weight_views(model)[f"{NAME}.weight"].tobytes()
        == weight_views(drawn_model(section, 5))[f"{NAME}.weight"].tobytes()
    )


def test_a_hundred_versions_leave_nothing_behind() -> None:
    model = trained(adapted())
    engine, views = engine_of(model, merges=True), weight_views(model)
    first = {name: view.copy() for name, view in views.items()}
    panels = [one.asnumpy().copy() for one in engine._packed.pack.panels]
    random = np.random.default_rng(1)
    for version in range(100):
        for name, view in views.items():
            if is_adapter(name):
                view[...] = first[name] if version == 99 else random.standard_normal(view.shape, np.float32)
        engine.load_weights(version)
    for one, before in zip(engine._packed.pack.panels, panels, strict=True):
        np.testing.assert_array_equal(one.asnumpy(), before, err_msg=one.name)
    assert all((views[name] == before).all() for name, before in first.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_adapters_travel_after_the_first_time(dtype: str) -> None:
    section = adapted(dtype=dtype)
    model, generating = trained(section), drawn_model(section, seed=6)
    hold_in_compute_type(generating)
    transfer = WeightTransfer(model, generating, section, ReshardSection(verify="full"))
    transfer.push(1)
    sizes = {name: view.nbytes for name, view in weight_views(generating).items()}
    assert transfer.last is not None and transfer.last.copied == sum(sizes.values())
    for name, view in weight_views(model).items():
        if is_adapter(name):
            view[...] *= 2
    transfer.push(2)
    adapters = sum(size for name, size in sizes.items() if is_adapter(name))
    assert (
        transfer.last.copied
        == adapters
        == 4 * 4 * sum(sum(shape) for shape in 2 * ((16, 32), (32, 32), (48, 32), (48, 32), (32, 48)))
    )  # float32, rank 4: A and B of k, o, gate, up and down in two layers
    assert 5 * adapters < transfer.last.copied + sum(sizes.values())
    theirs = weight_views(generating)
    for name, view in weight_views(model).items():
        np.testing.assert_array_equal(view.astype(theirs[name].dtype), theirs[name], err_msg=name)
    # Merged where they arrive: what the trainer's own weights, rounded, make.
    if dtype == "float32":
        assert responses(engine_of(generating, merges=True), 9)[0].ids.tolist() == (
            responses(engine_of(model, merges=True), 9)[0].ids.tolist()
        )


def test_merged_weights_travel_whole_to_a_model_without_adapters() -> None:
    section = adapted(dtype="float16")
    model, generating = trained(section), drawn_model(section.base, seed=6)
    hold_in_compute_type(generating)
    transfer = WeightTransfer(model, generating, section.base, ReshardSection(verify="full"), merges=True)
    for version in range(3):
        transfer.push(version)
        assert transfer.last is not None
        assert transfer.last.copied == sum(view.nbytes for view in weight_views(generating).values())
    old, new = weight_views(model), weight_views(generating)
    assert section.lora is not None and not any(map(is_adapter, new))
    expected = merged_weight(
        section.lora, *(old[f"{NAME}.{kind}"] for kind in ("weight", "lora_A.weight", "lora_B.weight"))
    )
    np.testing.assert_array_equal(new[f"{NAME}.weight"], expected.astype(np.float16))
    np.testing.assert_array_equal(new["model.norm.weight"], old["model.norm.weight"].astype(np.float16))


@pytest.mark.parametrize(("dtype", "sizes", "targets"), [
    ("float32", {}, ("k_proj", "o_proj", "mlp")), ("bfloat16", MIXTURE, ("v_proj", "experts", "router")),
])  # fmt: skip
def test_adapters_alone_give_what_whole_weights_give(dtype: str, sizes: dict, targets: tuple, tmp_path: Path) -> None:
    """Merged into the base of a server, and beside it; the second time nothing else is set."""
    from mindgspo.models.initial_values import open_base
    from mindgspo.models.weights import hold_in_compute_type, load_adapters, load_weights, weight_views
    from mindgspo.rollout.weight_transfer import ServedWeights, weights_as_numpy
    from mindgspo.rollout.weights_folder import open_weights

    lora = LoraSection(rank=4, alpha=6.0, targets=targets, train_norms=True)
    section = small_model(initializer_range=0.2, dtype=dtype, lora=lora, **sizes)
    model = trained(section)
    merged, beside, whole = (drawn_model(one, seed=6) for one in (section.base, section, section.base))
    for one in (merged, beside, whole):
        hold_in_compute_type(one)
    served = ServedWeights(model, section, tmp_path / "shared", base="digest")

    def load(folder: Path, version: int) -> None:
        with open_weights(folder) as handed, open_base(section, seed=5) as base:
            with pytest.raises(
                WeightsError, match=r"was trained on another base than the random one \(digest digest, here"
            ):
                load_adapters(merged, section, folder, base="other", weights=base)
            for one in (merged, beside):
                load_adapters(one, section, folder, base="digest", weights=base, whole=version == 1)
            assert handed.version == version and len(handed.digests) == len(trained_weight_shapes(section))
            for name in handed.digests:
                handed.verify(name)
            content = bytearray((folder / ADAPTER_WEIGHTS).read_bytes())
            content[-1] ^= 1
            (folder / ADAPTER_WEIGHTS).write_bytes(content)
            with pytest.raises(WeightsError, match=r"has SHA-256 [0-9a-f]{12}\.\.\., [0-9a-f]{12}"):
                for name in handed.digests:
                    handed.verify(name)

    (tmp_path / "shared" / "version_00000009").mkdir(parents=True)  # a run was killed
    with open_base(section, seed=5) as base:
        of_base = {name: base.read(name) for name in base.tensors}
    views, item = weight_views(model), 4 if dtype == "float32" else 2
    for version in (1, 2):
        served.push_weights(version, load)
        assert [path.name for path in (tmp_path / "shared").iterdir()] == [f"version_{version:08d}"]
        weights = merged_weights(section, of_base | weights_as_numpy(model, section, among=trained_shapes(section)))
        load_weights(whole, section.base, weights, where=Path("merged"))
        expected, found = weight_views(whole), weight_views(merged)
        assert found.keys() == expected.keys()
        for name, view in expected.items():
            np.testing.assert_array_equal(found[name], view, err_msg=name)
        for name, view in weight_views(beside).items():
            np.testing.assert_array_equal(view, views[name].astype(view.dtype), err_msg=name)
        for name, view in views.items():
            view[...] *= 2 if is_adapter(name) or name.endswith("norm.weight") else 1
    travelled = sum(
        np.prod(shape) * (4 if is_adapter(name) else item) for name, shape in trained_weight_shapes(section).items()
    )
    assert served.metrics() == {"perf/reshard_mb": travelled / 2**20}


def test_bfloat16_loses_an_update_that_is_small_beside_the_weights() -> None:
    """The distance of neighbours in bfloat16 is 2^-8 to 2^-7 of a number, and what moves it by less than half of that
    leaves no trace in merged weights. Beside the base, the sampler has all of it, as the trainer does."""
    import mindspore as ms

    bfloat16 = ms.dtype_to_nptype(ms.bfloat16)
    section = adapted(dtype="bfloat16")
    model, lost = trained(section), []
    views = {parameter.name: parameter.asnumpy() for parameter in model.get_parameters()}
    for name, view in views.items():
        view[...] = view * np.float32(0.01 if name.endswith("lora_B.weight") else 1)
        if not is_adapter(name):
            view[...] = view.astype(bfloat16).astype(np.float32)  # as read from a file of bfloat16
    assert section.lora is not None
    for name in [name for name in views if name.endswith("lora_A.weight")]:
        layer = name.removesuffix(".lora_A.weight")
        a, b, weight = views[name], views[f"{layer}.lora_B.weight"], views[f"{layer}.weight"]
        merged = merged_weight(section.lora, weight, a, b)
        assert (merged != weight).mean() > 0.99
        kept = merged.astype(bfloat16).astype(np.float32) != weight
        lost.append(1 - kept.mean())
    assert 0.5 < np.mean(lost) < 1.0, lost
    assert trainer_gap(model, engine_of(model, merges=False)) == 0.0
    assert trainer_gap(model, engine_of(model, merges=True)) > 0.0
