#!/usr/bin/env python3
"""Turn a file of questions and answers, or the generated arithmetic task, into a prepared data set.

    python tools/prepare_data.py --format gsm8k --input train.jsonl --tokenizer Qwen2.5-3B --output data/gsm8k-train

The result is a folder with a MindRecord file and dataset.json, to be named in an experiment's YAML as
`data.train: {format: prepared, path: data/gsm8k-train}`. Only parses arguments; the work is in mindgspo.data.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mindgspo.data.command import prepare_from_options
from mindgspo.errors import MindGSPOError

FORMATS = ("gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns", "arithmetic")


def argument_parser() -> argparse.ArgumentParser:
    """The command line; names and meanings follow the configuration, and are those of `mindgspo data prepare`."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--format", required=True, choices=FORMATS, help="what the rows look like")
    add("--input", type=Path, help="*.jsonl or *.parquet file; none for arithmetic")
    add("--output", type=Path, required=True, help="folder to make; never overwritten")
    add("--columns", type=Path, help="YAML file that says which columns hold what, for the format columns")
    add("--dedup", action="store_true", help="keep the first of equal prompts, none of those whose answers differ")
    add(
        "--tokenizer",
        type=Path,
        help="folder of the tokenizer; none: the built-in one of the arithmetic task",
    )
    add("--eos-token", action="append", dest="eos_tokens", help="token that ends a response; may be repeated")
    add("--pad-token", help="token written into padded slots")
    add("--split", choices=("train", "dev", "test"), default="train", help="split of the arithmetic task")
    add("--max-rows", type=int, help="use at most this many rows, from the start")
    add("--max-prompt-length", type=int, default=1024, help="longest prompt in tokens")
    add(
        "--truncation",
        choices=("error", "left", "right", "middle", "drop"),
        default="error",
        help="what happens to a longer prompt: stop, cut at that side, or drop the row",
    )
    add("--system-prompt", help="system message put before the question")
    add("--instruction-prefix", default="", help="text put before the question; verl and dapo rows bring their own")
    add("--instruction-suffix", default="", help="text appended to the question; verl and dapo rows bring their own")
    add("--seed", type=int, default=1, help="draws the rows of the arithmetic task")
    add("--workers", type=int, help="processes that tokenize; none: one per processor")
    add("--force", action="store_true", help="move an existing output folder aside")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Prepare, print the account of rows, and return the exit code."""
    options = vars(argument_parser().parse_args(arguments))
    if options["eos_tokens"] is not None:
        options["eos_tokens"] = tuple(options["eos_tokens"])
    try:
        info = prepare_from_options(**options)
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{info.account()}\nready      {options['output']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
