"""`mindgspo strategy`: inspect MindSpore's strategy files, which say which rank holds which slice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

strategy_app = typer.Typer(no_args_is_help=True, help="Look at MindSpore's strategy files, which say who holds what.")


StrategyArgument = Annotated[
    Path, typer.Argument(help="Strategy file, folder of ranks' files, or folder of tools/generate_strategy.py.")
]


AllEntriesOption = Annotated[
    bool,
    typer.Option("--all", help="Print a line for every entry, also for layers and optimizer state that are alike."),
]


@strategy_app.command("show")
def strategy_show(
    path: StrategyArgument,
    all_: AllEntriesOption = False,
    config: Annotated[
        Path | None, typer.Option(help="Experiment or file of model_configs/, for shapes; protobuf files have none.")
    ] = None,
) -> None:
    """List how a strategy file splits every parameter.

    It also shows which ranks hold each part.
    """
    from mindgspo.config import load_model_and_plans
    from mindgspo.models.names import parameter_shapes
    from mindgspo.parallel.plans.parameter_layouts import parameter_layouts
    from mindgspo.strategy.commands import show_lines

    layouts = None
    if config is not None:
        model, plans = load_model_and_plans(config)
        layouts = parameter_layouts(parameter_shapes(model), model, plans.train)
    for line in show_lines(path, shows_all=all_, layouts=layouts):
        print(line)


@strategy_app.command("diff")
def strategy_diff(
    left: StrategyArgument,
    right: StrategyArgument,
    all_: AllEntriesOption = False,
    spelling: Annotated[
        bool, typer.Option("--spelling", help="Also report equal layouts that are written differently.")
    ] = False,
    common: Annotated[
        bool, typer.Option("--common", help="Leave out parameters that only one of the two has.")
    ] = False,
) -> None:
    """Compare where two strategies put every parameter's slices.

    The exit code is 1 if anything is on other ranks.
    """
    from mindgspo.strategy.commands import diff_lines

    found = diff_lines(left, right, shows_all=all_, spelling=spelling, common=common)
    for line in found.lines:
        print(line)
    if found.number:
        raise typer.Exit(1)


@strategy_app.command("merge")
def strategy_merge(
    folder: Annotated[Path, typer.Argument(help="Folder with the files of at least one rank of every stage.")],
    out: Annotated[Path, typer.Option(help="File to write, *.ckpt or *.json; an existing one is replaced.")],
) -> None:
    """Merge the files of all pipeline stages into one.

    MindSpore's checkpoint tools need one file.
    """
    from mindgspo.strategy.commands import merge_files

    print(merge_files(folder, out))
