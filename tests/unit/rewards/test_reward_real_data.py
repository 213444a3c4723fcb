"""Published data sets and graded model outputs, read where they lie beside the project."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from mindgspo.rewards.gsm8k import GSM8K
from mindgspo.rewards.math_dapo import MATH_DAPO
from mindgspo.types import Verdict

DATA = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"


pytestmark = pytest.mark.shared_data


def rows(name: str) -> list[dict]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"needs {name} of the shared data folder, absent at {DATA}")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_gsm8k_solution_is_correct_against_its_own_answer() -> None:
    train = rows("gsm8k/train.jsonl")
    assert len(train) == 7473
    for row in train:
        gold = row["answer"].rpartition("####")[2].strip()
        assert GSM8K.score(row["answer"], gold).verdict is Verdict.CORRECT, row["answer"]


def test_every_dapo_answer_is_readable() -> None:
    golds = [row["reward_model"]["ground_truth"] for row in rows("dapo-math-17k/dapo_math_512.jsonl")]
    assert len(golds) == 512
    for gold in golds:
        assert MATH_DAPO.score(f"Answer: {gold}", gold).verdict is Verdict.CORRECT


def confusion(name: str) -> Counter[tuple[bool, str]]:
    """(label of the source's grader, our verdict) -> rows."""
    return Counter((row["correct"], GSM8K.score(row["response"], row["gold"]).verdict.value) for row in rows(name))


def test_prose_answers_agree_with_their_published_labels() -> None:
    counts = confusion("model-outputs/gsm8k_rho7b_cot.jsonl")
    judged = sum(count for (_, verdict), count in counts.items() if verdict in ("correct", "wrong"))
    agreed = counts[True, "correct"] + counts[False, "wrong"]
    # Never stricter than the source's grader. The other way round 8 rows differ, such as "The answer is
    # 520 - 480 = 40." (gold 40) or "10 cents" (gold 10), which the source counted as wrong.
    assert counts[True, "wrong"] == 0
    assert (judged, agreed) == (1201, 1193)
    assert counts[True, "no_answer"] + counts[False, "no_answer"] == 115


def test_boxed_answers_agree_with_their_published_labels() -> None:
    counts = confusion("model-outputs/math_qwen25math_boxed.jsonl")
    # Three problems have a gold that is no number ("4t", "4a-2", "4:30p.."): 24 rows abstain.
    assert counts == Counter(
        {
            (True, "correct"): 279,
            (False, "wrong"): 17,
            (True, "unparseable_gold"): 16,
            (False, "unparseable_gold"): 8,
        }
    )


def test_an_unknown_marker_is_no_answer_rather_than_wrong() -> None:
    counts = confusion("model-outputs/gsm8k_openai_6b.jsonl")  # "A: 26" is not a marker of this project
    assert {verdict for _, verdict in counts} == {"no_answer"}
