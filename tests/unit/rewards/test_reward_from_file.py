"""A user's own reward file: what its values mean, and the whole way through a real worker."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.reward import FileFunction
from mindgspo.rewards.functions.from_file import FromFile, conclude
from mindgspo.rewards.verification import Candidate, JSONValue, Verification
from mindgspo.rewards.workers.pool import WorkerPool
from mindgspo.types import Verdict

CANDIDATE = Candidate(text="It is #### 72", gold="72", data_source="mine", index=3, extra_info={"index": 3})
VERIFIER = FromFile(FileFunction(Path("/rewards/mine.py"), "compute_score"))


def concluded(value: JSONValue) -> Verification:
    return conclude(value)


def test_the_job_has_verls_four_arguments() -> None:
    job = VERIFIER.verify(CANDIDATE)
    assert job.task == "/rewards/mine.py:compute_score"
    assert job.arguments == {
        "data_source": "mine",
        "solution_str": "It is #### 72",
        "ground_truth": "72",
        "extra_info": {"index": 3},
    }
    assert VERIFIER.can_read("") and VERIFIER.can_read("anything")


@pytest.mark.parametrize(
    ("value", "score", "verdict"),
    [
        (1, 1.0, Verdict.CORRECT),
        (0.25, 0.25, Verdict.CORRECT),
        (0, 0.0, Verdict.WRONG),
        (-1.0, -1.0, Verdict.WRONG),
        (True, 1.0, Verdict.CORRECT),
        (False, 0.0, Verdict.WRONG),
        ({"score": 0.1}, 0.1, Verdict.CORRECT),
        ({"score": True}, 1.0, Verdict.CORRECT),
        ({"score": 0.1, "acc": False}, 0.1, Verdict.WRONG),
        ({"score": -0.5, "acc": True}, -0.5, Verdict.CORRECT),
        ({"score": -0.5, "acc": 1.0}, -0.5, Verdict.CORRECT),
        ({"score": 1, "acc": 0}, 1.0, Verdict.WRONG),
        ({"score": 1, "acc": 0.5}, 1.0, Verdict.CORRECT),
        ({"score": 0, "verdict": "no_answer"}, 0.0, Verdict.NO_ANSWER),
        ({"score": 0, "verdict": "correct"}, 0.0, Verdict.CORRECT),
        ({"score": 0, "verdict": "correct", "acc": False}, 0.0, Verdict.WRONG),
        ({"score": 1, "verdict": "brilliant"}, 1.0, Verdict.CORRECT),
    ],
)
def test_values_and_verdicts(value: JSONValue, score: float, verdict: Verdict) -> None:
    verification = concluded(value)
    assert (verification.value, verification.verdict, verification.message) == (score, verdict, "")
    assert type(verification.value) is float


@pytest.mark.parametrize("value", [None, {"score": None}])
def test_none_abstains(value: JSONValue) -> None:
    verification = concluded(value)
    assert (verification.value, verification.verdict) == (None, Verdict.ERROR)
    assert "abstained" in verification.message


@pytest.mark.parametrize("verdict", [Verdict.UNPARSEABLE_GOLD, Verdict.TIMEOUT, Verdict.ERROR])
def test_verdicts_that_are_no_judgement_abstain(verdict: Verdict) -> None:
    verification = concluded({"score": 1.0, "verdict": verdict.value})
    assert (verification.value, verification.verdict) == (None, verdict)
    assert bool(verification.message) == (verdict is not Verdict.UNPARSEABLE_GOLD)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.5", r"returned '0\.5'; expected a finite number, a dict with a finite number 'score', or None"),
        ([1.0], r"returned \[1\.0\]; expected"),
        (math.nan, "returned nan; expected"),
        (-math.inf, "returned -inf; expected"),
        (10**400, r"returned 1000.*\(int\); expected"),
        ({}, r"dict with the keys \[\]; expected"),
        ({"scores": 1.0}, r"dict with the keys \['scores'\]; expected"),
        ({"score": "1"}, "returned 'score' '1'; expected"),
        ({"score": math.nan}, "returned 'score' nan; expected"),
        ({"score": [1]}, r"returned 'score' \[1\]; expected"),
    ],
)
def test_what_is_no_reward_says_what_is(value: JSONValue, message: str) -> None:
    verification = concluded(value)
    assert (verification.value, verification.verdict) == (None, Verdict.ERROR)
    assert re.search(message, verification.message), verification.message


def test_details_are_kept() -> None:
    verification = concluded(
        {"score": 1.0, "acc": True, "pred": "7" * 300, "format": 0.5, "words": 12, "lucky": False, "note": "text"}
    )
    assert verification.extracted == "7" * 200
    assert verification.extras == {"format": 0.5, "words": 12.0, "lucky": 0.0}
    assert concluded({"score": 1.0, "pred": 72}).extracted == "72"
    assert concluded({"score": 1.0, "pred": None}).extracted is None
    assert concluded(1.0).extracted is None and concluded(1.0).extras == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["score", "acc", "verdict", "pred", "other"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(value=json_values)
def test_no_value_raises_and_none_is_paid_by_chance(value: JSONValue) -> None:
    verification = concluded(value)
    assert verification.value is None or math.isfinite(verification.value)
    assert (verification.value is None) == (
        verification.verdict in (Verdict.ERROR, Verdict.TIMEOUT, Verdict.UNPARSEABLE_GOLD)
    )
    assert all(math.isfinite(extra) for extra in verification.extras.values())


def test_the_whole_way_through_a_worker(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    if solution_str == 'strange':\n"
        "        return 'right'\n"
        "    if solution_str == 'skip':\n"
        "        return None\n"
        "    found = solution_str.rpartition('#### ')[2]\n"
        "    score = numpy.float32(found == ground_truth)\n"
        "    return {'score': score, 'pred': found, 'row': extra_info['index'], 'is_mine': data_source == 'mine'}\n"
    )
    verifier = FromFile(FileFunction(file, "compute_score"))
    texts = ["#### 72", "strange", "#### 73", "skip"]
    candidates = [
        Candidate(text=text, gold="72", data_source="mine", index=index, extra_info={"index": index})
        for index, text in enumerate(texts)
    ]
    with WorkerPool([f"{file}:compute_score"], count=2, timeout_s=30, startup_timeout_s=60, memory_mb=512) as pool:
        replies = pool.run([verifier.verify(candidate) for candidate in candidates])
    found = [conclude(reply.value) for reply in replies]
    assert [verification.value for verification in found] == [1.0, None, 0.0, None]
    assert [verification.verdict for verification in found] == [
        Verdict.CORRECT,
        Verdict.ERROR,
        Verdict.WRONG,
        Verdict.ERROR,
    ]
    assert found[2].extracted == "73" and found[2].extras == {"row": 2.0, "is_mine": 1.0}
    assert "returned 'right'" in found[1].message and "abstained" in found[3].message
