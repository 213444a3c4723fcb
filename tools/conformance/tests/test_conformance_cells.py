"""Cells against twins on definitions that no peer has a function for, and on shapes at the edge.

Expected values are the twins', in float64; the bound is the one for files.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from mindgspo_conformance.cases import EXPECTED, Case, check_case
from mindgspo_conformance.cells import cell_jobs, check_job
from mindgspo_conformance.compare import compute_twin

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cpu_runtime")]

CLIP = {"surrogate": "clip", "clip_low": 0.2, "clip_high": 0.28, "loss_agg_mode": "token-mean"}
TOKEN = CLIP | {"ratio_level": "token"}
GSPO = CLIP | {"ratio_level": "sequence", "loss_agg_mode": "seq-mean-token-mean"}
KL = {"kl_type": "k3", "kl_coef": 0.3, "kl_agg_mode": "seq-mean-token-mean"}


def random_case(
    kind: str = "policy_loss",
    *,
    config: dict[str, Any],
    shape: tuple[int, int] = (5, 7),
    lengths: tuple[int, ...] = (7, 3, 1, 0, 5),
    per_token: bool = False,
    seed: int = 0,
) -> Case:
    """A batch with ratios on both sides of the clip range and rows of the given lengths."""
    random = np.random.default_rng(seed)
    mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.float64)
    logp = -random.exponential(1.0, shape)
    advantages = random.normal(0, 1.5, shape if per_token else shape[0])
    inputs = {
        "logp": logp,
        "old_logp": logp - random.normal(0, 0.4, shape),
        "ref_logp": logp - random.normal(0, 0.5, shape),
    }
    if kind == "policy_loss":
        inputs |= {"advantages": advantages, "rollout_is_weights": random.uniform(0.5, 1.5, shape)}
    if kind == "agg":
        inputs = {"loss_mat": random.normal(0, 1, shape)}
    return Case(name="made", kind=kind, source="made", config=config, inputs={**inputs, "mask": mask}, expected={})


def with_twin_s_values(case: Case) -> Case:
    """The case, expecting everything that a file could expect of it."""
    got = compute_twin(case)
    expected = {
        name: np.asarray(got[name], dtype=np.float64) for name in EXPECTED[case.kind].model_fields if name in got
    }
    assert all(np.isfinite(values).all() for values in expected.values()), expected
    case = dataclasses.replace(case, expected=expected)
    check_case(case)
    return case


def assert_cells_agree(*cases: Case) -> None:
    expecting = dict(enumerate(map(with_twin_s_values, cases)))
    results = dict(
        itertools.chain.from_iterable(
            check_job(job, [expecting[inputs.number] for inputs in job.inputs]) for job in cell_jobs(expecting)
        )
    )
    assert len(results) == len(cases)
    wrong = {
        number: (one.problems, [comparison for comparison in one.comparisons if not comparison.passed])
        for number, one in results.items()
        if not one.passed
    }
    assert wrong == {}
    assert all(len(one.comparisons) == len(expecting[number].expected) for number, one in results.items())


DEFINITIONS = {
    "gspo, token sum": GSPO | {"loss_agg_mode": "token-sum"},
    "gspo, token sum over ranks": GSPO | {"loss_agg_mode": "token-sum", "dp_size": 4},
    "cispo with a sequence ratio": GSPO | {"surrogate": "cispo"},
    "cispo with a sequence-token ratio": GSPO | {"surrogate": "cispo", "ratio_level": "sequence_token"},
    "cispo with an upper bound only": {**TOKEN, "surrogate": "cispo", "clip_low": None, "clip_high": 0.1},
    "sapo with a sequence ratio": GSPO | {"surrogate": "sapo", "tau_pos": 0.7, "tau_neg": 2.5},
    "both caps and dual clip": TOKEN | {"ratio_upper_clamp": 1.5, "clip_ratio_c": 1.2, "loss_upper_clamp": 1.1},
    "caps without a clip range": {**TOKEN, "clip_low": None, "clip_high": None, "ratio_upper_clamp": 1.1},
    "a clip range of one side": {**TOKEN, "clip_high": None},
    "gspo-token with dual clip": GSPO | {"ratio_level": "sequence_token", "clip_ratio_c": 1.05, "clip_low": 0.01},
    "narrow bounds of the log-ratio": TOKEN | {"log_ratio_min": -0.3, "log_ratio_max": 0.2, "clip_high": 0.4},
    "gpg": {"surrogate": "gpg", "ratio_level": "none", "loss_agg_mode": "seq-mean-token-sum"},
    "ranks and given denominators": GSPO | {"dp_size": 3, "norm_seqs": 7, "norm_tokens": 31},
    "given tokens and eps": TOKEN | {"norm_tokens": 11, "token_mean_eps": 0.5, "dp_size": 2},
    "sum over given sequences and scale": TOKEN | {"loss_agg_mode": "seq-mean-token-sum-norm", "norm_seqs": 3},
    "large length eps": GSPO | {"ratio_len_eps": 0.5, "seq_len_eps": 0.25, "empty_rows": "exclude"},
    "gmpo": TOKEN | {"surrogate": "gmpo", "loss_agg_mode": "batch-mean", "seq_len_eps": 0.5},
    "gmpo by tokens": TOKEN | {"surrogate": "gmpo", "advantage_pool": "masked-mean"},
    "gmpo beside a KL term without empty rows": TOKEN
    | KL
    | {"surrogate": "gmpo", "loss_agg_mode": "batch-mean", "empty_rows": "exclude", "advantage_pool": "masked-mean"},
    "gspo with everything": GSPO
    | KL
    | {
        "clip_ratio_c": 3.0, "log_ratio_max": 10.0, "log_ratio_min": -10.0, "loss_upper_clamp": 4.0, "dp_size": 2,
        "ratio_upper_clamp": 2.0, "kl_agg_mode": "token-mean", "kl_importance_weight": True, "norm_seqs": 6,
        "kl_value_clamp": [-0.5, 0.2], "kl_arg_clamp": [-1.0, 0.5], "empty_rows": "exclude",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definitions_that_nobody_has_run(name: str) -> None:
    config, seed = DEFINITIONS[name], len(name)
    assert_cells_agree(*(random_case(config=config, per_token=per_token, seed=seed) for per_token in (False, True)))


KL_TERMS = list(itertools.product(("k1", "k2", "k3", "abs"), (False, True), (False, True)))


@pytest.mark.parametrize(("kind", "is_weighted", "is_straight_through"), KL_TERMS)
def test_every_kl_term(kind: str, is_weighted: bool, is_straight_through: bool) -> None:
    config = {
        "kl_type": kind, "kl_coef": 0.7, "loss_agg_mode": "seq-mean-token-mean", "kl_importance_weight": is_weighted,
        "kl_straight_through_k2": is_straight_through, "kl_value_clamp": [-0.4, 0.6],
    }  # fmt: skip
    assert_cells_agree(random_case("kl", config=config))


def test_k3_keeps_its_digits_between_close_policies() -> None:
    """exp(-u) - 1 + u of u = 0.01 is 5e-5, of which float32's 1 takes three digits if it is computed as written."""
    config = {"kl_type": "k3", "loss_agg_mode": "token-mean"}
    cases = []
    for seed in range(30):
        case = random_case("kl", config=config, seed=seed)
        logp = case.inputs["logp"].round(6)
        ref_logp = (logp + np.random.default_rng(seed).normal(0, 0.01, logp.shape)).round(6)
        cases.append(dataclasses.replace(case, inputs={**case.inputs, "logp": logp, "ref_logp": ref_logp}))
    assert_cells_agree(*cases)


@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "batch-token-sum-norm"]
)
def test_aggregations_over_ranks(mode: str) -> None:
    config = {"loss_agg_mode": mode, "dp_size": 4, "norm_seqs": 9, "norm_tokens": 50, "loss_scale_factor": 12.0}
    assert_cells_agree(random_case("agg", config=config))


@pytest.mark.parametrize("config", [GSPO, TOKEN], ids=["gspo", "token"])
def test_shapes_at_the_edge(config: dict[str, Any]) -> None:
    shapes = [((1, 1), (1,)), ((1, 9), (4,)), ((40, 1), (1,) * 39 + (0,)), ((2, 300), (300, 2))]
    assert_cells_agree(*(random_case(config=config, shape=shape, lengths=lengths) for shape, lengths in shapes))


def test_holes_with_poison_change_nothing() -> None:
    clean = random_case(config=GSPO | KL | {"ratio_level": "sequence_token"}, per_token=True, seed=3)
    holes = clean.inputs["mask"].copy()
    holes[0, [0, 2, 5]] = 0
    holes[4, :4] = 0
    clean = dataclasses.replace(clean, inputs={**clean.inputs, "mask": holes})
    poisoned = []
    for poison in (np.nan, np.inf, -np.inf, 1e30, 1e300):
        inputs = {name: np.where(holes == 1, array, poison) for name, array in clean.inputs.items()}
        poisoned.append(dataclasses.replace(clean, inputs={**inputs, "mask": holes}))
        assert compute_twin(poisoned[-1])["loss"] == compute_twin(clean)["loss"]
    assert_cells_agree(clean, *poisoned)


def test_an_eps_of_zero_is_none() -> None:
    assert_cells_agree(random_case(config=GSPO | {"seq_len_eps": 0.0, "ratio_len_eps": 0.0}))


def test_rows_without_tokens_count_only_where_they_are_said_to() -> None:
    """TRL's GMPO: each empty row adds -A / rows. Padded rows must not."""
    gmpo = TOKEN | {"surrogate": "gmpo", "loss_agg_mode": "batch-mean", "empty_rows": "include"}
    case = random_case(config=gmpo, lengths=(0, 0, 0, 0, 0))
    assert compute_twin(case)["loss"] == pytest.approx(-case.inputs["advantages"].mean(), rel=1e-12)
    assert_cells_agree(case)


def test_an_advantage_per_token_of_a_row_without_tokens_is_nothing() -> None:
    gmpo = TOKEN | {"surrogate": "gmpo", "loss_agg_mode": "batch-mean", "empty_rows": "include"}
    case = random_case(config=gmpo, per_token=True)
    assert case.inputs["mask"][3].sum() == 0
    poisoned = {**case.inputs, "advantages": np.where(case.inputs["mask"] == 1, case.inputs["advantages"], np.nan)}
    assert_cells_agree(case, dataclasses.replace(case, inputs=poisoned))


def test_a_batch_without_a_token_is_zero() -> None:
    case = random_case(config=GSPO | KL, lengths=(0, 0, 0, 0, 0))
    assert compute_twin(case)["loss"] == 0.0
    assert_cells_agree(case)


def test_the_compared_graph_is_the_training_cell() -> None:
    """Leaving the averages out changes no digit of loss and gradient."""
    import mindspore as ms
    from mindspore import Tensor, ops

    from mindgspo.algorithms.losses.registry import policy_loss_cell
    from mindgspo_conformance.graphs import compute

    (job,) = cell_jobs({0: random_case(config=DEFINITIONS["gspo with everything"])})
    (inputs,) = job.inputs
    (compared,) = compute(job)
    names = ("logp", "old_logp", "old_logp", "ref_logp", "advantages", "rollout_is_weights")
    tensors = [Tensor(inputs.arrays[name]) for name in names] + [Tensor(inputs.mask_NK)]
    scalars = [Tensor(n, ms.float32) for n in (inputs.num_sequences, inputs.num_tokens, inputs.kl_coef)]
    cell = policy_loss_cell(job.definition)
    (loss, metrics, _), gradient = ms.jit(ops.value_and_grad(cell, 0, has_aux=True))(*tensors, *scalars)
    assert loss.asnumpy() == compared["loss"] and np.array_equal(gradient.asnumpy(), compared["grad_logp"])
    parts = dict(zip([metric.name for metric in cell.metrics], metrics.asnumpy(), strict=True))
    assert parts["pg_loss"] == compared["pg_loss"] and parts["kl_loss"] * inputs.kl_share == compared["kl_loss"]


def test_a_cell_that_raises_fails_its_cases() -> None:
    case = random_case("agg", config={"loss_agg_mode": "token-sum"})
    (job,) = cell_jobs({4: case})
    (inputs,) = job.inputs
    torn = dataclasses.replace(job, inputs=(dataclasses.replace(inputs, arrays={}),))
    ((number, result),) = check_job(torn, [case])
    assert number == 4 and result.failed and result.problems == ("KeyError: 'loss_mat'",)
