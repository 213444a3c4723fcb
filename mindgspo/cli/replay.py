"""The command that runs a dumped step again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from mindgspo.cli.options import EmulateOption, emulated_overrides


def replay(
    step_dir: Annotated[Path, typer.Argument(help="Folder of a dumped step, e.g. runs/x/dumps/step_00000005.")],
    device: Annotated[Literal["CPU", "Ascend"], typer.Option(help="What it is run on.")] = "CPU",
    emulate_ascend: EmulateOption = False,
    tolerance: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(min=0.0, help="Allowed difference, of a tensor's largest number; by default by the model's type."),
    ] = None,
) -> None:
    """Run a dumped step again, and compare it number by number.

    A run with trainer.dump_step=N writes such a step. It is run in one process, on this CPU, on a card, or on an
    emulated one. The forward pass is compared module by module, each given its recorded inputs, so that the first
    one that differs is the one that computes something else. Then come log-probs, loss, gradients and
    weights. The exit code is 1 if something is further off than allowed.
    """
    if emulate_ascend:
        emulated_overrides(emulate_ascend, None)
        device = "Ascend"
    from mindgspo.config.device_rules import head_dim_problems
    from mindgspo.errors import ConfigError
    from mindgspo.parallel.platform.runtime import set_up_runtime
    from mindgspo.replay.dump import Dump
    from mindgspo.replay.run import ReplayVerdict, replay_step

    dump = Dump.open(step_dir)
    if device == "Ascend" and (problems := list(head_dim_problems(dump.config.model))):
        raise ConfigError(f"{step_dir}: cannot be run on a card: {problems[0]}")
    set_up_runtime(device)
    report = replay_step(dump, tolerance=tolerance)
    for line in report.lines():
        print(line)
    if report.verdict is ReplayVerdict.DIFFERENT:
        raise typer.Exit(1)
