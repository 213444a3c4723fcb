"""Reading the config of a conformance case: every key, its defaults, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.conformance.definitions import (
    aggregation_of,
    definition_of,
    denominators_of,
    kl_coef_of,
    kl_term_of,
    metric_options_of,
)
from mindgspo.errors import DataError

SHORT = {"surrogate": "clip", "ratio_level": "token", "loss_agg_mode": "token-mean"}


def test_absent_and_null_keys_are_off():
    expected = LossDefinition(
        ratio_level="token", surrogate="clip", aggregation=Aggregation(mode="token-mean", empty_rows="include")
    )
    assert definition_of(SHORT, 7) == expected
    assert definition_of(SHORT | dict.fromkeys(("clip_low", "kl_type", "kl_arg_clamp", "tau_pos")), 7) == expected
    assert kl_coef_of(SHORT) == 0.0 and kl_coef_of(SHORT, absent=1.0) == 1.0
    options = metric_options_of(SHORT)
    assert (options.metric_tokens, options.metric_eps, options.ppo_kl_clamped) == (None, 0.0, False)


def test_every_key_arrives():
    config = {
        "algorithm": "gspo", "surrogate": "clip", "ratio_level": "sequence", "ratio_len_eps": 1e-8,
        "log_ratio_min": -20.0, "log_ratio_max": 20.0, "clip_low": 1.5, "clip_high": 0.2, "clip_ratio_c": 3.0,
        "ratio_upper_clamp": 2.0, "loss_upper_clamp": 3.0, "tau_pos": 1.5, "tau_neg": 2.5,
        "advantage_pool": "masked-mean", "loss_agg_mode": "seq-mean-token-sum-norm", "empty_rows": "exclude",
        "seq_len_eps": 1e-6, "loss_scale_factor": 64, "kl_type": "k3", "kl_agg_mode": "seq-mean-token-mean",
        "kl_arg_clamp": [-20, 20], "kl_value_clamp": [-10, 10], "kl_importance_weight": True,
        "kl_straight_through_k2": True,
    }  # fmt: skip
    assert definition_of(config, 7) == LossDefinition(
        ratio_level="sequence",
        surrogate="clip",
        aggregation=Aggregation(mode="seq-mean-token-sum-norm", seq_len_eps=1e-6, loss_scale_factor=64),
        clip_low=1.5,
        clip_high=0.2,
        clip_ratio_c=3.0,
        ratio_upper_clamp=2.0,
        loss_upper_clamp=3.0,
        log_ratio_min=-20.0,
        log_ratio_max=20.0,
        ratio_len_eps=1e-8,
        tau_pos=1.5,
        tau_neg=2.5,
        advantage_pool="masked-mean",
        kl=KLTerm(
            kind="k3",
            aggregation=Aggregation(mode="seq-mean-token-mean", seq_len_eps=1e-6),
            arg_clamp=(-20.0, 20.0),
            value_clamp=(-10.0, 10.0),
            importance_weight=True,
            straight_through_k2=True,
        ),
    )


def test_scale_defaults_to_the_number_of_slots():
    for mode in ("seq-mean-token-sum-norm", "batch-token-sum-norm"):
        assert aggregation_of({"loss_agg_mode": mode}, 7).loss_scale_factor == 7
        assert aggregation_of({"loss_agg_mode": mode, "loss_scale_factor": 64}, 7).loss_scale_factor == 64
    assert aggregation_of({"loss_agg_mode": "token-mean", "loss_scale_factor": 64}, 7).loss_scale_factor is None


def test_a_sum_over_ranks_that_average_is_scaled():
    scaled = aggregation_of({"loss_agg_mode": "token-sum", "dp_size": 4}, 7)
    assert (scaled.mode, scaled.loss_scale_factor) == ("batch-token-sum-norm", 0.25)
    assert aggregation_of({"loss_agg_mode": "token-sum", "dp_size": 1}, 7).mode == "token-sum"
    assert aggregation_of({"loss_agg_mode": "batch-token-sum-norm", "dp_size": 4}, 7).loss_scale_factor == 7


def test_kl_is_aggregated_like_the_loss_unless_told_otherwise():
    case = {"kl_type": "k2", "loss_agg_mode": "seq-mean-token-mean"}
    assert kl_term_of(case, 7).aggregation.mode == "seq-mean-token-mean"
    assert kl_term_of(case | {"kl_agg_mode": "token-mean"}, 7).aggregation.mode == "token-mean"
    beside_gmpo = kl_term_of(case | {"loss_agg_mode": "batch-mean", "empty_rows": "exclude"}, 7).aggregation
    assert (beside_gmpo.mode, beside_gmpo.empty_rows) == ("seq-mean-token-mean", "include")


def test_denominators_of_a_case():
    mask = np.array([[1, 1], [0, 0]])
    token_mean = aggregation_of(SHORT, 2)
    assert denominators_of(SHORT, token_mean, mask) == (2.0, 2.0)
    given = SHORT | {"norm_seqs": 9, "norm_tokens": 37, "token_mean_eps": 1.0, "dp_size": 2}
    assert denominators_of(given, token_mean, mask) == (4.5, 19.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_lo": 0.2}, r"config\.clip_lo: unknown key; did you mean 'clip_low'\?"),
        ({"surrogate": "clipp"}, r"config\.surrogate: expected one of clip, .*, got 'clipp'; did you mean 'clip'\?"),
        ({"ratio_level": "sequence-token"}, "did you mean 'sequence_token'"),
        ({"loss_agg_mode": "token_mean"}, "did you mean 'token-mean'"),
        ({"kl_type": "k4"}, r"config\.kl_type: expected one of k1, k2, k3, abs"),
        ({"empty_rows": True}, r"config\.empty_rows: expected one of exclude, include, got True"),
        ({"clip_low": -0.2}, r"config\.clip_low: must be >= 0, got -0.2"),
        ({"clip_high": float("nan")}, r"config\.clip_high: expected a finite number"),
        ({"clip_high": "0.2"}, r"config\.clip_high: expected a finite number, got '0.2'"),
        ({"clip_ratio_c": 0}, r"config\.clip_ratio_c: must be > 0, got 0"),
        ({"kl_arg_clamp": 20}, r"config\.kl_arg_clamp: expected \[low, high\], got 20"),
        ({"kl_value_clamp": [10, -10]}, r"config\.kl_value_clamp: low 10 is above high -10"),
        ({"kl_importance_weight": 1}, r"config\.kl_importance_weight: expected true or false, got 1"),
        ({"dp_size": 0}, r"config\.dp_size: expected a whole number >= 1, got 0"),
        ({"dp_size": 1.5}, r"config\.dp_size: expected a whole number"),
        ({"log_ratio_min": 1.0, "log_ratio_max": -1.0}, r"config\.log_ratio_min: 1.0 is above log_ratio_max -1.0"),
        ({"surrogate": None}, r"config\.surrogate: missing; one of clip, cispo"),
    ],
)
def test_what_the_format_does_not_know_is_refused(change, message):
    with pytest.raises(DataError, match=message):
        definition_of(SHORT | change, 7)
