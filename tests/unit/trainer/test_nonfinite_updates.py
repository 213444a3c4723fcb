"""Updates that are not finite: the run stops or skips them, and the books stay right. Refusals by a fake updater."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest

from mindgspo import faults
from mindgspo.errors import TrainingError
from mindgspo.trainer.updates import MAX_SAVED_UPDATES, SkippedUpdates, save_batches

SKIP = "trainer.on_nonfinite=skip"


def test_the_run_stops_and_says_where_the_batch_is(make_trainer, one_of_two_right, fakes) -> None:
    trainer = make_trainer(one_of_two_right, updater=fakes.updater(nonfinite=[2]))
    with pytest.raises(
        TrainingError, match="step_00000001_update_2: update 2: the loss of micro-batch 1 of 2"
    ) as error:
        trainer.train_step(1)
    saved = sorted(trainer.guard.failures_dir.iterdir())
    assert [path.name for path in saved] == [f"step_00000001_update_2_micro_batch_{index}.npz" for index in (0, 1)]
    assert f"{saved[0]} and 1 more beside it" in str(error.value) and "trainer.on_nonfinite=skip" in str(error.value)
    with np.load(saved[1], allow_pickle=False) as arrays:
        assert arrays["num_sequences"] == 4 and arrays["mask_NK"].any()
    assert (trainer.weights.version, trainer.guard.skipped.total) == (1, 0)


def test_a_skipped_update_leaves_the_books_right(make_trainer, one_of_two_right, fakes, caplog) -> None:
    updater = fakes.updater(nonfinite=[1, 4])
    trainer = make_trainer(one_of_two_right, SKIP, updater=updater)
    with caplog.at_level(logging.WARNING):
        metrics = [trainer.train_step(step).metrics for step in (1, 2, 3)]
    assert [(one["actor/updates"], one["actor/updates_skipped"]) for one in metrics] == [(1, 1), (1, 1), (2, 0)]
    assert [one["training/updates"] for one in metrics] == [1, 2, 4]
    assert [(one["samples/generated"], one["samples/trained"]) for one in metrics] == [(8, 4), (8, 4), (8, 8)]
    assert [one.get("samples/dropped/nonfinite") for one in metrics] == [4, 4, None]
    # The first update that is applied sees the weights of the rollout, whether or not one was skipped before it.
    assert metrics[0]["actor/first_ratio_error_max"] == 0
    assert (trainer.weights.version, trainer.guard.skipped) == (4, SkippedUpdates(total=2, in_a_row=0))
    # The schedule goes by updates tried: 6 in all, the rise takes half of them, and tries 1 and 4 were refused.
    assert (updater.rates, metrics[1]["actor/lr"]) == (pytest.approx([2e-3 / 3, 1e-3, 1e-3, 1e-3]), 1e-3)
    assert "the update is skipped, number 2 of this run" in caplog.text


def test_a_step_may_lose_all_its_updates(make_trainer, one_of_two_right, fakes) -> None:
    trainer = make_trainer(one_of_two_right, SKIP, updater=fakes.updater(nonfinite=[1, 2]))
    metrics = trainer.train_step(1).metrics
    assert (metrics["samples/trained"], metrics["samples/dropped"], metrics["actor/updates"]) == (0, 8, 0)
    assert trainer.weights.version == 0 and trainer.guard.skipped.in_a_row == 2
    assert trainer.train_step(2).metrics["actor/updates"] == 2
    assert trainer.guard.skipped == SkippedUpdates(total=2, in_a_row=0)


@pytest.mark.parametrize(("limit", "nonfinite", "said"), [
    ("trainer.max_nonfinite_skips_in_a_row=2", [2, 3, 4], "max_nonfinite_skips_in_a_row = 2 updates were skipped"),
    ("trainer.max_nonfinite_skips=2", [1, 3, 5], "max_nonfinite_skips = 2 updates were skipped before"),
])  # fmt: skip
def test_skips_are_bounded(make_trainer, one_of_two_right, fakes, limit: str, nonfinite: list[int], said: str) -> None:
    trainer = make_trainer(one_of_two_right, SKIP, limit, updater=fakes.updater(nonfinite=nonfinite))
    with pytest.raises(TrainingError, match=said):
        for step in (1, 2, 3):
            trainer.train_step(step)
    assert trainer.updater.calls == nonfinite[-1] and trainer.guard.skipped.total == 2


def test_only_so_many_batches_are_saved(make_trainer, one_of_two_right, tmp_path: Path) -> None:
    trainer = make_trainer(one_of_two_right)
    trainer.train_step(1)
    batches, folder = trainer.updater.batches[0], tmp_path / "many"
    said = [save_batches(folder, f"update_{number}", batches) for number in range(MAX_SAVED_UPDATES + 2)]
    assert [text.startswith("the batch is saved as") for text in said] == [True] * MAX_SAVED_UPDATES + [False] * 2
    assert f"holds those of {MAX_SAVED_UPDATES} updates already" in said[-1]
    assert len(list(folder.iterdir())) == MAX_SAVED_UPDATES * len(batches)
    assert save_batches(folder, "update_0", batches).startswith("the batch is saved as"), "the same one again"


def test_metrics_that_a_skipped_batch_made_infinite_are_not_reported(make_trainer, one_of_two_right, fakes) -> None:
    broken = fakes.scorer(lambda ids: np.full(ids.shape, -np.inf))
    for nonfinite in ([1], []):
        updater = fakes.updater(nonfinite=nonfinite)
        metrics = make_trainer(one_of_two_right, SKIP, old_policy=broken, updater=updater).train_step(1).metrics
        assert all(math.isfinite(value) for value in metrics.values()) == bool(nonfinite)
        assert ("training/rollout_logprob_diff_max" in metrics) == (nonfinite == []) and metrics["actor/loss"] == 0.75


def test_the_count_of_skipped_updates_survives_a_stop() -> None:
    before = SkippedUpdates(total=7, in_a_row=2)
    after = SkippedUpdates()
    after.load_state(before.state())
    assert after == before


def test_the_fault_nan_is_in_every_micro_batch_of_its_update(make_trainer, one_of_two_right) -> None:
    trainer = make_trainer(one_of_two_right)
    faults.arm(0, "update.batch:2=nan")
    try:
        trainer.train_step(1)
    finally:
        faults.arm(0, "")
    first, second = trainer.updater.batches
    assert not any(np.isnan(batch.advantages_NK).any() for batch in first)
    assert all((np.isnan(batch.advantages_NK) == batch.mask_NK).all() and batch.mask_NK.any() for batch in second)
