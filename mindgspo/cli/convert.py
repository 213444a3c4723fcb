"""`mindgspo convert`: models from and for other programs."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

convert_app = typer.Typer(no_args_is_help=True, help="Take over models from other programs, and hand them on.")


class Layout(str, Enum):
    """Whose names the weights have."""

    huggingface = "huggingface"
    mindformers = "mindformers"


class Dtype(str, Enum):
    """Of the weights in the new files."""

    keep = "keep"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class FileFormat(str, Enum):
    """Of the new files."""

    safetensors = "safetensors"
    ckpt = "ckpt"


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _num_bytes(text: str) -> int:
    """Bytes of a size such as 5GB (10^9, as Hugging Face counts) or 5GiB (2^30)."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?) ?([a-z]*)", text.strip(), re.IGNORECASE)
    if match is None or match[2].upper() not in _UNITS or float(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is no size; write 5GB, 500MB or 2GiB")
    return max(int(float(match[1]) * _UNITS[match[2].upper()]), 1)


@convert_app.command("weights")
def convert_weights(
    source: Annotated[
        Path,
        typer.Argument(
            help="Hugging Face folder, run checkpoint (checkpoints/step_XXXXXXXX), or MindFormers' weights."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="New folder; one that holds something is never touched.")],
    layout: Annotated[Layout, typer.Option(help="Whose names the weights get.")] = Layout.huggingface,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights; overflow is refused.")] = Dtype.keep,
    format_: Annotated[
        FileFormat, typer.Option("--format", help="Format of the files; ckpt is for --layout mindformers.")
    ] = FileFormat.safetensors,
    max_shard_size: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="SIZE", help="Write several files of at most this size with an index, e.g. 5GB; else one file."
        ),
    ] = None,
    model_folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of config.json and the tokenizer, if the source has none."),
    ] = None,
) -> None:
    """Write a model's weights with other names, type or files.

    Tokenizer, template and generation config come with them. A weight is read and written in pieces, so memory does not
    grow with the model.
    """
    from mindgspo.checkpoint.convert import Conversion, convert_model

    if format_ is FileFormat.ckpt and layout is not Layout.mindformers:
        raise typer.BadParameter("Hugging Face reads safetensors; ckpt goes with --layout mindformers")
    if format_ is FileFormat.ckpt and max_shard_size is not None:
        raise typer.BadParameter("nothing reads shards of ckpt; leave --max-shard-size out, or take safetensors")
    conversion = Conversion(
        source=source,
        out=out,
        model_folder=model_folder,
        layout=layout.value,
        dtype=None if dtype is Dtype.keep else dtype.value,
        file_format=format_.value,
        max_shard_bytes=None if max_shard_size is None else _num_bytes(max_shard_size),
    )
    done = convert_model(conversion, shows_progress=True)
    for path in done.files:
        print(path)
    print(f"{done.num_weights} weights, {done.num_bytes:,} bytes; with {', '.join(done.travelled)}")
