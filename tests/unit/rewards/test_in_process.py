"""Reward functions that are objects of this process: paid like those of a file, and what is left of their limits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mindgspo.config import RewardSection
from mindgspo.config.reward import RewardWorkersSection
from mindgspo.errors import RewardError
from mindgspo.rewards import Candidate, Scorer
from mindgspo.types import Verdict


def scorer(function: Callable[..., object], *others: str, timeout_s: float = 10.0) -> Scorer:
    functions = ("python:mine", *others)
    section = RewardSection(functions=functions, workers=RewardWorkersSection(timeout_s=timeout_s))
    return Scorer(section, objects={"python:mine": function})


def candidates(*texts: str) -> list[Candidate]:
    info = {"level": [1]}
    return [
        Candidate(text=text, gold="72", data_source="s", index=number, num_tokens=len(text), extra_info=info)
        for number, text in enumerate(texts)
    ]


def test_a_closure_is_called_with_verls_arguments_and_paid_by_what_it_returns() -> None:
    seen = []

    def mine(data_source, solution_str, ground_truth, extra_info):
        seen.append((data_source, ground_truth, extra_info["level"].copy()))
        extra_info["level"].append(2)  # a worker's copy would not reach the row either
        return {"score": len(solution_str), "acc": solution_str == ground_truth, "pred": solution_str}

    with scorer(mine, "repetition") as scores:
        scores.start()
        right, wrong = scores.score(candidates("72", "172"))
    assert (right.value, right.verdict, right.parts) == (2.0, Verdict.CORRECT, {"mine": 2.0, "repetition": 0.0})
    assert (wrong.value, wrong.verdict, wrong.extracted) == (3.0, Verdict.WRONG, "172")
    assert seen == [("s", "72", [1])] * 2 and scores.has_own and scores.labels == ("mine", "repetition")


def test_failures_cost_their_response_and_name_the_line(caplog: pytest.LogCaptureFixture) -> None:
    def helper(text: str) -> float:
        return 1 / len(text)

    def mine(solution_str, **_):
        if solution_str == "exit":
            raise SystemExit(3)
        values = {"nan": float("nan"), "none": None}
        return values[solution_str] if solution_str in values else helper(solution_str)

    line = helper.__code__.co_firstlineno + 1
    with scorer(mine) as scores:
        empty, left, nan, none, fine = scores.score(candidates("", "exit", "nan", "none", "four"))
    assert [one.value for one in (empty, left, nan, none, fine)] == [None, None, None, None, 0.25]
    assert empty.message == f"mine: ZeroDivisionError: division by zero (line {line}, in helper)"
    assert left.message.startswith("mine: SystemExit: 3 (line ") and "a value must be finite" in nan.message
    assert none.message.startswith("abstained") and fine.message == ""
    assert "ZeroDivisionError: division by zero" in caplog.text and "on row 0" in caplog.text
    with scorer(mine) as scores, pytest.raises(RewardError, match=r"mine: ZeroDivisionError: .* \(tried on row 0\)"):
        scores.try_out(candidates(""))


@pytest.mark.parametrize("swallows", [False, True])
def test_a_call_that_takes_too_long_is_interrupted(swallows: bool) -> None:
    def mine(solution_str, **_):
        if solution_str == "slow":
            try:
                time.sleep(60)
            except BaseException:
                if not swallows:
                    raise
        return 1.0

    handler = signal.getsignal(signal.SIGALRM)
    with scorer(mine, timeout_s=0.05) as scores:
        late, fine = scores.score(candidates("slow", "quick"))
    assert (late.value, late.verdict) == (None, Verdict.TIMEOUT)
    assert late.message == "mine: no value within 0.05 s (reward.workers.timeout_s)"
    assert fine.value == 1.0
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_another_thread_scores_without_a_limit() -> None:
    found = []
    with scorer(lambda **_: time.sleep(0.05) or 1.0, timeout_s=0.01) as scores:
        thread = threading.Thread(target=lambda: found.extend(scores.score(candidates("a"))))
        thread.start()
        thread.join()
    assert [one.value for one in found] == [1.0]


def test_ctrl_c_is_not_a_failure_of_the_function() -> None:
    def mine(**_):
        raise KeyboardInterrupt

    with scorer(mine) as scores, pytest.raises(KeyboardInterrupt):
        scores.score(candidates("a"))


async def later(**_):
    return 1.0


@pytest.mark.parametrize(("function", "said"), [
    (lambda text: 1.0, r"mine is mine\(text\), but is called with the keyword arguments data_source, solution_str"),
    (later, "mine is async; write it as an ordinary function"),
])  # fmt: skip
def test_a_wrong_function_is_named_at_the_start(function: Callable[..., object], said: str) -> None:
    with scorer(function) as scores, pytest.raises(RewardError, match=said):
        scores.start()


def test_a_run_elsewhere_says_where_its_function_is() -> None:
    with Scorer(RewardSection(functions=("python:mine",))) as scores, pytest.raises(RewardError, match=(
        r"python:mine is a function object, .* mindgspo.train\(..., reward=mine\), or .* FILE.py:mine"
    )):  # fmt: skip
        scores.start()


def test_functions_of_files_run_in_workers_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text("import os\ndef other(**_):\n    return os.getpid()\n")
    with scorer(lambda **_: 0.5, f"{file}:other") as scores:
        scores.start()
        first, second = scores.score(candidates("a", "b"))
    assert first.parts["mine"] == second.parts["mine"] == 0.5
    assert first.parts["other.other"] not in (0.0, os.getpid())
