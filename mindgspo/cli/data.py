"""`mindgspo data`: prepare and look at data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mindgspo.errors import ConfigError
from mindgspo.interrupts import advise

if TYPE_CHECKING:
    from mindgspo.config.data import DataSection, DataSourceSection
    from mindgspo.tokenization import Tokenizer

data_app = typer.Typer(no_args_is_help=True, help="Prepare and look at data sets.")


@data_app.command("prepare")
def data_prepare(
    format: Annotated[
        Literal["gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns", "mindrlhf", "arithmetic"],
        typer.Option(help="What the rows look like; mindrlhf is the MindRecord of MindRLHF's rlhf_data.py."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "--output_path",
            help="Folder to make; it is never overwritten. A name that ends in .mindrecord makes a file for "
            "MindRLHF's dataset_file instead.",
        ),
    ],
    input: Annotated[
        Path | None,
        typer.Option("--input", "--file_path", help="File to read, *.jsonl or *.parquet; arithmetic needs none."),
    ] = None,
    columns: Annotated[
        Path | None, typer.Option(help="YAML file that says which columns hold what, for the format columns.")
    ] = None,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Keep the first of equal prompts, none of those whose answers differ.")
    ] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer, by default the built-in one of the arithmetic task.")
    ] = None,
    vocab_path: Annotated[
        Path | None,
        typer.Option("--vocab_path", help="The tokenizer's vocab.json, in place of --tokenizer, as MindRLHF has it."),
    ] = None,
    merges_file_path: Annotated[
        Path | None, typer.Option("--merges_file_path", help="The tokenizer's merges.txt, beside --vocab_path.")
    ] = None,
    eos_token: Annotated[list[str] | None, typer.Option(help="Token that ends a response. May be repeated.")] = None,
    pad_token: Annotated[str | None, typer.Option(help="Token written into padded slots.")] = None,
    split: Annotated[Literal["train", "dev", "test"], typer.Option(help="Split of the arithmetic task.")] = "train",
    max_rows: Annotated[int | None, typer.Option(help="Use at most this many rows, from the start.")] = None,
    max_prompt_length: Annotated[
        int, typer.Option("--max-prompt-length", "--max_prompt_length", help="Longest prompt in tokens.")
    ] = 1024,
    seq_length: Annotated[
        int, typer.Option("--seq-length", "--seq_length", help="Slots of an answer in MindRLHF's file.", min=1)
    ] = 4096,
    truncation: Annotated[
        Literal["error", "left", "right", "middle", "drop"],
        typer.Option(help="What happens to a longer prompt: stop, cut at that side, or drop the row."),
    ] = "error",
    system_prompt: Annotated[str | None, typer.Option(help="System message put before the question.")] = None,
    instruction_prefix: Annotated[
        str, typer.Option(help="Text put before the question; verl and dapo rows bring their own.")
    ] = "",
    instruction_suffix: Annotated[
        str, typer.Option(help="Text appended to the question; verl and dapo rows bring their own.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows of the arithmetic task.")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that tokenize, by default one per processor.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move an existing output folder aside.")] = False,
) -> None:
    """Turn a file of questions and answers into a prepared data set.

    The generated arithmetic task needs no file. Rows whose gold answer cannot be read are dropped and listed in
    dropped.jsonl; equal prompts are counted. After an interruption, even by kill -9, the same command goes on where it
    was.
    """
    from pydantic import ValidationError

    from mindgspo.config.data import DataSection, DataSourceSection, TokenizerSection
    from mindgspo.config.load import load_columns
    from mindgspo.config.rules import columns_problems
    from mindgspo.data.mindrlhf import SUFFIX
    from mindgspo.data.prepare import prepare_dataset
    from mindgspo.tokenization import load_tokenizer

    tokenizer = _tokenizer_folder(tokenizer, vocab_path, merges_file_path)
    chosen = {"path": tokenizer, "eos_tokens": tuple(eos_token) if eos_token else None, "pad_token": pad_token}
    mapping = None if columns is None else load_columns(columns)
    try:
        section = TokenizerSection(**{key: value for key, value in chosen.items() if value is not None})
        source = DataSourceSection(
            format=format, path=input, columns=mapping, dedup=dedup, split=split, max_rows=max_rows
        )
        data = DataSection(
            train=source,
            eval=source,
            system_prompt=system_prompt,
            instruction_prefix=instruction_prefix,
            instruction_suffix=instruction_suffix,
            max_prompt_length=max_prompt_length,
            truncation=truncation,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}") from error
    for problem in columns_problems("", source):
        place = "--columns" if columns is None or format != "columns" else str(columns)
        rest = problem.removeprefix(".columns").removeprefix(".").removeprefix(": ")
        raise ConfigError(f"{place}: {rest.replace('format=columns', '--format columns')}")
    if tokenizer is None and format != "arithmetic":
        raise ConfigError(
            f"--tokenizer: missing; the built-in tokenizer knows only the arithmetic task, but --format is {format} "
            "(a Hugging Face model folder usually holds its tokenizer)"
        )
    if output.suffix == SUFFIX:
        _write_mindrlhf(source, data, load_tokenizer(section), output, seed=seed, seq_length=seq_length)
        return
    advise("the same command goes on where it was")
    info = prepare_dataset(source, data, load_tokenizer(section), output, seed=seed, force=force, workers=workers)
    print(f"{info.account()}\nready      {output}")


def _write_mindrlhf(
    source: DataSourceSection, data: DataSection, tokenizer: Tokenizer, output: Path, *, seed: int, seq_length: int
) -> None:
    from mindgspo.data.mindrlhf import write_mindrlhf
    from mindgspo.data.rendering import prompt_facts
    from mindgspo.data.sources import open_source

    rows = open_source(source, seed, tokenizer).parsed()
    made = write_mindrlhf(rows, output, tokenizer, prompt_facts(source, data), seq_length=seq_length)
    print(f"rows       {made.rows} written, {made.dropped} left out\nready      {output}, {output.name}.db beside it")


def _tokenizer_folder(folder: Path | None, vocab: Path | None, merges: Path | None) -> Path | None:
    """The folder that is named, or that of the two files, which are read by their usual names."""
    if vocab is None and merges is None:
        return folder
    if vocab is None or merges is None:
        other, given = (
            ("--vocab_path", "--merges_file_path") if vocab is None else ("--merges_file_path", "--vocab_path")
        )
        raise ConfigError(f"{other}: missing; {given} names one of the tokenizer's two files")
    if folder is not None:
        raise ConfigError(
            f"--tokenizer: {folder}, but --vocab_path and --merges_file_path name a tokenizer too; drop one"
        )
    for option, path, name in (("--vocab_path", vocab, "vocab.json"), ("--merges_file_path", merges, "merges.txt")):
        expected = vocab.parent / name
        if path.resolve() != expected.resolve() or not path.is_file():
            raise ConfigError(f"{option}: {path} is not the file {expected}; put both into one folder")
    return vocab.parent


@data_app.command("inspect")
def data_inspect(
    folder: Annotated[Path, typer.Argument(help="Folder made by `mindgspo data prepare`.")],
    rows: Annotated[int, typer.Option(help="How many rows to show.", min=0, max=1_000_000)] = 3,
) -> None:
    """Show what a prepared data set was made of, and its first rows.

    Rows are shown with the exact prompt text.
    """
    from mindgspo.data.dataset import inspect_dataset

    print(inspect_dataset(folder, rows))
