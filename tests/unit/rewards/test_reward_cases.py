"""Hand-written responses with the verdict of every mode side by side.

The verdict is the one a careful reader gives who follows the mode's rule. C correct, W wrong, N no answer, U the gold
answer cannot be read. The columns:

    gsm8k strict, flexible, first, last | math_dapo strict, flexible, strict_box | verl_strict, verl_flexible

verl's two show what they miss; below, they do what verl does, its mistakes included.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo, VerlGsm8k
from mindgspo.rewards.verification import Candidate, Verification
from mindgspo.types import Verdict

C, W, N, U = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.UNPARSEABLE_GOLD
VERDICTS = {"C": C, "W": W, "N": N, "U": U}
TAIL = "\nThis is a long tail without any marker. " * 50
NOISE = "words without meaning, " * 45_000

GSM8K_VERIFIERS = [Gsm8k("strict"), Gsm8k("flexible"), Gsm8k("first"), Gsm8k("last")]
DAPO_VERIFIERS = [MathDapo("strict"), MathDapo("flexible"), MathDapo(strict_box=True)]
VERL_VERIFIERS = [VerlGsm8k("strict"), VerlGsm8k("flexible")]

GSM8K_STYLE = [
    # the marker itself
    ("CCCC NCN CC", "48 + 24 = 72\n#### 72", "72"), ("WWWW NWN WW", "48 + 24 = 71\n#### 71", "72"),
    ("CCCC NCN NC", "####72", "72"), ("CCCC NCN NC", "####\n72", "72"), ("CCCC NCN NW", "#### 72" + TAIL, "72"),
    ("CCWC NCN CC", "#### 71\nWait, that is wrong.\n#### 72", "72"),
    ("WWCW NWN WW", "#### 72\nWait, that is wrong.\n#### 71", "72"), ("NCCC NCN NC", "She has 72 clips.", "72"),
    ("NNNN NNN NN", "", "72"), ("NNNN NNN NN", "####", "72"), ("NNNN NNN NN", "#### \n\n", "72"),
    ("NCCC NCN CC", "##### 72", "72"), ("NCCC NCN NC", "### 72", "72"),
    ("NNNN NNN NC", "#### Step 1: add the clips", "1"),
    # decoration
    ("CCCC NCN WW", "#### 72.", "72"), ("CCCC NCN NC", "#### $72", "72"), ("CCCC NCN CC", "#### 72$", "72"),
    ("CCCC NCN NC", "#### **72**", "72"), ("CCCC NCN NC", "#### `72`", "72"), ("CCCC NCN NC", "#### $72$.", "72"),
    ("CCCC NCN NC", r"#### \(72\)", "72"), ("CCCC NCN NW", r"#### \$72.00", "72"), ("CCCC NCN WW", "#### 72.0", "72"),
    ("CCCC NCN WW", "#### 072", "72"), ("CCCC NCN NC", "#### +72", "72"),
    ("CCCC NCN NN", "#### \uff17\uff12", "72"),  # full-width digits
    ("CCCC NCN NC", "#### \uffe572", "72"),  # full-width yen sign
    ("CCCC NCN NC", "#### <<48+24=72>>72", "72"), ("CCCC NCN CC", "#### 72</answer>", "72"),
    ("CCCC NCN CC", "#### 72<|im_end|>", "72"),
    # units and sentences
    ("CCCC NCN CC", "#### 72 clips", "72"), ("CCCC NCN CC", "#### 72 square feet.", "72"),
    ("CCCC NCN NC", "#### $72 per day", "72"), ("CCCC NCN CC", "#### 72cm", "72"), ("CCCC NCN CC", "#### 72 m", "72"),
    ("CCCC NCN CC", "#### 72 km/h", "72"), ("CCCC NCN CW", "#### 72 cm^2", "72"),
    ("CCCC NCN CC", "#### 72\u5143", "72"),  # Chinese currency unit
    ("CCCC NCN CC", "#### 72\u00b0", "72"), ("CCCC NCN NC", "#### about 72 clips", "72"),
    ("CCCC NCN WW", "#### 72. So she sold 48 in April and 24 in May.", "72"),
    ("CCCC NCN NN", "#### 72. So she sold" + " very many clips" * 100, "72"),
    ("WWWW NWW NN", r"\boxed{72" + " very many clips" * 100 + "}", "72"), ("CCCC NCN WC", "#### 48 + 24 = 72", "72"),
    ("CCCC NCN NC", "#### x = 72", "72"), ("NCCC NCN NC", "#### Total: 72 clips", "72"),
    ("CCCC NCC NW", r"#### Case 1: n = 4" "\n" r"\boxed{72}" "\n" r"#### Case 2: n = 5", "72"),
    ("WWWW NWN CW", "#### 72 or 73", "72"), ("WWWW NWN CW", "#### 72, 73", "72"), ("WWWW NWN CC", "#### 72x", "72"),
    ("WWWW NWN CW", "#### 72 - 1", "72"), ("WWWW NWN WW", "#### 7 2", "72"),
    # sizes, signs, fractions, percent
    ("CCCC NCN CW", "#### 1,000", "1000"), ("CCCC NCN WW", "#### 1000", "1,000"),
    ("CCCC NCN NW", "#### $1,234,567.50", "1234567.5"), ("WWWW NWN CW", "#### 1,00", "100"),
    ("CCCC NCN CC", "#### -5", "-5"), ("CCCC NCN NW", "#### -$5", "-5"),
    ("CCCC NCN NW", "#### \u22125", "-5"),  # typographic minus
    ("WWWW NWN WW", "#### 5", "-5"), ("CCCC NCN WW", "#### 1/2", "0.5"), ("CCCC NCN NW", r"#### \frac{1}{2}", "0.5"),
    ("CCCC NCN WW", "#### 1 1/2", "1.5"), ("WWWW NWN WC", "#### 1/0", "0"), ("CCCC NCN CC", "#### 50%", "50"),
    ("CCCC NCN WW", "#### 0.5", "50%"), ("CCCC NCN WW", "#### 50", "50%"), ("CCCC NCN WW", "#### 50%", "0.5"),
    ("WWWW NWN WW", "#### 0.333333333333333333", "1/3"),
    ("WWWW NWN WW", "#### 9007199254740993", "9007199254740992"),  # equal as float64
    ("CCCC NCN WW", "#### 2 million", "2,000,000"),
    # boxes
    ("CCCC NCC NC", r"So \boxed{72}.", "72"), ("CCWC NCC NC", r"\boxed{71} no, \boxed{72}", "72"),
    ("CCCC NCC NC", r"\boxed{\text{72 clips}}", "72"), ("CCCC NCC NC", r"\boxed{72\text{ clips}}", "72"),
    ("CCCC NCC NW", r"\boxed{\frac{144}{2}}", "72"), ("CCCC NCC NC", r"\boxed{{72}}", "72"),
    ("CCCC NCC NC", r"\fbox{72}", "72"), ("CCCC NCC NC", r"\boxed{x = 72}", "72"),
    ("CCCC NCC NW", r"\boxed{1{,}000}", "1000"), ("CCCC NCC NW", r"\boxed{1\,000}", "1000"),
    ("CCCC NCC NC", r"\boxed{50\%}", "50"), ("CCCC NCC NC", r"\boxed{45^\circ}", "45"),
    ("WWWW NWW NC", r"\boxed{5x}", "5"), ("WWWW NWW NC", r"\boxed{5\pi}", "5"),
    ("WWWW NWW NW", r"\boxed{72, 73}", "72"),
    ("NNNN NNN NC", r"\boxed{72", "72"),  # the brace was forgotten
    ("NNNN NNN NW", r"Put it in \boxed{}.", "72"), ("WWWW NWW NN", r"\boxed{\text{yes}}", "72"),
    ("WWCW NCC WW", r"\boxed{72} and #### 71", "72"), ("CCCC NCC WC", r"#### 71 and then \boxed{72}", "72"),
    ("CCCC NCC NC", r"#### \boxed{72}", "72"),
    # markers of other data sets, where the own one is missing
    ("NCCC NCN NW", "The answer is 72.", "72"), ("NCCC NCN NC", "the answer is **$72**.", "72"),
    ("NWWC NWN NW", "The answer is 48 + 24 = 72.", "72"),  # a calculation is no answer, but its last number is stated
    ("NWWC NWN NC", "The answer is $48 + $24 = $72", "72"), ("NCCC NCN NC", "The answer is x = 48 + 24 = 72", "72"),
    ("NCCC NCN NC", "The answer is 1/2 = 0.5", "0.5"), ("NWWW NWN NW", "The answer is 71.", "72"),
    ("NNNN NNN NW", "The answer is in dollars.", "72"), ("NCCC CCN NC", "Answer: 72", "72"),
    ("NCCC CCN NC", "**Final Answer:** 72 clips", "72"), ("NCCC CCN NC", "\u7b54\u6848\uff1a72", "72"),
    ("NCCC NCN NC", "\u7b54\u6848\u662f72\u3002", "72"),
    ("CCCW NCN CW", "#### 72\nTo double check: the answer is 3 times 24.", "72"),
    # numbered markdown headings
    ("WCCC NCN WW", "#### 1. Add\n48 + 24 = 72\n#### 2. Conclude\nThe answer is 72.", "72"),
    ("CCCC NCC WW", "\\boxed{72}\n#### 3. Check", "72"),
    # gold
    ("UUUU NWN WW", "#### 72", "seventy-two"), ("UUUU UUU WW", "#### 72", ""), ("UUUU UUU NN", "no marker", ""),
    ("CCCC NCN WW", "#### 72", "She sold 48 + 24 clips.\n#### 72"), ("CCCC NCN WW", "#### 72", "$72.00"),
]  # fmt: skip

DAPO_STYLE = [
    ("NCCC CCN NC", "Answer: 34", "34"), ("NWWW WWN NW", "Answer: 35", "34"), ("NCCC CCN NC", "answer: 34", "34"),
    ("NCCC CCN NC", "ANSWER : 34", "34"), ("NCCC CCN NW", "Answer:34" + TAIL, "34"),
    ("NCCC CCN NC", "Answer:\n\n34", "34"), ("NCCC CCN NC", "Answer:\n\\[\n34\n\\]", "34"),
    ("NCCC CCN NC", "Answer: $34$", "34"), ("NCCC CCN NC", r"Answer: \(34\)", "34"),
    ("CCCC CCC NC", r"Answer: \boxed{34}", "34"), ("CCCC CCC NC", r"Answer: $\boxed{-34}$.", "-34"),
    ("NCCC CCN NC", r"\textbf{Answer: 34}", "34"), ("NCCC CCN NC", r"\textbf{Answer:} 34", "34"),
    ("NCCC CCN NC", "**Answer:** 34", "34"), ("NCCC CCN NC", "**Answer**: 34", "34"),
    ("NCCC CCN NC", "### Final Answer: 34", "34"), ("NCCC CCN NC", "Therefore, the final answer: 34", "34"),
    ("NCCC CCN NC", "Answer: a + b + c = 34", "34"), ("NCCC CCN NW", "Answer: The sum is 34.", "34"),
    ("NCCC CCN NW", "Answer: 34.0", "34"), ("NCCC CCN NW", "Answer: 1{,}024", "1024"),
    ("NWWW WWN NW", "Answer: 34 or 35", "34"), ("NWWW WWN NW", "Answer: 34, 35", "34"),
    ("NWWW WWN NC", r"Answer: \sqrt{34}", "34"), ("NWWW WWN NN", "Answer: unknown", "34"),
    ("NCWC CCN NC", "Answer: 33\nOn reflection:\nAnswer: 34", "34"), ("NWCW WWN NW", "Answer: 34\nAnswer: 33", "34"),
    ("NCCW CCN NW", "Answer: 34\nTo explain the answer: plug x = 3 into it.", "34"),
    ("CCCC WCC NC", "Answer: We first compute 5 + 7.\nSo we get \\boxed{34}.", "34"),
    ("NNNN NNN NN", "form Answer: $Answer (without quotes)", "34"), ("NCCC NCN NW", "The sum is 34.", "34"),
    ("NNNN NNN NN", "", "34"), ("CCCC NCC NC", r"Hence \boxed{34}.", "34"),
    ("WWCW CCW NW", r"Answer: 34. An upper bound was \boxed{40}.", "34"), ("CCCC NCN CC", "#### 34", "34"),
    ("UUUU WWN NW", "Answer: 34", "x + 1"),
]  # fmt: skip

NUMBERS = [
    ("CCCC NCC NW", r"\boxed{\frac{1}{2}}", "0.5"), ("CCCC NCC NW", r"\boxed{\frac{1}{2}}", "1/2"),
    ("CCCC NCC NW", r"\boxed{\frac{1}{2}}", r"50\%"), ("CCCC NCC NW", r"\boxed{0.5}", r"\frac{1}{2}"),
    ("CCCC NCC NW", r"\boxed{50\%}", r"\frac{1}{2}"), ("CCCC NCC NW", r"\boxed{\dfrac{3}{4}}", "0.75"),
    ("CCCC NCC NW", r"\boxed{-\frac{3}{4}}", "-0.75"), ("CCCC NCC NW", r"\boxed{2\frac{1}{2}}", "2.5"),
    ("CCCC NCC NW", r"\boxed{\frac12}", "0.5"), ("CCCC NCN WW", "#### 1.5e3", "1500"),
    ("CCCC NCN WW", "#### 1.5 x 10^3", "1500"), ("CCCC NCC NW", r"\boxed{1.5 \times 10^{3}}", "1500"),
    ("CCCC NCN WW", "#### 1.5\xd710\xb3", "1500"), ("CCCC NCN WW", "#### 2e-3", "0.002"),
    ("CCCC NCN WW", "#### 1.50", "1.5"), ("WWWW NWN WW", "#### 0.3333", "1/3"),
    ("CCCC NCN WW", "#### 1,000,000", "1e6"), ("CCCC NCN WW", "#### 1 000 000", "1000000"),
    ("WWWW NWN CW", "#### 12,34", "1234"), ("CCCC NCN WW", "#### 1\xbd", "1.5"),
    ("CCCC NCN WW", "#### 1 and 1/2", "1.5"), ("CCCC NCN WW", "#### 2 and a half hours", "2.5"),
    ("WWWW NWN CC", "#### 2 and a half hours", "2"), ("CCCC NCN WW", "#### 5 dollars and 50 cents", "5.5"),
    ("WWWW NWN CW", "#### 5 dollars and 50 cents", "5"), ("CCCC NCN NW", "#### $5 and 50 cents", "5.50"),
    ("WWWW NWN CW", "#### 2 hours and 5 minutes", "2"), ("WWWW NWN CW", "#### 4:30", "4"),
    ("WWWW NWN WW", "#### 4:30 pm", "4.5"), ("CCCC NCN CC", "#### 5 pm", "5"), ("CCCC NCN CC", "#### 10 cents", "10"),
    ("CCCC NCN WW", "#### 50 percent", "0.5"), ("WWWW NWN CW", "#### 5 feet 10 inches", "5"),
    ("CCCC NCN NC", "#### x=5", "5"), ("CCCC NCN CC", "#### 5 = x", "5"), ("CCCC NCC NC", r"\boxed{x=5}", "5"),
    ("WWWW NWN WW", "#### 5!", "120"), ("CCCC NCN CC", "#### 72!", "72"), ("CCCC NCN NC", "#### US$72", "72"),
    ("CCCC NCN NC", "#### Rs. 72", "72"), ("CCCC NCN NC", "#### \u20b972", "72"), ("CCCC NCN CC", "#### 72 USD", "72"),
    ("CCCC NCN NW", "#### $72k", "72000"), ("CCCC NCN WW", "#### 2 hundred", "200"),
    ("CCCC NCN WW", "#### 3\u4e07", "30000"), ("CCCC NCN CC", "#### 5\u5343\u514b", "5"),
    ("CCCC NCN CC", "#### 72 (48 + 24 = 72)", "72"), ("WWWW NWN CW", "#### 72 (or 73)", "72"),
    ("CCCC NCN CC", "#### 72 \u2014 the total", "72"), ("NNNN NNN NC", "#### not 72", "72"),
    ("WWWW NWN CW", "#### 5 - 10", "5"), ("WWWW NWN WW", "#### 2**3", "8"), ("NNNN NNN NN", "#### seventy-two", "72"),
    ("WWWW NWN CW", "#### 72 clips and 3 boxes", "72"), ("CCCC NCN WW", "#### -0", "0"),
    ("CCCC NCN NC", "#### (72)", "72"), ("CCCC NCN NC", "#### [72]", "72"), ("CCCC NCN NC", '#### "72"', "72"),
    ("CCCC NCN NC", "#### ~72", "72"), ("CCCC NCN NC", "#### \u224872", "72"),
    ("NCCC NCN NN", "#### \u6c34\uff1a\uff17\uff12", "72"),
]  # fmt: skip

BOXES = [
    ("WWWW NWW NW", r"\boxed{71} or \boxed{72}", "71"), ("CCCC NCC NC", r"\boxed{\boxed{72}}", "72"),
    ("CCCC NCC NC", r"\\boxed{72}", "72"), ("CCCC NCC NC", r"\boxed {72}", "72"),
    ("CCCC NCC NC", r"$\boxed{\$72}$", "72"), ("CCCC NCC NC", r"\boxed{\mathbf{72}}", "72"),
    ("CCCC NCC NW", r"\boxed{72}" + TAIL, "72"), ("CCCC NCC NC", r"\boxed{72} \boxed{", "72"),
    ("CCCC NCC NW", r"\boxed{72\%}", "0.72"), ("WWWW NWW NW", r"\boxed{7}2", "72"),
    ("CCCC NCC NC", r"\boxed{\text{Answer: } 72}", "72"), ("WWWW NWW NC", r"\boxed{\frac{x}{2}}", "2"),
]  # fmt: skip

ENDINGS = [
    ("NCCC NCN NC", "Natalia sold 48/2 = 24 clips in May.\n\nAltogether, Natalia sold **48 + 24 = 72** clips.", "72"),
    (
        "NCCC NCN NC",
        "### Step 3: Add the results\n48 + 24 = 72\n\n**Natalia sold a total of 72 clips in April and May.**",
        "72",
    ),
    ("NCCC NCN NW", "Therefore, Weng earned **$10** for 50 minutes of babysitting.", "10"),
    ("NCCC NCN NW", "So, she earned $0.2 x 50 = $10.", "10"),
    (
        "CCCC NCC NC",
        "Thus, the total cost is:\n\n\\[\n15 + 30 = 45\n\\]\n\nSo the final answer is:\n\n$$\n\\boxed{45}\n$$", "45",
    ),
    ("NCCC CCN NC", "Final Answer: The final answer is $45$. I hope it is correct.", "45"),
    ("NCCC CCN NW", r"Final Answer: The final answer is $\frac{9}{20}$. I hope it is correct.", "0.45"),
    (
        "NWCW NWN NW",
        "So the answer is 45.\n\nQ: Tom has 3 apples and buys 2 more. How many now?\nA: 3 + 2 = 5. The answer is 5.",
        "45",
    ),
    ("NCCC NCN NC", "Betty needs 5 more dollars.\n\nLet me know if you have any other questions! \U0001f60a", "5"),
    ("NCCC NCN NW", "Betty needs $5 more. Would you like me to explain any of the 3 steps?", "5"),
    ("NCCC WCN NC", "**Answer:** Betty needs **$5** more to buy the wallet.", "5"),
    ("NCCC WCN NC", "**Answer: Betty needs $5 more.**", "5"), ("CCCC NCC NC", r"The final answer is: $\boxed{5}$", "5"),
    ("NCCC NCN NC", "Hence, Betty still needs $100 - $95 = $5 to buy the wallet.", "5"),
    (
        "NCCC NCN NC",
        "<think>\nShe has 50 + 15 + 30 = 95, so 5? Check: 100 - 95 = 5.\n</think>\n\nBetty needs 5 more dollars.", "5",
    ),
    ("NCCC NCN NC", "<think>\nMaybe \\boxed{95}? No.\n</think>\n\nBetty needs **5** more dollars.", "5"),
    ("NCCC NCN NC", "<think>48/2=24, so 72</think><answer>72</answer>", "72"),
    ("NWWW NWN NW", r"<think>It is \boxed{72}, no, 73.</think><answer>73</answer>", "72"),
    ("NCCC NCN NC", "<answer>\nThe total is 72 clips.\n</answer>", "72"),
    ("NWWW NWN NN", "<answer>seventy-two</answer>", "72"),
    ("NCCC NCN NC", "<think>First I put it in <answer> tags.</think>\n<answer>72", "72"),
    (
        "NCCC NCN NC",
        "\u56db\u6708\u5356\u4e8648\u4e2a\uff0c\u4e94\u6708\u5356\u4e8624\u4e2a\u3002\n\u7b54\uff1a\u5979\u4e00\u5171\u5356\u4e8672\u4e2a\u53d1\u5939\u3002",
        "72",
    ),
    ("NCCC NCN NN", "\u6240\u4ee5\u7b54\u6848\u662f\uff1a\uff17\uff12", "72"),
    ("CCCC NCC NC", "\u6700\u7ec8\u7b54\u6848\u4e3a $\\boxed{72}$\u3002", "72"),
    ("NCCC NCN NW", "\u56e0\u6b64\uff0c\u603b\u6536\u5165\u4e3a 3\u4e07\u5143\u3002", "30000"),
    ("NCCC CCN NC", "\u7b54\u6848\uff1a72\u4e2a", "72"),
    (
        "NCCC NCN NC",
        "\u6240\u4ee5\uff0c\u5979\u4e94\u6708\u5356\u4e8624\u4e2a\uff0c\u4e24\u4e2a\u6708\u5171\u5356\u4e8672\u4e2a\u3002",
        "72",
    ),
    ("NWWW NWN NC", "So in total they read 120 pages, i.e. 2 hours and 30 minutes of reading.", "30"),
    ("NWWW NWN NC", "The movie ends at 4:30 pm.", "30"), ("NCCC NCN NW", "She pays 5 dollars and 50 cents.", "5.5"),
    ("NWWW NWN NC", "She pays 5 dollars and 50 cents.", "50"),
    ("NWWW NWN NC", "That would be either 72 or 73 clips.", "73"),
    ("NWWW NWN NW", "The total is between 70 and 72.", "72"), ("NCCC NCN NW", "x = 72\n\nSo x is not 73.", "72"),
    ("NWWW NWN NW", "The total is 48 + 24.", "24"), ("NWWW NWN NC", "Hence n = 2^{10}.", "10"),
    ("NCCC NCN NW", "So the area is 72 cm^2.", "72"), ("NCCC NCN NW", "So the volume is 72 m\xb3 of H2O.", "72"),
    ("NCCC NCN NW", "Her profit was -$5, a loss.", "-5"), ("NCCC NCN NC", "Her profit was 20 - 25 = -5 dollars.", "-5"),
    ("NCCC NCN NW", "The probability is 1/2.", "0.5"), ("NCCC NCN NW", r"The probability is $\frac{1}{2}$.", "0.5"),
    ("NCCC NCN NW", "The recipe needs 2 1/2 cups.", "2.5"), ("NCCC NCN NW", "The recipe needs 2\xbd cups.", "2.5"),
    ("NCCC NCN NW", "That is about 6.02 x 10^23 molecules.", "602000000000000000000000"),
    ("NCCC NCN NW", "That is 1.5e3 litres.", "1500"), ("NCCC NCN NW", "The company made $2.5 million.", "2500000"),
    ("NCCC NCN NW", "In total that is 1,234,567 people.", "1234567"),
    (
        "NCCC NCN NC", "1. Eggs laid: 16\n2. Eggs used: 3 + 4 = 7\n3. Eggs sold: 16 - 7 = 9\n4. Earnings: 9 * 2 = $18",
        "18",
    ),
    ("NCCC NCN NW", "Janet makes $18 every day at the farmers' market.\n\n### Summary\n1. Subtract\n2. Multiply", "18"),
    ("NCCC NCN NW", "The answer is (C) 72.", "72"), ("NNNN NNN NW", "I cannot determine the number of clips.", "72"),
    ("NNNN NNN NC", "How many clips did Natalia sell altogether in April and May, if she sold 72?", "72"),
    ("NCCC NCN NC", "It takes 2+1=**3** bolts.", "3"), ("NCCC NCN NC", "Total bolts = 2 + 1 = 3 bolts", "3"),
    ("NCCC NCN NC", "= 3", "3"), ("NCCC NCN NW", "Total = $3.00", "3"),
    ("NCCC NCN NW", "Profit = $200,000 - $130,000 = $70,000", "70000"),
    ("NCCC NCN NW", "Josh made a profit of $70k.", "70000"),
    ("NCCC NCN NW", "He runs 3 * 3 * 60 = 540 meters in 7 days.", "540"),
    ("NCCC NCN NW", "Thus the chickens get 20 cups in the final meal, because 60 > 40.", "20"),
    ("NCCC NCN NC", "\u2234 Wendi gives them 20 cups.", "20"), ("NCCC NCN NC", "Wendi gives them 20 cups \u2705", "20"),
    ("NCCC NCN NC", "Ans: 20 cups", "20"), ("NCCC NCN NC", "Ans. = 20", "20"),
    ("NCCC CCN NC", "Answer (in cups): 20", "20"),
    ("NCCC NCN NC", "## Final Answer\n20 cups", "20"),
    ("NCCC NCN NC", "**Final Answer**\n\n$20$", "20"), ("NCCC NCN NW", "The answer to the problem is 20.", "20"),
    ("NCCC NCN NC", "The correct answer would be 20 cups.", "20"), ("NCCC NCN NC", "I get 20 as the answer.", "20"),
    ("NCCC WCN NC", "My answer: twenty cups (20).", "20"), ("NCCC NCN NC", "A: 20", "20"),
    ("NCCC NCN NW", "A: There are 15 - 6 = 9 trees, so the answer is 9.", "9"),
    ("NWWW NWN NW", "A: 20 cups\nB: 25 cups", "20"),
    ("NCCC NCN NC", "\\begin{align*}\nx &= 48 + 24 \\\\\n&= 72\n\\end{align*}", "72"),
    ("NCCC NCN NC", r"\[ \text{Total} = 48 + 24 = 72 \text{ clips} \]", "72"),
    ("NCCC NCN NC", r"Total: \(48 + 24 = 72\) clips.", "72"),
    ("NCCC NCN NW", "She needs 20% of 360, which is 72.", "72"), ("NWWW NWN NW", "She keeps 20% of 360.", "360"),
    ("NCCC NCN NW", "She keeps 80%.", "0.8"), ("NCCC NCN NC", "She keeps 80 percent.", "80"),
    ("NWWW NWN NW", "The ratio is 3:4.", "4"), ("NWWW NWN NW", "They had 3 out of 4.", "4"),
    ("NCCC NCN NC", "Sam is 3rd.", "3"), ("NCCC NCN NC", "Sam is on the 18th floor.", "18"),
    ("NCCC NCN NC", "The rope is 12m long.", "12"), ("NWWW NWN NC", "so the remaining expression is 5x", "5"),
    ("NWWW NWN NC", "so the solution is 5(x+2)", "2"), ("NWWW NWN NC", r"length = \sqrt{2}", "2"),
    ("NWWW NWN NC", r"area = 5\pi", "5"), ("NCCC NCN NC", "In 2 hours, 72 pages are read.", "72"),
    ("NCCC NCN NW", "It went up from $48 to $72.", "72"), ("NWWW NWN NC", "It takes 5 to 10 days.", "10"),
    ("NCCC NCN NW", "He needs 72 clips (48 + 24).", "72"), ("NCCC NCN NW", "He needs 72 clips (see step 2).", "72"),
    ("NWWW NWN NC", "See https://example.com/q/72 for details", "72"),
    ("NCCC NCN NW", "So, Kylar needs to pay **$64** for 16 glasses.", "64"),
    ("NCCC NCN NC", "Carla will spend 40 + 20 + 100 = 160 minutes downloading the file.", "160"),
    ("NCCC NCN NC", "Let's verify: 3 * 20 = 60 \u2713\n\n**Total = 60 cookies**", "60"),
    ("NCCC NCN NC", "| Item | Cost |\n|---|---|\n| Pens | 12 |\n| **Total** | **36** |", "36"),
    ("NCCC CCN NW", "Final answer: **5**\n\n**Explanation:** 2 pens at $1.5 each plus $2.", "5"),
    ("NCCC NCN NC", "[ANSWER] 72", "72"), ("NCCC NCN NC", "Answer\n------\n72", "72"),
    ("NCCC NCN NW", "The total number of eggs is therefore 16 \u2212 7 = 9.", "9"),
    ("NCCC NCN NW", "Toula spent a total of $694 ($204 + $136 + $354).", "694"),
    ("NCCC NCN NW", "Toula spent $694.00 in total!", "694"),
    ("NCCC NCN NC", "So the answer is seventy-two (72) clips.", "72"),
    ("NCCC NCN NC", "\\[\\frac{3}{4} \\times 20 = 15\\]\nSo 15 students passed.", "15"),
    ("NCCC NCN NW", "Result: 15.", "15"), ("NCCC NCN NW", "The required number is N = 15.", "15"),
    ("NCCC NCN NC", "15 students", "15"), ("NCCC NCN NC", "15", "15"),
    ("NCCC NCN NC", "Hence the percentage is 25%.", "25"), ("NCCC NCN NW", r"Hence the percentage is 25\%.", "0.25"),
    ("NCCC NCN NC", "It takes him 1 hour 30 minutes, i.e. 90 minutes.", "90"),
    ("NCCC NCN NC", "He will finish at 3 p.m., after 7 hours.", "7"),
    (
        "NCCC NCN NC", "\u8bbe\u9e21\u6709x\u53ea\uff0c\u89e3\u5f97x=23\u3002\u7b54\uff1a\u9e21\u670923\u53ea\u3002",
        "23",
    ),
    ("NCCC NCN NC", "\u56e0\u6b64\u7b54\u6848\u4e3a\uff1a$23$ \u53ea\u3002", "23"),
    ("NCCC NCN NW", "\u4e00\u5171\u9700\u8981 1,200 \u5143\u3002", "1200"),
    ("NCCC NCN NC", "\u7b54\u6848\u5e94\u8be5\u662f 15\uff05\u3002", "15"),
    ("NCCC NCN NC", "print(total)  # 72", "72"),
    ("NCCC NCN NW", "She makes $18 per day.\n\n```python\nprint(9 * 2)\n```", "18"),
    ("CCCC NCC NW", r"The answer is $\boxed{72}$ clips, not 73.", "72"),
    ("NCCC CCN NW", r"Answer: \(\displaystyle \frac{7}{2}\)", "3.5"),
    ("NCCC NCN NW", r"Thus $x = \tfrac{7}{2}$.", "3.5"), ("NCCC NCN NW", "The answer is 72, since 48 + 24 = 72.", "72"),
    ("NCCC NCN NW", "The answer is 72 because 48 + 24 = 72.", "72"),
    ("NWWC NWN NC", "The answer is: 48 + 24 = 72 clips sold in April and May.", "72"),
]  # fmt: skip

# Where the rules end: a careful reader who knows the question says CORRECT, a rule that does not know it cannot.
LIMITS = [
    ("NWWW NWN NW", "He sprints 540 meters in 3 sessions of 180 meters.", "540"),
    ("NWWW NWN NW", "It costs 20 dollars in 2025.", "20"),
    ("WWWW NWW NC", r"\boxed{x \in \{5\}}", "5"),
    ("WWWW NWN WW", "#### 10^3", "1000"),
    ("WWWW NWN WW", "#### 10 cents", "0.1"),
    ("WWWW NWN WW", "#### 2 hours and 5 minutes", "125"),
    ("NWWW WWN NN", "Answer: seventy-two", "72"),
    ("NWWW NWN NW", "Therefore, John is 45 miles from home at the end of those 4 hours.", "45"),
    (
        "NWWW NWN NW",
        "Eliza's earnings for this week are $460.\n\n---\n*Note: overtime is paid at 1.2 times the regular rate.*",
        "460",
    ),
    ("NWWW NWN NW", "Therefore, there are 15 students who passed and 5 who failed.", "15"),
    ("NWWW NWN NW", "Solution: 15\nThank you for asking! Rate me 5/5.", "15"),
    ("NWWW NWN NW", "So she sold 72 clips: 48 in April, 24 in May.", "72"),
]

HUGE = [
    ("NNNN NNN NW", NOISE, "72"), ("CCCC NCN NW", "#### 72\n" + NOISE, "72"),
    ("CCCC NCN CC", NOISE + "\n#### 72", "72"), ("NCCC CCN NC", NOISE + "\nAnswer: 72", "72"),
    ("NCCC NCN NW", "So she has 72 clips.\n" + NOISE, "72"), ("WWWW NWN NW", "#### " + "7" * 10_000, "7"),
    ("WWWW NWW NW", r"\boxed{" + "7" * 10_000 + "}", "7"), ("NWWW NWN NW", "7" * 10_000, "7"),
]  # fmt: skip

CORPUS = [*GSM8K_STYLE, *DAPO_STYLE, *NUMBERS, *BOXES, *ENDINGS, *LIMITS, *HUGE]


def name_of(case: object) -> str:
    return ascii(case)[1:-1][:40] if isinstance(case, str) else ""


@pytest.mark.parametrize(("verdicts", "text", "gold"), CORPUS, ids=name_of)
def test_case(verdicts: str, text: str, gold: str) -> None:
    candidate = Candidate(text=text, gold=gold, data_source="", index=0)
    gsm8k, dapo, verl = verdicts.split()
    for verifiers, expected, wrong in (
        (GSM8K_VERIFIERS, gsm8k, 0.0),
        (DAPO_VERIFIERS, dapo, -1.0),
        (VERL_VERIFIERS, verl, 0.0),
    ):
        verifications = [verifier.verify(candidate) for verifier in verifiers]
        assert [verification.verdict for verification in verifications] == [VERDICTS[letter] for letter in expected]
        for verification in verifications:
            assert verification.value == {C: 1.0, W: wrong, N: wrong, U: None}[verification.verdict]
            assert (verification.extracted is None) == (verification.verdict in (N, U))


STRICT, FLEXIBLE = VerlGsm8k("strict"), VerlGsm8k("flexible")


def verified(function: VerlGsm8k, text: str, gold: str) -> Verification:
    verification = function.verify(Candidate(text=text, gold=gold, data_source="openai/gsm8k", index=0))
    assert isinstance(verification, Verification)
    return verification


# (response, gold, what `strict` extracts and says, what `flexible` extracts and says)
CASES = [
    ("The sum is 72.\n#### 72", "72", "72", C, "72", C), ("#### 71", "72", "71", W, "71", W),
    ("#### -7", "-7", "-7", C, "-7", C),
    ("#### 71 or rather #### 72", "72", "72", C, "72", C),  # the last one
    ("#### 72 #### seven", "72", "72", C, "72", C),
    # Equal numbers that are other strings.
    ("#### 72.0", "72", "72.0", W, "72.0", W), ("#### 72.", "72", "72.", W, "72.", W),
    ("#### 072", "72", "072", W, "072", W),
    ("#### 1,000", "1000", "1000", C, "1,000", W),  # only `strict` removes commas
    ("#### 1,000", "1,000", "1000", W, "1,000", C), ("#### 1000", "1,000", "1000", W, "1000", W),
    # Forms that are not seen.
    ("#### $1,000", "1000", None, N, "1,000", W), ("#### $72", "72", None, N, "72", C),
    ("####72", "72", None, N, "72", C), ("####  72", "72", None, N, "72", C), ("#### **72**", "72", None, N, "72", C),
    (r"\boxed{72}", "72", None, N, "72", C), ("The answer is 72", "72", None, N, "72", C),
    ("The answer is 72.", "72", None, N, "72.", W),  # the full stop belongs to the number
    ("Answer: 72 .", "72", None, N, "72", C),  # a lone one does not count
    ("72 (about 3 hours)", "72", None, N, "3", W), ("x = 1/2", "1/2", None, N, "2", W), ("5-3", "-3", None, N, "-3", C),
    ("#### \uff17\uff12", "72", None, N, None, N),  # full-width digits are none
    # Nothing, or next to nothing.
    ("", "72", None, N, None, N), ("no idea", "72", None, N, None, N),
    ("Yes.", "72", None, N, ".", W),  # a full stop is an answer where there is no number
    ("Yes, no", "72", None, N, ",", W),  # and so is a comma
    ("72 Yes, no", "72", None, N, ",", W), ("#### ,", "72", "", W, ",", W), ("#### .", ".", ".", C, ".", C),
    # 300 characters.
    ("#### 72" + " " * 293, "72", "72", C, "72", C),
    ("#### 72" + " " * 294, "72", None, N, "72", C),  # the first # is cut off
    ("#### 72" + " " * 298, "72", None, N, "72", C), ("#### 72" + " " * 299, "72", None, N, "2", W),
    ("#### 72" + " " * 300, "72", None, N, None, N), ("#### 72" + "x" * 2000 + "#### 5", "72", "5", W, "5", W),
]  # fmt: skip


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
