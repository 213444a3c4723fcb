"""The command line `mindgspo`. Nothing is imported here before Ctrl-C is answered."""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo import interrupts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 for a `MindGSPOError`, 2 for usage, 130 for Ctrl-C."""
    with interrupts.caught(at_end_of_process=arguments is None):
        try:
            from mindgspo.cli.program import run_program

            interrupts.begin_work()
            code = run_program(arguments)
        except BaseException:  # whatever an interrupted import or clearing up has raised
            if not interrupts.is_received():
                raise
        if interrupts.is_received():
            interrupts.say_interrupted()
            return interrupts.EXIT_CODE
        return code
