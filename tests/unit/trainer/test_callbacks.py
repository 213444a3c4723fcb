"""Callbacks of a Python program: what they are told, how they end a run, what becomes of their exceptions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mindgspo.errors import ConfigError, TrainingError
from mindgspo.trainer.callbacks import ON_EVALUATION, ON_STEP, Callbacks, call_at_end, check_callbacks


class Answers:
    """on_step returns, or raises, one thing after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.records = list(answers), []

    def on_step(self, record: object) -> object:
        self.records.append(record)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class OnlyEvaluations:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_evaluation(self, record) -> None:
        self.steps.append(record.step)


def test_a_record_is_the_line_and_cannot_be_changed() -> None:
    one, other = Answers(None), OnlyEvaluations()
    callbacks = Callbacks([one, other], 8)
    callbacks.tell(ON_STEP, 3, {"b": np.float32(0.5), "a": np.int64(2)})
    (record,) = one.records
    assert (record.step, record.total_steps, list(record.metrics.items())) == (3, 8, [("a", 2), ("b", 0.5)])
    assert [type(value) for value in record.metrics.values()] == [int, float] and not callbacks.end_run
    with pytest.raises(TypeError):
        record.metrics["a"] = 1
    with pytest.raises(AttributeError):
        record.step = 1
    callbacks.tell(ON_EVALUATION, 4, {})
    assert (other.steps, len(one.records)) == ([4], 1)


def test_stop_ends_the_run_and_the_others_are_still_told() -> None:
    first, second = Answers("stop"), Answers(None)
    callbacks = Callbacks([first, second], 8)
    callbacks.tell(ON_STEP, 1, {"a": 1})
    assert callbacks.end_run and callbacks.stopped_by == "Answers.on_step" and len(second.records) == 1
    callbacks.raise_failure()


@pytest.mark.parametrize(("answer", "said"), [
    (True, "ValueError: returned True; return 'stop' to end the run, else nothing"),
    (np.zeros(2), r"ValueError: returned array\(\[0., 0.\]\); return 'stop'"),
    (KeyError("no axis"), "KeyError: 'no axis'"),
])  # fmt: skip
def test_an_exception_is_kept_until_the_step_is_saved(answer: object, said: str, caplog) -> None:
    first, second = Answers(answer), Answers()
    callbacks = Callbacks([first, second], 8)
    callbacks.tell(ON_STEP, 2, {"a": 1})
    assert callbacks.end_run and callbacks.stopped_by is None and second.records == []
    callbacks.tell(ON_STEP, 3, {"a": 1})
    assert len(first.records) == 1, "nothing is called after a failure"
    with pytest.raises(TrainingError, match=rf"callback Answers.on_step failed at step 2, .*: {said}") as failure:
        callbacks.raise_failure()
    cause = failure.value.__cause__
    assert cause is answer or isinstance(cause, ValueError)
    assert "this step is finished first" in caplog.text, "told at once, whatever happens until it is raised"


def test_ctrl_c_in_a_callback_is_no_failure_of_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        Callbacks([Answers(KeyboardInterrupt())], 8).tell(ON_STEP, 1, {})


def test_the_end_is_told_with_the_run() -> None:
    runs: list[object] = []
    call_at_end([OnlyEvaluations(), SimpleNamespace(on_end=runs.append)], "run")
    assert runs == ["run"]
    with pytest.raises(TrainingError, match=r"callback SimpleNamespace.on_end failed after the end .*: IndexError"):
        call_at_end([SimpleNamespace(on_end=lambda run: [][0])], "run")


@pytest.mark.parametrize(("given", "said"), [
    (Answers(), r"callbacks: expected a list of objects, got <.*Answers"),
    ([Answers], r"callbacks\[0\]: Answers is a class; write Answers\(\)"),
    ([Answers(), print], r"callbacks\[1\]: builtin_function_or_method has no method that is called; they are on_step,"),
    ([SimpleNamespace(on_step=print, on_stepp=print)], r"SimpleNamespace.on_stepp is never called; did you mean 'on_s"),
])  # fmt: skip
def test_what_would_never_be_called_is_named(given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_callbacks(given)
    check_callbacks([Answers(), OnlyEvaluations()])
