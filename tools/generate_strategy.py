#!/usr/bin/env python3
"""Write MindSpore's strategy files of all ranks of a configuration: train, reference and rollout graphs.

    python tools/generate_strategy.py examples/gsm8k/gspo_qwen2_5_7b.yaml --out strategies
    python tools/generate_strategy.py model_configs/qwen2_5_32b_64.yaml --out strategies --format json

Leaves strategies/{train,reference,rollout}/ckpt_strategy_rank_<rank>.ckpt, worked out from the plans, without
MindSpore. CONFIG is an experiment or a file of model_configs/. Each of these folders serves MindSpore's
merge_pipeline_strategys and MindFormers' src_strategy_path_or_dir; `mindgspo strategy show | diff | merge` read them.
With --layout mindformers or mindrlhf they bear the parameter names of those suites, and so describe their checkpoints.

With --compile, MindSpore's own files instead: the graphs of an experiment are compiled for Ascend, for the first rank
of each pipeline stage, minutes for a large model. `mindgspo dryrun` says what that needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mindgspo.config import load_model_and_plans
from mindgspo.errors import MindGSPOError
from mindgspo.planner.strategy_files import GRAPHS, NAMINGS, place_compiled, write_plan_files


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
    parser.add_argument("--compile", action="store_true", help="take MindSpore's own files; CONFIG is an experiment")
    options = parser.parse_args()
    if options.compile and options.format == "json":
        parser.error("--compile: the files are as MindSpore wrote them, protobuf; leave --format out")
    if options.compile and options.layout is not None:
        parser.error("--compile: the graphs are this project's, and so are the names; leave --layout out")
    start = time.perf_counter()
    try:
        lines = _compiled(options) if options.compile else _worked_out(options)
        for line in lines:
            print(line, flush=True)
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"done in {time.perf_counter() - start:.1f} s")
    return 0


def _worked_out(options: argparse.Namespace) -> Iterator[str]:
    """Files by the layout algebra."""
    model, plans = load_model_and_plans(options.config, options.set)
    written = write_plan_files(model, plans, options.out, suffix=f".{options.format}", naming=options.layout)
    yield from map(str, written)
    yield f"{sum(folder.num_files for folder in written)} files"


def _compiled(options: argparse.Namespace) -> Iterator[str]:
    """Files by MindSpore's compiler; logs and its own copies are left in <out>/dryrun."""
    from mindgspo.ascend.dryrun import DryRun, DryRunRequest

    request = DryRunRequest(
        config=options.config,
        overrides=tuple(options.set),
        graphs=GRAPHS,
        folder=options.out / "dryrun",
        measures_memory=False,
    )
    dry_run = DryRun.prepare(request)
    yield str(dry_run.toolchain)
    for compiled in dry_run.results():
        yield place_compiled(compiled, dry_run.config.plans, options.out)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the examples."""


if __name__ == "__main__":
    sys.exit(main())
