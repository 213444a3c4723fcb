"""`mindgspo reward`: try reward functions on files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

reward_app = typer.Typer(no_args_is_help=True, help="Try reward functions on files.")


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
