"""Every plan makes the same numbers as one process: losses, log-probs, gradients, weights, sampled tokens.

One launch per world size runs all plans of that size on real workers, after each other. More plans, on CPU ranks too:
tests/ascend/test_plans.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from distributed.workers.plan_cases import MODELS
from running import run_workers

from mindgspo.config import ModelSection

WORKER = Path(__file__).parent / "workers" / "plan_numbers.py"

# Experts whole on the ranks that have them.
WHOLE = {"model_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 1}
STAGES = {"pipeline_stage": 2, "micro_batch_num": 2}
SHARDED = {"optimizer_shard": True}
OVERLAPPED = {"overlap_grad_reduce": True}
MODEL, SEQUENCE = {"model_parallel": 2}, {"use_seq_parallel": True}
# (name, training plan, generating plan) by number of workers.
PLANS = {
    2: [("2x1x1", {"data_parallel": 2}, {"model_parallel": 2}), ("1x2x1", {"model_parallel": 2}, {"data_parallel": 2}),
        ("1x2x1 padded", {"model_parallel": 2}, {"model_parallel": 2}),
        ("2x1x1 padded", {"data_parallel": 2}, {"data_parallel": 2}),
        ("1x2x1 of experts", {"model_parallel": 2}, {"data_parallel": 2}),
        ("2x1x1 of experts, sampled with whole ones", {"data_parallel": 2}, WHOLE),
        ("2x1x1 of experts, packed", {"data_parallel": 2}, {"data_parallel": 2}),
        ("1x1x2", STAGES, {"model_parallel": 2}), ("1x1x2 padded", STAGES, {"data_parallel": 2}),
        ("1x1x2 of experts", STAGES, {"data_parallel": 2}), ("1x1x2 packed", STAGES, {"data_parallel": 2}),
        ("2x1x1 overlapped, small operators", {"data_parallel": 2} | OVERLAPPED, {"data_parallel": 2}),
        ("1x1x2 recomputed", STAGES | {"recompute": "full"}, {"data_parallel": 2}),
        ("1x2x1 split sequence and table", MODEL | SEQUENCE | {"vocab_emb_dp": False}, {"data_parallel": 2}),
        ("1x2x1 split sequence, recomputed", MODEL | SEQUENCE | {"recompute": "full"}, {"data_parallel": 2}),
        ("1x2x1 split sequence, small operators", MODEL | SEQUENCE, {"data_parallel": 2}),
        ("2x1x1 of experts over replicas, small operators",
            {"data_parallel": 2, "expert_parallel": 2}, {"data_parallel": 2}),
        ("1x2x1 split sequence with all experts on every rank",
            MODEL | SEQUENCE | {"expert_tensor_parallel": 1}, {"data_parallel": 2}),
        ("1x2x1 of glm4", MODEL, {"model_parallel": 2}),
        ("1x2x1 of glm4, split sequence, small operators", MODEL | SEQUENCE, {"data_parallel": 2}),
        ("1x1x2 of glm4, recomputed", STAGES | {"recompute": "full"}, {"data_parallel": 2}),
        ("1x2x1 of adapted glm4, split sequence", MODEL | SEQUENCE, {"data_parallel": 2}),
        ("1x2x1 of adapters", MODEL, {"data_parallel": 2}),
        ("1x2x1 of adapters, split sequence, small operators", MODEL | SEQUENCE, {"model_parallel": 2}),
        ("2x1x1 of adapters, sharded", {"data_parallel": 2} | SHARDED, {"model_parallel": 2}),
        ("1x1x2 of adapters", STAGES, {"data_parallel": 2}),
        ("1x2x1 of adapted experts", MODEL, {"data_parallel": 2}),
        ("2x1x1 of adapted experts, sampled with whole ones", {"data_parallel": 2} | SHARDED, WHOLE),
        ("2x1x1 of adapted experts over replicas, small operators",
            {"data_parallel": 2, "expert_parallel": 2}, {"data_parallel": 2}),
        ("1x2x1 of shared experts", MODEL, {"data_parallel": 2}),
        ("1x1x2 of shared experts", STAGES, {"data_parallel": 2}),
        ("1x2x1 of shared experts, whole, split sequence", WHOLE | SEQUENCE, WHOLE),
        ("2x1x1 of shared experts over replicas, small operators",
            {"data_parallel": 2, "expert_parallel": 2}, {"model_parallel": 2}),
        ("context 2 padded", {"context_parallel": 2}, {"data_parallel": 2}),
        ("1x2x1 taught", MODEL, {"data_parallel": 2}), ("1x1x2 taught", STAGES, {"data_parallel": 2}),
        ("2x1x1 taught, packed", {"data_parallel": 2}, {"data_parallel": 2}),
        ("1x2x1 taught, split sequence, small operators", MODEL | SEQUENCE, {"data_parallel": 2}),
        ("context 2 taught", {"context_parallel": 2}, {"data_parallel": 2})],
    3: [("1x1x3 deep", {"pipeline_stage": 3, "micro_batch_num": 3}, {"data_parallel": 3})],
    4: [("1x4x1", {"model_parallel": 4}, {"model_parallel": 2, "data_parallel": 2}),
        ("2x2x1", {"data_parallel": 2, "model_parallel": 2, "vocab_emb_dp": False}, {"data_parallel": 4}),
        ("2x2x1 of whole experts", {"data_parallel": 2} | WHOLE, {"data_parallel": 2} | WHOLE),
        ("2x2x1 of shared experts, whole over all, sharded",
            {"data_parallel": 2} | WHOLE | SHARDED | {"expert_parallel": 4}, {"data_parallel": 2} | WHOLE),
        ("2x2x1 packed", {"data_parallel": 2, "model_parallel": 2}, {"data_parallel": 4}),
        ("2x1x2", {"data_parallel": 2} | STAGES, {"data_parallel": 4}),
        ("2x1x2 sharded", {"data_parallel": 2} | STAGES | SHARDED, {"data_parallel": 4}),
        ("2x1x2 sharded, overlapped, small operators", {"data_parallel": 2} | STAGES | SHARDED | OVERLAPPED,
            {"data_parallel": 4}),
        ("2x2x1 sharded", {"data_parallel": 2, "model_parallel": 2} | SHARDED, {"data_parallel": 4}),
        # The tables' 66 rows are not divided over 4 ranks.
        ("4x1x1 padded, sharded", {"data_parallel": 4} | SHARDED, {"data_parallel": 4}),
        ("1x2x2 split sequence", MODEL | SEQUENCE | STAGES, {"data_parallel": 4}),
        ("context 2 x 2, split sequence", {"context_parallel": 2} | MODEL | SEQUENCE, {"data_parallel": 4})],
    8: [("2x4x1 of experts", {"data_parallel": 2, "model_parallel": 4}, {"data_parallel": 4, "model_parallel": 2}),
        ("4x2x1", {"data_parallel": 4, "model_parallel": 2}, {"data_parallel": 2, "model_parallel": 4})],
}  # fmt: skip

# Plans that a reference policy has beside these; the other plans go without one.
REFERENCES = {"1x4x1": {"data_parallel": 4}, "2x2x1": {"data_parallel": 4}, "4x2x1": {"data_parallel": 8}}


def model_of(name: str) -> str:
    mixtures, others = ("adapted experts", "shared experts", "experts"), ("padded", "deep", "adapters", "taught")
    return next((model for model in (*mixtures, "adapted glm4", "glm4", *others) if model in name), "dense")


# The others repeat on more ranks what these show.
FAST = ("1x2x1", "1x1x2", "1x2x1 taught")
CASES = [
    pytest.param(size, name, id=name, marks=() if name in FAST else pytest.mark.slow)
    for size, plans in PLANS.items()
    for name, _, _ in plans
]
# One process lays out rows of one sample; some plans pack them.
SAMPLING = [case for case in CASES if "packed" not in case.id]


@pytest.fixture(scope="module")
def alone(figures_alone: Callable) -> Callable[[str], dict[str, np.ndarray]]:
    """Name of a plan -> the figures of one process."""
    return lambda name: figures_alone(model_of(name))


@pytest.fixture(scope="module")
def over_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """(number of workers, name of a plan) -> its figures; at the first question all plans of a size are run that tests
    of this session ask for."""
    folders: dict[int, Path] = {}
    calls = [item.callspec.params for item in request.session.items if item.path == request.path]
    asked = {call["name"] for call in calls if "name" in call}

    def ask(size: int, name: str) -> dict[str, np.ndarray]:
        if size not in folders:
            folders[size] = folder = tmp_path_factory.mktemp(f"ranks{size}")
            job = [
                {"name": plan, "train": train, "infer": infer, "model": model_of(plan),
                    "reference": REFERENCES.get(plan), "is_packed": "packed" in plan,
                    "is_composed": "small operators" in plan}
                for plan, train, infer in PLANS[size] if plan in asked
            ]  # fmt: skip
            (folder / "job.json").write_text(json.dumps(job))
            run_workers(WORKER, folder, size)
        with np.load(folders[size] / f"{name}.npz") as arrays:
            return dict(arrays)

    return ask


def _turned(bias: np.ndarray, name: str) -> np.ndarray:
    """The features of keys' biases that rotary embedding turns. The others shift all scores of a query alike: their
    gradients are nothing but rounding, which Adam scales to whole steps."""
    model = ModelSection.model_validate(MODELS[model_of(name)])
    return bias.reshape(-1, model.head_dim)[:, : model.rotary_dim]


@pytest.mark.parametrize(("size", "name"), CASES)
def test_losses_log_probs_gradients_and_weights_are_those_of_one_process(alone, over_ranks, size: int, name: str):
    found, wanted = over_ranks(size, name), alone(name)
    if name not in REFERENCES:
        wanted = {key: array for key, array in wanted.items() if key.split("/")[0] not in ("kl", "reference")}
    if "packed" in name:
        wanted = {key: array for key, array in wanted.items() if not key.startswith("sampled")}
    assert found.keys() == wanted.keys() - {"margin"}
    for key, expected in wanted.items():
        kind = key.split("/")[0]
        if kind == "parameter" and key.endswith("k_proj.bias"):
            found[key], expected = (_turned(bias, name) for bias in (found[key], expected))
        if "entropy" in key:  # about 4 nats; the CPU's exp alone is off by 4e-6 of its value
            np.testing.assert_allclose(found[key], expected, rtol=1e-5, atol=0, err_msg=f"{name}: {key}")
        elif kind in ("logp", "loss", "parameter", "moment", "reference"):
            np.testing.assert_allclose(found[key], expected, rtol=0, atol=1e-5, err_msg=f"{name}: {key}")
        elif kind == "kl":  # about 5e-4
            np.testing.assert_allclose(found[key], expected, rtol=0, atol=2e-6, err_msg=f"{name}: {key}")
        elif kind == "choices":
            np.testing.assert_array_equal(found[key], expected, err_msg=f"{name}: {key}")
        elif kind == "gradient":
            error = np.linalg.norm(found[key] - expected) / np.linalg.norm(expected)
            assert error <= 1e-5, f"{name}: {key} is off by {error:.2e} of its norm"


@pytest.mark.parametrize(("size", "name"), SAMPLING)
def test_sampled_tokens_are_those_of_one_process(alone, over_ranks, size: int, name: str):
    found, wanted = over_ranks(size, name), alone(name)
    differing = np.flatnonzero((found["sampled/ids"] != wanted["sampled/ids"]).any(axis=1))
    for row in differing:
        first = int(np.flatnonzero(found["sampled/ids"][row] != wanted["sampled/ids"][row])[0])
        margin = wanted["margin"][row, first]
        assert margin <= 1e-5, f"{name}: sequence {row} differs at token {first}, {margin:.1e} from an edge"
    assert len(differing) <= 0.001 * len(found["sampled/ids"]), f"{name}: sequences {differing} differ"
    np.testing.assert_allclose(found["sampled/logp"], wanted["sampled/logp"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["1x2x1", pytest.param("1x2x1 of experts", marks=pytest.mark.slow)])
def test_the_common_case_trains_and_samples_something(alone, name: str):
    """The comparison above would be empty on a model that does not move or always ends at once."""
    found = alone(name)
    assert len(set(found["loss/loss"])) == 5 and found["loss/grad_norm"].min() > 1e-3
    k1, k3 = found["kl/4"]  # over tokens that no policy sampled, so that k1 has either sign
    assert abs(k1) > 1e-4 and k3 > 1e-4, "the policy should move away from its average"
    lengths = (found["sampled/ids"] >= 0).sum(axis=1)
    assert lengths.mean() > 8 and len(np.unique(found["sampled/ids"])) > 40
