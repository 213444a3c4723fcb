"""What the cells are asked, and how cases become the inputs of one compiled graph."""

from typing import Any

import numpy as np
import pytest

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo_conformance.cases import Case
from mindgspo_conformance.cells import CellJob, CellRuns, cell_jobs, common_shape, skip_reason

MASK = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


def loss_case(*, kind: str = "policy_loss", mask: np.ndarray = MASK, config: dict[str, Any], **options: Any) -> Case:
    arrays = {name: np.full(mask.shape, value) for name, value in (("logp", -1.0), ("old_logp", -2.0))}
    inputs = {**arrays, "advantages": np.array([1.5, -2.0]), "ref_logp": arrays["logp"], "mask": mask}
    return Case(
        name="x", kind=kind, source="s", config=config, inputs=inputs, expected={"loss": np.zeros(())}, **options
    )


GSPO = {"surrogate": "clip", "ratio_level": "sequence", "loss_agg_mode": "seq-mean-token-mean", "empty_rows": "exclude"}


def only_job(*cases: Case) -> CellJob:
    (job,) = cell_jobs(dict(enumerate(cases)))
    return job


@pytest.mark.parametrize(("tags", "edge_margin", "reason"), [
    ((), np.inf, None),
    (("tie", "masked_nan"), 1.01e-6, None),
    ((), 9e-7, "edge_margin < 1e-06"),
    ((), 0.0, "edge_margin < 1e-06"),
    ((), np.nan, "edge_margin < 1e-06"),
    (("dual_clip", "float64_only"), 0.3, "float64_only"),
    (("log_ratio_overflow",), 0.3, "log_ratio_overflow"),
])  # fmt: skip
def test_only_what_the_format_names_is_skipped(tags: tuple[str, ...], edge_margin: float, reason: str | None) -> None:
    case = loss_case(config=GSPO, tags=tags, edge_margin=edge_margin)
    assert skip_reason(case) == reason
    side = CellRuns({7: case})
    assert {number: one.skipped for number, one in side.skipped.items()} == ({7: reason} if reason else {})
    assert side.num_graphs == (0 if reason else 1) and side.num_processes == 1


@pytest.mark.parametrize(
    ("shape", "common"),
    [((1, 1), (8, 16)), ((8, 16), (8, 16)), ((9, 17), (16, 32)), ((3, 500), (8, 512)), ((32, 3), (32, 16))],
)
def test_common_shapes(shape: tuple[int, int], common: tuple[int, int]) -> None:
    assert common_shape(shape) == common


def test_padding_is_masked_and_zero() -> None:
    (inputs,) = only_job(loss_case(config=GSPO)).inputs
    assert inputs.mask_NK.shape == (8, 16) and inputs.mask_NK.dtype == np.bool_
    assert inputs.mask_NK.sum() == 2 and inputs.mask_NK[0, :2].all()
    assert inputs.arrays["logp"].dtype == np.float32 and inputs.arrays["logp"].sum() == -6.0
    # The advantage of a response stands in all of its slots; padded rows have none.
    assert inputs.arrays["advantages"][:2, :3].tolist() == [[1.5] * 3, [-2.0] * 3]
    assert not inputs.arrays["advantages"][2:].any()
    assert (inputs.num_sequences, inputs.num_tokens) == (1.0, 2.0), "denominators are those before padding"


def test_cases_of_one_definition_share_a_graph() -> None:
    alike = [loss_case(config=GSPO | extra) for extra in ({}, {"norm_seqs": 9, "metric_eps": 1e-8}, {"algorithm": "x"})]
    job = only_job(*alike)
    assert isinstance(job.definition, LossDefinition)
    assert [inputs.num_sequences for inputs in job.inputs] == [1.0, 9.0, 1.0]
    assert [inputs.number for inputs in job.inputs] == [0, 1, 2]
    other = [loss_case(config=GSPO | {"clip_low": 0.1}), loss_case(config=GSPO, kind="kl"), loss_case(config=GSPO)]
    other[1] = loss_case(config={"kl_type": "k2", "loss_agg_mode": "token-mean"}, kind="kl")
    assert [type(job.definition) for job in cell_jobs(dict(enumerate(other)))] == [
        LossDefinition, KLTerm, LossDefinition,
    ]  # fmt: skip
    assert isinstance(only_job(loss_case(config={"loss_agg_mode": "token-sum"}, kind="agg")).definition, Aggregation)


def test_the_default_scale_is_the_length_before_padding() -> None:
    job = only_job(loss_case(config=GSPO | {"loss_agg_mode": "seq-mean-token-sum-norm"}))
    assert job.definition.aggregation.loss_scale_factor == 3


def test_beside_a_batch_mean_the_kl_term_keeps_its_own_number_of_sequences() -> None:
    config = GSPO | {"surrogate": "gmpo", "ratio_level": "token", "loss_agg_mode": "batch-mean"}
    config |= {"kl_type": "k1", "kl_coef": 0.5, "kl_agg_mode": "seq-mean-token-mean"}
    (inputs,) = only_job(loss_case(config=config)).inputs
    # The loss counts both rows, the KL only the one with tokens: 0.5 / 1 = (0.5 * 2) / 2.
    assert (inputs.num_sequences, inputs.kl_share, inputs.kl_coef) == (2.0, 2.0, 1.0)
    (inputs,) = only_job(loss_case(config=config | {"kl_agg_mode": "token-mean"})).inputs
    assert (inputs.num_tokens, inputs.kl_share, inputs.kl_coef) == (2.0, 1.0, 0.5)
