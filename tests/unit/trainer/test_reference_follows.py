"""A reference policy that follows the policy: when it changes, into what, and that a checkpoint holds all of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config.algorithm import ReferenceSection
from mindgspo.errors import CheckpointError
from mindgspo.parallel.placement import ALONE
from mindgspo.tensor_files import ArraySource

NORM = "model.norm.weight"


@pytest.fixture
def make(cpu_runtime: None, load):
    """make(mode=..., every=..., decay=...): a reference policy, not filled yet."""
    from mindgspo.trainer.reference import ReferencePolicy

    return lambda **changes: ReferencePolicy(load().model, ALONE, temperature=1.0, changes=ReferenceSection(**changes))


def set_norm(model, value: float) -> None:
    for parameter in model.get_parameters():
        if parameter.name == NORM:
            parameter.asnumpy()[...] = np.float32(value)


def norm_of(reference) -> np.ndarray:
    return reference.arrays()[NORM]


def follow(reference, model, steps: int, values: dict[int, float]) -> list[float]:
    """Steps 1, 2, ...; before step n the norm is set to values[n]. The reference's norm as each step scores with it;
    every step makes two updates."""
    found = []
    for step in range(1, steps + 1):
        set_norm(model, values.get(step, 1.0))
        reference.follow(model, steps_done=step - 1, version=100 + 2 * (step - 1))
        found.append(float(norm_of(reference)[0]))
    return found


def test_a_frozen_one_follows_nobody(model, make, tmp_path: Path) -> None:
    reference = make()
    reference.freeze(model, tmp_path, version=100)
    assert follow(reference, model, 4, {step: float(step) for step in range(1, 5)}) == [1, 1, 1, 1]
    assert reference.version == 100
    assert (tmp_path / "step_00000000").is_dir(), "saved once"


def test_every_second_step_it_becomes_the_policy(model, make, tmp_path: Path) -> None:
    """Two steps done: before step 3 is scored; four: before step 5."""
    reference = make(mode="sync", every=2)
    reference.freeze(model, tmp_path, version=100)
    assert follow(reference, model, 6, {2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0, 6: 6.0}) == [1, 1, 3, 3, 5, 5]
    assert reference.version == 108, "four steps of two updates behind version 100"
    assert not any(tmp_path.iterdir()), "checkpoints hold it"
    for name, array in reference.arrays().items():
        if name != NORM:
            np.testing.assert_array_equal(array, whole(model)[name], err_msg=name)


def whole(model) -> dict[str, np.ndarray]:
    from mindgspo.models.weights import weights_as_numpy

    return weights_as_numpy(model, model.config)


def test_a_moving_average_by_hand(model, make, tmp_path: Path) -> None:
    """decay 3/4: a quarter of the way each time. 1 -> 1 + (5 - 1) / 4 = 2 -> 2 + (6 - 2) / 4 = 3 -> 3 + (1 - 3) / 4."""
    reference = make(mode="ema", every=1, decay=0.75)
    reference.freeze(model, tmp_path, version=100)
    assert follow(reference, model, 4, {2: 5.0, 3: 6.0, 4: 1.0}) == [1, 2, 3, 2.5]
    # Of versions 100, 102, 104, 106: 100 -> 100.5 -> 101.375 -> 102.53125.
    assert reference.version == 102.53125


def test_it_rounds_as_it_says_and_is_near_the_exact_average(model, make, load, tmp_path: Path) -> None:
    """float32, one rounding each: of 1 - decay, the difference, the product, the sum; judged in float64 as well."""
    from mindgspo.models.weights import initialize_weights

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


def test_an_average_of_equals_stays_and_changes_once_in_a_step(model, make, tmp_path: Path) -> None:
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
    assert norm_of(reference)[0] == 2 and reference.version == 0.5


@pytest.mark.parametrize("changes", [{"mode": "sync", "every": 2}, {"mode": "ema", "every": 1, "decay": 0.9}])
def test_a_resumed_run_has_the_reference_it_would_have_had(changes, model, make, tmp_path: Path) -> None:
    values = {step: 1 + 0.1 * step for step in range(2, 8)}
    reference = make(**changes)
    reference.freeze(model, tmp_path, version=100)
    follow(reference, model, 4, values)  # the checkpoint after step 4: nothing of step 4 is in the reference yet
    state, arrays = json.loads(json.dumps(reference.state())), reference.arrays()
    expected = []
    for step in (5, 6, 7):
        set_norm(model, values[step])
        reference.follow(model, steps_done=step - 1, version=100 + 2 * (step - 1))
        expected.append((norm_of(reference).copy(), reference.version))
    resumed = make(**changes)
    resumed.load(state, ArraySource(arrays, path=tmp_path))
    resumed.restore(tmp_path / "nowhere")
    for step, (norm, version) in zip((5, 6, 7), expected, strict=True):
        set_norm(model, values[step])
        resumed.follow(model, steps_done=step - 1, version=100 + 2 * (step - 1))
        np.testing.assert_array_equal(norm_of(resumed), norm)
        assert resumed.version == version


def test_a_checkpoint_without_it_is_refused(make, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="reference policy of this run is missing"):
        make(mode="sync", every=2).restore(tmp_path)


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
