"""Saving in the background: who waits for whom, and where an error comes up."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mindgspo.errors import CheckpointError, TrainingError
from mindgspo.metrics import SilentLog
from mindgspo.trainer.checkpoints import Saver
from mindgspo.trainer.validation import Progress

LONG_S = 30.0


@pytest.fixture
def make_saver(make_trainer, tmp_path):
    """make_saver(work, background): a saver whose checkpoints are written by `work(step)`."""

    class FakeSaver(Saver):
        def _prepared(self, progress: Progress) -> Callable[[], object]:
            step = progress.step  # the run goes on to count
            return lambda: self.work(step)

    def make(work: Callable[[int], object], *, background: bool = True):
        trainer = make_trainer(lambda prompt, sample: [1], f"trainer.save_in_background={str(background).lower()}")
        saver = FakeSaver(trainer, {}, {}, tmp_path / "checkpoints", SilentLog())
        saver.work = work
        return saver

    return make


def test_the_run_goes_on_while_a_checkpoint_is_written_and_waits_before_the_next(make_saver) -> None:
    may_end, log = threading.Event(), []

    def work(step: int) -> None:
        log.append(f"begin {step}")
        assert may_end.wait(LONG_S)
        log.append(f"end {step}")

    progress = Progress(step=1)
    with make_saver(work) as saver:
        saver.save(progress)
        progress.step = 2
        assert "end 1" not in log, "the caller is back before the file is there"
        threading.Timer(0.05, may_end.set).start()
        saver.save(progress)
        assert log[:2] == ["begin 1", "end 1"], "never two at a time"
    assert log == ["begin 1", "end 1", "begin 2", "end 2"], "behind the block nothing is being written"


def test_an_error_in_the_background_comes_up_at_the_next_save_or_at_the_end(make_saver) -> None:
    steps = []

    def work(step: int) -> None:
        steps.append(step)
        raise CheckpointError(f"step {step}: the disk is full")

    with pytest.raises(CheckpointError, match="step 1: the disk is full"), make_saver(work) as saver:
        saver.save(Progress(step=1))
        saver.save(Progress(step=2))
    assert steps == [1]
    with pytest.raises(CheckpointError, match="the disk is full"), make_saver(work) as saver:
        saver.save(Progress(step=1))


def test_an_error_of_the_run_is_told_and_in_the_foreground_the_caller_waits(make_saver) -> None:
    written = []

    def work(step: int) -> None:
        threading.Event().wait(0.05)
        written.append(step)

    with pytest.raises(TrainingError, match="not finite"), make_saver(work) as saver:
        saver.save(Progress(step=1))
        raise TrainingError("loss is not finite")
    assert written == [1]
    written = []
    with make_saver(written.append, background=False) as saver:
        saver.save(Progress(step=3))
        assert written == [3]
