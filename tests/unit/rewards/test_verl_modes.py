"""`verl_strict` and `verl_flexible` do what verl does, its mistakes included. Every case was worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.rewards.functions.numeric import VerlGsm8k
from mindgspo.rewards.verification import Candidate, Verification
from mindgspo.types import Verdict

C, W, N = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER
STRICT, FLEXIBLE = VerlGsm8k("strict"), VerlGsm8k("flexible")


def candidate(text: str, gold: str) -> Candidate:
    return Candidate(text=text, gold=gold, data_source="openai/gsm8k", index=0)


def verified(function: VerlGsm8k, text: str, gold: str) -> Verification:
    verification = function.verify(candidate(text, gold))
    assert isinstance(verification, Verification)
    return verification


# (response, gold, what `strict` extracts and says, what `flexible` extracts and says)
CASES = [
    ("The sum is 72.\n#### 72", "72", "72", C, "72", C),
    ("#### 71", "72", "71", W, "71", W),
    ("#### -7", "-7", "-7", C, "-7", C),
    ("#### 71 or rather #### 72", "72", "72", C, "72", C),  # the last one
    ("#### 72 #### seven", "72", "72", C, "72", C),
    # Equal numbers that are other strings.
    ("#### 72.0", "72", "72.0", W, "72.0", W),
    ("#### 72.", "72", "72.", W, "72.", W),
    ("#### 072", "72", "072", W, "072", W),
    ("#### 1,000", "1000", "1000", C, "1,000", W),  # only `strict` removes commas
    ("#### 1,000", "1,000", "1000", W, "1,000", C),
    ("#### 1000", "1,000", "1000", W, "1000", W),
    # Forms that are not seen.
    ("#### $1,000", "1000", None, N, "1,000", W),
    ("#### $72", "72", None, N, "72", C),
    ("####72", "72", None, N, "72", C),
    ("####  72", "72", None, N, "72", C),
    ("#### **72**", "72", None, N, "72", C),
    (r"\boxed{72}", "72", None, N, "72", C),
    ("The answer is 72", "72", None, N, "72", C),
    ("The answer is 72.", "72", None, N, "72.", W),  # the full stop belongs to the number
    ("Answer: 72 .", "72", None, N, "72", C),  # a lone one does not count
    ("72 (about 3 hours)", "72", None, N, "3", W),
    ("x = 1/2", "1/2", None, N, "2", W),
    ("5-3", "-3", None, N, "-3", C),
    ("#### \uff17\uff12", "72", None, N, None, N),  # full-width digits are none
    # Nothing, or next to nothing.
    ("", "72", None, N, None, N),
    ("no idea", "72", None, N, None, N),
    ("Yes.", "72", None, N, ".", W),  # a full stop is an answer where there is no number
    ("Yes, no", "72", None, N, ",", W),  # and so is a comma
    ("72 Yes, no", "72", None, N, ",", W),
    ("#### ,", "72", "", W, ",", W),
    ("#### .", ".", ".", C, ".", C),
    # 300 characters.
    ("#### 72" + " " * 293, "72", "72", C, "72", C),
    ("#### 72" + " " * 294, "72", None, N, "72", C),  # the first # is cut off
    ("#### 72" + " " * 298, "72", None, N, "72", C),
    ("#### 72" + " " * 299, "72", None, N, "2", W),
    ("#### 72" + " " * 300, "72", None, N, None, N),
    ("#### 72" + "x" * 2000 + "#### 5", "72", "5", W, "5", W),
]


@pytest.mark.parametrize(("text", "gold", "strict", "strict_says", "flexible", "flexible_says"), CASES)
def test_by_hand(
    text: str, gold: str, strict: str | None, strict_says: Verdict, flexible: str | None, flexible_says: Verdict
) -> None:
    for function, extracted, verdict in ((STRICT, strict, strict_says), (FLEXIBLE, flexible, flexible_says)):
        verification = verified(function, text, gold)
        assert (verification.extracted, verification.verdict) == (extracted, verdict)
        assert verification.value == (1.0 if verdict is C else 0.0)


PIECES = ["#### ", "72", "1,000", "-", ".", ",", " ", "\n", "$", "x", "\ud800", "\u0663", "and so on " * 20]
soup = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@settings(max_examples=300)
@given(text=soup | st.text(), gold=soup | st.text(max_size=5))
def test_every_text_has_a_verdict_and_only_its_last_300_characters_count(text: str, gold: str) -> None:
    for function in (STRICT, FLEXIBLE):
        assert function.can_read(gold)
        verification = verified(function, text, gold)
        assert (verification.verdict is N) == (verification.extracted is None)
        assert (verification.verdict is C) == (verification.value == 1.0) == (verification.extracted == gold)
        assert (
            verified(function, "#### 5 " + "y" * 300 + text[-300:], gold).verdict
            is verified(function, "y" * 300 + text[-300:], gold).verdict
        )


def test_what_is_kept_of_an_answer_is_short() -> None:
    digits = "7" * 290
    verification = verified(STRICT, f"#### {digits}", digits)
    assert (verification.verdict, verification.extracted) == (C, digits[:200])
