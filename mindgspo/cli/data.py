"""`mindgspo data`: prepare and look at data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

data_app = typer.Typer(no_args_is_help=True, help="Prepare and look at data sets.")


@data_app.command("prepare")
def data_prepare(
    format: Annotated[
        Literal["gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns", "arithmetic"],
        typer.Option(help="What the rows look like."),
    ],
    output: Annotated[Path, typer.Option("--output", "--output_path", help="Folder to make; never overwritten.")],
    input: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--input", "--file_path", help="*.jsonl or *.parquet file; none for arithmetic."),
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
    vocab_path: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--vocab_path", help="vocab.json of the tokenizer, in place of --tokenizer (MindRLHF's words)."),
    ] = None,
    merges_file_path: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--merges_file_path", help="merges.txt beside it."),
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
        vocab_path=vocab_path,
        merges_file_path=merges_file_path,
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
