"""Time of generation while tools take their time, beside that of the same tokens without waiting. Prints JSON.

An environment answers each turn after a random time of up to `--seconds`, and in the other run at once. What it says
and what the policy draws is the same in both, so that decoding alone makes one time, decoding and waiting the other.

    python tools/bench_environments.py [--experiment FILE] [--seconds 2] [--turns 4] [--repeats 3] [--set KEY=VALUE ...]

On a real model: --experiment examples/smollm2/words.yaml --set rollout.prompts_per_step=16 rollout.max_new_tokens=512
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = """
import random
import time

from mindgspo.environments import End, Environment


class Slow(Environment):
    def reset(self, row, seed):
        self.seed = seed

    def step(self, turn):
        time.sleep(random.Random(f"{self.seed} {turn.number} {turn.text}").uniform(0, SECONDS))
        return End(reward=len(set(turn.text)) / 100) if turn.is_last else "Go on."

    def cut(self, reason):
        return End(reward=0.0)
"""


def measured(name: str, seconds: float, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Metrics of a run's second step; the first one compiles."""
    path = folder / f"{name}.py"
    path.write_text(ENVIRONMENT.replace("SECONDS", str(seconds)), encoding="utf-8")
    settings = {
        "run_dir": folder / name,
        "environment.path": f"{path}:Slow",
        "environment.max_turns": options.turns,
        "environment.workers.count": options.workers,
        "environment.tool_style": "none",
        "reward.functions": "[environment]",
        "trainer.max_steps": 2,
        "trainer.save_every": 2,
        "warmup": "null",
        "eval.before": "false",
        "eval.every": "null",
    }
    sets = [*(f"{key}={value}" for key, value in settings.items()), *options.set]
    command = [sys.executable, "-m", "mindgspo.cli", "run", str(options.experiment)]
    for one in sets:
        command += ["--set", one]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "timing_s/gen" in row][-1]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--experiment", type=Path, default=ROOT / "examples" / "arithmetic" / "gspo.yaml")
    parser.add_argument("--seconds", type=float, default=2.0, help="longest time of an answer")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--workers", type=int, default=64, help="turns that are answered at the same time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the experiment")
    options = parser.parse_args(arguments)
    pairs = []
    for number in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            slow = measured("slow", options.seconds, options, Path(folder))
            quick = measured("quick", 0.0, options, Path(folder))
        assert slow["response_length/mean"] == quick["response_length/mean"], "the runs have drawn different tokens"
        pairs.append((slow, quick))
        print(f"{number + 1} of {options.repeats}", file=sys.stderr)
    names = {
        "generation_s": "timing_s/gen",
        "busy_slot_share": "rollout/busy_slot_share",
        "turns": "env/turns/mean",
        "sampled_tokens": "response_length/mean",
        "seconds_in_environments": "env/seconds/mean",
    }
    found = {
        kind: {name: statistics.median(pair[place][metric] for pair in pairs) for name, metric in names.items()}
        for place, kind in enumerate(("slow", "quick"))
    }
    ratios = [slow["timing_s/gen"] / quick["timing_s/gen"] for slow, quick in pairs]
    print(json.dumps({**found, "ratio": statistics.median(ratios), "ratios": ratios}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
