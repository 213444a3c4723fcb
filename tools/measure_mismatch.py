#!/usr/bin/env python3
"""What a difference between the log-probs of sampler and trainer does to GSPO: the quickstart, with a difference added.

    python tools/measure_mismatch.py                        seeds 1, 2, 3 of every kind below; finished runs are reused
    python tools/measure_mismatch.py --only exact token_1e-3 --seeds 1

Sampler and trainer agree bit for bit on CPU, so a difference can be added and nothing else changes. It is added to the
log-probs that the engine returns, in nats, with algorithm.old_log_probs=sampler, so that it enters every ratio:

    exact                       nothing
    token_1e-3, token_1e-2      to each token a number of its own, normal with this deviation: rounding
    response_1e-3, ..._1e-2     to all tokens of a response one number, normal with this deviation
    above_1e-3, below_1e-3      to all tokens of all responses + or - this: wrong weights or another temperature

The numbers are a function of seed, step, prompt, sample and token; the warm-up has none. Below --output: table.md, also
printed, and the run folders, each with updates.jsonl, a line per update. Exit codes: 0; 1 if a run fails (its log is
named) or a setting is wrong; 2 for a wrong command line; 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from mindgspo.cli import main as mindgspo_main
from mindgspo.errors import MindGSPOError
from mindgspo.io import write_file
from mindgspo.metrics.run_folder import HELD_OUT_ACCURACY, read_run
from mindgspo.sweep import SweepRun, load_sweep, run_all, unfinished

KINDS = {
    "exact": ("none", 0.0),
    "token_1e-3": ("token", 1e-3), "token_1e-2": ("token", 1e-2),
    "response_1e-3": ("response", 1e-3), "response_1e-2": ("response", 1e-2),
    "above_1e-3": ("all", 1e-3), "below_1e-3": ("all", -1e-3),
}  # fmt: skip
"""(what shares a number, its size in nats) by the name of a variant."""
UPDATES = "updates.jsonl"
_PURPOSE = 3  # apart from those of `rollout.protocol.Purpose`, so that the numbers are none of the sampler's


def difference(kind: str, stream: Any, prompt_index: int, sample_index: int, num_tokens: int) -> np.ndarray:
    """float32 [num_tokens], what is added to the log-probs of a response. stream: its `RandomStream`."""
    shared_by, size = KINDS[kind]
    if shared_by in ("none", "all"):
        return np.full(num_tokens, size, np.float32)
    key = np.array([stream.seed, (stream.step << 8) | _PURPOSE], np.uint64)
    counter = np.array([0, stream.draw, prompt_index, sample_index], np.uint64)
    drawn = np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal(num_tokens)
    return (size * (drawn if shared_by == "token" else np.full(num_tokens, drawn[0]))).astype(np.float32)


def disturb(kind: str, updates: Path) -> None:
    """Let the engine of this process return log-probs with the difference, and write a line per update."""
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.rollout.engine import NativeEngine
    from mindgspo.rollout.protocol import Purpose

    generate, step = NativeEngine.generate, Updater.step

    def disturbed(self: Any, prompts: Any, settings: Any, *, weight_version: int) -> Any:
        rollout = generate(self, prompts, settings, weight_version=weight_version)
        if settings.stream.purpose is not Purpose.TRAINING:
            return rollout
        responses = tuple(
            tuple(
                replace(
                    one,
                    logprobs=one.logprobs
                    + difference(kind, settings.stream, one.prompt_index, one.sample_index, one.length),
                )
                for one in group
            )
            for group in rollout.responses
        )
        return replace(rollout, responses=responses)

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        result = step(self, *arguments, **options)
        if "pg_clipfrac_seq" in result.metrics:  # no warm-up
            line = {"update": self.updates, "grad_norm": result.grad_norm, **result.metrics}
            with updates.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return result

    NativeEngine.generate, Updater.step = disturbed, noted


def arguments(run: SweepRun) -> list[str]:
    """What the interpreter is given: this file, which adds the run's difference."""
    updates = run.folder / UPDATES
    return [__file__, "--child", run.variant, str(updates), *run.arguments()]


# ----- the table


def clipped_by_update(run_dir: Path, per_rollout: int) -> list[float]:
    """Share of responses that the first, second, ... update of a rollout clips, mean over the rollouts."""
    lines = [json.loads(line) for line in (run_dir / UPDATES).read_text(encoding="utf-8").splitlines()]
    last = {line["update"]: line["pg_clipfrac_seq"] for line in lines}  # a run that went on repeats some
    return [
        fmean(value for update, value in last.items() if (update - 1) % per_rollout == n) for n in range(per_rollout)
    ]


def figures(run_dir: Path, per_rollout: int) -> dict[str, float]:
    """The row of a run by heading."""
    run = read_run(run_dir, with_samples=False)
    mean = lambda name: fmean(run.series(name).values)  # noqa: E731
    clipped = clipped_by_update(run_dir, per_rollout)
    before, after = HELD_OUT_ACCURACY.span(run)
    return {
        "accuracy before": before or 0.0,
        "accuracy after": after or 0.0,
        "mean difference": mean("training/rollout_logprob_diff_mean"),
        "ratio error": mean("actor/ratio_error_mean"),
        "clipped, update 1": clipped[0],
        f"clipped, update {per_rollout}": clipped[-1],
        "gradient norm": mean("actor/grad_norm"),
        "reward, last 5 steps": fmean(run.series("critic/score/mean").values[-5:]),
    }


def table(rows: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Markdown: a line per variant, mean and standard deviation (ddof 1) over its seeds. rows: (variant, figures)."""
    headings = list(rows[0][1])
    lines = [["difference", "seeds", *headings], ["---"] * (len(headings) + 2)]
    for name, own in groupby(rows, key=lambda row: row[0]):
        found = [figures for _, figures in own]
        lines.append([name, str(len(found)), *(_cell([one[heading] for one in found]) for heading in headings)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(values: Sequence[float]) -> str:
    deviation = f" \N{PLUS-MINUS SIGN} {stdev(values):.1g}" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{deviation}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--output", type=Path, default=Path("runs/mismatch"), help="default: runs/mismatch")
    given = parser.parse_args(words)
    sweep = {
        "experiment": "quickstart",
        "run_dir": str(given.output.resolve()),
        "runs": [{"experiment": kind, "algorithm.old_log_probs": "sampler"} for kind in given.only],
        "settings": {"seed": given.seeds},
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "mismatch.yaml"
            file.write_text(json.dumps(sweep))
            runs = load_sweep(file).runs
        if failed := run_all(unfinished(runs), [()], command=arguments):
            print(f"failed: {', '.join(failed)}", file=sys.stderr)
            return 1
        rollout, trainer = runs[0].config.rollout, runs[0].config.trainer
        per_rollout = rollout.prompts_per_step // trainer.prompts_per_mini_batch
        found = table([(one.variant, figures(one.folder, per_rollout)) for one in runs])
        write_file(given.output / "table.md", f"{found}\n".encode())
    except MindGSPOError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"\n{found}")
    return 0


def child(kind: str, updates: Path, words: Sequence[str]) -> int:
    """`mindgspo <words>` in this process, with a difference; a warm-up has none."""
    if kind in KINDS:
        disturb(kind, updates)
    return mindgspo_main(list(words))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2], Path(sys.argv[3]), sys.argv[4:]))
    sys.exit(main())
