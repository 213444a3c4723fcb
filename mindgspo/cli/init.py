"""`mindgspo init`: an experiment for a model folder and a file of questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mindgspo.cli.options import EosTokenOption, MemoryOption, TokenizerOption


def init_command(
    model: Annotated[
        Path,
        typer.Option(help="Hugging Face folder with config.json and a tokenizer; or a name on a hub.", metavar="DIR"),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Questions with answers: *.jsonl, *.parquet, *.json, *.csv or *.tsv; or OWNER/NAME/FILE on a hub.",
            metavar="FILE",
        ),
    ],
    eval_: Annotated[
        Path | None,
        typer.Option("--eval", help="Held-out questions; by default a tenth of the rows is held out.", metavar="FILE"),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="Column of the question; by default told by its name.", metavar="COLUMN")
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="Column of the right answer; by default told by its name.", metavar="COLUMN")
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="Your reward function, with verl's arguments; by default the one that reads the answers.",
            metavar="FILE.py[:FUNCTION]",
        ),
    ] = None,
    cards: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Ascend cards to plan for; by default one process on the CPU.")
    ] = None,
    device: Annotated[
        Literal["CPU", "Ascend"] | None,
        typer.Option(help="Where graphs run; by default Ascend if --cards is given, else CPU."),
    ] = None,
    memory_gb: MemoryOption = None,
    lora: Annotated[bool, typer.Option("--lora", help="Train LoRA adapters, and no weight of the model.")] = False,
    tokenizer: TokenizerOption = None,
    eos_token: EosTokenOption = None,
    out: Annotated[
        Path | None, typer.Option(help="YAML file to write; by default <model>-<data>.yaml here.", metavar="FILE.yaml")
    ] = None,
) -> None:
    """Write an experiment for your model and data.

    Sizes come from the model folder, lengths from the tokenized rows, plans and batches from the memory; five lines say
    what was chosen and why. Nothing that exists is overwritten.
    """
    from mindgspo.init.command import InitRequest, write_new_experiment

    request = InitRequest(
        model=model,
        data=data,
        eval=eval_,
        question=question,
        answer=answer,
        reward=reward,
        cards=cards,
        device=device,
        memory_gb=memory_gb,
        lora=lora,
        tokenizer=tokenizer,
        eos_tokens=tuple(eos_token or ()),
        out=out,
    )
    for line in write_new_experiment(request):
        print(line)
