r"""Reward for MATH and tasks in its format: 1 for an answer equivalent to the gold answer, else 0.

The data set's own form is \boxed{...}; other usual forms are believed where there is none. Numbers, and answers that
differ from the gold answer only in how they are typed, are judged at once; what remains is compared symbolically in a
worker process.
"""

from __future__ import annotations

import re

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.answers.boxed import boxed_spans
from mindgspo.rewards.answers.equivalence import Comparison, compare
from mindgspo.rewards.answers.expression import expression_in, takes_back
from mindgspo.rewards.answers.extract import USUAL_MARKERS, find_answer
from mindgspo.rewards.answers.latex import answer_tokens, normal_form
from mindgspo.rewards.answers.latex_tokens import Kind
from mindgspo.rewards.answers.markers import Marker, content_of, occurrences
from mindgspo.rewards.answers.passages import passages
from mindgspo.rewards.candidate import Candidate
from mindgspo.rewards.judgement import MAX_EXTRACTED_CHARS, Job, Judgement, Reply
from mindgspo.types import Verdict

TASK = "math_verify"
_CORRECT, _WRONG = 1.0, 0.0
_MAX_WORDS = 3
_MAX_LINES = 20
_LINES = (Marker.ANSWER_LINE, Marker.ANSWER_COLON, Marker.ANSWER_IS)
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}")


class Math:
    """A `judgement.Judge`. answer: where the answer is looked for, see `answers.extract`."""

    def __init__(self, answer: AnswerMode = "flexible") -> None:
        self._mode: AnswerMode = answer

    def can_read(self, gold: str) -> bool:
        r"""Whether `gold` is an answer: an expression or a few words, or a solution whose last \boxed{} holds one."""
        tokens = answer_tokens(gold_answer(gold))
        return any(token.kind is not Kind.SYMBOL for token in tokens)

    def judge(self, candidate: Candidate) -> Judgement | Job:
        """UNPARSEABLE_GOLD abstains (value None); CORRECT, WRONG and NO_ANSWER are paid. A Job where only a symbolic
        comparison can tell."""
        if not self.can_read(candidate.gold):
            return Judgement(value=None, verdict=Verdict.UNPARSEABLE_GOLD)
        answer = self._answer(candidate)
        if answer is None:
            return Judgement(value=_WRONG, verdict=Verdict.NO_ANSWER)
        gold = gold_answer(candidate.gold)
        comparison = compare(answer, gold)
        if comparison is Comparison.UNDECIDED:
            return Job(task=TASK, arguments={"answer": answer, "gold": gold})
        return _paid(answer, comparison is Comparison.SAME)

    def conclude(self, candidate: Candidate, reply: Reply) -> Judgement:
        """The symbolic comparison's result. A gold answer that it cannot read is one that only another way of typing
        can equal, and the normal forms have already said that the answer is none: WRONG, not an abstention, because
        otherwise only correct responses to such a row would count."""
        assert isinstance(reply.value, dict), f"row {candidate.index}: {TASK} replied {reply.value!r}"
        return _paid(self._answer(candidate) or "", reply.value["same"] is True)

    def _answer(self, candidate: Candidate) -> str | None:
        if self._mode != "strict":
            takes_words = _is_words(gold_answer(candidate.gold))
            for passage in passages(candidate.text, from_start=self._mode == "first", is_cut=candidate.is_cut):
                stated = None if boxed_spans(passage.text) else self._stated(passage.text, takes_words)
                if stated is not None:
                    return stated
        found = find_answer(
            candidate.text, own=(Marker.BOXED,), others=USUAL_MARKERS, mode=self._mode, is_cut=candidate.is_cut
        )
        return None if found is None else expression_in(found)

    def _stated(self, text: str, takes_words: bool) -> str | None:
        r"""What is announced in a text without a box. `find_answer` looks for numbers and for formulas that start like
        one, so that it would pass over "The answer is $\{1,2\}$." and "The answer is east." to the last number."""
        for occurrence in occurrences(text, _LINES, from_start=self._mode == "first")[:_MAX_LINES]:
            content = content_of(text, occurrence)
            if takes_back(content):
                return content.strip()
            expression = expression_in(content)
            if (takes_words and _is_words(expression)) or _is_formula(expression):
                return expression
        return None


def gold_answer(gold: str) -> str:
    r"""The content of the last \boxed{} of a whole solution, or all of a gold answer without one."""
    boxes = boxed_spans(gold)
    return (gold[boxes[-1].start : boxes[-1].end] if boxes else gold).strip()


def _is_words(text: str) -> bool:
    tokens = [token for token in answer_tokens(text) if not token.is_symbol("(", ")")]
    are_words = bool(tokens) and all(token.kind in (Kind.TEXT, Kind.LETTER) for token in tokens)
    # The prompt of DAPO-Math says "Answer: $Answer": an echo of it answers nothing.
    return are_words and len(text.split()) <= _MAX_WORDS and tokens[0].text.lower() != "answer"


def _is_formula(text: str) -> bool:
    """Whether `text` can be read as a formula and not as prose, such as "in dollars"."""
    return not _is_words(text) and not _PROSE.search(text) and normal_form(text) is not None


def _paid(answer: str, is_correct: bool) -> Judgement:
    return Judgement(
        value=_CORRECT if is_correct else _WRONG,
        verdict=Verdict.CORRECT if is_correct else Verdict.WRONG,
        extracted=answer[:MAX_EXTRACTED_CHARS],
    )
