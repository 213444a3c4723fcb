"""The shipped cells compiled by MindSpore's Ascend front end for 8 ranks, under every kind of plan.

What each rank holds must be what the layout algebra says; collectives and operators are counted by hand.

Legend of the numbers: 128 tokens of a micro-batch (see `shipped_experiment`), 64 response slots (32 for each response
of 22 tokens), 128 hidden units, 512 vocabulary entries, 2 layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from dryrun.shipped_experiment import NUM_RANKS, write_experiment

from ascend_emulator.toolchain import Toolchain
from mindgspo.config import ExperimentConfig, load_config
from mindgspo.dryrun import GraphResult, run_child
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts


@dataclass(frozen=True)
class Case:
    """An architecture and its plans, as entries in YAML; without a reference it has the plan of training."""

    architecture: str
    train: str
    infer: str
    reference: str = ""


CASES = {
    # 2 key/value heads on 4 ranks.
    "1x4x2": Case("qwen2", "model_parallel: 4, pipeline_stage: 2, micro_batch_num: 2",
        "data_parallel: 2, model_parallel: 4"),
    "2x4x1, sequence split": Case("qwen3",
        "data_parallel: 2, model_parallel: 4, use_seq_parallel: true, vocab_emb_dp: false, recompute: selective",
        "data_parallel: 8"),
    "2x2x2, optimizer sharded": Case("qwen2",
        "data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, optimizer_shard: true, "
        "recompute: full", "data_parallel: 4, model_parallel: 2, vocab_emb_dp: false"),
    "2x4x1, all at once": Case("qwen3",
        "data_parallel: 2, model_parallel: 4, use_seq_parallel: true, optimizer_shard: true, recompute: full",
        "data_parallel: 2, model_parallel: 4"),
    "1x8x1": Case("qwen2", "model_parallel: 8", "model_parallel: 8, vocab_emb_dp: false"),
    "8x1x1": Case("qwen3", "data_parallel: 8, optimizer_shard: true", "data_parallel: 8"),
    "2x4x1, experts split": Case("qwen3_moe", "data_parallel: 2, model_parallel: 4, expert_parallel: 2",
        "data_parallel: 2, model_parallel: 4"),
    "4x2x1, experts and all at once": Case("qwen3_moe",
        "data_parallel: 4, model_parallel: 2, expert_parallel: 2, use_seq_parallel: true, optimizer_shard: true, "
        "recompute: selective", "data_parallel: 8"),
    "4x1x2, experts split": Case("qwen3_moe",
        "data_parallel: 4, pipeline_stage: 2, micro_batch_num: 2, expert_parallel: 4, recompute: full",
        "data_parallel: 8"),
    "2x4x1, whole experts over all": Case("qwen3_moe",
        "data_parallel: 2, model_parallel: 4, expert_parallel: 8, expert_tensor_parallel: 1, use_seq_parallel: true, "
        "optimizer_shard: true, recompute: full",
        "data_parallel: 2, model_parallel: 4, expert_parallel: 4, expert_tensor_parallel: 1"),
    "2x4x1, two blocks of whole experts": Case("qwen3_moe",
        "data_parallel: 2, model_parallel: 4, expert_parallel: 2, expert_tensor_parallel: 1, optimizer_shard: true",
        "data_parallel: 8"),
    "1x4x2, whole experts": Case("qwen3_moe",
        "model_parallel: 4, pipeline_stage: 2, micro_batch_num: 2, expert_parallel: 4, expert_tensor_parallel: 1",
        "data_parallel: 2, model_parallel: 4, expert_parallel: 4, expert_tensor_parallel: 1"),
    # A key/value head on each slice, for two parts of every sequence.
    "1x2x2, context 2": Case("qwen2",
        "model_parallel: 2, pipeline_stage: 2, context_parallel: 2, micro_batch_num: 2, optimizer_shard: true",
        "data_parallel: 4, model_parallel: 2"),
    "1x4x2, llama": Case("llama", "model_parallel: 4, pipeline_stage: 2, micro_batch_num: 2",
        "data_parallel: 2, model_parallel: 4"),
    "1x4x2, glm4": Case("glm4", "model_parallel: 4, pipeline_stage: 2, micro_batch_num: 2",
        "data_parallel: 2, model_parallel: 4"),
}  # fmt: skip
OWN = "8x1x1 with a reference of 2x4x1"
CASES[OWN] = Case("qwen2", "data_parallel: 8", "data_parallel: 8", "data_parallel: 2, model_parallel: 4")
# Compiled for the default tier; the others repeat on other plans and graphs what these show.
SMOKE = [("1x4x2", "train", 0), ("1x4x2", "decode", 0)]
OF_UPDATE = ("sum", "step")
ALL = [
    *SMOKE,
    *(("1x4x2", graph, rank) for graph, rank in (("forward", 0), ("train", 4), ("reference", 0), ("reference", 4))),
    *(("1x4x2", graph, 0) for graph in (*OF_UPDATE, "prefill")),
    *(("2x4x1, sequence split", graph, 5) for graph in ("train", "reference", "prefill", "decode")),
    *(("2x2x2, optimizer sharded", graph, rank) for graph in ("train", *OF_UPDATE, "gather") for rank in (1, 6)),
    *(("2x2x2, optimizer sharded", graph, 1) for graph in ("forward", "prefill")),
    *(("2x4x1, experts split", graph, 5) for graph in ("train", "reference", "prefill", "decode")),
    ("4x1x2, experts split", "train", 6),
    ("1x4x2, llama", "reference", 4),
    (OWN, "reference", 0), (OWN, "old_policy", 0),
    *((case, graph, 7) for case in list(CASES)[3:-1] for graph in ("train", "reference", "prefill", "decode")),
    *((case, "sum", 7) for case in list(CASES)[3:-1]),
]  # fmt: skip


def tiered(entries: list[tuple]) -> list:
    """(case, graph, rank, ...), those of SMOKE marked so."""
    return [pytest.param(*entry, marks=pytest.mark.smoke if entry[:3] in SMOKE else ()) for entry in entries]


Compiled = Callable[[str, str, int], GraphResult]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """experiment(case): its file."""
    folder = tmp_path_factory.mktemp("experiments")

    @cache
    def written(name: str) -> Path:
        case = CASES[name]
        path = folder / f"{list(CASES).index(name)}.yaml"
        return write_experiment(
            path, architecture=case.architecture, train=case.train, infer=case.infer, reference=case.reference
        )

    return written


@pytest.fixture(scope="module")
def compiled(toolchain: Toolchain, experiment: Callable[[str], Path]) -> Compiled:
    """compiled(case, graph, rank): that graph, compiled once."""

    @cache
    def compile_(case: str, graph: str, rank: int) -> GraphResult:
        path = experiment(case)
        result = run_child(
            toolchain, path.with_suffix(""), config=path, graph=graph, rank=rank, world_size=NUM_RANKS, time_limit_s=300
        )
        assert result.failure is None, result.failure
        return result

    return compile_


def config_of(experiment: Callable[[str], Path], case: str) -> ExperimentConfig:
    return load_config(experiment(case), check_files=False)


def held_by(config: ExperimentConfig, graph: str, rank: int) -> dict[str, Shape]:
    """Weights, gradients, moments and a cache on a rank, and the shape of what it holds of each, by the algebra."""
    plans, shapes = config.plans, parameter_shapes(config.model)
    generates = graph in ("prefill", "decode")
    plan = plans.infer if generates else plans.scoring if graph == "reference" else plans.train
    held = own_shapes(parameter_layouts(shapes, config.model, plan), rank)
    if generates:
        blocks = (16 // plan.data_parallel + 1, 128, max(1, 2 // plan.model_parallel), config.model.head_dim)
        return held | {f"cache.{layer}.{kind}": blocks for layer in range(2) for kind in ("keys", "values")}
    rows = own_shapes(moment_layouts(shapes, config.model, plan), rank)
    cut = {name: shape for name, shape in rows.items() if shape != held[name]}
    held |= {f"gradient.{name}": shape for name, shape in held.items()}
    held |= {f"{kind}.{name}": shape for name, shape in cut.items() for kind in ("master", "gradient_rows")}
    return held | {f"adamw.{moment}.{name}": shape for name, shape in rows.items() for moment in "mv"}


def own_shapes(layouts: Mapping[str, Layout], rank: int) -> dict[str, Shape]:
    return {name: own.shape for name, layout in layouts.items() if (own := layout.slice_of(rank)) is not None}


READ = {
    "train": ("model.", "lm_head.", "gradient."), "forward": ("model.", "lm_head."),
    "step": ("model.", "lm_head.", "gradient.", "master.", "gradient_rows.", "adamw."),
    "reference": ("model.", "lm_head."), "old_policy": ("model.", "lm_head."),
}  # fmt: skip


@pytest.mark.parametrize(("case", "graph", "rank"), tiered(ALL))
def test_a_rank_holds_the_slices_of_the_algebra(
    compiled: Compiled, experiment: Callable[[str], Path], case: str, graph: str, rank: int
) -> None:
    config = config_of(experiment, case)
    held = {entry.name: entry.shape for entry in compiled(case, graph, rank).facts.parameters}
    algebra = held_by(config, graph, rank)
    assert held == {name: algebra[name] for name in held}
    if graph in READ:
        expected = {name for name in algebra if name.startswith(READ[graph])}
        cut_ones = {name.removeprefix("master.") for name in algebra if name.startswith("master.")}
        if graph == "step":  # masters in the place of weights; all gradients are cleared
            expected -= cut_ones
        assert held.keys() == expected
    if graph == "prefill":  # keys and values are all it wants; the last layer's rest stays unread
        assert algebra.keys() - held.keys() == {"model.norm.weight", "lm_head.weight"}
    if graph == "decode":
        assert held.keys() == algebra.keys()


def test_experts_see_the_tokens_of_all_replicas_that_share_them(compiled: Compiled) -> None:
    """Of each replica's 128 tokens: hidden states in bfloat16, whose experts each rank chooses itself; and back."""
    collectives = compiled("2x4x1, experts split", "reference", 5).facts.collectives
    found = {(entry.kind, entry.ranks): (entry.count, entry.bytes) for entry in collectives}
    assert found == {
        ("AllGather", (1, 5)): (2, 2 * HIDDEN),
        ("ReduceScatter", (1, 5)): (2, 2 * 2 * HIDDEN),
        # Behind attention and behind the experts, and the head's six numbers.
        ("AllReduce", (4, 5, 6, 7)): (7, 4 * HIDDEN + 6 * NUMBERS),
    }


def test_whole_experts_see_what_their_block_has(compiled: Compiled) -> None:
    """Rank 7's block are all ranks; each enters with a quarter of a replica's tokens, to be gathered and scattered."""
    found = collectives_of(compiled("2x4x1, whole experts over all", "reference", 7))
    assert found["AllGather", WORLD] == (2, 2 * QUARTER)
    assert found["ReduceScatter", WORLD] == (2, 2 * 8 * QUARTER)
    # Behind attention; in front of it and of the head.
    assert found["ReduceScatter", (4, 5, 6, 7)] == (2, 2 * HIDDEN)
    assert found["AllGather", (4, 5, 6, 7)] == (3, 3 * QUARTER)


def test_blocks_of_a_replica_compute_its_tokens_once(compiled: Compiled) -> None:
    """Ranks 6 and 7 have all experts, and half of the replica's tokens; of the sums each keeps half, a quarter of all,
    and the slices gather them."""
    found = collectives_of(compiled("2x4x1, two blocks of whole experts", "reference", 7))
    assert found["ReduceScatter", (6, 7)] == (2, 2 * HIDDEN // 2)
    assert found["AllGather", (4, 5, 6, 7)] == (2, 2 * QUARTER)
    assert found["AllReduce", (4, 5, 6, 7)] == (5, 2 * HIDDEN + 6 * NUMBERS)


def test_whole_experts_of_a_replica_that_generates_are_summed(compiled: Compiled) -> None:
    found = collectives_of(compiled("1x4x2, whole experts", "decode", 7))
    assert found["AllReduce", (4, 5, 6, 7)] == (5, 4 * 8 * 128 * 2 + 8 * 2 * 4), "as of a dense model"


def collectives_of(result: GraphResult) -> dict[tuple[str, tuple[int, ...]], tuple[int, int]]:
    return {(entry.kind, entry.ranks): (entry.count, entry.bytes) for entry in result.facts.collectives}


def test_experts_are_multiplied_in_groups_forward_and_backward(compiled: Compiled) -> None:
    assert compiled("2x4x1, experts split", "decode", 5).facts.operators["GroupedMatmul"] == 2 * 3
    # Each product, its two gradients, of two layers.
    assert compiled("2x4x1, experts split", "train", 5).facts.operators["GroupedMatmul"] == 2 * 9


# Bytes that one rank hands in: hidden states of a micro-batch or of a quarter of it, in bfloat16; a number per response
# slot.
HIDDEN = 128 * 128 * 2
QUARTER = HIDDEN // 4
NUMBERS = 64 * 4
WORLD = tuple(range(8))
PREDICTED = 64 * 128 * 2  # hidden states of the predicted tokens
# Of one of two slices, the last layer of qwen2 with half of the output table: q, k, v with biases, o, gate, up, down,
# two norms and the last one, the table.
MATRICES = 64 * 128 + 2 * 16 * 128 + 128 * 64 + 3 * 128 * 128
LAST_STAGE = 64 * 129 + 2 * 16 * 129 + 128 * 64 + 3 * 128 * 128 + 3 * 128 + 256 * 128
SUMS = ("AllReduce", (0, 1, 2, 3))
HEAD_GRADIENTS = 4 * 2 * (16 * 128 + 16)  # keys and values of one head, weights and biases, float32


@pytest.mark.parametrize(("case", "graph", "rank", "expected"), tiered([
    # Two sums per layer, behind attention and behind the feed-forward.
    ("1x4x2", "reference", 0, {SUMS: (2, 2 * HIDDEN)}),
    ("1x4x2", "forward", 0, {SUMS: (2, 2 * HIDDEN)}),
    # Two backward, and those forward again but for the last, of which no gradient depends.
    ("1x4x2", "train", 0, {SUMS: (3, 3 * HIDDEN)}),
    # And those of the head: the logarithms of each slice's sum, the target's log-prob, the entropy.
    ("1x4x2", "reference", 4, {("AllReduce", (4, 5, 6, 7)): (5, 2 * HIDDEN + 6 * NUMBERS)}),
    # Two forward, two backward, and the gradient of the head's hidden states; the entropy is not wanted, the slices'
    # sums are found again for gradients.
    ("1x4x2", "train", 4, {("AllReduce", (4, 5, 6, 7)): (8, 4 * HIDDEN + PREDICTED + 9 * NUMBERS)}),
    # The whole table's gradient is a part of it on each slice; two ranks share each key/value head.
    ("1x4x2", "sum", 0, {("AllReduce", (0, 1)): (1, HEAD_GRADIENTS), SUMS: (1, 4 * 512 * 128)}),
    ("1x4x2", "step", 0, {}),
    (OWN, "reference", 0, {SUMS: (7, 4 * HIDDEN + 6 * NUMBERS)}),
    # 1 prompt of 32 tokens; behind the last layer's keys and values nothing is wanted.
    ("1x4x2", "prefill", 0, {SUMS: (2, 2 * 32 * 128 * 2)}),
    # 8 slots; all logits of all of them, and the tokens drawn by the first rank with their log-probs.
    ("1x4x2", "decode", 0,
        {SUMS: (5, 4 * 8 * 128 * 2 + 8 * 2 * 4), ("AllGather", (0, 1, 2, 3)): (1, 8 * 128 * 4)}),
    # Gathered before q, k, v, before gate and up, before the head; scattered sums behind blocks and table, whose rows
    # are float32.
    ("2x4x1, sequence split", "reference", 5,
        {("AllGather", (4, 5, 6, 7)): (5, 5 * QUARTER), ("ReduceScatter", (4, 5, 6, 7)): (5, 6 * HIDDEN),
            ("AllReduce", (4, 5, 6, 7)): (3, 6 * NUMBERS)}),
    ("2x4x1, sequence split", "prefill", 5, {}),
    ("2x4x1, sequence split", "decode", 5, {}),
    # Backward a scattered sum for each gather, a gather for each scattered sum.
    ("2x4x1, sequence split", "train", 5,
        {("AllGather", (4, 5, 6, 7)): (10, 11 * QUARTER), ("ReduceScatter", (4, 5, 6, 7)): (10, 11 * HIDDEN),
            ("AllReduce", (4, 5, 6, 7)): (3, 9 * NUMBERS)}),
    # Half of the tokens. Queries, the key head and the value head, both of them twice; and what attention returns. As
    # many predictions as response slots, which are fewer than tokens.
    ("1x2x2, context 2", "reference", 7,
        {("AlltoAll", (5, 7)): (4, QUARTER + 2 * QUARTER // 2 + QUARTER), ("AllGather", (5, 7)): (2, 2 * NUMBERS),
            ("AllReduce", (6, 7)): (5, HIDDEN + 4 * NUMBERS)}),
    # Replicas sum what each has, and cut it in two: the layer's matrices in one bucket, which are computed with in
    # bfloat16, all other weights in another one; back come the rows.
    ("2x2x2, optimizer sharded", "sum", 6, {("ReduceScatter", (4, 6)): (2, 4 * LAST_STAGE)}),
    ("2x2x2, optimizer sharded", "gather", 6,
        {("AllGather", (4, 6)): (2, (2 * MATRICES + 4 * (LAST_STAGE - MATRICES)) // 2)}),
    ("2x2x2, optimizer sharded", "step", 6, {}),
]))  # fmt: skip
def test_collectives_are_those_of_the_plan(
    compiled: Compiled, case: str, graph: str, rank: int, expected: dict[tuple[str, tuple[int, ...]], tuple[int, int]]
) -> None:
    found = compiled(case, graph, rank).facts.collectives
    assert {(entry.kind, entry.ranks): (entry.count, entry.bytes) for entry in found} == expected


@pytest.mark.parametrize(("case", "graph", "rank", "expected"), tiered([
    # Per layer: one attention, two norms, two rotations, one SwiGLU; forward and backward.
    ("1x4x2", "train", 0, {"FlashAttentionScore": (1, 1), "RmsNorm": (2, 2), "RotaryPositionEmbedding": (2, 2)}),
    ("1x4x2", "forward", 0, {"FlashAttentionScore": (1, 0), "RmsNorm": (2, 0), "Swiglu": (1, 0)}),
    ("1x4x2", "train", 4, {"RmsNorm": (3, 3), "Swiglu": (1, 1)}),
    ("1x4x2", "step", 0, {"Adam": (13, 0)}),
    ("1x4x2", "reference", 4, {"FlashAttentionScore": (1, 0), "RmsNorm": (3, 0), "Swiglu": (1, 0)}),
    ("1x4x2", "prefill", 0, {"FlashAttentionScore": (1, 0), "PagedAttention": (0, 0), "ReshapeAndCache": (2, 0)}),
    ("1x4x2", "decode", 0, {"PagedAttention": (2, 0), "ReshapeAndCache": (2, 0), "RmsNorm": (5, 0)}),
    # Two more norms per layer.
    ("1x4x2, glm4", "train", 7, {"RmsNorm": (5, 5), "RotaryPositionEmbedding": (2, 2)}),
    ("1x4x2, glm4", "decode", 7, {"RmsNorm": (9, 0), "RotaryPositionEmbedding": (4, 0)}),
    # The layer again in the backward pass.
    ("2x2x2, optimizer sharded", "train", 6,
        {"FlashAttentionScore": (2, 1), "Swiglu": (2, 1), "RmsNorm": (5, 3), "RotaryPositionEmbedding": (4, 2)}),
    # Four norms per layer again, the last norm and attention not.
    ("2x4x1, sequence split", "train", 5, {"FlashAttentionScore": (2, 2), "RmsNorm": (17, 9)}),
]))  # fmt: skip
def test_fused_ops_forward_and_backward(
    compiled: Compiled, case: str, graph: str, rank: int, expected: dict[str, tuple[int, int]]
) -> None:
    fused = compiled(case, graph, rank).facts.fused
    assert {name: (fused.get(name, 0), fused.get(f"{name}Grad", 0)) for name in expected} == expected


@pytest.mark.parametrize(("case", "graph", "rank"), tiered(ALL))
def test_matrix_products_are_in_bfloat16_over_weights_that_are_float32_where_they_are_trained(
    compiled: Compiled, experiment: Callable[[str], Path], case: str, graph: str, rank: int
) -> None:
    facts = compiled(case, graph, rank).facts
    # Masters are float32; the matrices of layers beside them are copies to compute with. A reference has none.
    has_masters = graph != "reference" and config_of(experiment, case).plans.train.optimizer_shard
    trained = {"BFloat16", "Float32"} if has_masters else {"Float32"}
    if graph in ("sum", "step", "gather"):
        dtypes = {entry.dtype for entry in facts.parameters}
        assert facts.products == {} and dtypes <= (trained if graph == "gather" else {"Float32"})
        return
    with_experts, layers = "experts" in case, 2 if case.split(",")[0].endswith("x1") or case == OWN else 1
    is_last = rank >= 4 or layers == 2
    has_float32 = with_experts or (graph == "train" and is_last)
    assert set(facts.products) == ({"BFloat16", "Float32"} if has_float32 else {"BFloat16"})
    if with_experts and graph == "reference":  # the routers'
        assert facts.products["Float32"] == layers
    if graph == "train" and is_last and not with_experts:
        assert facts.products["Float32"] == 1, "the loss sums log-ratios over sequences by a product"
    kept = {entry.dtype for entry in facts.parameters if not entry.name.startswith("cache.")}
    generates = graph in ("prefill", "decode")
    generating = {"BFloat16", "Float32"} if with_experts else {"BFloat16"}
    assert kept == (generating if generates else trained)
    if graph == "reference":  # 7 per layer, one more that weighs experts, and the head
        assert facts.products["BFloat16"] == (8 if with_experts else 7) * layers + is_last
