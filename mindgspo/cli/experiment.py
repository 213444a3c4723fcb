"""Commands that take an experiment: run it, check it, plan its memory, compile its graphs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Literal

import typer

from mindgspo.cli.options import (
    ConfigArgument,
    EmulateOption,
    MasterAddrOption,
    MasterPortOption,
    MemoryOption,
    NodeRankOption,
    NodesOption,
    OverwriteOption,
    SetOption,
    WorkersOption,
    emulated_overrides,
    first_sentence,
)


def _print_shipped(is_wanted: bool) -> None:
    if not is_wanted:
        return
    from mindgspo.config.paths import shipped_experiments

    for name, path in shipped_experiments().items():
        comment = itertools.takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
        print(f"{name}\n    {first_sentence(' '.join(line.lstrip('# ') for line in comment))}")
    raise typer.Exit


ListOption = Annotated[
    bool,
    typer.Option("--list", callback=_print_shipped, is_eager=True, help="Print the shipped experiments and exit."),
]


def run_command(
    context: typer.Context,
    config: ConfigArgument,
    set_: SetOption = None,
    overwrite: OverwriteOption = False,
    workers: WorkersOption = None,
    nodes: NodesOption = 1,
    node_rank: NodeRankOption = 0,
    master_addr: MasterAddrOption = "127.0.0.1",
    master_port: MasterPortOption = None,
    emulate_ascend: EmulateOption = False,
    list_: ListOption = False,
) -> None:
    """Run an experiment, from its data to the exported model.

    It prepares data, warms up, trains, evaluates, exports, and writes a report. It starts as many worker processes as
    the plans require, on this machine; with --nodes, give the same command on each machine with another --node-rank.
    """
    overrides = emulated_overrides(emulate_ascend, set_)
    from mindgspo.planner import with_cache_budget
    from mindgspo.trainer.start import ClusterOptions, RunRequest, start

    assert context.info_name in ("run", "sft")
    request = RunRequest(
        command=context.info_name,
        config=config,
        overrides=tuple(overrides),
        overwrite=overwrite,
        complete=with_cache_budget,
    )
    options = ClusterOptions(
        workers=workers, nodes=nodes, node_rank=node_rank, master_addr=master_addr, master_port=master_port
    )
    if code := start(request, options):
        raise typer.Exit(code)


SFT_HELP = """Run only the supervised warm-up of an experiment.

Its run folder is runs/<experiment>-sft unless run_dir is set.
"""


def check_command(config: ConfigArgument, set_: SetOption = None) -> None:
    """Check an experiment in seconds, without MindSpore.

    Looks at settings, tokenizer, data, prompts and reward, and prints the batch table. Weights that are named on a hub
    are not fetched.
    """
    from mindgspo.config import load_config
    from mindgspo.config.hub import Fetch
    from mindgspo.trainer.check import check_experiment

    for line in check_experiment(load_config(config, set_ or [], fetch=Fetch.INPUTS)):
        print(line)
    print("ok")


def plan_command(
    config: ConfigArgument,
    set_: SetOption = None,
    memory_gb: MemoryOption = None,
    rates: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder of a run, whose seconds calibrate those of the plan.")
    ] = None,
    card: Annotated[
        Literal["A2", "A3"],
        typer.Option(
            help="What device Ascend is, a card of Atlas A2 (910B3) or a die of Atlas A3 (910C, two to a card)."
        ),
    ] = "A2",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the memory and the time that an experiment will need.

    Memory is by phase, rank and use. Time is seconds of a step by phase, tokens per second and card-hours of the run.
    The last line says whether it fits, and if not, the smallest change of settings that makes it fit, found by trying
    many. It takes seconds, without MindSpore; weights and data need not be there. On Ascend all of it is an estimate.
    """
    import json

    from mindgspo.planner import plan_json, plan_of_file

    if as_json:
        print(json.dumps(plan_json(config, set_ or [], memory_gb=memory_gb, card=card, rates=rates), indent=2))
        return
    for line in plan_of_file(config, set_ or [], memory_gb=memory_gb, card=card, rates=rates):
        print(line)


def dryrun_command(
    config: ConfigArgument,
    set_: SetOption = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="0,4", help="Ranks to compile for; by default the first of each pipeline stage."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Compile for every rank.")] = False,
    graphs: Annotated[
        str, typer.Option(metavar="NAMES", help="Graphs to compile, some of the default ones.")
    ] = "train,forward,sum,step,gather,reference,prefill,decode",
    out: Annotated[
        Path | None, typer.Option(help="Folder for logs and measurements; by default dryrun/<experiment>.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that one graph may take.", min=1)] = 1800.0,
    memory: Annotated[
        bool,
        typer.Option(help="Measure each graph's peak memory with MindSpore's allocator. Takes half as long again."),
    ] = True,
) -> None:
    """Compile an experiment's graphs for Ascend, without a card.

    MindSpore's own front end compiles them on any machine. Reports for each graph and rank: time and memory of the
    compile, parameters held, collectives, fused operators and peak memory on the device; or what was refused. Where
    CANN is not installed, stand-ins for its libraries are built with gcc the first time. Nothing is executed: weights
    and data need not be there. The last line sums up; exit code 1 if a graph failed.
    """
    from mindgspo.dryrun import DryRun, DryRunRequest

    request = DryRunRequest(
        config=config,
        overrides=tuple(set_ or ()),
        graphs=tuple(name.strip() for name in graphs.split(",")),
        ranks=_numbers("--ranks", ranks) if ranks is not None else None,
        is_all_ranks=all_,
        folder=out,
        time_limit_s=time_limit,
        measures_memory=memory,
    )
    dry_run = DryRun.prepare(request)
    for line in dry_run.lines():
        print(line, flush=True)
    if dry_run.num_failed:
        raise typer.Exit(1)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list like 0,4", param_hint=option) from None
