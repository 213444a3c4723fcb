r"""DianJin-R1-Data (arXiv 2504.15716): questions on finance with a reasoned answer.

`output` is "<think>...</think><answer>...\boxed{ABD}...</answer>".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mindgspo.data.formats.fields import asks, text_of
from mindgspo.data.formats.last_box import last_box
from mindgspo.data.source_row import DroppedRow, SourceRow

CHOICE_SOURCE = "dianjin"
OPEN_SOURCE = "dianjin_open"
NO_BLOCK = "the output has no <answer> block"
NO_BOX = r"the answer block has no \boxed{} answer"
# Options are lettered from A on; words such as GDP or USD are open answers.
_CHOICES = re.compile(r"[A-J](?:[ ,\u3001\uff0c]{0,3}[A-J]){0,9}")


def parse_dianjin(row: Mapping[str, object], where: str) -> SourceRow | DroppedRow:
    r"""{instruction, output}: gold is the last \boxed{} of the last answer block, the solution the whole output.

    The data source is "dianjin" where the gold consists of option letters only, else "dianjin_open".
    """
    instruction = text_of(row, "instruction", where)
    output = text_of(row, "output", where)
    _, opening, rest = output.rpartition("<answer>")
    if not opening:
        return DroppedRow(where=where, reason=NO_BLOCK, answer="")
    gold = last_box(rest.partition("</answer>")[0])
    if gold is None:
        return DroppedRow(where=where, reason=NO_BOX, answer="")
    return SourceRow(
        where=where,
        messages=asks(instruction),
        answer=gold,
        solution=output,
        data_source=CHOICE_SOURCE if _is_choice(gold) else OPEN_SOURCE,
    )


def _is_choice(gold: str) -> bool:
    letters = [character for character in gold if character.isalpha()]
    return _CHOICES.fullmatch(gold) is not None and len(letters) == len(set(letters))
