"""Some real steps of an experiment, timed: what `mindgspo plan --probe` starts. Nothing stays behind but its numbers.

    python -m mindgspo.trainer.probe CONFIG OUT.json [KEY=VALUE ...]

There is no warm-up, evaluation or checkpoint; weights are model.path's, or random ones. Beside each step a few
sequences are decoded alone, which tells what a decode step costs by itself from what each sequence in it adds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mindgspo.config import ExperimentConfig, FilterGroupsSection, load_config
from mindgspo.config.cache import cache_columns
from mindgspo.errors import MindGSPOError
from mindgspo.io import write_json
from mindgspo.models.operations import Operations
from mindgspo.rollout.protocol import training_sampling
from mindgspo.trainer.build import Experiment, build_experiment
from mindgspo.trainer.warmup import supervised_sample

SECONDS = 8.0
"""Of steps behind the first one, which compiles."""
_FEWEST_STEPS, _MOST_STEPS = 3, 40
_SOLUTIONS = 2000
_SHARE_OF_SLOTS = 8
_MOST_OPERATIONS = 2e12
"""Of a step; half a minute on two cores. Steps of more have one update."""
READ_METRICS = (
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/adv",
    "timing_s/update_actor",
    "timing_s/update_weights",
    "timing_s/step",
    "rollout/decode_steps",
    "perf/gen_tokens_per_second",
    "perf/total_num_tokens",
    "prompt_length/mean",
)


def probe(config: ExperimentConfig, folder: Path) -> dict[str, Any]:
    """steps: metrics of each step but the first. alone: steps, tokens, prompt_tokens and seconds of generations of few
    sequences. lengths: of the worked solutions that a warm-up teaches, without one of the responses by prompt. config:
    of one process."""
    assert config.plans.train.world_size == 1 and not config.has_servers, "the planner refuses it"
    experiment = build_experiment(
        bounded(config), data_dir=folder / "data", failures_dir=folder / "failures", swap_dir=folder / "swap"
    )
    trainer = experiment.trainer
    with experiment.scorer, closing(trainer.swap):
        trainer.load_engine_weights()
        if trainer.reference is not None:
            trainer.reference.freeze(trainer.model, folder / "reference", version=0)
        results = [trainer.train_step(1)]
        alone = [_alone(config, experiment, 1)]
        until = time.perf_counter() + SECONDS
        while len(results) <= _FEWEST_STEPS or (time.perf_counter() < until and len(results) <= _MOST_STEPS):
            results.append(trainer.train_step(len(results) + 1))
            alone.append(_alone(config, experiment, len(results)))
        sampled = [[response.length for response in group.responses] for one in results for group in one.groups]
        return {
            "steps": [{name: one.metrics.get(name, 0.0) for name in READ_METRICS} for one in results[1:]],
            "alone": alone[1:],
            "lengths": sampled if config.warmup is None else _solutions(config, experiment),
        }


def bounded(config: ExperimentConfig) -> ExperimentConfig:
    """Without what ends steps, draws groups without a signal again (random weights have no other) or takes minutes."""
    trainer = config.trainer.model_copy(update={"max_steps": 10_000, "on_nonfinite": "skip"})
    algorithm = config.algorithm.model_copy(update={"filter_groups": FilterGroupsSection()})
    rollout, operations = config.rollout, Operations.of(config.model)
    tokens = rollout.prompts_per_step * rollout.num_generations * cache_columns(config)
    if tokens * 4 * (operations.trunk + operations.head) > _MOST_OPERATIONS:
        rollout = rollout.model_copy(update={"prompts_per_step": trainer.prompts_per_mini_batch})
    return config.model_copy(update={"warmup": None, "trainer": trainer, "algorithm": algorithm, "rollout": rollout})


def _alone(config: ExperimentConfig, experiment: Experiment, step: int) -> dict[str, float]:
    """Few sequences, decoded together."""
    trainer, rollout = experiment.trainer, config.rollout
    number = max(1, rollout.slots // (_SHARE_OF_SLOTS * rollout.num_generations))
    prompts = [trainer.train_set[index % len(trainer.train_set)] for index in range(number)]
    settings = training_sampling(rollout, config.seed, step=step, draw=1)
    begin = time.perf_counter()
    found = trainer.engine.generate(prompts, settings, weight_version=trainer.weight_version)
    return {
        "seconds": time.perf_counter() - begin,
        "steps": found.counters.decode_steps,
        "tokens": found.counters.generated_tokens,
        "prompt_tokens": sum(prompt.ids.size for prompt in prompts),
    }


def _solutions(config: ExperimentConfig, experiment: Experiment) -> list[list[int]]:
    """Tokens of the first worked solutions, cut at max_new_tokens."""
    rows = experiment.trainer.train_set
    number = min(_SOLUTIONS, len(rows))
    samples = (supervised_sample(rows[index], experiment.tokenizer, config.model) for index in range(number))
    return [[min(sample.response_ids.size, config.rollout.max_new_tokens)] for sample in samples]


def main(arguments: Sequence[str]) -> int:
    """Exit code; a user's mistake is one line on stderr."""
    config, out, *overrides = arguments
    try:
        with tempfile.TemporaryDirectory(prefix="mindgspo-probe-") as folder:
            found = probe(load_config(Path(config), overrides), Path(folder))
    except MindGSPOError as error:
        print(error, file=sys.stderr)
        return 1
    write_json(Path(out), found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
