"""Seconds of an update and of its log-probs for several layouts of the same samples: what packing is worth.

Called by `bench_step --layouts`. An update has 8 prompts with 8 responses each. Lengths: `gsm8k` draws prompts and
responses as long as GSM8K's questions and answers (log-normal, fitted in Qwen2.5's tokens; tools/bench_batches.py
counts the real ones); `mixed` draws responses geometrically, with a mean of a third of the maximum, behind prompts of
one length. Layouts take turns, so that a busier minute meets all of them; figures are medians. `slots`: those that a
pass through the model computes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.micro_batches import BatchLayout, largest_shape, micro_batches
from mindgspo.batches.rows import TrainingSample, packed_tokens
from mindgspo.models.scoring import PolicyScorer
from mindgspo.types import Batch

PROMPTS, GROUP = 8, 8
"""Of one update."""
# Mean and standard deviation of the logarithms, and bounds.
GSM8K_PROMPT, GSM8K_RESPONSE = (3.99, 0.37, 16, 200), (4.70, 0.42, 24, 360)
LAYOUTS: Mapping[str, BatchLayout] = {
    "padded": BatchLayout(samples_per_micro_batch=16, length_multiple=32, pad_id=0),
    "token_budget": BatchLayout(max_tokens_per_micro_batch=4096, length_multiple=32, pad_id=0),
    "packed": BatchLayout(max_tokens_per_micro_batch=4096, packing=True, length_multiple=32, pad_id=0),
}


def samples_of(scenario: str, vocab_size: int, prompt_length: int, max_new_tokens: int) -> list[TrainingSample]:
    """The samples of an update; seeded. Random tokens."""
    random = np.random.default_rng(0)

    def ids(length: int) -> np.ndarray:
        return random.integers(0, vocab_size, length).astype(np.int32)

    samples = []
    for number in range(PROMPTS * GROUP):
        if number % GROUP == 0:
            prompt_ids = ids(_drawn(random, *GSM8K_PROMPT) if scenario == "gsm8k" else prompt_length)
        drawn = min(int(random.geometric(2.82 / max_new_tokens)), max_new_tokens)
        response_ids = ids(_drawn(random, *GSM8K_RESPONSE) if scenario == "gsm8k" else drawn)
        logp = np.zeros(response_ids.size, np.float32)
        samples.append(
            TrainingSample(prompt_ids=prompt_ids, response_ids=response_ids, rollout_logp=logp, number=number)
        )
    return samples


def _drawn(random: np.random.Generator, mean: float, deviation: float, shortest: int, longest: int) -> int:
    return int(np.clip(random.lognormal(mean, deviation), shortest, longest))


def compare_layouts(
    updater: Updater, scorer: PolicyScorer, samples: Sequence[TrainingSample], *, rounds: int, is_packed: bool
) -> dict[str, object]:
    """Figures by layout, and the speed-ups over rows of one sample. is_packed: the model computes tokens alone."""
    batches = {
        name: _scored(scorer, micro_batches(samples, _for_kernels(layout, samples) if is_packed else layout))
        for name, layout in LAYOUTS.items()
    }
    seconds: dict[str, list[tuple[float, ...]]] = {name: [] for name in LAYOUTS}
    graphs: dict[str, int] = {}
    for name, of_layout in batches.items():  # compiles
        before = updater.compiled_graphs
        updater.step(of_layout, 1e-6)
        graphs[name] = updater.compiled_graphs - before
    for _ in range(rounds):
        for name, of_layout in batches.items():
            seconds[name].append(_timed(updater, scorer, of_layout))
    medians = {name: [statistics.median(one) for one in zip(*rows, strict=True)] for name, rows in seconds.items()}
    return {
        "samples": len(samples),
        "tokens": sum(sample.length for sample in samples),
        "rounds": rounds,
        **{
            name: {
                **{key: round(value, 4) for key, value in zip(_TIMES, of_layout, strict=True)},
                **{
                    f"{key}_speed_up": round(padded / value, 3)
                    for key, padded, value in zip(_TIMES, medians["padded"], of_layout, strict=True)
                },
                "passes": len(batches[name]),
                "graphs": graphs[name],
                "slots": sum(_computed(batch, is_packed) for batch in batches[name]),
            }
            for name, of_layout in medians.items()
        },
    }


def _for_kernels(layout: BatchLayout, samples: Sequence[TrainingSample]) -> BatchLayout:
    longest, slots = max(one.length for one in samples), max(one.response_ids.size for one in samples)
    shape = largest_shape(layout, num_samples=len(samples), longest=longest, slots=slots)
    return replace(layout, in_one_row=True, one_shape=shape)


def _computed(batch: Batch, is_packed: bool) -> int:
    return int(packed_tokens(batch).segments_E2[-1, 1]) if is_packed else batch.ids_RT.size


def _scored(scorer: PolicyScorer, batches: Sequence[Batch]) -> list[Batch]:
    draws = np.random.default_rng(2).standard_normal(PROMPTS * GROUP).astype(np.float32)
    return [
        replace(
            batch, old_logp_NK=found.logp_NK, advantages_NK=np.where(batch.mask_NK, draws[batch.samples_N][:, None], 0)
        )
        for batch, found in zip(batches, scorer.score(batches), strict=True)
    ]


_TIMES = ("update_s", "update_cpu_s", "log_probs_s", "log_probs_cpu_s")
"""Of the clock, and of all processor cores together: on a busy machine the latter is steadier."""


def _timed(updater: Updater, scorer: PolicyScorer, batches: Sequence[Batch]) -> tuple[float, ...]:
    points = [(time.perf_counter(), time.process_time())]
    updater.step(batches, 1e-6)
    points.append((time.perf_counter(), time.process_time()))
    scorer.score(batches)
    points.append((time.perf_counter(), time.process_time()))
    return tuple(after - before for start, end in pairwise(points) for before, after in zip(start, end, strict=True))
