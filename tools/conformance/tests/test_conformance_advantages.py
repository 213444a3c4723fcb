import itertools

import numpy as np
import pytest

from mindgspo.errors import DataError
from mindgspo_conformance.advantages import advantages_of_case, normalized_rewards

REWARDS = [1.0, 0.0, 0.5, 0.25, 2.0, -1.0]
GROUP = [0, 0, 0, 1, 1, 2]
MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 1, 0]])


def full_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    tokens = {name: rng.normal(size=MASK.shape) for name in ("values", "old_logp", "ref_logp")}
    tokens["old_logp"][0, 0] = tokens["ref_logp"][0, 0] - 5  # beyond the bound of low_var_kl
    return {
        "rewards": np.array(REWARDS),
        "group": np.array(GROUP),
        "mask": MASK,
        "reward_baselines": rng.normal(size=6),
        **tokens,
    }


def test_garbage_in_masked_slots_changes_nothing(public_cases):
    for case in public_cases:
        tokens = [name for name in ("token_rewards", "values", "old_logp", "ref_logp") if name in case.inputs]
        if case.kind != "advantage" or not tokens:
            continue
        clean = advantages_of_case(case.config, case.inputs)
        for poison in (np.nan, np.inf, -np.inf, 1e30):
            real = case.inputs["mask"] == 1
            poisoned = {name: np.where(real, case.inputs[name], poison) for name in tokens}
            dirty = advantages_of_case(case.config, {**case.inputs, **poisoned})
            np.testing.assert_array_equal(dirty.advantages, clean.advantages)
            np.testing.assert_array_equal(dirty.returns, clean.returns)


WHITEN = ("none", "unbiased", "unbiased_moments", "biased")
COMBINATIONS = {
    "grpo": {"center": ("mean", "none"), "scale": ("std", "none"), "ddof": (0, 1), "var_floor": (None, 0.5, 10.0)},
    "max_rl": {"singleton": ("zero", "raw"), "broadcast": (True, False)},
    "grpo_passk": {"scale": ("std", "none"), "ddof": (0, 1)},
    "opo": {"singleton": ("zero", "raw"), "broadcast": (True, False)},
    "gpg": {"singleton": ("zero", "raw")},
    "remax": {},
    "reinforce_plus_plus": {"gamma": (0.0, 0.9, 1), "hole": ("carry", "reset", "discount"), "whiten": WHITEN},
    "reinforce_plus_plus_baseline": {"singleton": ("zero", "raw"), "whiten": WHITEN},
    "reinforce_whiten_biased": {"gamma": (0.5, 1), "broadcast": (True, False), "whiten": WHITEN},
    "reinforce_plus_plus_baseline_biased": {"broadcast": (True, False), "singleton": ("zero", "raw")},
    "gae": {"gamma": (0.0, 0.9), "lam": (0.0, 1), "skip_masked": (True, False), "kl_coef": (0, 0.1), "whiten": WHITEN},
    "slime_cispo": {"whiten": WHITEN},
    "slime_reinforce_plus_plus": {"kl_type": ("k1", "k2", "k3", "low_var_kl", "abs"), "kl_coef": (0.5,)},
    "slime_reinforce_plus_plus_baseline": {"kl_type": ("k1", "k2", "k3"), "kl_coef": (0.5,), "whiten": WHITEN},
}


@pytest.mark.parametrize("estimator", COMBINATIONS)
def test_every_combination_of_keys_is_finite_and_zero_where_masked(estimator):
    options = COMBINATIONS[estimator]
    for values in itertools.product(*options.values()):
        config = {"estimator": estimator, **dict(zip(options, values, strict=True))}
        advantages = advantages_of_case(config, full_inputs()).advantages
        assert np.isfinite(advantages).all(), config
        if advantages.ndim == 2 and not estimator.endswith("_biased"):
            assert (advantages[MASK == 0] == 0).all(), config


@pytest.mark.parametrize(("estimator", "key"), [(name, key) for name in COMBINATIONS for key in COMBINATIONS[name]])
def test_every_value_of_a_key_matters(estimator, key):
    options = COMBINATIONS[estimator]
    others = {name: values for name, values in options.items() if name != key}
    results = []
    for value in options[key]:
        configs = [dict(zip(others, values, strict=True)) for values in itertools.product(*others.values())]
        found = [
            advantages_of_case({"estimator": estimator, key: value, **config}, full_inputs()) for config in configs
        ]
        results.append(tuple(result.advantages.tobytes() for result in found))
    assert len(set(results)) == len(results)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline", "remax"])
def test_token_rewards_stand_for_rewards(estimator):
    inputs = full_inputs()
    expected = advantages_of_case({"estimator": estimator}, inputs)
    last = MASK.shape[1] - 1 - np.argmax(MASK[:, ::-1], axis=1)
    token_rewards = np.zeros(MASK.shape)
    token_rewards[np.arange(6), last] = REWARDS
    del inputs["rewards"]
    actual = advantages_of_case({"estimator": estimator}, {**inputs, "token_rewards": token_rewards})
    np.testing.assert_allclose(actual.advantages, expected.advantages, rtol=1e-14)


def test_broadcast_decides_the_shape():
    inputs = full_inputs()
    flat = advantages_of_case({"estimator": "dr_grpo", "broadcast": False}, inputs)
    assert flat.advantages.tolist() == [0.5, -0.5, 0.0, -0.875, 0.875, 0.0]
    assert flat.returns is None
    spread = advantages_of_case({"estimator": "dr_grpo", "broadcast": True}, inputs)
    np.testing.assert_array_equal(spread.advantages, flat.advantages[:, None] * MASK)
    assert advantages_of_case({"estimator": "dr_grpo"}, {"rewards": REWARDS, "group": GROUP}).advantages.shape == (6,)


def test_masked_slots_of_openrlhf_are_whitened_like_the_others():
    # r - mean = 1, -1 on 1 and 3 tokens: mean -0.5, variance (1 * 2.25 + 3 * 0.25) / 4 = 0.75
    inputs = {"rewards": [2.0, 0.0], "group": [0, 0], "mask": [[1, 0, 0], [1, 1, 1]]}
    result = advantages_of_case({"estimator": "reinforce_plus_plus_baseline_biased"}, inputs)
    deviation = np.sqrt(0.75)
    np.testing.assert_allclose(result.advantages[0], [1.5 / deviation, 0.5 / deviation, 0.5 / deviation])
    remasked = advantages_of_case({"estimator": "reinforce_plus_plus_baseline_biased", "broadcast": True}, inputs)
    np.testing.assert_allclose(remasked.advantages[0], [1.5 / deviation, 0, 0])


def test_low_var_kl_is_bounded_and_k3_is_not():
    inputs = {"rewards": [0.0], "mask": [[1]], "old_logp": [[-5.0]], "ref_logp": [[0.0]]}
    config = {"estimator": "slime_reinforce_plus_plus", "kl_coef": 1.0}
    bounded = advantages_of_case({**config, "kl_type": "low_var_kl"}, inputs).advantages
    free = advantages_of_case({**config, "kl_type": "k3"}, inputs).advantages
    assert bounded.tolist() == [[-10.0]]
    np.testing.assert_allclose(free, [[-(np.exp(5) - 6)]])


@pytest.mark.parametrize(("config", "changes", "message"), [
    ({"estimator": "grop"}, {}, "unknown estimator 'grop'.*did you mean 'grpo'"),
    ({}, {}, "unknown estimator None"),
    ({"estimator": "grpo", "epsilon": 1e-6}, {}, "grpo.epsilon: unknown key"),
    ({"estimator": "grpo", "scale": "stdev"}, {}, "scale: expected one of .*, got 'stdev'; did you mean 'std'"),
    ({"estimator": "grpo", "ddof": 2}, {}, "ddof: must be <= 1, got 2"),
    ({"estimator": "grpo", "ddof": True}, {}, "ddof: expected a whole number, got True"),
    ({"estimator": "grpo", "eps": -1e-6}, {}, "eps: must be >= 0, got -1e-06"),
    ({"estimator": "grpo", "eps": "small"}, {}, "eps: expected a finite number, got 'small'"),
    ({"estimator": "grpo", "center": "none", "scale": "mean"}, {}, "no definition"),
    ({"estimator": "gae"}, {"values": None}, "gae: needs the input 'values'"),
    ({"estimator": "grpo"}, {"rewards": None}, "needs the input 'rewards'"),
    ({"estimator": "grpo"}, {"token_rewards": np.zeros((6, 4))}, "rewards or token_rewards, not both"),
    ({"estimator": "grpo"}, {"group": np.zeros(5)}, r"group: expected shape \[6\], got \[5\]"),
    ({"estimator": "grpo"}, {"group": np.full(6, 0.5)}, "group: 0.5 at .*whole"),
    ({"estimator": "grpo"}, {"mask": np.ones((5, 4))}, "5 rows for 6 rewards|mask"),
    ({"estimator": "grpo"}, {"mask": np.full((6, 4), 0.5)}, "mask: 0.5 at .*only 0 and 1"),
    ({"estimator": "grpo"}, {"rewards": [1, 2, np.nan, 0, 0, 0]}, r"rewards: nan at \[2\].*finite"),
    ({"estimator": "gae"}, {"values": np.zeros((6, 3))}, r"values: expected shape \[6, 4\]"),
    ({"estimator": "gae"}, {"values": np.where(MASK, np.nan, 0.0)}, "values: nan at .*finite"),
])  # fmt: skip
def test_bad_cases_are_refused(config, changes, message):
    inputs = {**full_inputs(), **changes}
    with pytest.raises(DataError, match=message):
        advantages_of_case(config, {name: array for name, array in inputs.items() if array is not None})


TRL = {"mode": "sum_then_normalize", "group_size": 2, "eps": 1e-4}


@pytest.mark.parametrize(("config", "inputs", "message"), [
    ({"mode": "sum_then_normalise"}, {}, "unknown mode.*did you mean 'sum_then_normalize'"),
    ({"mode": "slime"}, {"rewards": [1.0]}, "group_size: missing; needed here: mode, group_size"),
    ({**TRL, "group_size": 0}, {}, "group_size: must be >= 1"),
    ({**TRL, "group_size": 1.5}, {}, "group_size: expected a whole number"),
    ({**TRL, "scale": "std"}, {}, "scale: expected one of group, batch, none, got 'std'"),
    (TRL, {"rewards": [1.0, 2.0, 3.0]}, "3 rewards are not whole groups of group_size 2"),
    (TRL, {"rewards_per_func": [[1.0, 2.0]], "reward_weights": [1.0]}, "whole groups|reward_weights"),
    (TRL, {"rewards_per_func": [[1.0], [2.0]], "reward_weights": [1.0, 1.0]}, r"reward_weights: .*\[1\], got \[2\]"),
    (TRL, {"rewards_per_func": [[1.0], [np.inf]], "reward_weights": [1.0]}, "infinite"),
    (TRL, {"rewards_per_func": [[1.0], [2.0]]}, "needs the input 'reward_weights'"),
])  # fmt: skip
def test_bad_reward_norms_are_refused(config, inputs, message):
    with pytest.raises(DataError, match=message):
        normalized_rewards(config, inputs)
