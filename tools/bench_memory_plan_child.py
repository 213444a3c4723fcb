"""One process of `bench_memory_plan.py`.

    python tools/bench_memory_plan_child.py EXPERIMENT_YAML PHASE...

Goes through the phases twice, with the trainer's own parts and made-up prompts. The last line of its output is JSON:
MiB of the base, and above it the peak of each phase in the second round.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from bench_swap_child import MemoryMeter, SmallGraph
from mindspore import Tensor

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.manual import SingleUpdate
from mindgspo.config import ExperimentConfig, load_config
from mindgspo.data.rows import TrainingSample, lay_out, scattered
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import initialize_weights, weights_as_numpy
from mindgspo.parallel.runtime import set_up_runtime
from mindgspo.parallel.swap.states import Holding, Phase
from mindgspo.parallel.swap.swap import open_swap
from mindgspo.rollout.protocol import SamplingSettings
from mindgspo.rollout.random import Purpose, RandomStream
from mindgspo.trainer.build import generating_part
from mindgspo.trainer.ranks import train_place
from mindgspo.trainer.reference import ReferencePolicy
from mindgspo.types import Batch, Prompt

ROUNDS = 2


def main() -> None:
    path, *names = sys.argv[1:]
    phases = [Phase(name) for name in names]
    set_up_runtime("CPU")
    SmallGraph()(Tensor(np.ones((64, 64), np.float32))).asnumpy()
    meter = MemoryMeter()
    with tempfile.TemporaryDirectory(prefix="bench-memory-plan-") as evicted:
        process = Process(load_config(path, check_files=False), phases, Path(evicted))
        for number in range(ROUNDS):
            peaks = {phase.value: process.peak_of(phase, number, meter) for phase in phases}
        process.swap.close()
    print(json.dumps({"parameters": process.num_parameters, "base": meter.base, "peaks": peaks}))


class Process:
    """The parts of a run that the phases need."""

    def __init__(self, config: ExperimentConfig, phases: Sequence[Phase], folder: Path) -> None:
        self.config = config
        self.swap = open_swap(config.swap, folder)
        place = train_place(config)
        self.model = build_model(config.model, place)
        initialize_weights(self.model, config.model, config.seed)
        self.num_parameters = sum(weight.size for weight in self.model.get_parameters())
        self.swap.register(Holding.ACTOR_WEIGHTS, self.model.get_parameters())
        self.samples, self.batches, self.version = made_up_samples(config), (), 0
        self.reference = None
        if Phase.ROLLOUT in phases:
            generator = generating_part(config, self.model, SimpleNamespace(eos_ids=()), self.swap)
            self.engine = generator.engine
            self.swap.register(Holding.ROLLOUT_WEIGHTS, generator.model.get_parameters())
            self.swap.register(Holding.KV_CACHE, generator.cache, keeps_content=False)
        if Phase.SCORE in phases:
            self.scorer = PolicyScorer(self.model, temperature=1.0)
            if config.algorithm.kl.placement != "none":
                self.reference = ReferencePolicy(config.model, place, temperature=1.0)
                self.swap.register(Holding.REFERENCE_WEIGHTS, self.reference.parameters)
                with self.swap.phase(Phase.SCORE):
                    for weight, frozen in zip(self.model.get_parameters(), self.reference.parameters, strict=True):
                        frozen.asnumpy()[...] = weight.asnumpy()
        if Phase.UPDATE in phases:
            policy = PolicyLogProbs(self.model, temperature=1.0, with_entropy=config.algorithm.entropy_coef > 0)
            self.updater = SingleUpdate(policy, build_policy_loss(config.algorithm), config.optimizer)
            self.swap.register(Holding.GRADIENTS, self.updater.gradients, keeps_content=False)
            self.swap.register(Holding.MOMENTS, self.updater.moments)

    def peak_of(self, phase: Phase, number: int, meter: MemoryMeter) -> float:
        """MiB above the base, after the moves of the phase's entry."""
        act = {
            Phase.ROLLOUT: self._generate,
            Phase.SCORE: self._score,
            Phase.UPDATE: self._update,
            Phase.SAVE: self._copy,
        }
        with self.swap.phase(phase):
            meter.note()
            meter.reset()
            act[phase](number)
            return meter.note()

    def _generate(self, number: int) -> None:
        rollout = self.config.rollout
        prompts = [
            Prompt(index=index, ids=sample.prompt_ids, text="", answer="", data_source="bench")
            for index, sample in enumerate(self.samples[:: rollout.num_generations])
        ]
        settings = SamplingSettings(
            num_samples=rollout.num_generations,
            temperature=rollout.temperature,
            max_new_tokens=rollout.max_new_tokens,
            stream=RandomStream(seed=0, purpose=Purpose.TRAINING, step=number),
        )
        self.engine.load_weights(self.version)
        generated = self.engine.generate(prompts, settings, weight_version=self.version)
        responses = [response for siblings in generated.responses for response in siblings]
        self.samples = [
            replace(sample, response_ids=response.ids) for sample, response in zip(self.samples, responses, strict=True)
        ]

    def _score(self, number: int) -> None:
        batches = self._laid_out()
        old = self.scorer.score(batches)
        frozen = old if self.reference is None else self.reference.scorer.score(batches)
        self.batches = tuple(
            replace(batch, old_logp_NK=own.logp_NK, ref_logp_NK=reference.logp_NK)
            for batch, own, reference in zip(batches, old, frozen, strict=True)
        )

    def _update(self, number: int) -> None:
        batches = self.batches or self._laid_out()
        advantages = [np.full(sample.response_ids.size, (-1.0) ** sample.number, np.float32) for sample in self.samples]
        batches = [replace(batch, advantages_NK=scattered(batch, advantages)) for batch in batches]
        half = len(batches) // 2
        for mini_batch in (batches[:half], batches[half:]):
            self.updater.update(mini_batch, 1e-5)
            self.version += 1

    def _copy(self, number: int) -> None:
        copies = weights_as_numpy(self.model, self.config.model), self.updater.state()
        del copies

    def _laid_out(self) -> list[Batch]:
        trainer = self.config.trainer
        return lay_out(
            self.samples,
            samples_per_micro_batch=trainer.samples_per_micro_batch,
            length_multiple=trainer.length_multiple,
            pad_id=0,
        )


def made_up_samples(config: ExperimentConfig) -> list[TrainingSample]:
    """As many as a step has, of the greatest length."""
    random = np.random.default_rng(0)
    rollout, vocabulary = config.rollout, config.model.vocab_size
    samples = []
    for _ in range(rollout.prompts_per_step):
        prompt = random.integers(0, vocabulary, config.data.max_prompt_length).astype(np.int32)
        for _ in range(rollout.num_generations):
            response = random.integers(0, vocabulary, rollout.max_new_tokens).astype(np.int32)
            samples.append(
                TrainingSample(
                    prompt_ids=prompt,
                    response_ids=response,
                    rollout_logp=np.zeros(response.size, np.float32),
                    number=len(samples),
                )
            )
    return samples


if __name__ == "__main__":
    main()
