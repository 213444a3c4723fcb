"""Hand-written responses, each with its gold answer and the verdict a careful reader would give."""

from __future__ import annotations

import pytest

from mindgspo.rewards.gsm8k import GSM8K
from mindgspo.rewards.math_dapo import MATH_DAPO
from mindgspo.types import Verdict

C, W, N, U = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.UNPARSEABLE_GOLD
TAIL = "\nThis is a long tail without any marker. " * 50

GSM8K_CASES = [
    # the marker itself
    ("48 + 24 = 72\n#### 72", "72", C),
    ("48 + 24 = 71\n#### 71", "72", W),
    ("####72", "72", C),
    ("####\n72", "72", C),
    ("#### 72" + TAIL, "72", C),
    ("#### 71\nWait, that is wrong.\n#### 72", "72", C),
    ("#### 72\nWait, that is wrong.\n#### 71", "72", W),
    ("She has 72 clips.", "72", N),
    ("", "72", N),
    ("####", "72", N),
    ("#### \n\n", "72", N),
    ("##### 72", "72", N),
    ("### 72", "72", N),
    ("#### Step 1: add the clips", "1", N),
    # decoration
    ("#### 72.", "72", C),
    ("#### $72", "72", C),
    ("#### 72$", "72", C),
    ("#### **72**", "72", C),
    ("#### `72`", "72", C),
    ("#### $72$.", "72", C),
    (r"#### \(72\)", "72", C),
    (r"#### \$72.00", "72", C),
    ("#### 72.0", "72", C),
    ("#### 072", "72", C),
    ("#### +72", "72", C),
    ("#### \uff17\uff12", "72", C),  # full-width digits
    ("#### \uffe572", "72", C),  # full-width yen sign
    ("#### <<48+24=72>>72", "72", C),
    ("#### 72</answer>", "72", C),
    ("#### 72<|im_end|>", "72", C),
    # units and sentences
    ("#### 72 clips", "72", C),
    ("#### 72 square feet.", "72", C),
    ("#### $72 per day", "72", C),
    ("#### 72cm", "72", C),
    ("#### 72 m", "72", C),
    ("#### 72 km/h", "72", C),
    ("#### 72 cm^2", "72", C),
    ("#### 72\u5143", "72", C),  # Chinese currency unit
    ("#### 72\u00b0", "72", C),
    ("#### about 72 clips", "72", C),
    ("#### 72. So she sold 48 in April and 24 in May.", "72", C),
    ("#### 72. So she sold" + " very many clips" * 100, "72", C),
    (r"\boxed{72" + " very many clips" * 100 + "}", "72", W),
    ("#### 48 + 24 = 72", "72", C),
    ("#### x = 72", "72", C),
    ("#### Total: 72 clips", "72", N),
    (r"#### Case 1: n = 4" "\n" r"\boxed{72}" "\n" r"#### Case 2: n = 5", "72", C),
    ("#### 72 or 73", "72", W),
    ("#### 72, 73", "72", W),
    ("#### 72x", "72", W),
    ("#### 72 - 1", "72", W),
    ("#### 7 2", "72", W),
    # sizes, signs, fractions, percent
    ("#### 1,000", "1000", C),
    ("#### 1000", "1,000", C),
    ("#### $1,234,567.50", "1234567.5", C),
    ("#### 1,00", "100", W),
    ("#### -5", "-5", C),
    ("#### -$5", "-5", C),
    ("#### \u22125", "-5", C),  # typographic minus
    ("#### 5", "-5", W),
    ("#### 1/2", "0.5", C),
    (r"#### \frac{1}{2}", "0.5", C),
    ("#### 1 1/2", "1.5", C),
    ("#### 1/0", "0", W),
    ("#### 50%", "50", C),
    ("#### 0.5", "50%", C),
    ("#### 50", "50%", C),
    ("#### 50%", "0.5", C),
    ("#### 0.333333333333333333", "1/3", W),
    ("#### 9007199254740993", "9007199254740992", W),  # equal as float64
    ("#### 2 million", "2,000,000", C),
    # boxes
    (r"So \boxed{72}.", "72", C),
    (r"\boxed{71} no, \boxed{72}", "72", C),
    (r"\boxed{\text{72 clips}}", "72", C),
    (r"\boxed{72\text{ clips}}", "72", C),
    (r"\boxed{\frac{144}{2}}", "72", C),
    (r"\boxed{{72}}", "72", C),
    (r"\fbox{72}", "72", C),
    (r"\boxed{x = 72}", "72", C),
    (r"\boxed{1{,}000}", "1000", C),
    (r"\boxed{1\,000}", "1000", C),
    (r"\boxed{50\%}", "50", C),
    (r"\boxed{45^\circ}", "45", C),
    (r"\boxed{5x}", "5", W),
    (r"\boxed{5\pi}", "5", W),
    (r"\boxed{72, 73}", "72", W),
    (r"\boxed{72", "72", N),  # the response was cut
    (r"Put it in \boxed{}.", "72", N),
    (r"\boxed{\text{yes}}", "72", W),
    (r"\boxed{72} and #### 71", "72", W),
    (r"#### 71 and then \boxed{72}", "72", C),
    (r"#### \boxed{72}", "72", C),
    # markers of other data sets, where the own one is missing
    ("The answer is 72.", "72", C),
    ("the answer is **$72**.", "72", C),
    ("The answer is 48 + 24 = 72.", "72", C),
    ("The answer is 71.", "72", W),
    ("The answer is in dollars.", "72", N),
    ("Answer: 72", "72", C),
    ("**Final Answer:** 72 clips", "72", C),
    ("\u7b54\u6848\uff1a72", "72", C),
    ("\u7b54\u6848\u662f72\u3002", "72", C),
    ("#### 72\nTo double check: the answer is 3 times 24.", "72", C),
    # numbered markdown headings
    ("#### 1. Add\n48 + 24 = 72\n#### 2. Conclude\nThe answer is 72.", "72", C),
    ("\\boxed{72}\n#### 3. Check", "72", C),
    # gold
    ("#### 72", "seventy-two", U),
    ("#### 72", "", U),
    ("no marker", "", U),
    ("#### 72", "She sold 48 + 24 clips.\n#### 72", C),
    ("#### 72", "$72.00", C),
]

MATH_DAPO_CASES = [
    ("Answer: 34", "34", C),
    ("Answer: 35", "34", W),
    ("answer: 34", "34", C),
    ("ANSWER : 34", "34", C),
    ("Answer:34" + TAIL, "34", C),
    ("Answer:\n\n34", "34", C),
    ("Answer:\n\\[\n34\n\\]", "34", C),
    ("Answer: $34$", "34", C),
    (r"Answer: \(34\)", "34", C),
    (r"Answer: \boxed{34}", "34", C),
    (r"Answer: $\boxed{-34}$.", "-34", C),
    (r"\textbf{Answer: 34}", "34", C),
    (r"\textbf{Answer:} 34", "34", C),
    ("**Answer:** 34", "34", C),
    ("**Answer**: 34", "34", C),
    ("### Final Answer: 34", "34", C),
    ("Therefore, the final answer: 34", "34", C),
    ("Answer: a + b + c = 34", "34", C),
    ("Answer: The sum is 34.", "34", C),
    ("Answer: 34.0", "34", C),
    ("Answer: 1{,}024", "1024", C),
    ("Answer: 34 or 35", "34", W),
    ("Answer: 34, 35", "34", W),
    (r"Answer: \sqrt{34}", "34", W),
    ("Answer: unknown", "34", W),
    ("Answer: 33\nOn reflection:\nAnswer: 34", "34", C),
    ("Answer: 34\nAnswer: 33", "34", W),
    ("Answer: 34\nTo explain the answer: plug x = 3 into it.", "34", C),
    ("Answer: We first compute 5 + 7.\nSo we get \\boxed{34}.", "34", C),
    ("form Answer: $Answer (without quotes)", "34", N),
    ("The sum is 34.", "34", N),
    ("", "34", N),
    (r"Hence \boxed{34}.", "34", C),
    (r"Answer: 34. An upper bound was \boxed{40}.", "34", C),
    ("#### 34", "34", N),
    ("Answer: 34", "x + 1", U),
]


@pytest.mark.parametrize(("text", "gold", "verdict"), GSM8K_CASES)
def test_gsm8k_case(text: str, gold: str, verdict: Verdict) -> None:
    score = GSM8K.score(text, gold)
    assert score.verdict is verdict
    assert score.value == {C: 1.0, W: 0.0, N: 0.0, U: None}[verdict]
    assert (score.extracted is None) == (verdict in (N, U))
    assert score.parts == ({} if verdict is U else {"gsm8k": score.value})


@pytest.mark.parametrize(("text", "gold", "verdict"), MATH_DAPO_CASES)
def test_math_dapo_case(text: str, gold: str, verdict: Verdict) -> None:
    score = MATH_DAPO.score(text, gold)
    assert score.verdict is verdict
    assert score.value == {C: 1.0, W: -1.0, N: -1.0, U: None}[verdict]


def test_the_extracted_answer_is_what_the_reader_sees() -> None:
    assert GSM8K.score("#### **$1,000** per day.", "1000").extracted == "1,000 per day"
    assert GSM8K.score(r"\boxed{\text{yes}}", "1").extracted == "yes"
    assert len(GSM8K.score(r"\boxed{" + "y" * 5000 + "}", "1").extracted or "") == 200
