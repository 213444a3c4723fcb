"""One real step with each policy loss of the registry: engine, model, log-probs and update, all compiled.

Random weights answer nothing right, so the reward is the share of even ids in the answer; the experiment is built once,
and each loss gets its own updater on the initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo.metrics import unknown_names
from mindgspo.rewards import Candidate
from mindgspo.types import Score, Verdict

pytestmark = pytest.mark.usefixtures("cpu_runtime")

EXPERIMENT = """
experiment: family
model:
  vocab_size: 384
  hidden_size: 16
  intermediate_size: 32
  num_hidden_layers: 1
  num_attention_heads: 2
  num_key_value_heads: 1
  max_position_embeddings: 64
  initializer_range: 0.2
data:
  train: {format: arithmetic, split: train, max_rows: 8}
  eval: {format: arithmetic, split: test, max_rows: 2}
  max_prompt_length: 32
rollout:
  prompts_per_step: 4
  num_generations: 3
  max_new_tokens: 12
  slots: 12
optimizer:
  lr: 1e-3
trainer:
  max_steps: 1
  prompts_per_mini_batch: 2
  samples_per_micro_batch: 6
  length_multiple: 64
"""


class EvenIds:
    """Share of characters with an even code point."""

    labels = ("auto",)

    def score(self, candidates: Sequence[Candidate]) -> list[Score]:
        texts = [candidate.text for candidate in candidates]
        shares = [sum(ord(character) % 2 == 0 for character in text) / max(len(text), 1) for text in texts]
        return [Score(value=share, verdict=Verdict.WRONG) for share in shares]


def load(folder: Path, *overrides: str) -> ExperimentConfig:
    path = folder / "family.yaml"
    path.write_text(EXPERIMENT)
    return load_config(path, overrides)


@pytest.fixture(scope="module")
def parts(cpu_runtime: None, tmp_path_factory: pytest.TempPathFactory):
    from mindgspo.trainer.build import build_parts

    folder = tmp_path_factory.mktemp("family")
    parts = build_parts(
        load(folder), data_dir=folder / "data", failures_dir=folder / "failures", swap_dir=folder / "swap"
    )
    parts.scorer = EvenIds()
    return parts


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_step_trains_with_every_loss(name: str, parts, tmp_path: Path) -> None:
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.manual import SingleUpdate
    from mindgspo.models.policy import PolicyLogProbs
    from mindgspo.models.weights import initialize_weights, weights_as_numpy
    from mindgspo.trainer.step import run_step

    config = load(tmp_path, f"algorithm.name={name}")
    initialize_weights(parts.model, config.model, seed=1)
    before = weights_as_numpy(parts.model, config.model)
    policy = PolicyLogProbs(parts.model, temperature=1.0, with_entropy=False)
    parts.config = config
    parts.updater = SingleUpdate(policy, build_policy_loss(config.algorithm), config.optimizer)
    parts.weight_version += 1
    parts.engine.load_weights(parts.weight_version)
    metrics = run_step(parts, 1).metrics

    assert unknown_names(metrics) == []
    assert [key for key, value in metrics.items() if not math.isfinite(value)] == []
    assert (metrics["samples/trained"], metrics["actor/updates"], parts.updater.updates) == (12, 2, 2)
    assert metrics["actor/grad_norm"] > 0 and metrics["critic/advantages/max"] > 0 > metrics["critic/advantages/min"]
    assert metrics["actor/first_ratio_error_max"] < 1e-5 < metrics["actor/ratio_error_max"]
    assert ("actor/pg_clipfrac_lower" in metrics) == (name == "ppo"), "only PPO's recipe has the dual clip"
    after = weights_as_numpy(parts.model, config.model)
    assert all((after[key] != before[key]).any() for key in before), "a weight that was not trained"
    assert all(np.isfinite(array).all() for array in after.values())
