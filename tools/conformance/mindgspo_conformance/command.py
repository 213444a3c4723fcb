"""The command that proves the losses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def conformance(
    file: Annotated[Path, typer.Argument(help="JSON list or JSON Lines of cases; tools/conformance has one of 1,221.")],
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TEXT", help="Take only cases whose source contains this, e.g. verl."),
    ] = None,
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Take only this kind: policy_loss, kl, agg, advantage, reward_norm or overlong."),
    ] = None,
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TEXT", help="Take only cases whose name contains this."),
    ] = None,
    twins_only: Annotated[
        bool, typer.Option("--twins-only", help="Leave out the MindSpore cells: seconds instead of minutes.")
    ] = False,
) -> None:
    """Prove the losses against the numbers of other suites.

    A case holds inputs, a definition, and the loss, gradient and metrics that verl, TRL, slime, OpenRLHF, ... made of
    them in float64. The numpy twins must agree on every case, in float64: rtol 1e-9, atol 1e-12, metrics too.
    The MindSpore cells that training runs must agree on losses, KL terms and aggregations, in float32 and graph mode:
    rtol 1e-3, atol 2e-4 of the largest entry, metrics left out. Cells skip, and say so, cases tagged float64_only or
    log_ratio_overflow, and those closer than 1e-6 to a clip edge.

    The last line is `N passed, N failed`; exit code 1 if any failed. This proves agreement on these cases. It says
    nothing about sampling, rewards, or whether a run learns.
    """
    from mindgspo_conformance.cases import Filters
    from mindgspo_conformance.run import run_conformance

    result = run_conformance(file, Filters(source=source, kind=kind, name=name), twins_only=twins_only)
    for line in result.lines():
        print(line)
    if result.num_failed:
        raise typer.Exit(1)
