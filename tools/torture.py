#!/usr/bin/env python3
"""Kill a run again and again, and see whether anything but unsaved steps is lost.

    python tools/torture.py --kills 20 [--seed 0] [--workers 4] [--config YAML [--set a.b=c ...]] [--report FILE]

First the experiment runs without interruption. Then it runs again, is killed by SIGKILL at a seeded point or moment,
goes on with resume=auto, is killed again, ... After every kill the newest checkpoint must be complete and at least as
new as the last one that had been saved, and the logs up to it those of the uninterrupted run. At the end all weights,
moments, metrics (but for timings and memory) and samples must be bit-equal. Of twenty kills at least three each hit
save, rollout, reward and update; others come at any time. With --workers a kill hits one rank, and the launcher must
end the others; kills at any time hit all processes at once.

Without --config a built-in experiment is used (no data needed, about 20 s per kill on a free machine). The last line is
`survived S of N, lost L`; the exit code is 1 if anything but unsaved steps was lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from torture_runs import WORKERS, Torture

from mindgspo.errors import MindGSPOError


def main(arguments: list[str]) -> int:
    """Print what happens; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, choices=WORKERS, help="of the built-in experiment")
    parser.add_argument("--config", type=Path, metavar="YAML", help="an experiment of your own; its plans count")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="settings for it")
    parser.add_argument("--folder", type=Path, help="where all runs go, and stay; by default a temporary folder")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write what happened as JSON")
    given = parser.parse_args(arguments)
    if given.kills < 1:
        parser.error(f"--kills {given.kills}: at least 1")
    with tempfile.TemporaryDirectory(prefix="mindgspo-torture-") as temporary:
        folder = given.folder or Path(temporary)
        torture = Torture(
            folder=folder.resolve(),
            kills=given.kills,
            seed=given.seed,
            config=given.config,
            overrides=tuple(given.overrides),
            workers=_workers(given.config, given.overrides, given.workers),
        )
        try:
            for line in torture.lines():
                print(line, flush=True)
        except MindGSPOError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            if given.report is not None:
                given.report.write_text(json.dumps(torture.report(), indent=2) + "\n")
    return 1 if torture.num_lost else 0


def _workers(config: Path | None, overrides: list[str], workers: int) -> int:
    if config is None:
        return workers
    from mindgspo.config import load_config

    return load_config(config, overrides).plans.train.world_size


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
