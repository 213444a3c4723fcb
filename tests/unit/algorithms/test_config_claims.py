"""What the configuration's rules say about the algorithms, asked of the algorithms themselves."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from mindgspo.algorithms.advantages.estimate import AdvantageInputs, estimate_advantages
from mindgspo.algorithms.losses.definition import Aggregation, LossDefinition
from mindgspo.config import load_config
from mindgspo.config.algorithm import AdvantageSection, EstimatorName
from mindgspo.config.algorithm_rules import LENGTH_FACTORS, READERS, WITHOUT_SIBLINGS, is_per_token
from mindgspo_conformance.twins.policy_loss import policy_loss

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"

OTHER_VALUES = {
    "normalize_by_std": False, "std_over": "batch", "ddof": 0, "eps": 0.5, "singleton": "raw",
    "combine": "normalize_then_sum", "gamma": 0.5, "whiten": "none",
}  # fmt: skip

# Two groups of different spread, and one response alone; two reward functions of equal weight.
PARTS = np.array([[1.0, 0.0], [0.0, 0.0], [0.5, 2.0], [1.0, 4.0], [0.0, 1.0], [2.0, 1.0]])
INPUTS = AdvantageInputs(
    rewards_N=PARTS.sum(axis=1), counted_N=np.ones(6, bool), groups_N=np.array([0, 0, 0, 1, 1, 2]),
    lengths_N=np.array([3, 1, 2, 4, 2, 3]), part_rewards_NF=PARTS, part_weights_F=np.ones(2),
    baselines_N=np.array([0.0, 0.0, 0.0, 2.0, 2.0, 1.0]), energies_NT=np.random.default_rng(1).random((6, 4)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "key"),
    # Estimators refuse this key themselves where they do not read it.
    [(one, key) for one in get_args(EstimatorName) for key in READERS if key != "combine" or one in READERS[key]],
)
def test_an_estimator_reads_the_keys_that_the_rules_say(estimator, key):
    usual = estimate_advantages(AdvantageSection(estimator=estimator), INPUTS)
    changed = estimate_advantages(AdvantageSection(estimator=estimator, **{key: OTHER_VALUES[key]}), INPUTS)
    assert any((one != other).any() for one, other in zip(usual, changed, strict=True)) == (estimator in READERS[key])


@pytest.mark.parametrize("estimator", get_args(EstimatorName))
def test_one_response_per_prompt_says_something_without_siblings_only(estimator):
    alone = AdvantageInputs(
        rewards_N=np.array([1.0, 0.0, 3.0]), counted_N=np.ones(3, bool), groups_N=np.arange(3),
        lengths_N=np.array([2, 3, 1]), baselines_N=np.array([0.0, 1.0, 1.0]), energies_NT=np.ones((3, 3)),
    )  # fmt: skip
    advantages = estimate_advantages(AdvantageSection(estimator=estimator), alone)
    assert any(row.any() for row in advantages) == (estimator in WITHOUT_SIBLINGS)


@pytest.mark.parametrize("placement", ["none", "reward"])
@pytest.mark.parametrize(
    ("estimator", "gamma"), [(one, 1.0) for one in get_args(EstimatorName)] + [(one, 0.9) for one in READERS["gamma"]]
)
def test_advantages_differ_within_a_response_where_the_rules_say_so(estimator, placement, gamma):
    settings = {"advantage.estimator": estimator, "advantage.gamma": gamma, "kl.placement": placement}
    config = load_config(QUICKSTART, [f"algorithm.{key}={value}" for key, value in settings.items()])
    penalties = np.random.default_rng(0).random((6, 4)) if placement == "reward" else None
    inputs = replace(INPUTS, part_rewards_NF=None, part_weights_F=None, token_penalties=penalties)
    advantages = estimate_advantages(config.algorithm.advantage, inputs)
    assert any(np.unique(row).size > 1 for row in advantages) == is_per_token(config)


@pytest.mark.parametrize("ratio_level", ["sequence", "sequence_token"])
@pytest.mark.parametrize("mode", LENGTH_FACTORS)
def test_token_weighting_multiplies_each_response_as_the_refusal_says(mode, ratio_level):
    """The factor in the message, evaluated for lengths 4, 1 and 2, against gradients of both aggregations."""
    mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]], bool)
    rng = np.random.default_rng(0)
    logp = -rng.random(mask.shape)
    old = logp + 1e-5 * rng.standard_normal(mask.shape)

    def gradient(aggregation: str) -> np.ndarray:
        definition = LossDefinition(
            ratio_level=ratio_level, surrogate="clip", aggregation=Aggregation(mode=aggregation, loss_scale_factor=7.0),
            clip_low=3e-4, clip_high=4e-4,
        )  # fmt: skip
        advantages = np.array([1.0, -2.0, 0.5])
        result = policy_loss(
            definition, logp_NK=logp, old_logp_NK=old, advantages_NK=advantages, mask_NK=mask,
            num_sequences=3, num_tokens=7,
        )  # fmt: skip
        return result.grad_logp_NK

    lengths = mask.sum(axis=1)
    formula = LENGTH_FACTORS[mode].replace("|y_i|", "lengths").replace("sum |y|", "total").replace("B ", "num * ")
    factors = eval(formula, {"lengths": lengths, "total": lengths.sum(), "num": 3, "L": 7.0})
    expected = gradient("seq-mean-token-mean") * factors[:, None]
    np.testing.assert_allclose(gradient(mode)[mask], expected[mask], rtol=1e-12)
