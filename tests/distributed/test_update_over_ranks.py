"""What follows the accumulation of gradients on four ranks: sums, one norm, AdamW on rows of the weights, all of it
against numpy in float64, and bit for bit between ranks and between sizes of buckets. One launch makes all figures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import python, run_workers

from mindgspo.config import ParallelPlan
from mindgspo.models.names import parameter_shapes, trained_type
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts
from mindgspo.tensor_files.tensors import bfloat16_bits, widen_bfloat16

WORKERS = Path(__file__).parent / "workers"
CARDS = Path(__file__).parents[1] / "ascend" / "workers"
sys.path.insert(0, str(WORKERS))
try:
    import update_over_ranks as worker
finally:
    sys.path.remove(str(WORKERS))

pytestmark = pytest.mark.slow
SIZE = 4
Figures = Callable[[str, int], list[dict[str, np.ndarray]]]


@pytest.fixture(scope="module", params=["CPU", "emulated cards"])
def figures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """(case, bytes of a bucket) -> what each rank has."""
    folder = tmp_path_factory.mktemp("updates")
    if request.param == "CPU":
        run_workers(WORKERS / "update_over_ranks.py", folder, SIZE)
    else:
        request.getfixturevalue("cards")
        done = python(CARDS / "launch_cards.py", SIZE, folder / "logs", CARDS / "update_on_cards.py", folder)
        assert done.returncode == 0, (folder / "logs" / "rank_0.log").read_text()[-3000:]

    def ask(case: str, bucket_bytes: int) -> list[dict[str, np.ndarray]]:
        if worker.ROUNDED in case and request.param == "CPU":
            pytest.skip("weights stay float32 on CPU")
        return [dict(np.load(folder / f"{case} {bucket_bytes} {rank}.npz")) for rank in range(SIZE)]

    return ask


class Twin:
    """AdamW on whole tensors, float64; gradients are the sums of all ranks' parts."""

    def __init__(self, case: str) -> None:
        self.section, self.plan = worker.model_of(case), ParallelPlan(**worker.CASES[case][1])
        shapes = parameter_shapes(self.section)
        self.layouts = parameter_layouts(shapes, self.section, self.plan)
        self.moments = moment_layouts(shapes, self.section, self.plan)
        self.ranks = [gradient_ranks(self.layouts, self.section, self.plan, rank) for rank in range(SIZE)]
        self.whole = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.shared = {name for name in shapes if self.moments[name].slice_shape != self.layouts[name].slice_shape}
        self.m, self.v = ({name: np.zeros(shape) for name, shape in shapes.items()} for _ in range(2))

    def is_rounded(self, name: str) -> bool:
        """Whether ranks compute with a weight in bfloat16."""
        return trained_type(name, self.layouts[name].shape, self.section.dtype) == "bfloat16"

    def gradients(self, number: int) -> dict[str, np.ndarray]:
        found = {name: np.zeros(layout.shape) for name, layout in self.layouts.items()}
        for name, layout in self.layouts.items():
            for index in layout.slice_indices():
                over = self.ranks[layout.holders(index)[0]][name]
                parts = [worker.gradient_part(layout, over, rank, number) for rank in over]
                found[name][layout.slice_at(index).index] = np.sum(parts, axis=0, dtype=np.float64)
        return found

    def update(self, number: int) -> float:
        one, lr = worker.SECTION, worker.LEARNING_RATE
        gradients = self.gradients(number)
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        for name, gradient in gradients.items():
            if number != 2:
                self.whole[name] = worker.whole_weight(name, gradient.shape, number).astype(np.float64)
            gradient *= min(1.0, one.max_grad_norm / (norm + 1e-6))
            self.m[name] += (1 - one.beta1) * (gradient - self.m[name])
            self.v[name] += (1 - one.beta2) * (gradient**2 - self.v[name])
            m, v = self.m[name] / (1 - one.beta1**number), self.v[name] / (1 - one.beta2**number)
            decay = one.weight_decay if gradient.ndim > 1 else 0.0
            self.whole[name] -= lr * (decay * self.whole[name] + m / (np.sqrt(v) + one.eps))
        return float(norm)


@pytest.mark.parametrize("case", worker.CASES)
def test_norms_weights_and_moments_are_those_of_whole_tensors(figures: Figures, case: str):
    twin = Twin(case)
    norms = [twin.update(number) for number in range(1, worker.NUM_UPDATES + 1)]
    layouts = {f"weight/{name}": layout for name, layout in twin.layouts.items()}
    layouts |= {f"moment/adamw.{kind}.{name}": one for kind in "mv" for name, one in twin.moments.items()}
    layouts |= {f"master/{name}": twin.moments[name] for name in twin.shared}
    expected = {f"{kind}/{name}": array for kind in ("weight", "master") for name, array in twin.whole.items()}
    expected |= {f"moment/adamw.m.{name}": array for name, array in twin.m.items()}
    expected |= {f"moment/adamw.v.{name}": array for name, array in twin.v.items()}
    for rank, found in enumerate(figures(case, worker.BUCKETS[0])):
        first, refused, *rest = found.pop("norm")
        np.testing.assert_allclose([first, *rest], norms, rtol=1e-6)
        assert not np.isfinite(refused)
        assert found.keys() == {key for key, layout in layouts.items() if layout.slice_of(rank) is not None}
        for key, array in found.items():
            wanted = expected[key][layouts[key].slice_of(rank).index]
            largest = np.abs(wanted).max()
            if key.startswith("weight/") and twin.is_rounded(key.removeprefix("weight/")):
                continue  # equal to what the masters round to, below
            np.testing.assert_allclose(array, wanted, rtol=0, atol=2e-6 * largest, err_msg=f"rank {rank}: {key}")


@pytest.mark.parametrize("case", worker.CASES)
def test_no_bit_depends_on_the_rank_or_on_the_size_of_buckets(figures: Figures, case: str):
    one, other = (figures(case, bucket_bytes) for bucket_bytes in worker.BUCKETS)
    twin = Twin(case)
    for rank in range(SIZE):
        assert one[rank].keys() == other[rank].keys()
        for key, array in one[rank].items():
            np.testing.assert_array_equal(array, other[rank][key], err_msg=f"rank {rank}: {key}")
        np.testing.assert_array_equal(one[rank]["norm"], one[0]["norm"])
        for name, layout in twin.layouts.items():
            key = f"weight/{name}"
            if f"master/{name}" in one[rank]:
                own = twin.moments[name].slice_of(rank).relative_to(layout.slice_of(rank).starts)
                master = one[rank][f"master/{name}"]
                master = widen_bfloat16(bfloat16_bits(master)) if twin.is_rounded(name) else master
                np.testing.assert_array_equal(one[rank][key][own.index], master, err_msg=f"rank {rank}: {key}")
            for holder in layout.ranks_with_slice_of(rank):
                np.testing.assert_array_equal(
                    one[rank][key], one[holder][key], err_msg=f"ranks {rank}, {holder}: {key}"
                )


def test_a_case_computes_with_rounded_weights():
    twin = Twin(f"4x1x1 {worker.ROUNDED}")
    assert {twin.is_rounded(name) for name in twin.shared} == {True, False}


def test_the_cases_have_rows_that_are_divided_and_some_that_are_not():
    remarks = {case: {layout.remark != "" for layout in Twin(case).moments.values()} for case in worker.CASES}
    assert remarks["4x1x1 padded"] == {True, False} and remarks["2x1x2"] == {False}
