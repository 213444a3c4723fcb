"""A replay on an emulated card on which one output of an operator is 1 % more than it should.

usage: wrong_operator.py OPERATOR POSITION STEP_DIR
"""

import dataclasses
import os
import sys

from ascend_emulator.launcher import enter_emulated_cards


def make_wrong(name: str, position: int) -> None:
    """The argument at this position, an output, is scaled."""
    from ascend_emulator.contract import OPERATORS

    operator = OPERATORS[name]

    def compute(*arguments: object) -> None:
        operator.compute(*arguments)
        out = arguments[position]
        out.store(out.values() * 1.01)

    OPERATORS[name] = dataclasses.replace(operator, compute=compute)


if __name__ == "__main__":
    enter_emulated_cards()
    make_wrong(sys.argv[1], int(sys.argv[2]))
    from mindgspo.cli import main

    code = main(["replay", sys.argv[3], "--device", "Ascend"])
    sys.stdout.flush()
    os._exit(code)
