"""Seconds and tokens per second of rollout, old log-probs and update on a small model, as JSON.

    python tools/bench_step.py [--scenario full|mixed] [--max-new-tokens 64] [--steps 6] [--warmup-steps 2] [--limit]
                               [--recompute-old] [--model DIR] [--dtype float32|bfloat16] [--lora RANK [--merged]]
    python tools/bench_step.py --layouts [--scenario gsm8k|mixed] [--max-new-tokens 64] [--steps 6]
    python tools/bench_step.py --against DIR [--rounds 3] [--most-ratio 1.3] [OPTION...]

Model: Qwen2, hidden 256, 4 layers, 8 heads, 4 kv heads, ffn 704, vocabulary 1024, tied, float32, random weights. One
step is a rollout of 8 prompts of 32 tokens x 8 samples, old log-probs, and 4 GSPO updates of 16 samples. Old log-probs
are by default the sampler's, as in training (`algorithm.old_log_probs=auto`); --recompute-old scores them.
`full`: no token ends a response. `mixed`: so many tokens do that, the random model being nearly uniform, each draw
ends its response with a fixed probability and the mean length is about a third of the maximum. Draws are seeded, so
two commits time the same work. Compile time is reported apart; figures are medians over the counted steps.

`--model`: instead the model of a Hugging Face folder, with its weights; `full` alone, since the likeliest tokens of a
trained model would decide when responses end. `--dtype`: the type it computes in. `--lora`: only adapters are trained.

`loss_cell` is the GSPO cell alone, forward and backward, as a graph of its own on the last step's batches, launch and
transfer of its inputs included; `share_of_update` sets that against an update, of which it is a part.
`update_graphs` counts the gradient graphs that were compiled: one per shape of a micro-batch.

`--limit` sets the step against what its operations, bytes and launches cost at least here; see `bench_limit`.

`--layouts` times nothing but updates and log-probs, of one mini-batch of 64 samples in every layout; see
`bench_layouts`. `gsm8k`, for that alone: lengths like those of GSM8K.

`--against` runs this and the `bench_step` of another checkout, such as one of the latest release, in turns with the
other options that are given, and prints the seconds of both and their ratio; see `bench_against`. Exit code 1 if a step
takes more than `--most-ratio` times as long here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from bench_against import run_against
from bench_layouts import compare_layouts, samples_of
from bench_limit import step_limit
from mindspore import Tensor, nn, ops

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.micro_batches import BatchLayout, largest_shape, micro_batches
from mindgspo.batches.rows import TrainingSample, scattered
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection, with_recipe
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.config.lora import LoraSection
from mindgspo.metrics import peak_rss_mb
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import fill_model
from mindgspo.parallel.ops.device import takes_packed
from mindgspo.parallel.plans.placement import ALONE, Placement
from mindgspo.parallel.platform.runtime import set_up_runtime
from mindgspo.rollout.build import ReplicatedEngine
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.protocol import Purpose, RandomStream, RolloutEngine, SamplingSettings
from mindgspo.types import Batch, Prompt, Response
from mindgspo_kernels.binding import graph_threads

ALGORITHM = with_recipe(AlgorithmSection(), max_new_tokens=128)
MODEL = ModelSection(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """What one step works on. slots: sequences decoded at once. mini_batch: samples per update, in micro-batches of at
    most `micro_batch`."""

    model: ModelSection = MODEL
    num_prompts: int = 8
    prompt_length: int = 32
    group: int = 8
    max_new_tokens: int = 64
    slots: int = 64
    mini_batch: int = 16
    micro_batch: int = 16
    merges_adapters: bool = False


def main() -> None:
    arguments, words = parse_arguments()
    if arguments.against is not None:
        run_against(arguments.against, words, rounds=arguments.rounds, most_ratio=arguments.most_ratio)
        return
    set_up_runtime("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)  # for the loss, which is called as it is
    folder: Path | None = arguments.model
    model = MODEL if folder is None else read_model_section(folder)
    lora = LoraSection(rank=arguments.lora) if arguments.lora else None
    sizes = StepSizes(
        model=model.model_copy(update={"dtype": arguments.dtype, "lora": lora}),
        max_new_tokens=arguments.max_new_tokens,
        slots=arguments.slots,
        merges_adapters=arguments.merged,
    )
    bench = StepBench(sizes, ends=arguments.scenario == "mixed", recomputes_old=arguments.recompute_old)
    if arguments.layouts:
        samples = samples_of(arguments.scenario, model.vocab_size, sizes.prompt_length, arguments.max_new_tokens)
        is_packed = takes_packed(bench.model)
        found = compare_layouts(bench.updater, bench.old_policy, samples, rounds=arguments.steps, is_packed=is_packed)
        print(json.dumps({"scenario": arguments.scenario, **found}, indent=2))
        return
    started = time.perf_counter()
    for step in range(arguments.warmup_steps):
        bench.run(step)
    compiled = time.perf_counter() - started
    counted = [bench.run(arguments.warmup_steps + step) for step in range(arguments.steps)]
    median = {key: statistics.median(figures[key] for figures in counted) for key in counted[0]}
    report = {
        "scenario": arguments.scenario,
        "model": "small" if folder is None else str(folder),
        "dtype": arguments.dtype,
        "lora": {"rank": arguments.lora, "merged": arguments.merged} if lora else None,
        "max_new_tokens": arguments.max_new_tokens,
        "slots": arguments.slots,
        "threads": graph_threads(),
        "counted_steps": arguments.steps,
        "warmup_and_compile_s": round(compiled, 3),
        **{key: round(value, 4) for key, value in median.items()},
        "loss_cell": bench.loss_cell(median["update_s"]),
        **bench.compiled(),
        **({"limit": bench.limit(counted)} if arguments.limit else {}),
        "tokens_per_s_generated": round(median["tokens"] / median["generation_s"], 1),
        "tokens_per_s_step": round(median["tokens"] / median["step_s"], 1),
        "peak_rss_mb": round(peak_rss_mb(), 1),
    }
    print(json.dumps(report, indent=2))


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """All arguments, and the words that are not about `--against`."""
    comparison = argparse.ArgumentParser(add_help=False)
    comparison.add_argument("--against", type=Path, metavar="DIR", help="another checkout to compare a step with")
    comparison.add_argument("--rounds", type=int, default=3, help="runs of each checkout")
    comparison.add_argument("--most-ratio", type=float, default=1.3, help="of a step here to one there")
    _, words = comparison.parse_known_args()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[comparison]
    )
    parser.add_argument("--scenario", choices=("full", "mixed", "gsm8k"), default="full")
    parser.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face folder of the model to time")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="type of computation")
    parser.add_argument("--layouts", action="store_true", help="compare layouts of one mini-batch")
    parser.add_argument("--limit", action="store_true", help="what a step costs at least here, and the share reached")
    parser.add_argument(
        "--recompute-old", action="store_true", help="score old log-probs, which are the sampler's bit for bit"
    )
    parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters on all projections")
    parser.add_argument("--merged", action="store_true", help="generate with merged adapters")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64, help="sequences decoded at once")
    parser.add_argument("--steps", type=int, default=6, help="counted steps")
    parser.add_argument("--warmup-steps", type=int, default=2)
    arguments = parser.parse_args()
    known = ("mixed", "gsm8k") if arguments.layouts else ("full", "mixed")
    if arguments.scenario not in known:
        parser.error(f"--scenario {arguments.scenario}: only {' and '.join(known)} go with these options")
    if arguments.model is not None and arguments.scenario != "full":
        parser.error(f"--scenario {arguments.scenario}: only full goes with --model")
    return arguments, words


class StepBench:
    """The parts of one step, without data, rewards and logging.

    ends: draws end responses, else none does. place: this process's, in a plan of data-parallel replicas alone.
    """

    def __init__(
        self, sizes: StepSizes, *, ends: bool = False, recomputes_old: bool = False, place: Placement = ALONE
    ) -> None:
        self.sizes = sizes
        self.recomputes_old = recomputes_old
        self.model = build_model(sizes.model, place)
        fill_model(self.model, sizes.model, seed=0)
        # (1 - exp(-p M)) / p, the mean length under a stop probability p and a maximum M, is M / 3 at p M = 2.82.
        num_stops = round(2.82 / sizes.max_new_tokens * sizes.model.vocab_size) if ends else 0
        self.native = NativeEngine(
            self.model,
            eos_ids=range(num_stops),
            num_slots=sizes.slots,
            prefill_width=max(1, sizes.slots // sizes.group),
            max_prompt_length=sizes.prompt_length,
            max_new_tokens=sizes.max_new_tokens,
            length_multiple=sizes.prompt_length,
            merges_adapters=sizes.merges_adapters,
        )
        is_alone = place.plan.world_size == 1
        self.engine: RolloutEngine = (
            self.native if is_alone else ReplicatedEngine(self.native, place, lambda version: None)
        )
        self.old_policy = PolicyScorer(self.model, temperature=1.0)
        self.updater = Updater(
            PolicyLogProbs(self.model, temperature=1.0, with_entropy=not recomputes_old),
            build_policy_loss(ALGORITHM),
            OptimizerSection(lr=1e-6),
            place,
        )
        random = np.random.default_rng(0)
        self.prompts = [
            Prompt(
                index=index,
                ids=random.integers(0, sizes.model.vocab_size, sizes.prompt_length).astype(np.int32),
                text="",
                answer="",
                data_source="bench",
            )
            for index in range(sizes.num_prompts)
        ]
        layout = BatchLayout(
            samples_per_micro_batch=sizes.micro_batch,
            length_multiple=sizes.prompt_length,
            pad_id=0,
            replicas=place.plan.data_parallel,
        )
        longest = sizes.prompt_length + sizes.max_new_tokens
        shape = largest_shape(layout, num_samples=sizes.mini_batch, longest=longest, slots=sizes.max_new_tokens)
        self.layout = replace(layout, one_shape=shape if takes_packed(self.model) else None)
        self.version = 0
        self.shapes: set[tuple[int, ...]] = set()
        self.mini_batches: list[list[Batch]] = []
        self.responses: list[Response] = []
        self.decode_steps = 0

    def run(self, step: int, clock: Callable[[], Any] = time.perf_counter) -> dict[str, Any]:
        """What passed by `clock` in each phase of one step, seconds by default, and the response tokens it
        generated."""
        times = [clock()]
        self.engine.load_weights(self.version)
        self.responses = responses = self.generate(step)
        times.append(clock())
        self.mini_batches = self.score(responses)
        times.append(clock())
        for batches in self.mini_batches:
            self.shapes |= {batch.ids_RT.shape + batch.mask_NK.shape for batch in batches}
            self.updater.step(batches, 1e-6)
            self.version += 1
        times.append(clock())
        return {
            "step_s": times[3] - times[0],
            "generation_s": times[1] - times[0],
            "old_log_probs_s": times[2] - times[1],
            "update_s": times[3] - times[2],
            "tokens": float(sum(response.length for response in responses)),
        }

    def loss_cell(self, update_s: float) -> dict[str, float]:
        """Milliseconds of the GSPO cell for all updates of a step, and their share of the update phase."""
        value_and_grad = ops.value_and_grad(build_policy_loss(ALGORITHM), 0, None, has_aux=True)
        inputs = [loss_inputs(batch) for batches in self.mini_batches for batch in batches]
        seconds = []
        for _ in range(20):
            started = time.perf_counter()
            for arrays in inputs:
                (loss, _, _), gradient = value_and_grad(*(Tensor(array) for array in arrays))
                loss.asnumpy(), gradient.asnumpy()
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds[5:])
        return {"calls": len(inputs), "ms": round(1e3 * median, 3), "share_of_update": round(median / update_s, 4)}

    def compiled(self) -> dict[str, int]:
        """Distinct shapes of micro-batches, and gradient graphs compiled for them."""
        return {"micro_batch_shapes": len(self.shapes), "update_graphs": self.updater.compiled_graphs}

    def limit(self, counted: Sequence[dict[str, float]]) -> dict[str, object]:
        """See `bench_limit`, for the last step; shares: of the seconds that operations or bytes need in those it
        took."""
        engine, updater, sizes = self.native, self.updater, self.sizes
        lengths = [response.length for response in self.responses]
        num_batches = sum(map(len, self.mini_batches))
        graphs: dict[str, tuple[nn.Cell, int]] = {
            "weights_packed": (engine._pack_weights.cell, 1),
            "prefill": (engine._prefill.cell, 1),
            "decode_step": (engine._decoders[engine._filter].cell, self.decode_steps),
            "gradients": (updater.gradient_cell, num_batches),
            "optimizer": (updater.over_ranks.apply.cell, len(self.mini_batches)),
        }
        if self.recomputes_old:
            graphs["old_log_probs"] = (self.old_policy._policy.cell, num_batches)
        found = step_limit(
            sizes.model,
            lengths,
            graphs,
            prompt_length=sizes.prompt_length,
            num_prompts=sizes.num_prompts,
            mini_batch=sizes.mini_batch,
        )
        last = counted[-1]
        shares = {
            f"{prefix}share_by_phase": {
                name: round(seconds / last[f"{name}_s"], 3) for name, seconds in found[f"{kind}_by_phase_s"].items()
            }
            for prefix, kind in (("", "operations"), ("memory_", "bytes"))
        }
        return {**found, "share": round(found["operations_s"] / last["step_s"], 3), **shares}

    def generate(self, step: int) -> list[Response]:
        settings = SamplingSettings(
            num_samples=self.sizes.group,
            temperature=1.0,
            max_new_tokens=self.sizes.max_new_tokens,
            stream=RandomStream(seed=0, purpose=Purpose.TRAINING, step=step),
        )
        rollout = self.engine.generate(self.prompts, settings, weight_version=self.version)
        self.decode_steps = rollout.counters.decode_steps
        return [response for siblings in rollout.responses for response in siblings]

    def score(self, responses: Sequence[Response]) -> list[list[Batch]]:
        draws = np.random.default_rng(2).standard_normal(len(responses)).astype(np.float32)
        advantages = [
            np.full(response.length, draw, np.float32) for response, draw in zip(responses, draws, strict=True)
        ]
        samples = [
            TrainingSample(
                prompt_ids=self.prompts[response.prompt_index].ids,
                response_ids=response.ids,
                rollout_logp=response.logprobs,
                number=number,
            )
            for number, response in enumerate(responses)
        ]
        mini_batches = [
            micro_batches(samples[start : start + self.sizes.mini_batch], self.layout)
            for start in range(0, len(samples), self.sizes.mini_batch)
        ]
        batches = [batch for batches in mini_batches for batch in batches]
        old = [batch.rollout_logp_NK for batch in batches]
        if self.recomputes_old:
            old = [found.logp_NK for found in self.old_policy.score(batches)]
        old_logp = iter(old)
        return [
            [
                replace(batch, old_logp_NK=next(old_logp), advantages_NK=scattered(batch, advantages))
                for batch in batches
            ]
            for batches in mini_batches
        ]


def loss_inputs(batch: Batch) -> tuple[np.ndarray, ...]:
    """The arrays of `PolicyLoss.construct`; old and new policy differ a little, so that some ratios are clipped."""
    noise = np.random.default_rng(3).normal(scale=2e-3, size=batch.mask_NK.shape).astype(np.float32)
    return (
        batch.old_logp_NK + noise,
        np.zeros_like(noise),
        batch.old_logp_NK,
        batch.ref_logp_NK,
        batch.advantages_NK,
        batch.correction_NK,
        batch.mask_NK,
        np.float32(batch.num_sequences),
        np.float32(batch.num_tokens),
        np.float32(0),
    )


if __name__ == "__main__":
    main()
