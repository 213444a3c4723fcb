"""The command that finds out why a machine cannot run an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Optional

import typer

from mindgspo.cli.options import EmulateOption, SetOption, emulated_overrides

if TYPE_CHECKING:
    from mindgspo.config import ExperimentConfig
    from mindgspo.doctor import Machine


def doctor(
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="Experiment YAML; without one, what any experiment needs is checked."),
    ] = None,
    set_: SetOption = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines that the ranks are spread over.")] = 1,
    bundle: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="DIR", help="Folder for the report; by default doctor-<host>-<time> if something is wrong."
        ),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Also compute: kernels, sums over groups, two steps, about two minutes.")
    ] = False,
    emulate_ascend: EmulateOption = False,
    log: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Instead, say what the error codes in this log mean."),
    ] = None,
) -> None:
    """Check this machine, and say how to fix what is wrong.

    There is one fix for each problem. Looks at Python, MindSpore, CANN, driver and their versions, the cards' health
    and users, HCCL's variables, rank table and ports, shared memory, disks, limits and memory. Without a card what
    matters on CPU is checked. If something is wrong, ends with a folder to send to somebody who can help, without
    what looks like a secret; look through it before you send it. Exit code 1 if something is broken.

    With --smoke, a tiny model is computed under the plans of the experiment: one kernel per class of operators is
    compared with numpy, each group of ranks adds up, and two steps are run with the weights resharded and verified.

    With --log, the end of a log of a rank or of CANN is searched for codes of CANN, HCCL and MindSpore instead. Each is
    told with its cause and fix.
    """
    if log is not None:
        _explain(log)
        return
    emulated_overrides(emulate_ascend, None)
    import shutil
    import time

    from mindgspo.config import load_config
    from mindgspo.doctor import Level, examine, facts, needs_of, report_lines, this_machine, write_bundle
    from mindgspo.parallel.platform import runtime

    if smoke and config is not None and runtime.launch_orders() is not None:
        _work(config)
    machine = this_machine()
    experiment = None if config is None else load_config(config, set_ or [], check_files=False)
    needs = needs_of(machine, experiment, nodes)
    rows, findings = facts(machine, needs), examine(machine, needs)
    for line in report_lines(rows, findings):
        print(line)
    folder = bundle or Path(f"doctor-{machine.host}-{time.strftime('%Y%m%d-%H%M%S')}")
    is_wanted, is_well = bundle is not None or bool(findings), not any(one.level is Level.BROKEN for one in findings)
    if is_wanted or smoke:
        log_dir = None if experiment is None else needs.run_dir / "logs"
        write_bundle(folder, machine, rows, findings, {}, log_dir)
    if smoke:
        has_cards = machine.has_cards() or emulate_ascend
        is_sound = _smoke(folder, experiment, machine, on_cards=has_cards)
        is_wanted, is_well = is_wanted or not is_sound, is_well and is_sound
        if not is_wanted:
            shutil.rmtree(folder)
    if is_wanted:
        print(f"to send to somebody who can help: {folder}")
    if not is_well:
        raise typer.Exit(1)


def _work(config: Path) -> NoReturn:
    """As a rank of the smoke test."""
    from mindgspo.config import load_config
    from mindgspo.launch.worker import run_worker

    def body() -> int:
        from mindgspo.doctor.smoke_ranks import smoke_of_rank  # MindSpore comes with it

        return smoke_of_rank(load_config(config))

    run_worker(body)


def _smoke(folder: Path, experiment: ExperimentConfig | None, machine: Machine, *, on_cards: bool) -> bool:
    """Whether all parts went well; what they say is in the folder."""
    from mindgspo.doctor.bundle import clean, write_part
    from mindgspo.doctor.smoke import smoke_test, write_experiment

    device = "Ascend" if on_cards else "CPU"
    if experiment is not None and experiment.device == "Ascend" and not on_cards:
        print("smoke test: there is no card, so one process on CPU")
        experiment = None
    stages = []
    for stage in smoke_test(write_experiment(folder / "smoke", device, experiment)):
        print(stage, flush=True)
        stages.append(stage)
    write_part(folder / "smoke.txt", "".join(f"{stage}\n" for stage in stages), machine.environment)
    clean(folder / "smoke", machine.environment)
    return not any(stage.problem for stage in stages)


def _explain(log: Path) -> None:
    from mindgspo.launch.error_codes import find_in_file, table, told

    for line in told(find_in_file(log)) or [f"{log}: none of the {len(table())} known codes and messages is in it"]:
        print(line)
