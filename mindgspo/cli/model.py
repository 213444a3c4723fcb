"""Commands that take a model folder: measure it, print its log-probs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from mindgspo.cli.options import EmulateOption, EosTokenOption, SetOption, TokenizerOption, emulated_overrides

if TYPE_CHECKING:
    from mindgspo.evaluation.tasks import EvalTask


def evaluate(
    model_dir: Annotated[Path, typer.Argument(help="Hugging Face folder, e.g. runs/<experiment>/export.")],
    data: Annotated[
        Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time on Python 3.10)
        typer.Option(
            metavar="NAME_OR_FILE",
            help="Data set: gsm8k, math500, aime24 (also NAME=FILE), arithmetic, or a *.jsonl, *.parquet or prepared "
            "folder of your own. May be repeated.",
        ),
    ] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Measure on the held-out rows of this experiment, as it would."),
    ] = None,
    data_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            envvar="MINDGSPO_DATA", help="Folder below which named data lie, e.g. DIR/gsm8k/test.jsonl.", metavar="DIR"
        ),
    ] = None,
    format: Annotated[
        Optional[Literal["gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns"]],  # noqa: UP045
        typer.Option(help="What the rows of your own files look like, by default recognised from their columns."),
    ] = None,
    columns: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="YAML file that says which columns hold what, for the format columns."),
    ] = None,
    num_samples: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Samples per problem beside the greedy answer, by default none."),
    ] = None,
    pass_at_k: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="K,K,...", help="The k of pass@k, maj@k and best@k, e.g. 1,4,8; by default the number of samples."
        ),
    ] = None,
    temperature: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Temperature of samples, by default 1."),
    ] = None,
    top_p: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Nucleus of samples, by default that of --config, else 1, which is off."),
    ] = None,
    max_new_tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Longest response in tokens, by default what generation_config.json says, else 2048."),
    ] = None,
    max_rows: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Use at most this many rows of each data set, from the start."),
    ] = None,
    seed: Annotated[Optional[int], typer.Option(min=0, help="Seed of the samples, by default 1.")] = None,  # noqa: UP045
    batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Responses generated at the same time, by default 32. Changes speed and memory only."),
    ] = None,
    device: Annotated[
        Optional[Literal["CPU", "Ascend"]],  # noqa: UP045
        typer.Option(help="Where graphs run, by default CPU."),
    ] = None,
    tokenizer: TokenizerOption = None,
    eos_token: EosTokenOption = None,
    system_prompt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="System message put before each question."),
    ] = None,
    instruction_suffix: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Text appended to each question, instead of the data set's own."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder to make, with eval.json and all responses in generations.jsonl.", metavar="DIR"),
    ] = None,
    set_: SetOption = None,
    emulate_ascend: EmulateOption = False,
) -> None:
    """Measure a model's accuracy on data sets.

    The accuracy is that of greedy answers, with --num-samples also mean@n, maj@k, pass@k and best@k, all with 95 %
    intervals. Prints a table; the last line is a JSON object with the same figures and the settings.
    """
    from mindgspo.cli.columns_file import read_columns_file
    from mindgspo.evaluation.tasks import DataChoice, EvalOptions, tasks_of_data, tasks_of_experiment

    if emulate_ascend:
        emulated_overrides(True, None)
        device = "Ascend"
    if bool(data) == (config is not None):
        raise typer.BadParameter("give either --data (NAME or FILE, repeatable) or --config EXPERIMENT.yaml")
    options = EvalOptions(
        num_samples=num_samples,
        pass_at_k=None if pass_at_k is None else _whole_numbers(pass_at_k),
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        max_rows=max_rows,
        seed=seed,
        batch=batch,
        device=device,
        tokenizer=tokenizer,
        eos_tokens=tuple(eos_token or ()),
        system_prompt=system_prompt,
        instruction_suffix=instruction_suffix,
    )
    if config is not None:
        if format is not None or columns is not None:
            raise typer.BadParameter("--format and --columns go with --data; with --config use --set data.eval.format=")
        tasks = tasks_of_experiment(model_dir, config, options, set_ or [])
    else:
        mapped = None if columns is None else read_columns_file(columns)
        choice = DataChoice(texts=data or [], folder=data_dir, format=format, columns=mapped)
        tasks = tasks_of_data(model_dir, choice, options, set_ or [])
    _evaluate_and_print(tasks, out)


def _whole_numbers(text: str) -> tuple[int, ...]:
    """ "1,4,8" as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) >= 1 for part in parts):
        raise typer.BadParameter(f"expected whole numbers, e.g. 1,4,8, got {text!r}", param_hint="--pass-at-k")
    return tuple(int(part) for part in parts)


def _evaluate_and_print(tasks: list[EvalTask], out: Path | None) -> None:
    from mindgspo.evaluation.run_tasks import (
        EvalFolder,
        eval_report,
        evaluate_tasks,
        generation_records,
        remarks,
        results_table,
    )

    with nullcontext() if out is None else EvalFolder(out) as folder:
        if folder is None:
            results = evaluate_tasks(tasks)
        else:
            results = evaluate_tasks(tasks, lambda *answered: folder.write(generation_records(*answered)))
        # Printed first: where the folder cannot be finished, hours of work are not lost.
        for line in results_table(results):
            print(line)
        for line in remarks(results):
            print(f"note: {line}")
        print(json.dumps(eval_report(results), allow_nan=False), flush=True)
        if folder is not None:
            folder.finish(eval_report(results))


def logprobs(
    model_dir: Annotated[Path, typer.Argument(help="Hugging Face folder, with config.json and *.safetensors.")],
    input: Annotated[
        Path, typer.Option("--input", help='JSON Lines file with rows {"ids": [...]} or {"text": "..."}.')
    ],
    backend: Annotated[
        Literal["native", "mindformers"],
        typer.Option(
            help="Whose transformer computes: ours, or MindFormers' (its own environment: docs/integrations.md)."
        ),
    ] = "native",
    emulate_ascend: EmulateOption = False,
) -> None:
    """Print each row's token log-probs and greedy next token.

    There is one JSON line per row and nothing else.
    """
    from mindgspo.evaluation.log_probs import log_probs_by_native_model, log_probs_of_file

    scorer = log_probs_by_native_model
    emulated_overrides(emulate_ascend, None)
    if backend == "mindformers":
        from mindgspo.integrations.mindformers import log_probs_by_mindformers as scorer
    for scored in log_probs_of_file(model_dir, input, scorer, device="Ascend" if emulate_ascend else "CPU"):
        print(json.dumps(scored))
