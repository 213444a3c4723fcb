"""`mindgspo convert`: models from and for other programs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

convert_app = typer.Typer(no_args_is_help=True, help="Take over models from other programs, and hand them on.")

DtypeOption = Annotated[
    Literal["keep", "float32", "bfloat16", "float16"], typer.Option(help="Type of the weights; overflow is refused.")
]
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _num_bytes(text: str) -> int:
    """Bytes of a size such as 5GB (10^9, as Hugging Face counts) or 5GiB (2^30)."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?) ?([a-z]*)", text.strip(), re.IGNORECASE)
    if match is None or match[2].upper() not in _UNITS or float(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a size; write 5GB, 500MB or 2GiB")
    return max(int(float(match[1]) * _UNITS[match[2].upper()]), 1)


@convert_app.command("weights")
def convert_weights_command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Hugging Face folder, run checkpoint (checkpoints/step_XXXXXXXX), or MindFormers' weights."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="New folder; one that holds something is never touched.")],
    layout: Annotated[
        Literal["huggingface", "mindformers", "mindformers-mcore"],
        typer.Option(
            help="Whose names the weights get. mindformers: its legacy Qwen2 and Llama; mindformers-mcore: its Qwen3, "
            "Qwen3-MoE and GLM-4 of 2.x, with fused matrices."
        ),
    ] = "huggingface",
    contiguous_qkv: Annotated[
        bool,
        typer.Option("--contiguous-qkv", help="Of an mcore model with use_contiguous_weight_layout_attention: true."),
    ] = False,
    contiguous_fc1: Annotated[
        bool, typer.Option("--contiguous-fc1", help="Of an mcore model with use_interleaved_weight_layout_mlp: false.")
    ] = False,
    dtype: DtypeOption = "keep",
    format_: Annotated[
        Literal["safetensors", "ckpt"],
        typer.Option("--format", help="Format of the files; ckpt is for --layout mindformers."),
    ] = "safetensors",
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Write several files of at most this size with an index, e.g. 5GB; else one file."
        ),
    ] = None,
    model_folder: Annotated[
        Path | None, typer.Option(help="Folder of config.json and the tokenizer, if the source has none.")
    ] = None,
) -> None:
    """Write a model's weights with other names, type or files.

    Tokenizer, template and generation config come with them. A weight is read and written in pieces, so memory does not
    grow with the model.
    """
    from mindgspo.checkpoint.convert import Conversion, convert_model

    if format_ == "ckpt" and layout != "mindformers":
        raise typer.BadParameter("Hugging Face reads safetensors; ckpt goes with --layout mindformers")
    if layout == "mindformers-mcore" and max_shard_size is not None:
        raise typer.BadParameter(
            "with an index MindFormers takes a folder for Hugging Face's; leave --max-shard-size out"
        )
    if format_ == "ckpt" and max_shard_size is not None:
        raise typer.BadParameter("nothing reads shards of ckpt; leave --max-shard-size out, or take safetensors")
    conversion = Conversion(
        source=source,
        out=out,
        model_folder=model_folder,
        layout=layout,
        contiguous=(*(("qkv",) if contiguous_qkv else ()), *(("fc1",) if contiguous_fc1 else ())),
        dtype=None if dtype == "keep" else dtype,
        file_format=format_,
        max_shard_bytes=None if max_shard_size is None else _num_bytes(max_shard_size),
    )
    for line in convert_model(conversion, shows_progress=True).lines():
        print(line)
