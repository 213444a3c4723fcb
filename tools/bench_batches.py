"""Balance, padding and micro-batches of 512 sequences of GSM8K's lengths, for every layout, as JSON.

    python tools/bench_batches.py [--replicas 8] [--max-tokens 4096] [--samples-per-micro-batch 8]
        [--rows ../shared/data/gsm8k/train.jsonl] [--tokenizer ../shared/data/qwen2.5-tokenizer]

The sequences are question and worked answer of 512 rows drawn with seed 0, in Qwen2.5's tokens: the mini-batch of one
update, cut for the replicas. Nothing is computed with them.

Rows of the packed layouts are cut for a model of 896 hidden units (Qwen2.5-0.5B), on CPU or on Ascend.

`spread`: (max - min) / mean of the tokens per replica; `in order` gives each replica 64 samples as they come.
`padding`: share of the token slots. `prediction_padding`: share of the predictions that reach the vocabulary. `passes`:
micro-batches of a replica. `shapes`: how many graphs they ask for. `seconds`: of laying out, on the host.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mindgspo.batches.micro_batches import BatchLayout, batch_metrics, micro_batches, tokens_of_replicas
from mindgspo.batches.rows import TrainingSample
from mindgspo.tokenization import load_backend

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
NUM_SAMPLES = 512


def main() -> None:
    arguments = parse_arguments()
    for option, path in (("--rows", arguments.rows), ("--tokenizer", arguments.tokenizer)):
        if not path.exists():
            sys.exit(f"error: {option}: {path} does not exist; give GSM8K's train.jsonl, and a tokenizer's folder")
    samples = gsm8k_samples(arguments.rows, arguments.tokenizer, NUM_SAMPLES)
    print(json.dumps(report(samples, arguments), indent=2))


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=4096, help="trainer.max_tokens_per_micro_batch")
    parser.add_argument("--samples-per-micro-batch", type=int, default=8)
    parser.add_argument("--rows", type=Path, default=DATA / "gsm8k" / "train.jsonl")
    parser.add_argument("--tokenizer", type=Path, default=DATA / "qwen2.5-tokenizer")
    return parser.parse_args(given)


def gsm8k_samples(rows: Path, tokenizer: Path, count: int, *, seed: int = 0) -> list[TrainingSample]:
    """`count` rows drawn without replacement, question as prompt and worked answer as response."""
    backend = load_backend(tokenizer)
    lines = rows.read_text(encoding="utf-8").splitlines()
    chosen = np.random.default_rng(seed).choice(len(lines), count, replace=False)
    samples = []
    for number, row in enumerate(json.loads(lines[index]) for index in chosen):
        prompt, response = (np.array(backend.encode(row[key]), np.int32) for key in ("question", "answer"))
        logp = np.zeros(response.size, np.float32)
        samples.append(TrainingSample(prompt_ids=prompt, response_ids=response, rollout_logp=logp, number=number))
    return samples


def report(samples: Sequence[TrainingSample], arguments: argparse.Namespace) -> dict[str, object]:
    """The lengths, and a line for every layout."""
    lengths = np.array([sample.length for sample in samples])
    common = {"length_multiple": 32, "pad_id": 0, "replicas": arguments.replicas, "costly_row": 2240}
    counted = {**common, "samples_per_micro_batch": arguments.samples_per_micro_batch}
    budget = {**common, "max_tokens_per_micro_batch": arguments.max_tokens}
    layouts = {
        "rows of one sample": BatchLayout(**counted),
        "rows of one sample, balanced": BatchLayout(**counted, balanced=True),
        "token budget": BatchLayout(**budget),
        "token budget, balanced": BatchLayout(**budget, balanced=True),
        "packed": BatchLayout(**budget, packing=True),
        "packed, balanced": BatchLayout(**budget, packing=True, balanced=True),
        "packed in one row (Ascend), balanced": BatchLayout(**budget, packing=True, in_one_row=True, balanced=True),
    }
    in_order = [int(part.sum()) for part in np.array_split(lengths, arguments.replicas)]
    return {
        "sequences": len(samples),
        "tokens": int(lengths.sum()),
        "length": {"min": int(lengths.min()), "mean": round(float(lengths.mean()), 1), "max": int(lengths.max())},
        "replicas": arguments.replicas,
        "max_tokens_per_micro_batch": arguments.max_tokens,
        "samples_per_micro_batch": arguments.samples_per_micro_batch,
        "layouts": {"in order": {"spread": spread(in_order)}}
        | {name: figures(samples, layout) for name, layout in layouts.items()},
    }


def figures(samples: Sequence[TrainingSample], layout: BatchLayout) -> dict[str, float]:
    started = time.perf_counter()
    batches = micro_batches(samples, layout)
    seconds = time.perf_counter() - started
    metrics = batch_metrics([batches], layout)
    predicted = sum(int(batch.mask_NK.sum()) for batch in batches)
    shapes = {(batch.ids_RT.shape, batch.mask_NK.shape, batch.predict_P.shape) for batch in batches}
    return {
        "spread": spread(tokens_of_replicas(batches, layout.replicas)),
        "padding": round(metrics["training/padding_share"], 4),
        "prediction_padding": round(1 - predicted / sum(batch.predict_P.size for batch in batches), 4),
        "passes": metrics["training/micro_batches_per_update"],
        "shapes": len(shapes),
        "seconds": round(seconds, 3),
    }


def spread(tokens: Sequence[int]) -> float:
    return round((max(tokens) - min(tokens)) / (sum(tokens) / len(tokens)), 5)


if __name__ == "__main__":
    main()
