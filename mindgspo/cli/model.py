"""Commands that measure: a model on data sets, its log-probs, a reward function on responses."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mindgspo.cli.options import (
    EmulateOption,
    EosTokenOption,
    ModelArgument,
    SetOption,
    TokenizerOption,
    emulated_overrides,
)
from mindgspo.progress import activity

if TYPE_CHECKING:
    from mindgspo.evaluation.tasks import EvalTask

reward_app = typer.Typer(no_args_is_help=True, help="Try reward functions on files.")


def evaluate_command(
    model_dir: ModelArgument,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME_OR_FILE",
            help="Data set: gsm8k, math500, aime24 (also NAME=FILE), arithmetic, or a *.jsonl, *.parquet or prepared "
            "folder of your own. May be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Measure on the held-out rows of this experiment, as it would.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="MINDGSPO_DATA", help="Folder below which named data lie, e.g. DIR/gsm8k/test.jsonl.", metavar="DIR"
        ),
    ] = None,
    format: Annotated[
        Literal["gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns"] | None,
        typer.Option(help="What the rows of your own files look like, by default recognised from their columns."),
    ] = None,
    columns: Annotated[
        Path | None, typer.Option(help="YAML file that says which columns hold what, for the format columns.")
    ] = None,
    num_samples: Annotated[
        int | None, typer.Option(min=1, help="Samples per problem beside the greedy answer, by default none.")
    ] = None,
    pass_at_k: Annotated[
        str | None,
        typer.Option(
            metavar="K,K,...", help="The k of pass@k, maj@k and best@k, e.g. 1,4,8; by default the number of samples."
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of samples, by default 1.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Nucleus of samples, by default that of --config, else 1, which is off.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest response in tokens, by default what generation_config.json says, else 2048."),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="Use at most this many rows of each data set, from the start.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the samples, by default 1.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Responses generated at the same time, by default 32. Changes speed and memory only."),
    ] = None,
    device: Annotated[Literal["CPU", "Ascend"] | None, typer.Option(help="Where graphs run, by default CPU.")] = None,
    tokenizer: TokenizerOption = None,
    eos_token: EosTokenOption = None,
    system_prompt: Annotated[str | None, typer.Option(help="System message put before each question.")] = None,
    instruction_suffix: Annotated[
        str | None, typer.Option(help="Text appended to each question, instead of the data set's own.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to make, with eval.json and all responses in generations.jsonl.", metavar="DIR"),
    ] = None,
    set_: SetOption = None,
    emulate_ascend: EmulateOption = False,
) -> None:
    """Measure a model's accuracy on data sets.

    The accuracy is that of greedy answers, with --num-samples also mean@n, maj@k, pass@k and best@k, all with 95 %
    intervals. Prints a table; the last line is a JSON object with the same figures and the settings.
    """
    from mindgspo.config.load import load_columns
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
        mapped = None if columns is None else load_columns(columns)
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
    with activity("starting"):
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
        # Printed first, so that hours of work are not lost if the folder cannot be finished.
        for line in results_table(results):
            print(line)
        for line in remarks(results):
            print(f"note: {line}")
        print(json.dumps(eval_report(results), allow_nan=False), flush=True)
        if folder is not None:
            folder.finish(eval_report(results))


def logprobs_command(
    model_dir: ModelArgument,
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
    with activity("starting"):
        from mindgspo.evaluation.log_probs import log_probs_by_native_model, log_probs_of_file

    scorer = log_probs_by_native_model
    emulated_overrides(emulate_ascend, None)
    if backend == "mindformers":
        from mindgspo.integrations.mindformers import log_probs_by_mindformers as scorer
    for scored in log_probs_of_file(model_dir, input, scorer, device="Ascend" if emulate_ascend else "CPU"):
        print(json.dumps(scored))


@reward_app.command("score")
def reward_score(
    function: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_FILE",
            help="Reward function: gsm8k, math_dapo, math, multiple_choice, format, repetition, verl_strict, "
            "verl_flexible, auto, or path/to/file.py:compute_score.",
        ),
    ],
    input: Annotated[Path, typer.Option(help="File to read, *.jsonl or *.parquet, one response per row.")],
    output: Annotated[Path, typer.Option(help="JSON Lines file to write; an existing one is replaced.")],
    response_key: Annotated[str, typer.Option(help="Key of the response.")] = "response",
    gold_key: Annotated[str, typer.Option(help="Key of the gold answer.")] = "gold",
    label_key: Annotated[str, typer.Option(help="Key of the label, true or false; rows may lack it.")] = "correct",
    answer: Annotated[
        Literal["strict", "flexible", "first", "last"], typer.Option(help="Where the answer is looked for.")
    ] = "flexible",
    workers: Annotated[int, typer.Option(help="Worker processes for slow functions.", min=1, max=1024)] = 2,
    timeout: Annotated[
        float, typer.Option(help="Seconds one response may take in a worker.", min=0.1, max=86_400)
    ] = 10.0,
    examples: Annotated[int, typer.Option(help="Examples to show of each kind of error.", min=0)] = 5,
) -> None:
    """Score a file of responses with one reward function.

    Each row is written with its score and verdict. Where rows have labels, the confusion table follows, with examples
    of false positives and false negatives.
    """
    from mindgspo.evaluation.score_file import RowKeys, score_with_function

    keys = RowKeys(response=response_key, gold=gold_key, label=label_key)
    confusion = score_with_function(
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
    confusion.raise_if_all_failed()
