#!/usr/bin/env python3
"""Write MindSpore's strategy files of all ranks of a configuration: train, reference and rollout graphs.

    python tools/generate_strategy.py examples/gsm8k/gspo_qwen2_5_7b.yaml --out strategies
    python tools/generate_strategy.py model_configs/qwen2_5_32b_64.yaml --out strategies --format json

Leaves strategies/{train,reference,rollout}/ckpt_strategy_rank_<rank>.ckpt, worked out from the plans, without
MindSpore. CONFIG is an experiment or a file of model_configs/. Each of these folders serves MindSpore's
merge_pipeline_strategys and MindFormers' src_strategy_path_or_dir; `mindgspo strategy show | diff | merge` read them.
With --layout mindformers or mindrlhf they bear the parameter names of those suites, and so describe their checkpoints.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from mindgspo.config import load_model_and_plans
from mindgspo.errors import MindGSPOError
from mindgspo.planner.strategy_files import NAMINGS, write_plan_files


def main() -> int:
    """Print one line per graph and the time; exit code 1 with one message for a wrong configuration or folder."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[2:]), formatter_class=_Formatter
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="experiment YAML, or a file of model_configs/")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write into")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override; may be repeated")
    parser.add_argument("--format", choices=("ckpt", "json"), default="ckpt", help="protobuf (default) or JSON")
    parser.add_argument(
        "--layout",
        choices=tuple(NAMINGS),
        help="whose parameter names: MindFormers' or MindRLHF's; by default this project's",
    )
    options = parser.parse_args()
    start = time.perf_counter()
    try:
        model, plans = load_model_and_plans(options.config, options.set)
        written = write_plan_files(model, plans, options.out, suffix=f".{options.format}", naming=options.layout)
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for folder in written:
        print(folder)
    print(f"{sum(folder.num_files for folder in written)} files")
    print(f"done in {time.perf_counter() - start:.1f} s")
    return 0


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the examples."""


if __name__ == "__main__":
    sys.exit(main())
