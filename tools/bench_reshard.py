"""Bytes, seconds and memory of reshards between plans, over real worker processes, beside two simpler ways.

    python tools/bench_reshard.py [--workers 8] [--hidden 768] [--layers 10] [--bucket-mb 64] [--runs 5] [--json]

The model is a Qwen2 by its shapes alone (heads of 64, 4 kv heads, ffn 4 x hidden, vocabulary 16384, tied; 100 M
parameters by default), float32; no graph is built. Each pair of plans (data x model x pipeline) is carried out --runs
times after a warm-up; in every run three ways follow each other between meetings of all ranks, so that the ratios
compare what happened under the same load:

    reshard    what a run of mindgspo does when weights go to the rollout, without the proof by hashes
    copy       every rank copies, within its own memory, as many bytes as the reshard brings to its new slices
    broadcast  every holder broadcasts its slice to all ranks in one piece, and everybody keeps what it needs

`received` is what all ranks together receive, `bound` what they lack: no way can move less. `GB/s` is `received` by
the median time of the reshard. `buffer` is the largest of one rank; `step` the new slices that are resident together
on one rank at memory level 1 (swap.reshard_level), `new` at level 0. `grown` is by how much the resident memory of a
rank was seen to grow during one reshard, the transport's own memory included. Seconds are medians; `x copy` and
`x broadcast` are medians of the runs' ratios (above 1: the reshard is slower).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from mindgspo.config.schema import WatchSection
from mindgspo.launch.launcher import launch

CHILD = Path(__file__).with_name("bench_reshard_child.py")
MIB = 2**20
COLUMNS = (
    ("received", "MiB", 9),
    ("bound", "MiB", 8),
    ("ratio", "", 7),
    ("messages", "", 9),
    ("buffer", "MiB", 8),
    ("step", "MiB", 7),
    ("new", "MiB", 7),
    ("grown", "MiB", 7),
    ("reshard", "s", 9),
    ("copy", "s", 8),
    ("broadcast", "s", 10),
    ("x copy", "", 8),
    ("x broadcast", "", 12),
    ("GB/s", "", 7),
)


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="bench-reshard-") as folder:
        result = Path(folder) / "report.json"
        job = {name: getattr(arguments, name) for name in ("hidden", "layers", "bucket_mb", "runs")}
        command = [str(CHILD), json.dumps({**job, "pairs": pairs_of(arguments.workers)}), str(result)]
        code = launch(command, num_workers=arguments.workers, log_dir=Path(folder) / "logs", watch=WatchSection())
        if code != 0:
            return code
        report = json.loads(result.read_text(encoding="utf-8"))
    print(json.dumps(report, indent=2) if arguments.json else as_text(report))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8, help="2 or a multiple of 4")
    parser.add_argument("--hidden", type=int, default=768, help="a multiple of 32 x workers")
    parser.add_argument("--layers", type=int, default=10, help="an even number")
    parser.add_argument("--bucket-mb", type=int, default=64, help="largest buffer in MiB, as reshard.bucket_mb")
    parser.add_argument("--runs", type=int, default=5, help="counted runs per pair")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    workers = arguments.workers
    if (workers % 4 and workers != 2) or arguments.hidden % (32 * workers) or arguments.layers % 2:
        parser.error("--workers must be 2 or a multiple of 4, --hidden of 32 x workers, --layers of 2")
    return arguments


def pairs_of(workers: int) -> list[tuple[list[int], list[int]]]:
    """(from, to) as [data, model, pipeline]."""
    train, infer = [1, workers // 2, 2], [2, workers // 2, 1]
    split = [2, workers // 4, 2] if workers > 2 else [1, 2, 1]
    return [(train, infer), (infer, train), (split, [workers, 1, 1]), (train, train)]


def as_text(report: dict) -> str:
    lines = [
        f"{report['workers']} workers, {report['parameters']:,} parameters, buckets of {report['bucket_mb']} MiB, "
        f"medians of {report['runs']} runs",
        " " * 16 + "".join(f"{name:>{width}}" for name, _, width in COLUMNS),
        " " * 16 + "".join(f"{unit:>{width}}" for _, unit, width in COLUMNS),
    ]
    for pair in report["pairs"]:
        lines.append(f"{pair['name']:<16}" + "".join(f"{shown(pair, *column)}" for column in COLUMNS))
    lines.append("")
    lines += [
        f"{pair['name']}: planned in {pair['plan_s']:.2f} s, {pair['groups']} groups, ready in {pair['setup_s']:.2f} s"
        for pair in report["pairs"]
    ]
    return "\n".join(lines)


def shown(pair: dict, name: str, unit: str, width: int) -> str:
    """One cell; nothing where a ratio has no denominator."""
    value = pair[name.replace(" ", "_")]
    if value is None:
        return f"{'-':>{width}}"
    if unit == "MiB":
        return f"{value / MIB:>{width},.1f}"
    return f"{value:>{width}}" if isinstance(value, int) else f"{value:>{width}.3f}"


if __name__ == "__main__":
    sys.exit(main())
