"""The reference policy is in memory while log-probs are computed and at no other time, and nothing of it shows; without
a KL term there is none."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config import ModelSection
from mindgspo.config.algorithm import ReferenceSection
from mindgspo.config.schema import SwapSection
from mindgspo.models.policy import build_model
from mindgspo.models.weights import initialize_weights
from mindgspo.parallel.plans.placement import ALONE
from mindgspo.swap.states import Holding, Phase
from mindgspo.swap.swap import open_swap
from mindgspo.trainer.build import build_experiment
from mindgspo.trainer.policies import ReferencePolicy

MIB = 2**20
# 2 x 8192 x 512 numbers in two tables: 32 MiB of float32, beside which everything else is small.
SECTION = ModelSection(
    vocab_size=8192, hidden_size=512, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def batch():
    ids = np.random.default_rng(5).integers(1, 8192, 14).astype(np.int32)
    sample = TrainingSample(prompt_ids=ids[:6], response_ids=ids[6:], rollout_logp=np.zeros(8, np.float32), number=0)
    return lay_out([sample], samples_per_micro_batch=1, length_multiple=16, pad_id=0)[0]


def resident_bytes(parameters) -> int:
    """Of whole pages of parameters that are present in this process, by the kernel's own table."""
    total, present = 0, np.uint64(1 << 63)
    with Path("/proc/self/pagemap").open("rb") as pages:
        for parameter in parameters:
            array = parameter.asnumpy()
            first = array.ctypes.data // mmap.PAGESIZE
            count = array.nbytes // mmap.PAGESIZE
            pages.seek(first * 8)
            flags = np.frombuffer(pages.read(count * 8), np.uint64)
            total += int(((flags & present) != 0).sum()) * mmap.PAGESIZE
    return total


@pytest.fixture
def swapped(cpu_runtime: None, tmp_path: Path) -> Iterator[tuple]:
    """(swap, policy, reference), registered as the trainer does."""
    policy = build_model(SECTION)
    initialize_weights(policy, SECTION, seed=1)
    swap = open_swap(SwapSection(enabled=True), tmp_path / "swap")
    swap.register(Holding.ACTOR_WEIGHTS, policy.get_parameters())
    changes = ReferenceSection(mode="ema", every=1, decay=0.5)
    reference = ReferencePolicy(SECTION, ALONE, temperature=1.0, changes=changes, swap=swap)
    swap.register(Holding.REFERENCE_WEIGHTS, reference.parameters)
    with swap.phase(Phase.SCORE):
        reference.freeze(policy, tmp_path / "reference", version=0)
    yield swap, policy, reference
    swap.close()


def test_its_pages_leave_the_process_outside_of_scoring(swapped, batch) -> None:
    swap, policy, reference = swapped
    size = sum(parameter.nbytes for parameter in reference.parameters)
    assert size > 32 * MIB
    process = psutil.Process()
    found = []
    for step in (1, 2):
        with swap.phase(Phase.UPDATE):
            initialize_weights(policy, SECTION, seed=step)
            assert resident_bytes(reference.parameters) == 0
        with swap.phase(Phase.SCORE):
            reference.follow(policy, steps_done=step - 1, version=step)
            (scores,) = reference.scorer.score([batch])
            found.append(scores.logp_NK)
            assert resident_bytes(reference.parameters) > 0.95 * size
            scoring = process.memory_info().rss
        with swap.phase(Phase.UPDATE):
            assert resident_bytes(reference.parameters) == 0
            updating = process.memory_info().rss
        assert scoring - updating > 0.9 * size, f"{(scoring - updating) / MIB:.1f} MiB of {size / MIB:.1f} were freed"
    assert np.abs(found[0] - found[1]).max() > 1e-4, "it followed the policy"
    assert swap.ledger.records[Phase.UPDATE].peak_bytes[Holding.REFERENCE_WEIGHTS] == 0
    assert swap.ledger.records[Phase.SCORE].peak_bytes[Holding.REFERENCE_WEIGHTS] == size


def test_swapped_or_not_it_is_the_same(swapped, batch, tmp_path: Path) -> None:
    swap, policy, reference = swapped
    with swap.phase(Phase.SCORE):
        changes = ReferenceSection(mode="ema", every=1, decay=0.5)
        resident = ReferencePolicy(SECTION, ALONE, temperature=1.0, changes=changes)
        resident.freeze(policy, tmp_path / "resident", version=0)
    with swap.phase(Phase.UPDATE):
        initialize_weights(policy, SECTION, seed=7)
    with swap.phase(Phase.SCORE):
        for each in (resident, reference):
            each.follow(policy, steps_done=1, version=1)
        (one,), (other,) = (each.scorer.score([batch]) for each in (resident, reference))
    np.testing.assert_array_equal(one.logp_NK, other.logp_NK)
    with swap.phase(Phase.UPDATE):
        pass
    saved = reference.arrays()  # a checkpoint, while it is away
    for name, array in resident.arrays().items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)


@pytest.mark.parametrize("placement", ["none", "loss"])
def test_there_is_one_only_where_a_penalty_needs_it(placement: str, cpu_runtime: None, load, tmp_path: Path) -> None:
    settings = (f"algorithm.kl.placement={placement}", "swap.enabled=true")
    if placement == "loss":
        settings += ("algorithm.kl.reference.mode=ema",)
    experiment = build_experiment(
        load(*settings), data_dir=tmp_path / "data", failures_dir=tmp_path / "failures", swap_dir=tmp_path / "swap"
    )
    trainer, held = experiment.trainer, experiment.trainer.swap.ledger.held
    if placement == "none":
        assert trainer.scorer.reference is None and "reference" not in experiment.stateful
        assert held[Holding.REFERENCE_WEIGHTS] == 0
    else:
        assert "reference" in experiment.stateful
        assert held[Holding.REFERENCE_WEIGHTS] == held[Holding.ACTOR_WEIGHTS] > 0
    trainer.swap.close()
