"""The command that finds out why a machine cannot run an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from mindgspo.cli.options import SetOption


def doctor(
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="Experiment YAML; without one, what any experiment needs is checked."),
    ] = None,
    set_: SetOption = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines that the ranks are spread over.")] = 1,
    bundle: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Folder for the report; by default doctor-<host>-<time>."),
    ] = None,
    log: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Instead, say what the error codes in this log mean."),
    ] = None,
) -> None:
    """Check this machine, and say how to fix what is wrong.

    There is one fix for each problem. Looks at Python, MindSpore, CANN, driver and their versions, the cards' health
    and users, HCCL's variables, rank table and ports, shared memory, disks, limits and memory. Without a card what
    matters on CPU is checked. Ends with a folder to send to somebody who can help; values of variables that may hold
    secrets are left out. Exit code 1 if something is broken.

    With --log, the end of a log of a rank or of CANN is searched for codes of CANN, HCCL and MindSpore instead. Each is
    told with its cause and fix.
    """
    if log is not None:
        _explain(log)
        return
    import time

    from mindgspo.config import load_config
    from mindgspo.doctor import Level, examine, facts, needs_of, report_lines, this_machine, write_bundle

    machine = this_machine()
    experiment = None if config is None else load_config(config, set_ or [], check_files=False)
    needs = needs_of(machine, experiment, nodes)
    rows, findings = facts(machine, needs), examine(machine, needs)
    for line in report_lines(rows, findings):
        print(line)
    folder = bundle or Path(f"doctor-{machine.host}-{time.strftime('%Y%m%d-%H%M%S')}")
    log_dir = None if experiment is None else needs.run_dir / "logs"
    write_bundle(folder, machine, rows, findings, {}, log_dir)
    print(f"to send to somebody who can help: {folder}")
    if any(finding.level is Level.BROKEN for finding in findings):
        raise typer.Exit(1)


def _explain(log: Path) -> None:
    from mindgspo.launch.error_codes import find_in_file, table, told

    for line in told(find_in_file(log)) or [f"{log}: none of the {len(table())} known codes and messages is in it"]:
        print(line)
