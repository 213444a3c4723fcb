"""`mindgspo convert gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def convert_gguf(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file, as llama.cpp reads it.")],
    out: Annotated[Path, typer.Option(help="New folder; one that holds something is never touched.")],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Type of the weights; overflow is refused.")
    ] = "float32",
) -> None:
    """Unpack a GGUF file into a Hugging Face folder.

    Quantised weights become the numbers that llama.cpp computes with. Reads Llama, Qwen2, Qwen3 and Qwen3-MoE.
    """
    from mindgspo.checkpoint.convert import Conversion, write_model
    from mindgspo_gguf.model import GgufModel

    with GgufModel(source) as model:
        done = write_model(model.source, Conversion(source=source, out=out, dtype=dtype), shows_progress=True)
    for line in done.lines():
        print(line)
