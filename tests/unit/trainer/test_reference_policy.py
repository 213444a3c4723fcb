"""The reference policy with a real two-layer model: frozen, or following the policy, and kept by checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config.algorithm import ReferenceSection
from mindgspo.errors import CheckpointError
from mindgspo.models.names import parameter_shapes, trained_shapes, trained_weight_shapes
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.plans.placement import ALONE
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.tensor_files.tensors import ArraySource
from mindgspo.trainer.policies import ReferencePolicy

IDS = np.random.default_rng(5).integers(1, 300, 14).astype(np.int32)


@pytest.fixture
def make_reference(cpu_runtime: None, load):
    return lambda: ReferencePolicy(load().model, ALONE, temperature=0.8)


@pytest.fixture(scope="module")
def batch():
    sample = TrainingSample(prompt_ids=IDS[:6], response_ids=IDS[6:], rollout_logp=np.zeros(8, np.float32), number=0)
    return lay_out([sample], samples_per_micro_batch=2, length_multiple=16, pad_id=0)[0]


def log_probs(scorer, batch) -> np.ndarray:
    (scores,) = scorer.score([batch])
    return scores.logp_NK


def redraw(model, load) -> None:
    """Other weights, in place, as an update changes them."""
    initialize_weights(model, load().model, seed=2)


def test_it_is_the_policy_of_the_moment_it_was_frozen(model, make_reference, batch, load, tmp_path: Path) -> None:
    policy, reference = PolicyScorer(model, temperature=0.8), make_reference()
    reference.freeze(model, tmp_path / "reference", version=0)
    frozen = log_probs(policy, batch)
    assert np.ptp(frozen[batch.mask_NK]) > 1e-3, "log-probs that are all alike would prove little"
    np.testing.assert_array_equal(log_probs(reference.scorer, batch), frozen)
    redraw(model, load)
    assert np.abs(log_probs(policy, batch) - frozen)[batch.mask_NK].max() > 1e-3
    np.testing.assert_array_equal(log_probs(reference.scorer, batch), frozen)
    # Another process: nothing but the folder is left.
    restored = make_reference()
    restored.restore(tmp_path / "reference")
    np.testing.assert_array_equal(log_probs(restored.scorer, batch), frozen)


def test_a_run_that_begins_again_freezes_again(model, make_reference, batch, load, tmp_path: Path) -> None:
    """A run stopped between freezing and its first checkpoint starts anew, in the same folder."""
    reference = make_reference()
    reference.freeze(model, tmp_path, version=0)
    first = log_probs(reference.scorer, batch)
    redraw(model, load)
    reference.freeze(model, tmp_path, version=0)
    second = log_probs(reference.scorer, batch)
    assert (first != second).any()
    restored = make_reference()
    restored.restore(tmp_path)
    np.testing.assert_array_equal(log_probs(restored.scorer, batch), second)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated"])
def test_a_folder_that_lost_it_is_refused(damage: str, model, make_reference, tmp_path: Path) -> None:
    folder, reference = tmp_path / "reference", make_reference()
    if damage == "empty":
        folder.mkdir()
    if damage == "truncated":
        reference.freeze(model, folder, version=0)
        (weights,) = folder.rglob("parameters.safetensors")
        weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError) as caught:
        reference.restore(folder)
    assert str(folder) in str(caught.value) and "--overwrite" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_the_kl_starts_at_zero_and_grows(placement, model, make_trainer, one_of_two_right, load, tmp_path, batch):
    """Three steps of real updates with a learning rate that moves this model well away from where it began."""
    settings = (f"algorithm.kl.placement={placement}", "optimizer.warmup_ratio=0", "optimizer.lr=3e-3")
    settings += ("trainer.prompts_per_mini_batch=4",)
    config, policy = load(*settings), PolicyLogProbs(model, temperature=1.0, with_entropy=False)
    trainer = make_trainer(
        one_of_two_right, *settings, model=model, old_policy=PolicyScorer(model, temperature=1.0),
        updater=Updater(policy, build_policy_loss(config.algorithm), config.optimizer),
        reference=ReferencePolicy(config.model, ALONE, temperature=1.0),
    )  # fmt: skip
    trainer.scorer.reference.freeze(model, tmp_path / "reference", version=0)
    before = log_probs(trainer.scorer.reference.scorer, batch)
    name = {"loss": "actor/kl", "reward": "critic/kl"}[placement]
    found = []
    for step in (1, 2, 3):
        metrics = trainer.train_step(step).metrics
        found.append(metrics[name])
    assert 0 <= found[0] < 1e-9, "one update per step: the first one starts at the reference"
    assert found[2] > found[1] > 1e-5
    np.testing.assert_array_equal(log_probs(trainer.scorer.reference.scorer, batch), before)
    moved = log_probs(trainer.scorer.scorer, batch)
    assert np.abs(moved - before).max() > 1e-2


NORM = "model.norm.weight"


@pytest.fixture
def make(cpu_runtime: None, load):
    """make(mode=..., every=..., decay=...): a reference policy, not filled yet."""
    return lambda **changes: ReferencePolicy(load().model, ALONE, temperature=1.0, changes=ReferenceSection(**changes))


def set_norm(model, value: float) -> None:
    for parameter in model.get_parameters():
        if parameter.name == NORM:
            parameter.asnumpy()[...] = np.float32(value)


def follow(reference, model, values: dict[int, float]) -> list[tuple[float, float]]:
    """Before step n the norm is set to values[n]. The reference's norm and version as each step scores with it; every
    step makes two updates."""
    found = []
    for step, value in values.items():
        set_norm(model, value)
        reference.follow(model, steps_done=step - 1, version=100 + 2 * (step - 1))
        found.append((float(reference.arrays()[NORM][0]), reference.version))
    return found


def whole(model) -> dict[str, np.ndarray]:
    return weights_as_numpy(model, model.config)


@pytest.mark.parametrize(("changes", "values", "norms", "version"), [
    ({}, [1, 2, 3, 4], [1, 1, 1, 1], 100),
    # Two steps done: before step 3 is scored; four: before step 5, four steps of two updates behind version 100.
    ({"mode": "sync", "every": 2}, [1, 2, 3, 4, 5, 6], [1, 1, 3, 3, 5, 5], 108),
    # A quarter of the way each time: 1 -> 1 + (5 - 1) / 4 = 2 -> 2 + (6 - 2) / 4 = 3 -> 3 + (1 - 3) / 4. Of versions
    # 100, 102, 104, 106: 100 -> 100.5 -> 101.375 -> 102.53125.
    ({"mode": "ema", "every": 1, "decay": 0.75}, [1, 5, 6, 1], [1, 2, 3, 2.5], 102.53125),
], ids=["frozen", "sync", "average"])  # fmt: skip
def test_it_follows_by_hand(changes, values, norms, version, model, make, tmp_path: Path) -> None:
    reference = make(**changes)
    reference.freeze(model, tmp_path, version=100)
    found = follow(reference, model, dict(enumerate(values, start=1)))
    assert ([norm for norm, _ in found], reference.version) == (norms, version)
    assert [path.name for path in tmp_path.iterdir()] == [] if changes else ["step_00000000"], "checkpoints hold others"
    for name, array in reference.arrays().items():
        if name != NORM:
            np.testing.assert_array_equal(array, whole(model)[name], err_msg=name)


def test_it_rounds_as_it_says_and_is_near_the_exact_average(model, make, load, tmp_path: Path) -> None:
    """float32, one rounding each: of 1 - decay, the difference, the product, the sum; judged in float64 as well."""
    reference = make(mode="ema", every=1, decay=0.99)
    reference.freeze(model, tmp_path, version=0)
    exact = {name: array.astype(np.float64) for name, array in whole(model).items()}
    rounded = whole(model)
    for step, seed in ((2, 5), (3, 6), (4, 7)):
        initialize_weights(model, load().model, seed=seed)
        reference.follow(model, steps_done=step - 1, version=step)
        policy = whole(model)
        for name in exact:
            exact[name] = 0.99 * exact[name] + (1 - 0.99) * policy[name]
            rounded[name] = rounded[name] + (policy[name] - rounded[name]) * np.float32(1 - 0.99)
    for name, array in reference.arrays().items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, rounded[name], err_msg=name)
        np.testing.assert_allclose(array, exact[name], rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("changes", [{"mode": "sync", "every": 2}, {"mode": "ema", "every": 1, "decay": 0.9}])
def test_a_resumed_run_has_the_reference_it_would_have_had(changes, model, make, tmp_path: Path) -> None:
    before, after = ({step: 1 + 0.1 * step for step in steps} for steps in ((1, 2, 3, 4), (5, 6, 7)))
    reference = make(**changes)
    reference.freeze(model, tmp_path, version=100)
    follow(reference, model, before)  # the checkpoint after step 4: nothing of step 4 is in the reference yet
    state, arrays = json.loads(json.dumps(reference.state())), reference.arrays()
    expected = follow(reference, model, after)
    resumed = make(**changes)
    resumed.load(state, ArraySource(arrays, path=tmp_path))
    resumed.restore(tmp_path / "nowhere")
    assert follow(resumed, model, after) == expected


def test_an_average_of_equals_stays_and_changes_once_in_a_step(make, tmp_path: Path, model) -> None:
    with pytest.raises(CheckpointError, match="reference policy of this run is missing"):
        make(mode="sync", every=2).restore(tmp_path)
    reference = make(mode="ema", every=1, decay=0.9)
    reference.freeze(model, tmp_path, version=0)
    before = reference.arrays()
    for step in (2, 3, 4):
        reference.follow(model, steps_done=step - 1, version=0)
    for name, array in reference.arrays().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    reference = make(mode="ema", every=1, decay=0.5)
    reference.freeze(model, tmp_path, version=0)
    set_norm(model, 3.0)
    for _ in range(2):
        reference.follow(model, steps_done=1, version=1)
    assert reference.arrays()[NORM][0] == 2 and reference.version == 0.5


def test_a_step_lets_it_follow_before_it_scores(make_trainer, one_of_two_right, fakes) -> None:
    told = []

    class Diary(fakes.reference):
        def follow(self, policy, *, steps_done: int, version: int) -> None:
            told.append((steps_done, version))
            self.version = 1.5

    trainer = make_trainer(one_of_two_right, "algorithm.kl.placement=loss", reference=Diary(lambda ids: -0.03 * ids))
    metrics = [trainer.train_step(step).metrics for step in (1, 2)]
    assert told == [(0, 0), (1, 2)], "two updates in a step"
    assert [step["critic/reference_version"] for step in metrics] == [1.5, 1.5]
    assert [step["critic/reference_age"] for step in metrics] == [-1.5, 0.5], "of the old policy"


@pytest.fixture
def adapted(cpu_runtime: None, load):
    """adapted(*overrides): a policy with adapters that do something, and the section of its reference policy."""

    def make(*overrides: str):
        config = load("model.lora.rank=4", "algorithm.kl.placement=loss", "algorithm.kl.coef=0.1", *overrides)
        policy = build_model(config.model)
        initialize_weights(policy, config.model, seed=1)
        move_adapters(policy, 7)
        return policy, config

    return make


def move_adapters(policy, seed: int) -> None:
    random = np.random.default_rng(seed)
    for parameter in policy.get_parameters():
        if parameter.requires_grad:
            parameter.asnumpy()[...] += 0.3 * random.standard_normal(parameter.shape, np.float32)


WARM = ("warmup.max_steps=1", "warmup.batch_size=2", "warmup.lr=1e-3")


@pytest.mark.parametrize("overrides", [
    (), ("model.lora.train_norms=true",), WARM, (*WARM, "model.lora.train_norms=true"),
    ("algorithm.kl.reference.mode=sync", "algorithm.kl.reference.every=1"),
], ids=["base", "base of norms", "snapshot", "snapshot of norms", "sync"])  # fmt: skip
def test_on_the_policys_base_it_scores_as_a_second_model_does(overrides, adapted, batch, tmp_path: Path) -> None:
    policy, config = adapted(*overrides)
    section, changes = config.reference_model, config.algorithm.kl.reference
    assert config.shares_base and (section.lora is None) == (
        not overrides or overrides == ("model.lora.train_norms=true",)
    )
    second, shared = (
        ReferencePolicy(section, ALONE, temperature=1.0, changes=changes, base_of=base) for base in (None, policy)
    )
    trained = trained_shapes(config.model)
    held = {parameter.name for parameter in shared.parameters}
    assert held == trained.keys() & parameter_shapes(section).keys()
    assert {one.name for one in second.parameters} == parameter_shapes(section).keys()
    for number, reference in enumerate((second, shared)):
        reference.freeze(policy, tmp_path / str(number), version=3)
    frozen = log_probs(second.scorer, batch)
    np.testing.assert_array_equal(log_probs(shared.scorer, batch), frozen)
    move_adapters(policy, 8)
    assert np.abs(log_probs(PolicyScorer(policy, temperature=1.0), batch) - frozen)[batch.mask_NK].max() > 1e-3
    np.testing.assert_array_equal(log_probs(shared.scorer, batch), frozen)
    if changes.mode == "sync":
        for reference in (second, shared):
            reference.follow(policy, steps_done=1, version=4)
        moved = log_probs(second.scorer, batch)
        assert (moved != frozen).any()
        np.testing.assert_array_equal(log_probs(shared.scorer, batch), moved)
        assert shared.arrays().keys() == trained_weight_shapes(config.model).keys()
        resumed = ReferencePolicy(section, ALONE, temperature=1.0, changes=changes, base_of=policy)
        resumed.load(shared.state(), ArraySource(shared.arrays(), path=tmp_path))
        np.testing.assert_array_equal(log_probs(resumed.scorer, batch), moved)
        return
    # Another process: its base comes from the policy, the rest from the folder.
    resumed = ReferencePolicy(section, ALONE, temperature=1.0, base_of=policy)
    resumed.restore(tmp_path / "1")
    np.testing.assert_array_equal(log_probs(resumed.scorer, batch), frozen)
    assert resumed.version == 3


def test_with_a_plan_of_its_own_it_is_a_second_model(load) -> None:
    own = ("model.lora.rank=4", "algorithm.kl.placement=loss", "plans.reference.data_parallel=1")
    assert not load(*own).shares_base and not load("algorithm.kl.placement=loss").shares_base
