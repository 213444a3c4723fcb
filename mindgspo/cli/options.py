"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from mindgspo.cli.settings import SET, complete_setting


def _file_of_experiment(path: Path) -> Path:
    from mindgspo.config.shipped import experiment_file

    return experiment_file(path)


ConfigArgument = Annotated[
    Path,
    typer.Argument(
        help="YAML file of the experiment; or a shipped one: quickstart, examples/gsm8k/gspo_qwen2_5_7b.yaml, ...",
        callback=_file_of_experiment,
    ),
]
SetOption = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time on Python 3.10)
    typer.Option(
        SET,
        metavar="KEY=VALUE",
        help="Override a setting, e.g. --set seed=2. May be repeated.",
        autocompletion=complete_setting,
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Move an existing run folder aside.")]
WorkersOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--workers", min=1, help="Stop unless the plans need exactly so many worker processes."),
]
NodesOption = Annotated[
    int, typer.Option("--nodes", min=1, help="Number of machines that the workers are spread over.")
]
NodeRankOption = Annotated[
    int, typer.Option("--node-rank", min=0, help="Number of this machine, from 0; machine 0 has rank 0.")
]
MasterAddrOption = Annotated[str, typer.Option("--master-addr", help="Address of the machine with --node-rank 0.")]
MasterPortOption = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--master-port", help="Port at that address. Several machines need one; else a free one is taken."),
]
MemoryOption = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        "--memory-gb",
        min=0.1,
        max=1e6,
        help="Memory of one card in GiB, 64 (Atlas 800T A2) by default; for device CPU the machine's, by default what "
        "it has.",
    ),
]
TokenizerOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--tokenizer", metavar="DIR", help="Folder of the tokenizer, if the model's folder has none."),
]
EosTokenOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--eos-token", help="Token that ends a response, instead of those that the folder names. May be repeated."
    ),
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate-ascend",
        help="Run on emulated Ascend cards: device Ascend, executed by MindSpore's own Ascend backend, with operators "
        "computed on this CPU. For tests; far slower than device CPU.",
    ),
]


def emulated_overrides(is_wanted: bool, overrides: list[str] | None) -> list[str]:
    """The `--set` entries of a command; with --emulate-ascend its process is on an emulated card from here on."""
    if not is_wanted:
        return overrides or []
    from mindgspo.parallel.platform.emulator import enter_emulated_cards

    enter_emulated_cards()
    return [*(overrides or []), "device=Ascend"]
