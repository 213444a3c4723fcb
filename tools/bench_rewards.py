#!/usr/bin/env python3
"""How fast rewards are: plain comparisons, symbolic ones in worker processes, and what a hanging response costs.

    python tools/bench_rewards.py                                      # generated responses
    python tools/bench_rewards.py --input rows.jsonl                   # your own: {"response": ..., "gold": ...}

Prints one JSON object: `gsm8k` (10,000 responses in the calling process), `math_verify` (1,000 comparisons of
expressions that only math-verify can decide, in worker processes) and `hang` (a batch of 100 of them in which one
response, a huge power, is killed at the time limit). Seconds are medians of several runs; the workers' start is told
apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from mindgspo.config.reward import RewardSection, RewardWorkersSection
from mindgspo.data.arithmetic import generate_rows
from mindgspo.data.sources import read_file
from mindgspo.rewards import Candidate, Scorer
from mindgspo.types import Score

HUGE_POWER = r"\boxed{(x+1)^{20000}}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", type=Path, help="JSON Lines with response and gold; none: generated ones")
    parser.add_argument("--responses", type=int, default=10_000, help="responses for gsm8k")
    parser.add_argument("--comparisons", type=int, default=1_000, help="comparisons for math-verify")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds until a hanging response is killed")
    parser.add_argument("--runs", type=int, default=3, help="runs whose median is printed")
    options = parser.parse_args()
    print(
        json.dumps(
            {
                "gsm8k": gsm8k(plain_candidates(options.input, options.responses), options.runs),
                "math_verify": symbolic(options.comparisons, options.workers, options.runs),
                "hang": hang(options.workers, options.timeout),
            },
            indent=2,
        )
    )


def gsm8k(candidates: Sequence[Candidate], runs: int) -> dict[str, object]:
    """Seconds for all candidates with the function gsm8k."""
    with Scorer(RewardSection(functions=("gsm8k",))) as scorer:
        seconds, scores = timed(lambda: scorer.score(candidates), runs)
    return {"responses": len(candidates), "seconds": seconds, "verdicts": verdicts(scores)}


def symbolic(count: int, workers: int, runs: int) -> dict[str, object]:
    """Seconds for comparisons that only math-verify decides, half of them of equal expressions."""
    candidates = [symbolic_candidate(number) for number in range(count)]
    with math_scorer(workers, timeout_s=10.0) as scorer:
        start, _ = timed(lambda: scorer.score(candidates[:workers]), 1)
        seconds, scores = timed(lambda: scorer.score(candidates), runs)
    return {
        "comparisons": count,
        "workers": workers,
        "start_seconds": start,
        "seconds": seconds,
        "verdicts": verdicts(scores),
    }


def hang(workers: int, timeout_s: float) -> dict[str, object]:
    """What a batch of 100 costs without and with one response that never ends."""
    candidates = [symbolic_candidate(number) for number in range(100)]
    with math_scorer(workers, timeout_s) as scorer:
        scorer.score(candidates[:workers])
        without, _ = timed(lambda: scorer.score(candidates), 1)
        candidates[50] = Candidate(text=HUGE_POWER, gold="x^2 + 1", data_source="math", index=50)
        seconds, scores = timed(lambda: scorer.score(candidates), 1)
    return {
        "timeout_s": timeout_s,
        "seconds_without": without,
        "seconds_with": seconds,
        "verdicts": verdicts(scores),
    }


def math_scorer(workers: int, timeout_s: float) -> Scorer:
    section = RewardWorkersSection(count=workers, timeout_s=timeout_s)
    return Scorer(RewardSection(functions=("math",), workers=section))


def plain_candidates(path: Path | None, count: int) -> list[Candidate]:
    """`count` responses in GSM8K's way, repeated from a file or generated."""
    if path is not None:
        rows = [(str(row["response"]), str(row["gold"])) for _, row in read_file(path)]
    else:
        rows = [(row.solution, row.answer) for row in generate_rows("train", 2_000, 1, 0.5)]
    pairs = itertools.islice(itertools.cycle(rows), count)
    return [Candidate(text=text, gold=gold, data_source="gsm8k", index=i) for i, (text, gold) in enumerate(pairs)]


def symbolic_candidate(number: int) -> Candidate:
    """(x + a)(x + b) against its expansion, right for even numbers."""
    a, b = number % 23 + 1, number % 19 + 2
    gold = f"x^2 + {a + b}x + {a * b + number % 2}"
    return Candidate(text=rf"So it is \boxed{{(x+{a})(x+{b})}}.", gold=gold, data_source="math", index=number)


def timed(work: Callable[[], list[Score]], runs: int) -> tuple[float, list[Score]]:
    """Median seconds of `runs` calls, and the last result."""
    seconds, result = [], []
    for _ in range(runs):
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return round(statistics.median(seconds), 4), result


def verdicts(scores: Sequence[Score]) -> dict[str, int]:
    return dict(Counter(score.verdict.value for score in scores))


if __name__ == "__main__":
    main()
