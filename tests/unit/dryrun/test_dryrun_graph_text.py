"""MindSpore's text of compiled graphs, real and hand-made -> facts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mindgspo.ascend.dryrun.facts import Collective, GraphFacts, HeldParameter, TensorType, facts_from_json
from mindgspo.ascend.dryrun.graph_text import read_graph

# Rank 4 of 8, the second of two pipeline stages with model_parallel 4: one matrix product and a bias, a sum, two
# micro-batches of 4 rows by lazy_inline, AdamWeightDecay. What MindSpore 2.10.0 made of tests/dryrun/toy_cells.py.
PIPELINE = Path(__file__).with_name("pipeline_rank_4.txt")


@pytest.fixture(scope="module")
def pipeline() -> GraphFacts:
    return read_graph(PIPELINE.read_text(encoding="utf-8"), 8)


def test_parameters_are_those_of_the_stage_in_local_shapes(pipeline: GraphFacts) -> None:
    held = {parameter.name: (parameter.dtype, parameter.shape) for parameter in pipeline.parameters}
    weight, bias = ("Float32", (16, 64)), ("Float32", (16,))
    assert held == {
        **{f"{prefix}last.weight": weight for prefix in ("", "accu_grads.", "adam_m.", "adam_v.")},
        **{f"{prefix}last.bias": bias for prefix in ("", "accu_grads.", "adam_m.", "adam_v.")},
        "global_step": ("Int32", (1,)),
        "learning_rate": ("Float32", ()),
    }
    assert pipeline.parameter_bytes == 4 * 4 * (16 * 64 + 16) + 4 + 4


def test_functions_count_as_often_as_they_are_called(pipeline: GraphFacts) -> None:
    # Per micro-batch one forward and two backward products of 4 rows; the optimizer runs once.
    assert pipeline.products == {"Float32": 6}
    assert pipeline.operators["MatMul"] == 6
    assert pipeline.operators["AdamWeightDecay"] == 2
    assert pipeline.fused == {"AdamWeightDecay": 2}


def test_collectives_with_groups_counts_and_bytes(pipeline: GraphFacts) -> None:
    kinds = {(entry.kind, entry.ranks): (entry.count, entry.bytes) for entry in pipeline.collectives}
    # [4, 16] is this rank's quarter of 4 rows of 64 numbers: 256 bytes. ReduceScatter takes all four quarters.
    assert kinds == {
        ("AllGather", (4, 5, 6, 7)): (2 * 2, 2 * 2 * 256),
        ("ReduceScatter", (4, 5, 6, 7)): (2 * 2, 2 * 2 * 1024),
        ("Receive", (0, 4)): (2, 2 * 256),
        ("Send", (0, 4)): (2, 2 * 256),
    }


def test_facts_survive_json(pipeline: GraphFacts) -> None:
    assert facts_from_json(json.loads(json.dumps(dataclasses.asdict(pipeline)))) == pipeline


def graph(*functions: str) -> str:
    """The text of a graph whose functions are "name: node; node"; the first is the entry."""
    entry = functions[0].split(":")[0]
    lines = [f"# IR entry: @{entry}", ""]
    for function in functions:
        name, _, nodes = function.partition(":")
        lines.append(f"subgraph @{name}(%para1_x) {{")
        for number, node in enumerate(filter(None, (node.strip() for node in nodes.split(";")))):
            call, _, types = node.partition(" : ")
            lines += [f"  %{number}(CNode_{number}) = {call}", f"      : {types}", "      # Scope: (Default)"]
        lines += ["  Return(%0)", "}", ""]
    return "\n".join(lines)


def reduce(attributes: str, shape: str = "(4, 2)", dtype: str = "Float32") -> str:
    tensor = f"<Tensor[{dtype}], {shape}>"
    return f"AllReduce(%0) primitive_attrs: {{{attributes}}} : ({tensor}) -> ({tensor})"


def test_calls_within_calls_multiply() -> None:
    facts = read_graph(
        graph(
            "main: call @step(%0); call @step(%1); PrimFunc_Add(%0, %1)",
            "step: call @layer(%0); call @layer(%1); call @layer(%2); PrimFunc_Mul(%0, %0)",
            "layer: PrimFunc_Exp(%para1_x)",
        ),
        1,
    )
    assert facts.operators == {"Add": 1, "Exp": 6, "Mul": 2}


def test_a_partial_counts_where_it_is_called() -> None:
    facts = read_graph(
        graph(
            "main: Partial(@back, %0); %0[@Partial(@back)](%1); %0[@@back](%2)",
            "back: PrimFunc_Exp(%para1_x)",
        ),
        1,
    )
    assert facts.operators == {"Exp": 2, "Partial": 1}


def test_a_function_that_is_only_handed_around_counts_once() -> None:
    facts = read_graph(graph("main: Switch(%0, @yes, @no)", "yes: PrimFunc_Exp(%0)", "no: PrimFunc_Log(%0)"), 1)
    assert facts.operators == {"Exp": 1, "Log": 1, "Switch": 1}


def test_a_loop_counts_its_body_once() -> None:
    facts = read_graph(graph("main: call @body(%0)", "body: PrimFunc_Exp(%0); call @body(%0)"), 1)
    assert facts.operators == {"Exp": 1}


@pytest.mark.parametrize(
    "attributes, group, ranks",
    [
        ('fusion: I64(0), group: "2-77", group_rank_ids: (0, 4), op: "sum"', "2-77", (0, 4)),
        ('group: "2-77", rank_list: (1, 5), group_back: "hccl_world_group"', "2-77", (1, 5)),
        ('group: "hccl_world_group", op: "sum"', "hccl_world_group", (0, 1, 2, 3)),
        ('op: "sum"', "hccl_world_group", (0, 1, 2, 3)),
        ('group: "mine"', "mine", ()),
    ],
)
def test_groups_of_collectives(attributes: str, group: str, ranks: tuple[int, ...]) -> None:
    facts = read_graph(graph(f"main: {reduce(attributes)}"), 4)
    assert facts.collectives == (Collective(kind="AllReduce", group=group, ranks=ranks, count=1, bytes=32),)


def test_sizes_of_collectives_add_up_over_dtypes_and_calls() -> None:
    attributes = 'group: "g", group_rank_ids: (0, 1)'
    facts = read_graph(
        graph(
            f"main: call @f(%0); call @f(%1); {reduce(attributes)}",
            f"f: {reduce(attributes, '(8)', 'BFloat16')}",
        ),
        2,
    )
    assert facts.collectives == (
        Collective(kind="AllReduce", group="g", ranks=(0, 1), count=3, bytes=4 * 8 + 2 * 2 * 8),
    )


def test_a_shape_known_at_run_time_has_no_size() -> None:
    attributes = 'group: "g", group_rank_ids: (0, 1)'
    facts = read_graph(graph(f"main: {reduce(attributes, '(-1, 2)')}; {reduce(attributes)}"), 2)
    assert facts.collectives[0].bytes is None
    assert facts.collectives[0].count == 2


def test_tuples_of_tensors_are_summed() -> None:
    types = "(<Tuple[Tensor[Float32]*2, Tensor[Float16]], TupleShape((2, 2), (3), (5))>) -> (<Tensor[Float32], (10)>)"
    facts = read_graph(graph(f'main: AlltoAllV(%0) primitive_attrs: {{group: "hccl_world_group"}} : {types}'), 2)
    assert facts.collectives[0].bytes == 4 * 4 + 3 * 4 + 5 * 2


def test_products_by_dtype() -> None:
    types = "(<Ref[Tensor[{0}]], (4, 8), ref_key=a, is_parameter>, <Tensor[{0}], (8, 2)>) -> (<Tensor[{0}], (4, 2)>)"
    nodes = [
        f"PrimFunc_MatMul(%0, %1, Bool(0), Bool(0)) : {types.format('BFloat16')}",
        f"PrimFunc_BatchMatMul(%0, %1) : {types.format('BFloat16')}",
        f"PrimFunc_MatMulExt(%0, %1) : {types.format('Float32')}",
    ]
    assert read_graph(graph(f"main: {'; '.join(nodes)}"), 1).products == {"BFloat16": 2, "Float32": 1}


def test_gradients_of_fused_operators_are_fused() -> None:
    nodes = "PrimFunc_FlashAttentionScore(%0); FlashAttentionScoreGrad(%0); PrimFunc_RmsNormGrad(%0); PrimFunc_Add(%0)"
    assert read_graph(graph(f"main: {nodes}"), 1).fused == {
        "FlashAttentionScore": 1,
        "FlashAttentionScoreGrad": 1,
        "RmsNormGrad": 1,
    }


def test_sizes_of_tensors() -> None:
    assert TensorType(dtype="BFloat16", shape=(3, 5)).bytes == 30
    assert TensorType(dtype="Float32", shape=()).bytes == 4
    assert TensorType(dtype="Float32", shape=(3, -1)).bytes is None
    assert TensorType(dtype="String", shape=(3,)).bytes is None
    held = HeldParameter(name="w", dtype="Int8", shape=(7,))
    assert GraphFacts(parameters=(held, held)).parameter_bytes == 14
