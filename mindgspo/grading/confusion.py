"""Verdicts counted against labels, with examples of both errors.

What enters: scores, one by one, with the label of their row. What leaves: lines for people. Called by `score_file`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mindgspo.types import Score, Verdict

TAIL_CHARS = 160
"""How much of a response an example shows, from its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One response on which verdict and label differ."""

    where: str
    gold: str
    extracted: str | None
    tail: str

    def lines(self) -> Iterator[str]:
        """The example for people; control characters as escapes, because the text is a model's."""
        yield f"  {self.where}: gold {self.gold[:TAIL_CHARS]!r}, found {self.extracted!r}"
        yield f"    ...{self.tail!r}"


@dataclass(slots=True, kw_only=True)
class Confusion:
    """Counts (label, verdict) -> rows; label None where a row has none."""

    max_examples: int
    counts: Counter[tuple[bool | None, Verdict]] = field(default_factory=Counter)
    false_positives: list[Example] = field(default_factory=list)
    false_negatives: list[Example] = field(default_factory=list)

    def add(self, label: bool | None, score: Score, *, where: str, response: str, gold: str) -> None:
        """Count one row. A false positive is called correct against its label, a false negative the other way round;
        an invalid sample is neither."""
        self.counts[label, score.verdict] += 1
        if label is None or score.value is None or label == (score.verdict is Verdict.CORRECT):
            return
        examples = self.false_negatives if label else self.false_positives
        if len(examples) < self.max_examples:
            tail = response[-TAIL_CHARS:]
            examples.append(Example(where=where, gold=gold, extracted=score.extracted, tail=tail))

    def lines(self) -> Iterator[str]:
        """Verdicts, and where there are labels: the table, the agreement and the examples."""
        present = [verdict for verdict in Verdict if any(found is verdict for _, found in self.counts)]
        labels = [label for label in (True, False, None) if any(given is label for given, _ in self.counts)]
        heads = ["", *(verdict.value for verdict in present), "total"]
        table = [heads] + [self._row(label, present) for label in labels]
        widths = [max(len(line[column]) for line in table) for column in range(len(heads))]
        for line in table:
            yield "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)),
                ]
            )
        yield from self._agreement()
        yield from self._examples("false positives (called correct, label false)", self.false_positives)
        yield from self._examples("false negatives (not called correct, label true)", self.false_negatives)

    def _row(self, label: bool | None, verdicts: list[Verdict]) -> list[str]:
        name = {True: "label true", False: "label false", None: "no label"}[label]
        counts = [self.counts[label, verdict] for verdict in verdicts]
        return [name, *map(str, counts), str(sum(counts))]

    def _agreement(self) -> Iterator[str]:
        labelled = sum(count for (label, _), count in self.counts.items() if label is not None)
        if not labelled:
            return
        agreed = self.counts[True, Verdict.CORRECT] + sum(
            self.counts[False, verdict] for verdict in (Verdict.WRONG, Verdict.NO_ANSWER)
        )
        yield f"agreement {agreed} of {labelled} labelled rows ({agreed / labelled:.2%})"

    def _examples(self, title: str, examples: list[Example]) -> Iterator[str]:
        if examples:
            yield f"{title}, the first {len(examples)}:"
            for example in examples:
                yield from example.lines()
