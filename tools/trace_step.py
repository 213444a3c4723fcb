#!/usr/bin/env python3
"""Follow one prompt from YAML to a line of metrics: which files and functions of the package a training step touches.

    python tools/trace_step.py [CONFIG] [--set a.b=c ...]

Runs a tiny experiment of one step with one prompt in a temporary folder, from the command line until the step's metrics
are logged, and prints JSON: files and functions entered, pairs of files of which one calls into the other, and calls
that cross from one file to another. Graphs are compiled as always; what happens inside them is MindSpore's and not
counted, nor is what modules do while they are imported.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import threading
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = str(PROJECT / "mindgspo")
SMALL = (
    "warmup=null",
    "trainer.max_steps=1",
    "trainer.prompts_per_mini_batch=1",
    "trainer.samples_per_micro_batch=8",
    "rollout.prompts_per_step=1",
    "rollout.num_generations=8",
    "eval.before=false",
    "eval.every=null",
    "data.train.max_rows=8",
    "data.eval.max_rows=1",
)


class Trace:
    """Counts what a profile hook sees of the package. starts_with: names of the functions of which the first to be
    called begins the count; none: all of the program."""

    def __init__(self, starts_with: tuple[str, ...] = ()) -> None:
        self.has_begun, self.is_over = not starts_with, False
        self.starts_with = starts_with
        self.functions: set[tuple[str, str]] = set()
        self.crossings: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """The hook of `sys.setprofile`."""
        code = frame.f_code
        if self.is_over or event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or a class
            return
        self.has_begun = self.has_begun or code.co_name in self.starts_with
        if not self.has_begun:
            return
        self.is_over = code.co_name == "log_metrics" and frame.f_locals.get("step") == 1
        self.functions.add((code.co_filename, code.co_qualname if sys.version_info >= (3, 11) else code.co_name))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.crossings[caller.f_code.co_filename, code.co_filename] += 1

    def report(self) -> dict[str, int]:
        """Numbers of distinct files, functions and pairs of files, and of calls that cross files."""
        return {
            "files": len({file for file, _ in self.functions}),
            "functions": len(self.functions),
            "pairs_of_files": len(self.crossings),
            "calls_across_files": self.crossings.total(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=str(PROJECT / "examples" / "arithmetic" / "gspo.yaml"))
    parser.add_argument("--step-only", action="store_true", help="count from the beginning of the training step")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    given = parser.parse_args()
    sys.path.insert(0, str(PROJECT))
    from mindgspo.cli import main as run

    trace = Trace(("train_step",) if given.step_only else ())
    with tempfile.TemporaryDirectory() as folder:
        sets = [*SMALL, *given.overrides, f"run_dir={folder}/run", "logging.progress=false"]
        words = ["run", given.config, *(word for one in sets for word in ("--set", one))]
        threading.setprofile(trace)
        sys.setprofile(trace)
        with redirect_stdout(sys.stderr):
            code = run(words)
        sys.setprofile(None)
        threading.setprofile(None)
    if code:
        sys.exit(code)
    print(json.dumps(trace.report()))


if __name__ == "__main__":
    main()
