"""`mindgspo checkpoint`: list and verify checkpoints, shard, merge, transform and export them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mindgspo.cli.convert import DtypeOption
from mindgspo.errors import CheckpointError

if TYPE_CHECKING:
    from mindgspo.strategy.record import Strategy

checkpoint_app = typer.Typer(no_args_is_help=True, help="List, verify, merge, shard and export checkpoints.")

SourceArgument = Annotated[
    Path,
    typer.Argument(help="Tensor file, model folder, step or folder of a run, or folder with rank_0, rank_1 and so on."),
]
NewArgument = Annotated[Path, typer.Argument(help="File or folder to write; it must not exist.")]
WholeArgument = Annotated[
    Path, typer.Argument(help="File to write, *.safetensors or *.ckpt; or a folder, for a step of a run.")
]
StrategyOption = Annotated[
    Path | None, typer.Option("--strategy", help="Strategy of the ranks, a merged file or a folder of ranks' files.")
]
PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan", help="Plan in place of a strategy: train, reference or rollout of --config, or sizes such as 1x4x2."
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Experiment or file of model_configs/ whose model a plan is for.")
]
FormatOption = Annotated[
    Literal["ckpt", "safetensors"] | None,
    typer.Option("--format", help="Format of ranks' files, by default the source's."),
]
PrefixOption = Annotated[str, typer.Option("--prefix", help="Take only files of ranks whose names begin so.")]
WeightsOnlyOption = Annotated[bool, typer.Option("--weights-only", help="Leave optimizer state out.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="Files at a time, by default one per processor.")]
VerifyOption = Annotated[
    Literal["written", "deep"],
    typer.Option(
        "--verify",
        help="How much is checked; deep also compares every tensor with the source, and all replicas.",
    ),
]
SyncOption = Annotated[
    bool, typer.Option(help="End when everything is on the disk, or with --no-sync when the kernel has it, as cp does.")
]


@checkpoint_app.command("list")
def checkpoint_list(path: SourceArgument) -> None:
    """List the steps of a run, or the files of another checkpoint.

    Only sizes are compared with a step's manifest; `mindgspo checkpoint verify` compares hashes.
    """
    from mindgspo.checkpoint.verify import list_lines

    for line in list_lines(path):
        print(line)


@checkpoint_app.command("verify")
def checkpoint_verify(
    path: SourceArgument,
    strategy: StrategyOption = None,
    plan: PlanOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = "",
) -> None:
    """Verify that files are whole.

    Hashes are compared where they are known; the exit code is 1 if a file is not whole. With a strategy, also
    that the ranks' files agree with it.
    """
    from mindgspo.checkpoint.verify import verify_checkpoint

    wanted = strategy_from(strategy, plan, config)
    is_sound = True
    for finding in verify_checkpoint(path, strategy=wanted, prefix=prefix):
        print(finding.line)
        is_sound &= finding.is_sound
    if not is_sound:
        raise typer.Exit(1)


@checkpoint_app.command("merge")
def checkpoint_merge(
    source: SourceArgument,
    destination: WholeArgument,
    strategy: StrategyOption = None,
    plan: PlanOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = "",
    weights_only: WeightsOnlyOption = False,
    jobs: JobsOption = None,
    verify: VerifyOption = "written",
    sync: SyncOption = True,
) -> None:
    """Make one file of the files of ranks."""
    from mindgspo.checkpoint.transform import TransformRequest, transform

    request = TransformRequest(
        source=source,
        destination=destination,
        source_strategy=strategy_from(strategy, plan, config),
        source_prefix=prefix,
        weights_only=weights_only,
        jobs=jobs,
        deep=verify == "deep",
        sync=sync,
    )
    transform(request, note=_print_now)


@checkpoint_app.command("shard")
def checkpoint_shard(
    source: SourceArgument,
    destination: NewArgument,
    strategy: StrategyOption = None,
    plan: PlanOption = None,
    config: ConfigOption = None,
    format_: FormatOption = None,
    weights_only: WeightsOnlyOption = False,
    jobs: JobsOption = None,
    verify: VerifyOption = "written",
    sync: SyncOption = True,
) -> None:
    """Cut a whole checkpoint into the files of ranks.

    MindSpore's graphs load them as they are.
    """
    from mindgspo.checkpoint.transform import TransformRequest, transform

    wanted = strategy_from(strategy, plan, config)
    if wanted is None:
        raise typer.BadParameter("say how to cut: --strategy PATH, or --plan 1x4x2 --config FILE")
    request = TransformRequest(
        source=source,
        destination=destination,
        destination_strategy=wanted,
        suffix=None if format_ is None else f".{format_}",
        weights_only=weights_only,
        jobs=jobs,
        deep=verify == "deep",
        sync=sync,
    )
    transform(request, note=_print_now)


@checkpoint_app.command("transform")
def checkpoint_transform(
    source: SourceArgument,
    destination: NewArgument,
    src_strategy: Annotated[
        Path | None, typer.Option("--src-strategy", help="Strategy of the source; without it the source is whole.")
    ] = None,
    dst_strategy: Annotated[
        Path | None, typer.Option("--dst-strategy", help="Strategy of the destination; without it one file is written.")
    ] = None,
    src_plan: Annotated[str | None, typer.Option("--src-plan", help="Plan in place of --src-strategy.")] = None,
    dst_plan: Annotated[str | None, typer.Option("--dst-plan", help="Plan in place of --dst-strategy.")] = None,
    config: ConfigOption = None,
    format_: FormatOption = None,
    prefix: PrefixOption = "",
    weights_only: WeightsOnlyOption = False,
    jobs: JobsOption = None,
    verify: VerifyOption = "written",
    sync: SyncOption = True,
) -> None:
    """Turn a checkpoint of one plan into one of another."""
    from mindgspo.checkpoint.transform import TransformRequest, transform

    request = TransformRequest(
        source=source,
        destination=destination,
        source_strategy=strategy_from(src_strategy, src_plan, config),
        destination_strategy=strategy_from(dst_strategy, dst_plan, config),
        suffix=None if format_ is None else f".{format_}",
        source_prefix=prefix,
        weights_only=weights_only,
        jobs=jobs,
        deep=verify == "deep",
        sync=sync,
    )
    transform(request, note=_print_now)


@checkpoint_app.command("export")
def checkpoint_export(
    source: Annotated[
        Path, typer.Argument(help="Run folder, whose newest step is taken, or checkpoints/step_XXXXXXXX of one.")
    ],
    out: Annotated[Path, typer.Argument(help="New folder; one that holds something is never touched.")],
    dtype: DtypeOption = "keep",
    model_folder: Annotated[
        Path | None, typer.Option(help="Folder of config.json and the tokenizer, if the step lies outside of its run.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add LoRA adapters to the weights, instead of writing DIR/adapter for PEFT.")
    ] = False,
) -> None:
    """Write a step of a run as a Hugging Face folder.

    Configuration, tokenizer and generation config come with it. `mindgspo convert weights` takes other sources, and
    writes other layouts.
    """
    from mindgspo.checkpoint.convert import Conversion, convert_model
    from mindgspo.checkpoint.stored_files import find_checkpoint

    step = find_checkpoint(source)
    for line in step.notes:
        print(line)
    if step.num_ranks > 1:
        raise CheckpointError(f"{source}: holds the files of {step.num_ranks} ranks; merge them first, then export")
    conversion = Conversion(
        source=step.path,
        out=out,
        model_folder=model_folder,
        dtype=None if dtype == "keep" else dtype,
        merges=merge,
    )
    done = convert_model(conversion, shows_progress=True)
    print(f"exported {out}: {done.num_weights} weights, {done.num_bytes:,} bytes; with {', '.join(done.travelled)}")


def strategy_from(path: Path | None, plan: str | None, config: Path | None) -> Strategy | None:
    """The strategy that --strategy, or --plan with --config, names; None for neither."""
    from mindgspo.planner.strategy_files import plan_strategy, single_source

    if path is not None and plan is not None:
        raise typer.BadParameter("give a strategy or a plan, not both")
    if plan is not None:
        if config is None:
            raise typer.BadParameter("a plan is for a model: add --config FILE")
        return plan_strategy(config, plan)
    return None if path is None else single_source(path)


def _print_now(line: str) -> None:
    print(line, flush=True)
