"""The command line: one function per command, each parses and calls the package.

Heavy imports stay inside the functions, so that `--help` and configuration errors answer at once. A
`MindGSPOError` is printed as one message with exit code 1; only a defect of ours shows a traceback.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from mindgspo.errors import MindGSPOError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="GSPO reinforcement learning of language models on MindSpore.",
)
data_app = typer.Typer(no_args_is_help=True, help="Prepare and look at data sets.")
app.add_typer(data_app, name="data")

ConfigArgument = Annotated[Path, typer.Argument(help="Experiment YAML, e.g. examples/arithmetic/gspo.yaml")]
SetOption = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time on Python 3.10)
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. --set seed=2; may be repeated."),
]


@app.command()
def run(
    config: ConfigArgument,
    set_: SetOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Move an existing run folder aside.")] = False,
) -> None:
    """Run an experiment: prepare data, warm up, train, evaluate, export, report."""
    from mindgspo.config import load_config

    experiment = load_config(config, set_ or [])
    from mindgspo.trainer.loop import run_experiment

    report = run_experiment(experiment, overwrite=overwrite)
    if report is not None:
        print(f"report: {report}")


@app.command()
def check(config: ConfigArgument, set_: SetOption = None) -> None:
    """Check an experiment without starting MindSpore's graphs: configuration, files, tokenizer, batch table."""
    from mindgspo.config import batch_table, load_config, notes
    from mindgspo.tokenization import load_tokenizer

    experiment = load_config(config, set_ or [])
    tokenizer = load_tokenizer(experiment.tokenizer, experiment.model.vocab_size)
    for name, text in batch_table(experiment, None):
        print(f"{name:<26}{text}")
    print(f"{'tokenizer':<26}{tokenizer.vocab_size} ids, eos {tokenizer.eos_ids}, pad {tokenizer.pad_id}")
    for line in notes(experiment):
        print(f"note: {line}")
    print("ok")


def main() -> None:
    """Entry point of the console script."""
    try:
        app(standalone_mode=True)
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
