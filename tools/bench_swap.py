"""Memory of a training process by phase, with and without swap, beside what the ledger books.

    python tools/bench_swap.py [--parameters 100000000] [--steps 2] [--folder FOLDER] [--reshard-level 0|1] [--prefetch]
                               [--json]

Each variant runs in a process of its own (`bench_swap_child.py`): a Qwen2 of at least so many parameters, float32,
random weights, with a second set of weights for the rollout and a third one as reference, goes through ROLLOUT, SCORE,
UPDATE and RESHARD (a local copy) --steps times, with two prompts and two siblings each. --folder: on a disk.

Resident memory counts above the process's base, which is taken after imports and one small graph. `pool` is what
MindSpore keeps and never returns: activations, the gradients of one micro-batch (as large as the weights), compiled
graphs. It is the most that was resident beyond the ledger's bytes during the first step. `peak` is the kernel's
high-water mark of a phase in the later steps, after the moves of its entry. To be met: every phase at most the
ledger's bytes and the pool + 10 %; the whole process, building included, at most the largest phase + 10 %; both
variants end with the same bits. The exit code is 1 where the variant with swap misses one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MARGIN = 1.10
CHILD = Path(__file__).with_name("bench_swap_child.py")


def main() -> int:
    arguments = parse_arguments()
    variants = {name: measure(name, arguments) for name in ("swap", "plain")}
    report = {name: judged(figures) for name, figures in variants.items()}
    same_bits = variants["swap"]["digest"] == variants["plain"]["digest"]
    met = same_bits and report["swap"]["met"]
    if arguments.json:
        print(json.dumps({**report, "same_bits": same_bits, "met": met}, indent=2))
    else:
        print(as_text("with swap", report["swap"], variants["swap"]["table"]))
        print(as_text("without swap", report["plain"], variants["plain"]["table"]))
        print(f"same bits: {same_bits}; all bounds met with swap: {met}")
    return 0 if met else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=100_000_000, help="at least so many")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--reshard-level", type=int, choices=(0, 1), default=0)
    parser.add_argument("--prefetch", action="store_true", help="load for the next phase behind the present one")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where evicted memory waits")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error("--steps: the first step measures the pool, so that at least 2 are needed")
    return arguments


def measure(variant: str, arguments: argparse.Namespace) -> dict:
    """The figures of one variant, in MiB and seconds."""
    command = [sys.executable, str(CHILD), variant]
    command += [str(getattr(arguments, name)) for name in ("parameters", "steps", "reshard_level", "folder")]
    command += ["prefetch"] if arguments.prefetch else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def judged(figures: dict) -> dict:
    """The figures with what is allowed."""
    pool = figures["pool"]
    phases = {}
    for name, entry in figures["phases"].items():
        allowed = MARGIN * (entry["ledger"] + pool)
        phases[name] = {**entry, "pool": pool, "allowed": allowed, "met": entry["peak"] <= allowed}
    largest = max(entry["ledger"] for entry in phases.values()) + pool
    met = figures["peak"] <= MARGIN * largest and all(entry["met"] for entry in phases.values())
    kept = {key: figures[key] for key in ("parameters", "base", "built", "peak", "first_step")}
    return {**kept, "largest_phase": largest, "allowed": MARGIN * largest, "phases": phases, "met": met}


def as_text(title: str, figures: dict, ledger: str) -> str:
    columns = ("ledger", "pool", "allowed", "peak", "seconds", "moving")
    lines = [
        f"{title}: {figures['parameters']:,} parameters; MiB above a base of {figures['base']:,.0f}",
        "phase   " + "".join(f"{column:>9}" for column in columns),
    ]
    for phase, entry in figures["phases"].items():
        sizes = "".join(f"{entry[column]:>9,.0f}" for column in columns[:4])
        seconds = "".join(f"{entry[column]:>9.2f}" for column in columns[4:])
        lines.append(f"{phase:<8}{sizes}{seconds}{'' if entry['met'] else '  OVER'}")
    lines += [
        f"process: peak {figures['peak']:,.0f}, while building {figures['built']:,.0f}; largest phase "
        f"{figures['largest_phase']:,.0f}, allowed {figures['allowed']:,.0f}",
        "beyond the ledger in the first step: "
        + ", ".join(f"{phase} {excess:,.0f}" for phase, excess in figures["first_step"].items()),
        "",
        ledger,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
