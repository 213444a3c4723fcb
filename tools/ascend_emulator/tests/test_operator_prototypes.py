"""Every emulated operator has a rule for each argument of CANN's prototype."""

import ascend_emulator.operators  # noqa: F401  (enters them into the table)
from ascend_emulator.contract import OPERATORS
from ascend_emulator.stand_ins import SIGNATURES


def test_rules_are_as_many_as_arguments() -> None:
    rows = (line.split() for line in SIGNATURES.read_text().splitlines() if not line.startswith("#"))
    letters = {row[0]: row[1] for row in rows}
    wrong = {
        name: (len(letters.get(name, "")), len(one.rules))
        for name, one in OPERATORS.items()
        if name.startswith("aclnn") and len(letters.get(name, "")) != len(one.rules)
    }
    assert not wrong
