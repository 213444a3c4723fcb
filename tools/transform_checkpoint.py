#!/usr/bin/env python3
r"""Turn a checkpoint of one plan into one of another: ckpt or safetensors, whole or in the files of ranks.

    python tools/transform_checkpoint.py --src_checkpoint run/checkpoints/step_00000100 --dst_checkpoint sharded \
        --dst_strategy strategies/train
    python tools/transform_checkpoint.py --src_checkpoint sharded --src_strategy strategies/train \
        --dst_checkpoint whole.safetensors

A side without a strategy is whole. Strategies are merged files, or folders of ranks' files, protobuf or JSON, e.g. of
tools/generate_strategy.py. Optimizer state goes along. `mindgspo checkpoint transform` does the same, and takes plans
in place of strategy files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mindgspo.checkpoint.transform import TransformRequest, transform
from mindgspo.cli.checkpoint import strategy_from
from mindgspo.errors import MindGSPOError


def main() -> int:
    """Print what was picked and done; exit code 1 with one message where it cannot be done."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="\n".join(__doc__.splitlines()[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--src_checkpoint", type=Path, required=True, help="file, model folder, run's step, or ranks")
    parser.add_argument("--dst_checkpoint", type=Path, required=True, help="what to write; must not exist")
    parser.add_argument("--src_strategy", type=Path, help="strategy file or folder of the source")
    parser.add_argument("--dst_strategy", type=Path, help="strategy file or folder of the destination")
    parser.add_argument("--format", choices=("ckpt", "safetensors"), help="of ranks' files; by default as the source's")
    parser.add_argument("--prefix", default="", help="only source files of ranks whose names begin so")
    parser.add_argument("--weights_only", action="store_true", help="leave optimizer state out")
    parser.add_argument("--jobs", type=int, help="files at a time; by default one per processor")
    parser.add_argument("--verify", choices=("written", "deep"), default="written", help="deep: compare every tensor")
    parser.add_argument("--no_sync", action="store_true", help="do not wait until everything is on the disk")
    options = parser.parse_args()
    if options.jobs is not None and options.jobs < 1:
        parser.error("--jobs must be at least 1")
    try:
        request = TransformRequest(
            source=options.src_checkpoint,
            destination=options.dst_checkpoint,
            source_strategy=strategy_from(options.src_strategy, None, None),
            destination_strategy=strategy_from(options.dst_strategy, None, None),
            suffix=None if options.format is None else f".{options.format}",
            source_prefix=options.prefix,
            weights_only=options.weights_only,
            jobs=options.jobs,
            deep=options.verify == "deep",
            sync=not options.no_sync,
        )
        transform(request, note=lambda line: print(line, flush=True))
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left at the destination", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
