"""Commands that find out why a machine cannot run an experiment, or computes wrong results."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mindgspo.cli.options import EmulateOption, SetOption, emulated_overrides

if TYPE_CHECKING:
    from mindgspo.config import ExperimentConfig
    from mindgspo.doctor.machine import Machine


def doctor_command(
    config: Annotated[
        Path | None, typer.Argument(help="Experiment YAML; without one, what any experiment needs is checked.")
    ] = None,
    set_: SetOption = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines that the ranks are spread over.")] = 1,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the report; by default doctor-<host>-<time> if something is wrong."
        ),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Also compute: kernels, sums over groups, two steps; minutes.")
    ] = False,
    late: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, help="With --smoke, on cards: how late rank 0 comes to a sum of all of them."
        ),
    ] = 5.0,
    emulate_ascend: EmulateOption = False,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead, say what the error codes in this log mean.")
    ] = None,
) -> None:
    """Check this machine, and say how to fix each problem.

    There is one fix for each problem. Looks at Python, MindSpore, CANN, driver and their versions, the cards' health
    and users, HCCL's variables, rank table and ports, shared memory, disks, limits and memory. Without a card, it
    checks what matters on CPU. If there is a problem, it ends by writing a folder to send to someone who can help, with
    everything that looks like a secret removed; look through it before you send it. Exit code 1 if something is broken.

    With --smoke, a tiny model is computed under the plans of the experiment. On cards, what most likely fails there
    comes first: operators, the memory of a long sequence, a late rank. Then each rank runs a step again that the CPU
    has dumped, each group of ranks adds up, and two steps are run with the weights resharded and verified.

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
    from mindgspo.doctor.machine import Severity, this_machine
    from mindgspo.doctor.report import examine, facts, needs_of, report_lines, write_bundle
    from mindgspo.parallel.platform import worker_process

    if smoke and config is not None and worker_process.launch_orders() is not None:
        from mindgspo.doctor.smoke import smoke_of_rank
        from mindgspo.launch.worker import run_worker

        run_worker(lambda: smoke_of_rank(config, _replay, late))
    machine = this_machine()
    experiment = None if config is None else load_config(config, set_ or [], check_files=False)
    needs = needs_of(machine, experiment, nodes)
    rows, problems = facts(machine, needs), examine(machine, needs)
    for line in report_lines(rows, problems):
        print(line)
    folder = bundle or Path(f"doctor-{machine.host}-{time.strftime('%Y%m%d-%H%M%S')}")
    is_wanted = bundle is not None or bool(problems)
    is_sound = not any(one.severity is Severity.BROKEN for one in problems)
    if is_wanted or smoke:
        write_bundle(folder, machine, rows, problems, None if experiment is None else needs.run_dir / "logs")
    if smoke:
        is_right = _smoke(folder, experiment, machine, late, on_cards=machine.has_cards() or emulate_ascend)
        is_wanted, is_sound = is_wanted or not is_right, is_sound and is_right
        if not is_wanted:
            shutil.rmtree(folder)
    if is_wanted:
        print(f"to send to somebody who can help: {folder}")
    if not is_sound:
        raise typer.Exit(1)


def _replay(folder: Path) -> tuple[list[str], str]:
    from mindgspo.replay.dump import Dump
    from mindgspo.replay.run import replay_step

    report = replay_step(Dump.open(folder))
    return report.lines(), str(report.first_beyond() or "")


def _smoke(
    folder: Path, experiment: ExperimentConfig | None, machine: Machine, late_s: float, *, on_cards: bool
) -> bool:
    """Whether all parts went well; what they say is in the folder."""
    from mindgspo.doctor.report import clean, write_part
    from mindgspo.doctor.smoke import smoke_test, write_smoke_experiment

    if experiment is not None and experiment.device == "Ascend" and not on_cards:
        print("smoke test: there is no card, so one process on CPU")
        experiment = None
    results = []
    path = write_smoke_experiment(folder / "smoke", "Ascend" if on_cards else "CPU", experiment)
    for result in smoke_test(path, late_s):
        print(result, flush=True)
        results.append(result)
    write_part(folder / "smoke.txt", "".join(f"{result}\n" for result in results), machine.environment)
    clean(folder / "smoke", machine.environment)
    return not any(result.problem for result in results)


def _explain(log: Path) -> None:
    from mindgspo.launch.error_codes import find_in_file, table, told

    for line in told(find_in_file(log)) or [f"{log}: none of the {len(table())} known codes and messages is in it"]:
        print(line)


def replay_command(
    step_dir: Annotated[Path, typer.Argument(help="Folder of a dumped step, e.g. runs/x/dumps/step_00000005.")],
    device: Annotated[Literal["CPU", "Ascend"], typer.Option(help="What it is run on.")] = "CPU",
    emulate_ascend: EmulateOption = False,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, help="Allowed difference, of a tensor's largest number; by default by the model's type."),
    ] = None,
    operators: Annotated[
        Path | None, typer.Option(help="Folder for inputs and outputs of every operator, which msprobe writes.")
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
    from mindgspo.config.deployment_rules import head_dim_problems
    from mindgspo.errors import ConfigError
    from mindgspo.parallel.platform.runtime import set_up_runtime
    from mindgspo.replay.dump import Dump
    from mindgspo.replay.operators import operators_written
    from mindgspo.replay.run import ReplayVerdict, replay_step

    dump = Dump.open(step_dir)
    if device == "Ascend" and (problems := list(head_dim_problems(dump.config.model))):
        raise ConfigError(f"{step_dir}: cannot be run on a card: {problems[0]}")
    set_up_runtime(device)
    with nullcontext() if operators is None else operators_written(operators):
        report = replay_step(dump, tolerance=tolerance)
    for line in report.lines():
        print(line)
    if report.verdict is ReplayVerdict.DIFFERENT:
        raise typer.Exit(1)
