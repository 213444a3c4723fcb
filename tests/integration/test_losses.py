"""One real step with each policy loss of the registry, and a run with everything that the algorithm section offers.

In a single step, random weights answer nothing right, so the reward is the share of even ids in the answer; the
experiment is built once, and each loss gets its own updater on the initial weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from running import read_lines, succeeded

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo.metrics import unknown_names
from mindgspo.rewards import Candidate
from mindgspo.tensor_files.writer import read_safetensors
from mindgspo.types import Score, Verdict

pytestmark = pytest.mark.usefixtures("cpu_runtime")
FAMILY = """
experiment: family
model: {vocab_size: 384, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
  num_key_value_heads: 1, max_position_embeddings: 64, initializer_range: 0.2}
data:
  train: {format: arithmetic, split: train, max_rows: 8}
  eval: {format: arithmetic, split: test, max_rows: 2}
  max_prompt_length: 32
rollout: {prompts_per_step: 4, num_generations: 3, max_new_tokens: 12, slots: 12}
optimizer: {lr: 1e-3}
trainer: {max_steps: 1, prompts_per_mini_batch: 2, samples_per_micro_batch: 6, length_multiple: 64}
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
    path.write_text(FAMILY)
    return load_config(path, overrides)


@pytest.fixture(scope="module")
def trainer(cpu_runtime: None, tmp_path_factory: pytest.TempPathFactory):
    from mindgspo.evaluation.evaluator import ResponseScorer
    from mindgspo.trainer.build import build_experiment

    folder = tmp_path_factory.mktemp("family")
    experiment = build_experiment(
        load(folder), data_dir=folder / "data", failures_dir=folder / "failures", swap_dir=folder / "swap"
    )
    trainer = experiment.trainer
    reward = ResponseScorer(EvenIds(), experiment.tokenizer)
    return replace(trainer, reward=reward)


def with_algorithm(trainer, config: ExperimentConfig, old_log_probs: str = "recompute", *, with_entropy: bool = False):
    """The trainer as if it had been built for this configuration, with fresh weights."""
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.models.policy import PolicyLogProbs
    from mindgspo.models.weights import initialize_weights

    initialize_weights(trainer.model, config.model, seed=1)
    policy = PolicyLogProbs(trainer.model, temperature=1.0, with_entropy=with_entropy)
    trainer.weights.version += 1
    trainer.engine.load_weights(trainer.weights.version)
    return replace(
        trainer,
        algorithm=config.algorithm,
        optimizer=config.optimizer,
        updater=Updater(policy, build_policy_loss(config.algorithm), config.optimizer),
        scorer=replace(trainer.scorer, old_log_probs=old_log_probs),
        report=replace(trainer.report, algorithm=config.algorithm, scores_old=old_log_probs == "recompute"),
    )


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_step_trains_with_every_loss(name: str, trainer, tmp_path: Path) -> None:
    from mindgspo.rollout.weight_transfer import weights_as_numpy

    config = load(tmp_path, f"algorithm.name={name}")
    trainer = with_algorithm(trainer, config)
    before = weights_as_numpy(trainer.model, config.model)
    metrics = trainer.train_step(1).metrics
    assert unknown_names(metrics) == []
    assert [key for key, value in metrics.items() if not math.isfinite(value)] == []
    assert (metrics["samples/trained"], metrics["actor/updates"], trainer.updater.updates) == (12, 2, 2)
    assert metrics["actor/grad_norm"] > 0 and metrics["critic/advantages/max"] > 0 > metrics["critic/advantages/min"]
    assert metrics["actor/first_ratio_error_max"] < 1e-5 < metrics["actor/ratio_error_max"]
    has_dual_clip = POLICY_LOSSES[name].clip_ratio_c is not None
    assert ("actor/pg_clipfrac_lower" in metrics) == has_dual_clip, "only where the recipe has one"
    after = weights_as_numpy(trainer.model, config.model)
    assert all((after[key] != before[key]).any() for key in before), "a weight that was not trained"
    assert all(np.isfinite(array).all() for array in after.values())


def test_a_teacher_that_is_the_policy_teaches_nothing(trainer, tmp_path: Path) -> None:
    """Its log-probs are the old policy's, bit for bit, on kernels; another temperature makes it another teacher."""
    from mindgspo.models.scoring import PolicyScorer
    from mindgspo.trainer.teachers import Teacher, Teachers

    teachers = "algorithm.distillation={teachers: [{path: none}], with_rewards: false}"
    path = tmp_path / "family.yaml"
    path.write_text(FAMILY)
    config = load_config(path, [teachers], check_files=False)
    found = {}
    for temperature in (1.0, 2.0):
        trainer = with_algorithm(trainer, config)
        scorer = PolicyScorer(trainer.model, temperature=temperature)
        teacher = Teacher(section=config.algorithm.distillation.teachers[0], model=trainer.model, scorer=scorer)
        metrics = replace(trainer, teachers=Teachers(teachers=(teacher,))).train_step(1).metrics
        assert unknown_names(metrics) == [] and metrics["distillation/taught_share"] == 1
        found[temperature] = (metrics["distillation/kl"], metrics["actor/grad_norm"])
    assert found[1.0] == (0, 0)
    assert found[2.0][0] != 0 and found[2.0][1] > 0


def test_by_default_old_log_probs_are_the_samplers_and_the_step_is_the_same(trainer, tmp_path: Path) -> None:
    """Bit for bit, on kernels, from the same prompts."""
    from mindgspo.rollout.weight_transfer import weights_as_numpy
    from mindgspo.trainer.build import resolved_old_log_probs

    config = load(tmp_path)
    position, found = trainer.report.stream.state(), {}
    for old_log_probs in (resolved_old_log_probs(config, trainer.model), "recompute"):
        one = with_algorithm(trainer, config, old_log_probs, with_entropy=True)
        trainer.report.stream.restore(position)
        metrics = one.train_step(1).metrics
        found[old_log_probs] = (metrics, weights_as_numpy(trainer.model, config.model))
    (sampled, ours), (scored, theirs) = found["sampler"], found["recompute"]
    assert sampled["actor/first_ratio_error_max"] == scored["actor/first_ratio_error_max"] == 0
    assert sampled["training/rollout_logprob_diff_max"] == scored["training/rollout_logprob_diff_max"] == 0
    assert sampled["actor/entropy"] == pytest.approx(scored["actor/entropy"], rel=1e-2), "of moving weights"
    assert sampled["critic/score/mean"] == scored["critic/score/mean"]
    assert all((ours[name] == theirs[name]).all() for name in theirs)


@pytest.mark.parametrize(("overrides", "expected"), [
    ((), "sampler"), (("algorithm.old_log_probs=recompute",), "recompute"),
    (("algorithm.rollout_correction.level=token",), "recompute"), (("rollout.cache_dtype=float16",), "recompute"),
    (("model.dtype=bfloat16",), "sampler"), (("model.dtype=float16", "rollout.cache_dtype=float32"), "sampler"),
    (("model.dtype=bfloat16", "rollout.cache_dtype=float16"), "recompute"),
    (("algorithm.filter_groups={metric: reward, refill: true, keep_surplus_steps: 2}",), "recompute"),
    (("rollout.servers={urls: ['http://one'], api: vllm}",), "recompute"),
])  # fmt: skip
def test_the_sampler_is_asked_where_it_finds_the_same(
    overrides: tuple[str, ...], expected: str, trainer, tmp_path
) -> None:
    from mindgspo.trainer.build import resolved_old_log_probs

    assert resolved_old_log_probs(load(tmp_path, *overrides), trainer.model) == expected


ALGORITHM = """
algorithm:
  name: gspo_token
  entropy_coef: 0.01
  filter_groups: {metric: reward}
  advantage: {estimator: reinforce_plus_plus, gamma: 0.9}
  kl: {placement: loss, coef: 0.1, target: 1e-3, horizon: 100}
  rollout_correction: {level: token}
"""


@pytest.fixture
def family(experiment: Path) -> Path:
    """The tiny experiment with this algorithm and three steps."""
    text = experiment.read_text()
    for old, new in (("max_steps: 4\n", "max_steps: 3\n"), ("  every: 2\n", "")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    experiment.write_text(text + ALGORITHM)
    return experiment


@pytest.mark.slow
def test_a_run_with_everything_that_the_section_offers(family: Path) -> None:
    succeeded("run", family, cwd=family.parent)
    whole = family.parent / "runs" / "tiny"
    lines = read_lines(whole / "metrics.jsonl")
    assert unknown_names(key for line in lines for key in line) == []
    training = [line for line in lines if "actor/updates" in line]
    assert [line["step"] for line in training] == [1, 2, 3]
    updated = [line for line in training if line["actor/updates"]]
    assert updated, "every group of every step was filtered: nothing is shown here"
    for line in training:
        assert line["samples/generated"] == 16 == line["samples/trained"] + line["samples/filtered"]
    for line in updated:
        assert line["actor/first_ratio_error_max"] < 1e-5 and line["actor/kl"] >= 0 and line["actor/kl_loss"] >= 0
        assert line["rollout_corr/ess"] == pytest.approx(1, abs=1e-4), "sampler and trainer are one model"
        assert line["rollout_corr/clipped_share"] == 0
    coefs = [line["actor/kl_coef"] for line in training]
    assert coefs[0] == 0.1 and len(set(coefs)) > 1, "the coefficient must have moved"
    reference = read_safetensors(next((whole / "reference").rglob("parameters.safetensors")))
    export = read_safetensors(whole / "export")
    assert reference.keys() == export.keys()
    assert any((reference[name] != export[name]).any() for name in export), "the reference moved with the policy"
    summary = json.loads((whole / "summary.json").read_text())
    assert (summary["algorithm"], summary["steps"]) == ("gspo_token", 3)
