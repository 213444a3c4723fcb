#!/usr/bin/env python3
"""Draw reward.png and report.html of a run folder again, also while the run is going on.

python tools/plot_run.py runs/arithmetic
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mindgspo.errors import MindGSPOError
from mindgspo.metrics import plot_run, write_report


def main() -> int:
    """Print the two paths; exit code 2 with one message for a folder that holds no run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="folder with metrics.jsonl, e.g. runs/arithmetic")
    run_dir = parser.parse_args().run_dir
    try:
        print(plot_run(run_dir))
        print(write_report(run_dir))
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
