#!/usr/bin/env python3
"""What saving and resuming cost: seconds of a save and of its hashes, memory and seconds of resuming on 4 ranks.

    python tools/bench_resume.py [--hidden 768] [--layers 10] [--folder DIR] [--runs 3]

A random Qwen2 with AdamW's moments, float32 (100 M parameters at 768 x 10), is saved --runs times; `copy_s` is what a
run with trainer.save_in_background waits for, `save_s` is the
median with everything on the disk, `hash_s` what XXH3 of it takes by the way, `read_back_sha256_s` what hashing the
written files with SHA-256 takes. Then 4 workers (data 2 x model 2) take their parts of it, `whole`
with every rank reading all of it, `slices` with every rank reading what it holds, as a run does. `grew_mib` is the peak
of a process (VmHWM) above what it held before, of the rank with most; `own_mib` what it must hold. Prints JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_reshard_child import model_section

from mindgspo.checkpoint.manifest import new_digest
from mindgspo.checkpoint.store import Retention, save_checkpoint
from mindgspo.config.schema import WatchSection
from mindgspo.launch.launcher import launch
from mindgspo.models.names import parameter_shapes, weight_shapes

CHILD = Path(__file__).with_name("bench_resume_child.py")


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default the system's temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        print(json.dumps(report(Path(name), given.hidden, given.layers, given.runs), indent=2))
    return 0


def report(folder: Path, hidden: int, layers: int, runs: int) -> dict[str, object]:
    """All figures."""
    section = model_section(hidden, layers)
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(shape, np.float32) for name, shape in weight_shapes(section).items()}
    moments = {
        f"adamw.{kind}.{name}": random.standard_normal(shape, np.float32)
        for kind in ("m", "v")
        for name, shape in parameter_shapes(section).items()
    }
    arrays = [*weights.values(), *moments.values()]
    optimizer = {**moments, "adamw.updates": np.array(7, np.int64)}
    saves = [
        seconds(
            lambda step=step: save_checkpoint(
                folder, step=step, parameters=weights, optimizer=optimizer, state={}, keep=Retention(last=1)
            )
        )
        for step in range(1, runs + 1)
    ]
    (path,) = folder.glob("step_*")
    files = sorted(path.glob("*.safetensors"))
    copies: list[np.ndarray] = []
    return {
        "parameters": sum(array.size for array in weights.values()),
        "mib": sum(array.nbytes for array in arrays) / 2**20,
        "copy_s": seconds(lambda: copies.extend(array.copy() for array in arrays)),
        "save_s": statistics.median(saves),
        "hash_s": seconds(lambda: [new_digest().update(memoryview(array).cast("B")) for array in arrays]),
        "read_back_sha256_s": seconds(lambda: [hashlib.sha256(file.read_bytes()) for file in files]),
        **{way: resume(path, way, hidden, layers, folder) for way in ("whole", "slices")},
    }


def resume(checkpoint: Path, way: str, hidden: int, layers: int, folder: Path) -> dict[str, float]:
    """Of the rank that grew most."""
    result = folder / f"{way}.json"
    command = [str(CHILD), str(checkpoint), way, str(hidden), str(layers), str(result)]
    code = launch(command, num_workers=4, log_dir=folder / f"logs_{way}", watch=WatchSection())
    if code:
        sys.exit(code)
    return max(json.loads(result.read_text()), key=lambda rank: rank["grew_mib"])


def seconds(work: Callable[[], object]) -> float:
    """Wall clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
