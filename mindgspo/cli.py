"""The command line: one function per command, each parses and calls the package.

Heavy imports stay inside the functions, so that `--help` and configuration errors answer at once. A
`MindGSPOError` is printed as one message with exit code 1, a wrong command line with exit code 2; only a defect of
ours shows a traceback.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

import mindgspo.parallel.runtime  # noqa: F401  (sets MindSpore's log level, which counts only before its import)
from mindgspo.errors import MindGSPOError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="GSPO reinforcement learning of language models on MindSpore.",
)
data_app = typer.Typer(no_args_is_help=True, help="Prepare and look at data sets.")
app.add_typer(data_app, name="data")
reward_app = typer.Typer(no_args_is_help=True, help="Try reward functions on files.")
app.add_typer(reward_app, name="reward")
strategy_app = typer.Typer(no_args_is_help=True, help="Look at MindSpore's strategy files: who holds what.")
app.add_typer(strategy_app, name="strategy")

ConfigArgument = Annotated[Path, typer.Argument(help="Experiment YAML, e.g. examples/arithmetic/gspo.yaml")]
SetOption = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time on Python 3.10)
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. --set seed=2; may be repeated."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Move an existing run folder aside.")]


WorkersOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--workers", min=1, help="Stop unless the plans need exactly so many worker processes."),
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="Machines that the workers are spread over.")]
NodeRankOption = Annotated[int, typer.Option("--node-rank", min=0, help="Which of them this is; 0 has rank 0.")]
MasterAddrOption = Annotated[str, typer.Option("--master-addr", help="Address of the machine with --node-rank 0.")]
MasterPortOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--master-port", help="Port there; needed with several machines, else a free one is taken."),
]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(
            f"mindgspo {_version('mindgspo')} (MindSpore {_version('mindspore')}, Python {platform.python_version()})"
        )
        raise typer.Exit


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print versions and exit.")
    ] = False,
) -> None:
    """Options that stand before a command."""


@app.command()
def run(
    config: ConfigArgument,
    set_: SetOption = None,
    overwrite: OverwriteOption = False,
    workers: WorkersOption = None,
    nodes: NodesOption = 1,
    node_rank: NodeRankOption = 0,
    master_addr: MasterAddrOption = "127.0.0.1",
    master_port: MasterPortOption = None,
) -> None:
    """Run an experiment: prepare data, warm up, train, evaluate, export, report.

    As many worker processes are started as its plans need, on this machine, or with --nodes on each of several machines
    by the same command with another --node-rank.
    """
    _start("run", config, set_, overwrite, workers, nodes, node_rank, master_addr, master_port)


@app.command()
def sft(
    config: ConfigArgument,
    set_: SetOption = None,
    overwrite: OverwriteOption = False,
    workers: WorkersOption = None,
    nodes: NodesOption = 1,
    node_rank: NodeRankOption = 0,
    master_addr: MasterAddrOption = "127.0.0.1",
    master_port: MasterPortOption = None,
) -> None:
    """Run only the supervised warm-up of an experiment, into runs/<experiment>-sft unless run_dir is set."""
    _start("sft", config, set_, overwrite, workers, nodes, node_rank, master_addr, master_port)


def _start(
    command: str,
    config: Path,
    set_: list[str] | None,
    overwrite: bool,
    workers: int | None,
    nodes: int,
    node_rank: int,
    master_addr: str,
    master_port: int | None,
) -> None:
    from mindgspo.trainer.start import ClusterOptions, RunRequest, start

    request = RunRequest(command=command, config=config, overrides=tuple(set_ or ()), overwrite=overwrite)
    options = ClusterOptions(
        workers=workers, nodes=nodes, node_rank=node_rank, master_addr=master_addr, master_port=master_port
    )
    code = start(request, options)
    if code:
        raise typer.Exit(code)


@app.command()
def check(config: ConfigArgument, set_: SetOption = None) -> None:
    """Check an experiment without MindSpore: settings, tokenizer, data, prompts, reward, batch table."""
    from mindgspo.config import load_config
    from mindgspo.trainer.preflight import check_experiment

    for line in check_experiment(load_config(config, set_ or [])):
        print(line)
    print("ok")


@app.command()
def plan(
    config: ConfigArgument,
    set_: SetOption = None,
    memory_gb: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--memory-gb",
            min=0.1,
            help="Memory of one card in GiB, 64 (Atlas 800T A2) by default; for device CPU the machine's, by default "
            "what it has.",
        ),
    ] = None,
) -> None:
    """Print the memory that an experiment is expected to need by phase, rank and use, in seconds, without MindSpore.

    The last line says whether it fits, and if not the smallest change of settings with which it does: many are tried.
    On Ascend all of it is an estimate. Weights and data need not be there.
    """
    from mindgspo.planner import plan_of_file

    for line in plan_of_file(config, set_ or [], memory_gb=memory_gb):
        print(line)


@app.command("eval")
def evaluate(
    config: ConfigArgument,
    model: Annotated[Path, typer.Option("--model", help="Hugging Face folder, e.g. runs/<experiment>/export")],
    set_: SetOption = None,
) -> None:
    """Measure a model on the held-out problems of an experiment: greedy, and pass@k if eval.num_samples > 1.

    The last line is a JSON object with the same figures.
    """
    from mindgspo.config import load_config

    experiment = load_config(config, set_ or [])
    from mindgspo.trainer.measure import measure

    found = measure(experiment, model)
    figures = {"problems": len(found.groups), "accuracy": found.accuracy, **found.metrics}
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:.6g}")
    print(json.dumps(figures))


@app.command()
def logprobs(
    model_dir: Annotated[Path, typer.Argument(help="Hugging Face folder: config.json and *.safetensors")],
    input: Annotated[Path, typer.Option("--input", help='JSON Lines file, rows {"ids": [...]} or {"text": "..."}')],
) -> None:
    """Print each row's token log-probs and its greedy next token, one JSON line per row and nothing else."""
    from mindgspo.trainer.logprobs import log_probs_of_file

    for scored in log_probs_of_file(model_dir, input):
        print(json.dumps(scored))


@app.command()
def dryrun(
    config: ConfigArgument,
    set_: SetOption = None,
    ranks: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="0,4", help="Ranks to compile for; by default the first of each pipeline stage."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Compile for every rank.")] = False,
    graphs: Annotated[
        str, typer.Option(metavar="NAMES", help="Graphs to compile, of these.")
    ] = "train,reference,prefill,decode",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for strategy files and logs; by default dryrun/<experiment>."),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that one graph may take.", min=1)] = 1800.0,
) -> None:
    """Compile an experiment's graphs for Ascend, with MindSpore's own front end, on a machine without Ascend.

    Reports for each graph and rank: time and memory of the compile, parameters held, collectives, fused operators, and
    the strategy file that MindSpore wrote; or what it refused, and the entry of the plan to change. Where CANN is not
    installed, stand-ins for its libraries are built with gcc the first time. Nothing is run: weights and data need not
    be there. The last line sums up; exit code 1 if a graph failed.
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
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 0,4", param_hint=option) from None


@app.command()
def report(run_dir: Annotated[Path, typer.Argument(help="Run folder, e.g. runs/arithmetic-gspo")]) -> None:
    """Draw reward.png and report.html of a run again, also while it is going on."""
    from mindgspo.metrics import plot_run, write_report

    print(f"plot: {plot_run(run_dir)}")
    print(f"report: {write_report(run_dir)}")


@app.command()
def conformance(
    file: Annotated[Path, typer.Argument(help="JSON list (or JSON Lines) of cases; tests/data has one of 1,221.")],
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TEXT", help="Only cases whose source contains this, e.g. verl."),
    ] = None,
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Only this kind: policy_loss, kl, agg, advantage, reward_norm or overlong."),
    ] = None,
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="TEXT", help="Only cases whose name contains this."),
    ] = None,
    twins_only: Annotated[
        bool, typer.Option("--twins-only", help="Leave out the MindSpore cells: seconds instead of minutes.")
    ] = False,
) -> None:
    """Prove the losses against numbers that other suites' own functions computed.

    A case holds inputs, a definition, and the loss, gradient and metrics that verl, TRL, slime, OpenRLHF, ... made of
    them in float64. The numpy twins must agree on every case, in float64: rtol 1e-9, atol 1e-12, metrics too.
    The MindSpore cells that training runs must agree on losses, KL terms and aggregations, in float32 and graph mode:
    rtol 1e-3, atol 2e-4 of the largest entry, metrics left out. Cells skip, and say so, cases tagged float64_only or
    log_ratio_overflow, and those closer than 1e-6 to a clip edge.

    The last line is `N passed, N failed`; exit code 1 if any failed. This proves agreement on these cases. It says
    nothing about sampling, rewards, or whether a run learns.
    """
    from mindgspo.conformance import Filters, run_conformance

    result = run_conformance(file, Filters(source=source, kind=kind, name=name), twins_only=twins_only)
    for line in result.lines():
        print(line)
    if result.num_failed:
        raise typer.Exit(1)


@reward_app.command("score")
def reward_score(
    function: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_FILE",
            help="gsm8k, math_dapo, math, multiple_choice, format, repetition, verl_strict, verl_flexible, auto, or "
            "path/to/file.py:compute_score.",
        ),
    ],
    input: Annotated[Path, typer.Option(help="*.jsonl or *.parquet file, one response per row.")],
    output: Annotated[Path, typer.Option(help="JSON Lines file to write; an existing one is replaced.")],
    response_key: Annotated[str, typer.Option(help="Key of the response.")] = "response",
    gold_key: Annotated[str, typer.Option(help="Key of the gold answer.")] = "gold",
    label_key: Annotated[str, typer.Option(help="Key of the label, true or false; rows may lack it.")] = "correct",
    answer: Annotated[
        Literal["strict", "flexible", "first", "last"], typer.Option(help="Where the answer is looked for.")
    ] = "flexible",
    workers: Annotated[int, typer.Option(help="Worker processes for slow functions.", min=1)] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds one response may take in a worker.", min=0.1)] = 10.0,
    examples: Annotated[int, typer.Option(help="Examples to show of each kind of error.", min=0)] = 5,
) -> None:
    """Score a file of responses with one reward function; each row is written with its score and verdict.

    Where rows have labels, the confusion table follows, with examples of false positives and false negatives.
    """
    from mindgspo.grading import RowKeys
    from mindgspo.grading.command import grade

    keys = RowKeys(response=response_key, gold=gold_key, label=label_key)
    confusion = grade(
        function=function,
        input=input,
        output=output,
        keys=keys,
        answer=answer,
        workers=workers,
        timeout_s=timeout,
        examples=examples,
    )
    for line in confusion.lines():
        print(line)
    print(f"scored     {output}")


StrategyArgument = Annotated[
    Path, typer.Argument(help="Strategy file, folder of ranks' files, or folder of tools/generate_strategy.py")
]
AllEntriesOption = Annotated[
    bool, typer.Option("--all", help="A line for every entry, also for layers and optimizer state that are alike.")
]


@strategy_app.command("show")
def strategy_show(
    path: StrategyArgument,
    all_: AllEntriesOption = False,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Experiment or file of model_configs/, for shapes; protobuf files have none."),
    ] = None,
) -> None:
    """List what a strategy file says of every parameter: how it is cut, and which ranks hold it."""
    from mindgspo.strategies import show_lines

    for line in show_lines(path, shows_all=all_, config=config):
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
    """Compare where two strategies put every parameter's slices; exit code 1 if anywhere on other ranks."""
    from mindgspo.strategies import diff_lines

    found = diff_lines(left, right, shows_all=all_, spelling=spelling, common=common)
    for line in found.lines:
        print(line)
    if found.number:
        raise typer.Exit(1)


@strategy_app.command("merge")
def strategy_merge(
    folder: Annotated[Path, typer.Argument(help="Folder with the files of at least one rank of every stage")],
    out: Annotated[Path, typer.Option(help="File to write: *.ckpt or *.json; an existing one is replaced.")],
) -> None:
    """Merge the files of all pipeline stages into one, as MindSpore's checkpoint tools want it."""
    from mindgspo.strategies import merge_files

    print(merge_files(folder, out))


@data_app.command("prepare")
def data_prepare(
    format: Annotated[
        Literal["gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns", "arithmetic"],
        typer.Option(help="What the rows look like."),
    ],
    output: Annotated[Path, typer.Option(help="Folder to make; never overwritten.")],
    input: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="*.jsonl or *.parquet file; none for arithmetic."),
    ] = None,
    columns: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="YAML file that says which columns hold what, for the format columns."),
    ] = None,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Keep the first of equal prompts, none of those whose answers differ.")
    ] = False,
    tokenizer: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of the tokenizer; none: the built-in one of the arithmetic task."),
    ] = None,
    eos_token: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Token that ends a response; may be repeated."),
    ] = None,
    pad_token: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Token written into padded slots."),
    ] = None,
    split: Annotated[Literal["train", "dev", "test"], typer.Option(help="Split of the arithmetic task.")] = "train",
    max_rows: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Use at most this many rows, from the start."),
    ] = None,
    max_prompt_length: Annotated[int, typer.Option(help="Longest prompt in tokens.")] = 1024,
    truncation: Annotated[
        Literal["error", "left", "right", "middle", "drop"],
        typer.Option(help="What happens to a longer prompt: stop, cut at that side, or drop the row."),
    ] = "error",
    system_prompt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="System message put before the question."),
    ] = None,
    instruction_prefix: Annotated[
        str, typer.Option(help="Text put before the question; verl and dapo rows bring their own.")
    ] = "",
    instruction_suffix: Annotated[
        str, typer.Option(help="Text appended to the question; verl and dapo rows bring their own.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Draws the rows of the arithmetic task.")] = 1,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Processes that tokenize; none: one per processor."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move an existing output folder aside.")] = False,
) -> None:
    """Turn a file of questions and answers, or the generated arithmetic task, into a prepared data set.

    Rows whose gold answer cannot be read are dropped and listed in dropped.jsonl; equal prompts are counted. After an
    interruption, even by kill -9, the same command goes on where it was.
    """
    from mindgspo.data.command import prepare_from_options

    info = prepare_from_options(
        format=format,
        output=output,
        input=input,
        columns=columns,
        dedup=dedup,
        tokenizer=tokenizer,
        eos_tokens=tuple(eos_token) if eos_token else None,
        pad_token=pad_token,
        split=split,
        max_rows=max_rows,
        max_prompt_length=max_prompt_length,
        truncation=truncation,
        system_prompt=system_prompt,
        instruction_prefix=instruction_prefix,
        instruction_suffix=instruction_suffix,
        seed=seed,
        workers=workers,
        force=force,
    )
    print(f"{info.account()}\nready      {output}")


@data_app.command("inspect")
def data_inspect(
    folder: Annotated[Path, typer.Argument(help="Folder made by `mindgspo data prepare`")],
    rows: Annotated[int, typer.Option(help="How many rows to show.", min=0)] = 3,
) -> None:
    """Show what a prepared data set was made of, and its first rows with the exact prompt text."""
    from mindgspo.data import inspect_dataset

    print(inspect_dataset(folder, rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 for a `MindGSPOError`, 2 for usage, 130 for Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a GBK terminal must not stop a command at a character it lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _stopped_in_order():
            app(args=arguments, prog_name="mindgspo", standalone_mode=True)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            print("interrupted; what was saved stays", file=sys.stderr)
        return int(ended.code or 0)
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    raise AssertionError("typer ends every command with SystemExit")


_INTERRUPTED = 130  # what typer exits with on KeyboardInterrupt: 128 + SIGINT


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """While a MindSpore graph runs, its handler answers Ctrl-C with a SIGTERM to the own process. Here a SIGTERM,
    whoever sent it, raises KeyboardInterrupt, so that locks, progress bar and temporary folders are cleared away."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
