r"""MATH (Hendrycks et al. 2021, arXiv 2103.03874) and what is made of it: MATH-lighteval and MATH-500."""

from __future__ import annotations

from collections.abc import Mapping

from mindgspo.data.formats.fields import answer_text, asks, json_object, present, text_of
from mindgspo.data.formats.last_box import last_box
from mindgspo.data.source_row import DroppedRow, SourceRow

DATA_SOURCE = "math"
NO_BOX = r"the solution has no \boxed{} answer"
KEPT = ("level", "type", "subject", "unique_id")


def parse_math(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    r"""MATH and MATH-lighteval: {problem, solution, level, type}; MATH-500: {problem, solution, answer, subject, level,
    unique_id}.

    Gold is `answer` where the row has that field, else the solution's last \boxed{}. The data source is "math" for all
    three, which differ in nothing that a reward looks at; level, type, subject and unique_id go into extra_info.
    """
    problem = text_of(row, "problem", where)
    solution = text_of(row, "solution", where)
    given = row.get("answer")
    answer = last_box(solution) if given is None else answer_text(given, f"{where}: answer")
    if answer is None:
        return DroppedRow(where=where, reason=NO_BOX, answer="")
    return SourceRow(
        where=where,
        messages=asks(problem),
        answer=answer,
        solution=solution,
        data_source=DATA_SOURCE,
        extra_info=json_object(present(row, KEPT), where),
    )
