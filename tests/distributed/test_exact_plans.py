"""Bit-equal log-probs of sampler and trainer under plans of 2 to 4 processes; where they differ, what parts them.

One launch per world size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import run_workers

WORKER = Path(__file__).parent / "workers" / "exact_plans.py"
STAGES = {"pipeline_stage": 2, "micro_batch_num": 2}
DATA, MODEL = {"data_parallel": 2}, {"model_parallel": 2}
EXPERTS = {
    "architecture": "qwen3_moe", "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 4,
    "moe_intermediate_size": 24, "norm_topk_prob": True,
}  # fmt: skip
TYPES = ("float32", "bfloat16", "float16")
# By the number of workers: (name, training plan, generating plan, changes of the model).
CASES = {
    2: [
        *((f"2x1x1 {dtype}", DATA, DATA, {"dtype": dtype}) for dtype in TYPES),
        ("2x1x1 of experts", DATA, DATA, EXPERTS),
        ("2x1x1 of experts over replicas", DATA | {"expert_parallel": 2}, DATA, EXPERTS),
        ("1x1x2", STAGES, DATA, {}),
        ("context 2", {"context_parallel": 2}, DATA, {}),
        ("1x2x1", MODEL, MODEL, {}),
        ("2x1x1, sampled by 1x2x1", DATA, MODEL, {}),
    ],
    3: [("3x1x1", {"data_parallel": 3}, {"data_parallel": 3}, {"dtype": "float16"})],
    4: [
        ("4x1x1", {"data_parallel": 4}, {"data_parallel": 4}, {}),
        ("2x1x2", DATA | STAGES, {"data_parallel": 4}, {"dtype": "bfloat16"}),
        ("4x1x1 of experts", {"data_parallel": 4}, {"data_parallel": 4}, EXPERTS | {"dtype": "bfloat16"}),
    ],
}  # fmt: skip
PARTED = ("2x1x1 of experts over replicas", "1x2x1", "2x1x1, sampled by 1x2x1")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def found(once: Callable[..., Path]) -> Callable[[str], dict[str, np.ndarray]]:
    """found(name): the log-probs of a case."""

    def of(name: str) -> dict[str, np.ndarray]:
        (size,) = [size for size, cases in CASES.items() if name in [case[0] for case in cases]]

        def run(folder: Path) -> None:
            entries = [dict(zip(("name", "train", "infer", "model"), case, strict=True)) for case in CASES[size]]
            (folder / "job.json").write_text(json.dumps(entries))
            run_workers(WORKER, folder, size)

        with np.load(once(f"exact_plans_{size}", run) / f"{name}.npz") as arrays:
            return dict(arrays)

    return of


def differing(one: np.ndarray, other: np.ndarray) -> int:
    assert one.dtype == other.dtype == np.float32 and one.shape == other.shape
    return int((one.view(np.int32) != other.view(np.int32)).sum())


@pytest.mark.parametrize("name", [case[0] for cases in CASES.values() for case in cases if case[0] not in PARTED])
def test_log_probs_are_equal(name: str, found) -> None:
    arrays = found(name)
    assert arrays["sampler"].size > 200 and differing(arrays["sampler"], arrays["trainer"]) == 0


def test_of_split_weights_the_head_alone_parts_them(found) -> None:
    """All layers agree: the head of one process makes the sampler's log-probs from the trainer's hidden states."""
    arrays = found("1x2x1")
    assert differing(arrays["sampler"], arrays["trainer"]) > 0
    assert differing(arrays["sampler"], arrays["one_table"]) == 0


@pytest.mark.parametrize(("name", "module"), [
    ("2x1x1 of experts over replicas", "layers.0.mlp"), ("2x1x1, sampled by 1x2x1", "layers.0.self_attn.o_proj"),
])  # fmt: skip
def test_sums_over_ranks_part_them(name: str, module: str, found) -> None:
    arrays = found(name)
    assert differing(arrays["sampler"], arrays["trainer"]) > 0
    assert arrays["parts_at"] == module
    np.testing.assert_allclose(arrays["sampler"], arrays["trainer"], atol=1e-5)
