"""Run a MindSpore program on an emulated card: `python -m ascend_emulator script.py ...`, also below msrun."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ascend_emulator.errors import EmulatorError
from ascend_emulator.launcher import enter_emulated_cards

USAGE = "usage: python -m ascend_emulator SCRIPT [ARGUMENT...]"


def main() -> int | str:
    """Exit code, or the message of what is wrong with this machine."""
    if len(sys.argv) < 2:
        return USAGE
    if sys.argv[1] in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        enter_emulated_cards()
    except EmulatorError as error:
        return f"error: {error}"
    script, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
