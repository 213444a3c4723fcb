"""Run a MindSpore program on an emulated card: `python -m ascend_emulator script.py ...`, also below msrun."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from ascend_emulator.errors import EmulatorError
from ascend_emulator.launcher import enter_emulated_cards


def main() -> None:
    """Exits with a message if the arguments or this machine are wrong."""
    parser = argparse.ArgumentParser(prog="python -m ascend_emulator", description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.script.is_file():
        parser.error(f"{options.script}: no such file")
    try:
        enter_emulated_cards()
    except EmulatorError as error:
        sys.exit(f"error: {error}")
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    runpy.run_path(str(options.script), run_name="__main__")


if __name__ == "__main__":
    main()
