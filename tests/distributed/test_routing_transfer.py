"""Routing travels over real processes from the replica that sampled a response to the ranks that train it, bit for bit,
and to nobody else."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from running import run_workers

from mindgspo.batches.routing import with_experts

sys.path.append(str(Path(__file__).parent / "workers"))

from routing_cases import NUM_WORKERS, PLANS, WIDTH, groups, mini_batches

WORKER = Path(__file__).parent / "workers" / "routing_pairs.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """By plans and rank."""
    folder = tmp_path_factory.mktemp("routing")
    run_workers(WORKER, folder, NUM_WORKERS)
    arrays = {}
    for name in PLANS:
        for rank in range(NUM_WORKERS):
            with np.load(folder / f"{name}_{rank}.npz") as saved:
                arrays[name, rank] = dict(saved)
    return arrays


@pytest.mark.parametrize("name", PLANS)
def test_those_that_train_have_the_routing_and_others_do_not(found, name: str) -> None:
    whole, (infer, train) = groups(), PLANS[name]
    routing = dict(enumerate(response.routing for group in whole for response in group.responses))
    like = np.zeros((0, WIDTH), np.int16)
    sent = np.zeros(NUM_WORKERS, int)
    for rank in range(NUM_WORKERS):
        replica, has = rank // train.model_parallel, found[name, rank]
        expected = {}
        numbers = set()
        for i, batches in enumerate(mini_batches(whole)):
            for j, batch in enumerate(batches):
                if j % train.data_parallel == replica:
                    expected[f"experts_{i}_{j}"] = with_experts(batch, routing, like=like).experts_RTX
                    numbers |= {number for number in batch.samples_N.tolist() if number >= 0}
        assert {key for key in has if key.startswith("experts")} == expected.keys()
        for key, array in expected.items():
            assert has[key].dtype == np.int16
            np.testing.assert_array_equal(has[key], array, err_msg=f"rank {rank}: {key}")
            np.testing.assert_array_equal(has[key.replace("experts", "shared")], array, err_msg=f"rank {rank}: {key}")
        assert sum(key.startswith("shared") for key in has) == len(expected)
        # A prompt's rows once per receiver, whatever the number of its responses; two bytes per expert.
        for group in {number // 3 for number in numbers}:
            sender = group % infer.data_parallel * infer.model_parallel
            rows = whole[group].prompt.ids.size - 1
            rows += sum(whole[group].responses[n % 3].length for n in numbers if n // 3 == group)
            sent[sender] += 2 * WIDTH * rows * (sender != rank)
    assert [int(found[name, rank]["sent"]) for rank in range(NUM_WORKERS)] == sent.tolist()


@pytest.mark.parametrize("name", PLANS)
def test_the_rank_that_asks_gets_it_and_loads_are_those_of_all(found, name: str) -> None:
    responses = [response for group in groups() for response in group.responses]
    for rank in range(NUM_WORKERS):
        has = found[name, rank]
        asked = {key for key in has if key.startswith("asked")}
        assert asked == ({f"asked_{number}" for number in (0, 4, 5, 17)} if rank == 0 else set())
        for key in asked:
            np.testing.assert_array_equal(has[key], responses[int(key.split("_")[1])].routing.whole)
        for layer in range(3):
            counts = np.zeros(300, int)
            for response in responses:
                for expert in response.routing.response_LX[:, 2 * layer : 2 * layer + 2].reshape(-1):
                    counts[expert] += 1
            np.testing.assert_array_equal(has["loads"][layer], counts)
