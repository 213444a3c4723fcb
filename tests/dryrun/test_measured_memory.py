"""Peak memory of compiled graphs by MindSpore's allocator: against what a rank holds at least, against the plan, and
against what the graphs promise; and what becomes of a graph that cannot be measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from dryrun.shipped_experiment import NUM_RANKS, write_experiment

from ascend_emulator.toolchain import Toolchain
from mindgspo.config import load_config
from mindgspo.dryrun import GraphResult, run_child
from mindgspo.planner import MIB, graph_memory

PLANS = {
    "train": "model_parallel: 4, pipeline_stage: 2, micro_batch_num: 2, recompute: full",
    "infer": "data_parallel: 2, model_parallel: 4",
}
# Sizes at which tensors, not their number, count: 2 rows of 2,048 + 2,048 tokens.
WIDE = (
    "model.hidden_size=1024", "model.head_dim=128", "model.intermediate_size=4096",
    "model.max_position_embeddings=4096", "data.max_prompt_length=2048", "rollout.max_new_tokens=2048",
)  # fmt: skip


@pytest.fixture
def measured(toolchain: Toolchain, tmp_path: Path) -> Callable[..., tuple[GraphResult, Callable[[], int]]]:
    """measured(graph, rank, plans, overrides): the result, and what tells the plan's bytes for the same graph."""

    def measure(
        graph: str, rank: int, plans: dict[str, str] = PLANS, overrides: tuple[str, ...] = WIDE
    ) -> tuple[GraphResult, Callable[[], int]]:
        path = write_experiment(tmp_path / "experiment.yaml", architecture="qwen2", **plans)
        result = run_child(
            toolchain, tmp_path, config=path, graph=graph, rank=rank, world_size=NUM_RANKS, overrides=overrides,
            time_limit_s=300, measures_memory=True,
        )  # fmt: skip
        assert result.failure is None and result.memory is not None and not result.memory.why_not, result
        return result, partial(graph_memory, load_config(path, overrides, check_files=False), graph, rank)

    return measure


def weights_by_hand(rank: int) -> int:
    """Elements. One layer per stage; of 4 slices: queries and outputs 2 x 1024 x 256, keys and values 2 x 1025 x 128
    (with biases; each head on two ranks), gate, up and down 3 x 1024 x 1024, two norms, a bias of 256; on the first
    stage a whole table of 512 x 1024, on the last a quarter of one and a norm."""
    layer = 2 * 1024 * 256 + 2 * 1025 * 128 + 3 * 1024 * 1024 + 2 * 1024 + 256
    return layer + (512 * 1024 if rank == 0 else 128 * 1024 + 1024)


@pytest.mark.parametrize(
    ("graph", "rank", "own"), [("train", 0, 2), ("train", 4, 2), ("forward", 0, 1), ("step", 4, 4)]
)
def test_an_update_holds_weights_gradients_and_moments_in_each_of_its_graphs(
    measured: Callable, graph: str, rank: int, own: int
) -> None:
    """Weight, gradient and two moments, in float32; own: how many of the four are in the graph. The plan is near, and
    nearer for models that are not small (test_memory_plan_command)."""
    result, planned = measured(graph, rank)
    one = 4 * weights_by_hand(rank)
    assert result.facts.parameter_bytes == own * one and result.memory.beside == (4 - own) * one
    assert 4 * one <= result.memory.allocated <= result.memory.reserved
    if graph != "forward":  # which needs less than the backward pass
        assert result.memory.allocated == pytest.approx(planned(), rel=0.1)
    assert result.peak_rss < 2**31, "what the host holds are pages that nobody wrote into"
    if graph == "step":  # the largest weight's products come one after the other
        assert result.memory.allocated < 4 * one + 1.1 * 4 * 1024 * 1024


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_kernels_are_found_for_layers_that_are_computed_again(measured: Callable, recompute: str) -> None:
    """Two layers, in bfloat16. MindSpore puts sum and norm into one operator, which must not wait for gradients."""
    plans = PLANS | {"train": f"data_parallel: 2, model_parallel: 4, recompute: {recompute}"}
    assert measured("train", 7, plans, ())[0].memory.allocated > 0


@pytest.mark.parametrize("graph", ["reference", "prefill", "decode"])
def test_graphs_without_gradients(measured: Callable, graph: str) -> None:
    result, planned = measured(graph, 0)
    assert result.memory.allocated == pytest.approx(planned(), rel=0.05)


def test_decoding_does_not_copy_a_table_that_is_read_twice(measured: Callable) -> None:
    """A quarter of 262,144 x 1,024 bfloat16 numbers: what decoding takes most of."""
    overrides = (*WIDE, "model.vocab_size=262144", "model.tie_word_embeddings=true")
    result, planned = measured("decode", 0, PLANS | {"train": "data_parallel: 2, model_parallel: 4"}, overrides)
    assert result.memory.allocated == pytest.approx(planned(), rel=0.01)


def test_chunks_of_logits_are_computed_one_after_the_other(measured: Callable) -> None:
    """4,096 response tokens x 262,144 entries are 4 GiB of logits: eight chunks of 512 MiB, of which the backward pass
    has three tensors of one at a time, and half of one in bfloat16."""
    plans = {"train": "data_parallel: 8", "infer": "data_parallel: 8"}
    overrides = (*WIDE, "model.vocab_size=262144", "model.hidden_size=128", "model.head_dim=16")
    result, _ = measured("train", 0, plans, overrides)
    passing = result.memory.allocated - result.facts.parameter_bytes - result.memory.beside
    assert 3 * 512 * MIB < passing < 4 * 512 * MIB


@pytest.mark.parametrize("graph, reason", [
    ("uncallable", "RuntimeError: no such kernel"),
    ("deadly", "the process ended by signal 11"),
    ("front end alone", "no answer: the process ended by signal 11"),
])  # fmt: skip
def test_memory_that_cannot_be_measured_says_why(
    compile_toy: Callable[..., GraphResult], graph: str, reason: str
) -> None:
    result = compile_toy(graph, measures_memory=True)
    assert result.failure is None and result.facts.products == {"BFloat16": 2}
    assert result.memory is not None and result.memory.why_not == reason


def test_memory_is_measured_where_it_is_asked_for(compile_toy: Callable[..., GraphResult]) -> None:
    assert compile_toy("forward").memory is None
    memory = compile_toy("forward", measures_memory=True).memory
    # [64] and two of 64 x 256 numbers over 4 ranks, bfloat16.
    assert memory is not None and memory.allocated > 2 * (64 + 2 * 64 * 256 // 4)
