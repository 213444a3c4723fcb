#!/usr/bin/env python3
"""Measure `mindgspo data prepare`: time and memory of the whole process tree, as one line of JSON.

    python tools/bench_prepare.py --format dapo --input dapo_math_17k.parquet --tokenizer Qwen2.5-3B \\
        --max-prompt-length 2048

All arguments go to the command; the data set is made in a temporary folder and removed. Seconds count from the start
of the process to its end, imports included. peak_rss_mb (MiB) sums the processes that live at one time, pages that they
share counted in each; it is sampled, so a shorter peak may be missed. Nothing is resumed or reused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SAMPLE_EVERY_S = 0.05


def main(arguments: list[str]) -> int:
    """Run the command, print the figures, and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="bench-prepare-") as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "mindgspo.cli", "data", "prepare", "--output", str(out), *arguments]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=sys.stderr)
        peak_bytes, most_processes = watch(process)
        seconds = time.monotonic() - started
        if process.returncode:
            return process.returncode
        counts = json.loads((out / "dataset.json").read_text(encoding="utf-8"))["counts"]
    figures = {
        "rows": counts["rows_in"],
        "seconds": round(seconds, 2),
        "rows_per_second": round(counts["rows_in"] / seconds, 1),
        "peak_rss_mb": round(peak_bytes / 2**20, 1),
        "processes": most_processes,
        "processors": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(figures))
    return 0


def watch(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait for the end; the largest sum of resident bytes, and the largest number of processes at one time."""
    peak_bytes = most_processes = 0
    while process.poll() is None:
        sizes = resident_bytes(process.pid)
        peak_bytes, most_processes = max(peak_bytes, sum(sizes)), max(most_processes, len(sizes))
        time.sleep(SAMPLE_EVERY_S)
    return peak_bytes, most_processes


def resident_bytes(pid: int) -> list[int]:
    """Of the process and all below it; those that end meanwhile are left out."""
    sizes = []
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return sizes
    for one in family:
        try:
            sizes.append(one.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return sizes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
