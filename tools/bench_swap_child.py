"""One variant of `bench_swap.py`, in a process of its own.

    python tools/bench_swap_child.py swap|plain PARAMETERS STEPS RESHARD_LEVEL FOLDER [prefetch]

The last line of its output is JSON: sizes in MiB above the base, seconds, the ledger's table, a digest of all bits.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.batches.rows import TrainingSample, lay_out, scattered
from mindgspo.config import AlgorithmSection, ModelSection, OptimizerSection, with_recipe
from mindgspo.config.schema import SwapSection
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.platform.runtime import call_compiled, set_up_runtime
from mindgspo.rollout.engine import NativeEngine
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.swap.states import Holding, Phase
from mindgspo.swap.swap import open_swap
from mindgspo.types import Batch, Prompt, Response

MIB = 2**20
RESHARD_STEP_BYTES = 64 * MIB
NUM_PROMPTS, NUM_SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 2, 2, 16, 16
NUM_SLOTS, CACHED_TOKENS = 16, 240


def main() -> None:
    variant, num_parameters, steps, reshard_level, folder, *hints = sys.argv[1:]
    set_up_runtime("CPU")
    call_compiled(SmallGraph(), Tensor(np.ones((64, 64), np.float32))).asnumpy()
    meter = MemoryMeter()
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-swap-") as evicted:
        section = SwapSection(
            enabled=variant == "swap",
            path=Path(evicted),
            reshard_level=int(reshard_level),
            prefetch="prefetch" in hints,
        )
        bench = SwapBench(section, model_section(int(num_parameters)))
        built = meter.note()
        entries = [bench.step(number, meter) for number in range(int(steps))]
        first = {name: entry["peak"] - entry["ledger"] for name, entry in entries[0].items()}
        figures = {
            "parameters": bench.num_parameters,
            "base": meter.base,
            "built": built,
            "peak": meter.peak,
            "first_step": first,
            "pool": max(first.values()),
            "phases": {name: over_steps([entry[name] for entry in entries[1:]]) for name in entries[0]},
            "table": bench.swap.ledger.table(),
            "digest": bench.digest(),
        }
        bench.swap.close()
    print(json.dumps(figures))


def over_steps(entries: Sequence[dict[str, float]]) -> dict[str, float]:
    """Largest sizes and median seconds."""
    return {
        key: (max if key in ("peak", "ledger") else statistics.median)([entry[key] for entry in entries])
        for key in entries[0]
    }


class SmallGraph(nn.Cell):
    """Brings in the compiler and the kernels' threads, which belong to no phase."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.softmax(ops.matmul(x, x), -1)


class MemoryMeter:
    """Resident MiB above what they were when the meter was made; `peak` is the highest ever."""

    def __init__(self) -> None:
        self.peak = self.base = 0.0
        self.reset()
        self.base = self.note()
        self.peak = 0.0

    def note(self) -> float:
        """The highest since the last `reset`."""
        status = Path("/proc/self/status").read_text(encoding="ascii")
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        highest = int(line.split()[1]) / 1024 - self.base
        self.peak = max(self.peak, highest)
        return highest

    def reset(self) -> None:
        """Let the kernel's high-water mark begin anew."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


class SwapBench:
    """All holdings of a training process, registered as soon as they exist, and the phases of a step."""

    def __init__(self, section: SwapSection, model: ModelSection) -> None:
        self.swap = open_swap(section, Path())
        self._build_policies(model)
        self._build_updater()
        self._build_engine(model)
        with self.swap.phase(Phase.SCORE):
            for source, destination in zip(self.weights, self.reference.get_parameters(), strict=True):
                destination.asnumpy()[...] = source.asnumpy()
        with self.swap.phase(Phase.RESHARD):
            self._reshard()
        self.version = 0

    def step(self, number: int, meter: MemoryMeter) -> dict[str, dict[str, float]]:
        """The four phases of one step: peak and booked MiB, seconds in all and of the moves at the entry."""
        results: dict[str, list] = {}
        work: dict[Phase, Callable[[], object]] = {
            Phase.ROLLOUT: lambda: results.update(responses=self._generate(number)),
            Phase.SCORE: lambda: results.update(batches=self._score(results["responses"])),
            Phase.UPDATE: lambda: self._update(results["batches"]),
            Phase.RESHARD: self._reshard,
        }
        figures = {}
        following = [*list(work)[1:], Phase.ROLLOUT]
        for (phase, act), after in zip(work.items(), following, strict=True):
            started = time.perf_counter()
            with self.swap.phase(phase):
                moving = time.perf_counter() - started
                meter.note()
                meter.reset()
                self.swap.prefetch(after)
                act()
                figures[phase.value] = {
                    "peak": meter.note(),
                    "ledger": self.swap.ledger.records[phase].peak_total / MIB,
                    "seconds": time.perf_counter() - started,
                    "moving": moving,
                }
        return figures

    def digest(self) -> str:
        """Of the bits of weights and moments."""
        found = hashlib.sha256()
        with self.swap.phase(Phase.SAVE):
            for parameter in (*self.weights, *self.updater.moments):
                found.update(parameter.asnumpy().data)
        return found.hexdigest()

    def _build_policies(self, section: ModelSection) -> None:
        self.model = build_model(section)
        initialize_weights(self.model, section, seed=0)
        self.weights = list(self.model.get_parameters())
        self.num_parameters = sum(weight.size for weight in self.weights)
        self.swap.register(Holding.ACTOR_WEIGHTS, self.weights)
        self.reference = build_model(section)
        self.swap.register(Holding.REFERENCE_WEIGHTS, self.reference.get_parameters())
        self.rollout_model = build_model(section)
        self.rollout_weights = list(self.rollout_model.get_parameters())
        self.swap.register(Holding.ROLLOUT_WEIGHTS, self.rollout_weights)
        self.scorers = [PolicyScorer(model, temperature=1.0) for model in (self.model, self.reference)]

    def _build_updater(self) -> None:
        self.updater = Updater(
            PolicyLogProbs(self.model, temperature=1.0, with_entropy=False),
            build_policy_loss(with_recipe(AlgorithmSection(), max_new_tokens=NEW_TOKENS)),
            OptimizerSection(lr=1e-4),
        )
        self.swap.register(Holding.MOMENTS, self.updater.moments)
        self.swap.register(
            Holding.GRADIENTS,
            self.updater.gradients,
            keeps_content=False,
            is_zero=lambda: self.updater.gradients_are_zero,
        )

    def _build_engine(self, section: ModelSection) -> None:
        self.engine = NativeEngine(
            self.rollout_model,
            eos_ids=(),
            num_slots=NUM_SLOTS,
            prefill_width=NUM_PROMPTS,
            max_prompt_length=PROMPT_TOKENS,
            max_new_tokens=CACHED_TOKENS,
            length_multiple=PROMPT_TOKENS,
        )
        self.swap.register(Holding.KV_CACHE, self.engine._cache.matrices, keeps_content=False)
        random = np.random.default_rng(0)
        self.prompts = [
            Prompt(
                index=index,
                ids=random.integers(0, section.vocab_size, PROMPT_TOKENS).astype(np.int32),
                text="",
                answer="",
                data_source="bench",
            )
            for index in range(NUM_PROMPTS)
        ]

    def _generate(self, number: int) -> list[Response]:
        settings = SamplingSettings(
            num_samples=NUM_SAMPLES,
            temperature=1.0,
            max_new_tokens=NEW_TOKENS,
            stream=RandomStream(seed=0, purpose=Purpose.TRAINING, step=number),
        )
        self.engine.load_weights(self.version)
        rollout = self.engine.generate(self.prompts, settings, weight_version=self.version)
        return [response for siblings in rollout.responses for response in siblings]

    def _score(self, responses: Sequence[Response]) -> list[Batch]:
        """Micro-batches of two rows, with log-probs of the old and the reference policy."""
        samples = [
            TrainingSample(
                prompt_ids=self.prompts[response.prompt_index].ids,
                response_ids=response.ids,
                rollout_logp=response.logprobs,
                number=number,
            )
            for number, response in enumerate(responses)
        ]
        batches = lay_out(samples, samples_per_micro_batch=2, length_multiple=PROMPT_TOKENS, pad_id=0)
        advantages = [
            np.full(response.length, (-1.0) ** number, np.float32) for number, response in enumerate(responses)
        ]
        old, reference = (scorer.score(batches) for scorer in self.scorers)
        return [
            replace(
                batch,
                old_logp_NK=own.logp_NK,
                ref_logp_NK=frozen.logp_NK,
                advantages_NK=scattered(batch, advantages),
            )
            for batch, own, frozen in zip(batches, old, reference, strict=True)
        ]

    def _update(self, batches: Sequence[Batch]) -> None:
        self.updater.step(batches, 1e-4)
        self.version += 1

    def _reshard(self) -> None:
        """The actor's weights to the rollout's, some at a time, as the steps of a reshard are."""
        for pairs in in_steps(self.weights, self.rollout_weights):
            with self.swap.reshard_step([source.name for source, _ in pairs]):
                for source, destination in pairs:
                    destination.asnumpy()[...] = source.asnumpy()


def model_section(num_parameters: int) -> ModelSection:
    """Qwen2 of width 768 with as many layers as that takes."""
    vocab, hidden, inner, kv = 8192, 768, 3072, 256
    matrices = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner
    per_layer = matrices + (hidden + 2 * kv) + 2 * hidden
    return ModelSection(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=max(1, -(-(num_parameters - (vocab + 1) * hidden) // per_layer)),
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=PROMPT_TOKENS + CACHED_TOKENS,
        tie_word_embeddings=True,
    )


def in_steps(
    sources: Sequence[Parameter], destinations: Sequence[Parameter]
) -> Iterator[list[tuple[Parameter, Parameter]]]:
    """Pairs of at most RESHARD_STEP_BYTES, or of one parameter that is larger."""
    pairs: list[tuple[Parameter, Parameter]] = []
    for source, destination in zip(sources, destinations, strict=True):
        if pairs and sum(pair[0].nbytes for pair in pairs) + source.nbytes > RESHARD_STEP_BYTES:
            yield pairs
            pairs = []
        pairs.append((source, destination))
    yield pairs


if __name__ == "__main__":
    main()
