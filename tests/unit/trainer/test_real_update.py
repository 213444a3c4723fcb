"""Warm-up and the self-check with a real two-layer model; what is sampled stays scripted."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.updater import Updater
from mindgspo.config import WarmupSection
from mindgspo.errors import DataError, TrainingError
from mindgspo.metrics import RunLog, unknown_names
from mindgspo.metrics.glossary import LOG_RATIO_BINS
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.weights import initialize_weights
from mindgspo.trainer.warmup import supervised_sample


@pytest.fixture(scope="module")
def compiled(cpu_runtime: None, load):
    """(model, updater), which all tests share; `model` and `updater` put back what was trained."""
    config = load()
    model = build_model(config.model)
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False)
    return model, Updater(policy, build_policy_loss(config.algorithm), config.optimizer)


@pytest.fixture
def model(compiled, load):
    initialize_weights(compiled[0], load().model, seed=1)
    return compiled[0]


@pytest.fixture
def updater(compiled):
    updater = compiled[1]
    updater.load_state({name: np.zeros_like(array) for name, array in updater.state().items()})
    return updater


@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_old_log_probs_at_another_temperature_are_found_out(
    temperature: float, make_trainer, model, updater, one_of_two_right
) -> None:
    trainer = make_trainer(
        one_of_two_right, model=model, updater=updater, old_policy=PolicyScorer(model, temperature=temperature)
    )
    if temperature == 1.0:
        metrics = trainer.train_step(1).metrics
        assert metrics["actor/first_ratio_error_max"] < 1e-5 < metrics["actor/ratio_error_max"]
        assert metrics["actor/entropy"] == pytest.approx(math.log(384), rel=0.01), "random weights: nearly uniform"
        assert "actor/pg_clipfrac_lower" not in metrics and "actor/kl" not in metrics, "gspo has neither"
    else:
        with pytest.raises(TrainingError, match="the importance ratio on the first mini-batch is off 1"):
            trainer.train_step(1)


def test_telemetry_of_a_real_update(make_trainer, model, updater, answer) -> None:
    """One update, so nothing is clipped. The right answer is long, the wrong one short: in gspo both weigh the same."""
    trainer = make_trainer(
        lambda prompt, sample: answer(f"000000{prompt.answer}" if sample == 0 else "9"),
        "trainer.prompts_per_mini_batch=4", model=model, updater=updater,
        old_policy=PolicyScorer(model, temperature=1.0),
    )  # fmt: skip
    metrics = trainer.train_step(1).metrics
    assert metrics["response_length/max"] > 2 * metrics["response_length/min"]
    histogram = {name: metrics[f"actor/log_ratio_hist/{name}"] for name in LOG_RATIO_BINS}
    assert histogram == {name: float(name == "within_1e-4") for name in LOG_RATIO_BINS}
    assert [metrics[f"actor/grad_share_length_decile/{n}"] for n in range(1, 11)] == pytest.approx([0.1] * 10, rel=1e-4)


def test_telemetry_covers_all_updates_of_the_step(make_trainer, model, updater, one_of_two_right) -> None:
    """After a first update with a rate that moves this model far, the ratios of the second one have left 1."""
    settings = ("optimizer.lr=1e-2", "optimizer.warmup_ratio=0")
    old_policy = PolicyScorer(model, temperature=1.0)
    trainer = make_trainer(one_of_two_right, *settings, model=model, updater=updater, old_policy=old_policy)
    metrics = trainer.train_step(1).metrics
    histogram = {name: metrics[f"actor/log_ratio_hist/{name}"] for name in LOG_RATIO_BINS}
    assert histogram["within_1e-4"] == 0.5, "the four responses of the first mini-batch, and no other"
    assert sum(histogram.values()) == 1
    shares = [metrics[f"actor/grad_share_length_decile/{n}"] for n in range(1, 11)]
    assert sum(shares) == pytest.approx(1) and min(shares) >= 0
    assert metrics["actor/ratio_error_max"] > 1e-4


@pytest.fixture
def warm_up(make_trainer, model, prompts, tokenizer, load, tmp_path: Path):
    """warm_up(script, stop_at): run it on all prompts; returns the trainer and the lines of metrics.jsonl."""
    from mindgspo.trainer.warmup import Warmup, supervised_sample, warm_up

    def start(script, stop_at: float | None):
        trainer = make_trainer(script, model=model)
        warmup = Warmup(
            section=WarmupSection(
                max_steps=30, batch_size=4, lr=1e-2, check_every=10, stop_at_accuracy=stop_at, check=None
            ),
            samples=tuple(supervised_sample(row, tokenizer, load().model) for row in prompts),
            check_set=None if stop_at is None else prompts,
        )
        with RunLog(tmp_path, progress=False) as log:
            warm_up(trainer, warmup, trainer.validation.evaluator, log)
        return trainer, [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    return start


def test_the_warm_up_learns_and_reports_its_last_update(warm_up, one_of_two_right) -> None:
    trainer, (line,) = warm_up(one_of_two_right, stop_at=None)
    assert unknown_names(line) == []
    assert (line["step"], line["sft/updates"], trainer.weights.version) == (0, 30, 30)
    assert 0 < line["sft/lr"] <= 1e-2
    assert line["sft/loss"] < 2 < math.log(384), "it was trained"
    assert math.exp(-line["sft/loss"]) < line["sft/token_probability"] < 1, "by Jensen's inequality"
    assert "sft/accuracy" not in line
    assert trainer.report.stream.epochs == 0 and trainer.updater.updates == 0, "reinforcement learning has not begun"


def test_the_warm_up_stops_at_its_accuracy(warm_up, answer) -> None:
    """The scripted policy is wrong when it is first looked at, after 10 updates, and right from then on."""
    asked = []

    def script(prompt, sample):
        asked.append(prompt.index)
        return answer("9" if len(asked) <= 8 else prompt.answer)

    trainer, (line,) = warm_up(script, stop_at=1.0)
    assert (line["sft/updates"], line["sft/accuracy"], trainer.weights.version) == (20, 1.0, 20)
    assert asked == [*range(8), *range(8)], "greedy, one answer per problem"


def test_a_solution_becomes_a_row_or_is_named(prompts, tokenizer, load) -> None:
    sample = supervised_sample(prompts[3], tokenizer, load().model)
    np.testing.assert_array_equal(sample.prompt_ids, prompts[3].ids)
    assert tokenizer.decode(sample.response_ids) == "13+33=46\n#### 46<|im_end|>"
    assert not sample.rollout_logp.any() and sample.rollout_logp.size == sample.response_ids.size
    model = load().model
    with pytest.raises(DataError, match="row 3 of the training data has no worked solution"):
        supervised_sample(replace(prompts[3], solution=""), tokenizer, model)
    fitting = replace(prompts[3], solution="1" * (96 - prompts[3].ids.size - 1))
    assert supervised_sample(fitting, tokenizer, model).length == 96
    with pytest.raises(DataError, match="= 97 tokens, model.max_position_embeddings is 96"):
        supervised_sample(replace(fitting, solution=fitting.solution + "1"), tokenizer, model)
