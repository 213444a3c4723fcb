"""Commands that take a model folder: measure it, print its log-probs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mindgspo.cli.options import ConfigArgument, SetOption


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


def logprobs(
    model_dir: Annotated[Path, typer.Argument(help="Hugging Face folder: config.json and *.safetensors")],
    input: Annotated[Path, typer.Option("--input", help='JSON Lines file, rows {"ids": [...]} or {"text": "..."}')],
) -> None:
    """Print each row's token log-probs and its greedy next token, one JSON line per row and nothing else."""
    from mindgspo.trainer.logprobs import log_probs_of_file

    for scored in log_probs_of_file(model_dir, input):
        print(json.dumps(scored))
