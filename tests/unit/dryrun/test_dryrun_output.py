"""What a dry run prints, and how it reads graphs and error texts of MindSpore."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mindgspo.dryrun.graph_text import (
    Collective,
    GraphFacts,
    HeldParameter,
    TensorType,
    read_graph,
)
from mindgspo.dryrun.report import Refusal, block, rank_text, refusal_of, size_text, summary
from mindgspo.dryrun.runner import CallMemory, CompileFailure, GraphResult

FACTS = GraphFacts(
    parameters=(HeldParameter(name="w", dtype="BFloat16", shape=(1024, 1024)),
        HeldParameter(name="adam_m.w", dtype="Float32", shape=(1024, 1024))),
    collectives=(Collective(kind="AllReduce", group="4-1", ranks=(0, 1, 2, 3), count=1128, bytes=3 << 30),
        Collective(kind="Send", group="2-1", ranks=(0, 4), count=1, bytes=None)),
    operators={"FlashAttentionScore": 14, "Add": 3},
    products={"BFloat16": 98},
)  # fmt: skip


def result(tmp_path: Path, graph: str = "train", rank: int = 0, failure: CompileFailure | None = None) -> GraphResult:
    return GraphResult(
        graph=graph,
        rank=rank,
        seconds=23.44,
        peak_rss=5 << 30,
        failure=failure,
        facts=GraphFacts() if failure else FACTS,
        log=tmp_path / "train_0.log",
    )


def test_block_of_a_compiled_graph(tmp_path: Path) -> None:
    lines = list(block(result(tmp_path), world_size=8))
    assert lines == [
        "train, rank 0 of 8",
        "  compile      23.4 s, 5.00 GiB of host memory",
        "  parameters   2 tensors, 2,097,152 numbers, 6.00 MiB (BFloat16 2.00 MiB, Float32 4.00 MiB)",
        "  collectives  AllReduce  ranks 0-3  1,128 times                3.00 GiB",
        "               Send       ranks 0,4       1 time  size known at run time",
        "  fused        FlashAttentionScore 14",
        "  products     BFloat16 98",
    ]


@pytest.mark.parametrize("memory, line", [
    (CallMemory(allocated=37 << 30, reserved=48 << 30),
        "  memory       37.00 GiB peak on the device (MindSpore's allocator; without workspaces and HCCL buffers)"),
    (CallMemory(allocated=37 << 30, reserved=48 << 30, beside=10 << 30),
        "  memory       37.00 GiB peak on the device (MindSpore's allocator; without workspaces and HCCL buffers; "
        "10.00 GiB of it lie beside the graph)"),
    (CallMemory(why_not="RuntimeError: no kernel"), "  memory       not measured: RuntimeError: no kernel"),
])  # fmt: skip
def test_block_of_a_graph_whose_memory_was_asked_for(tmp_path: Path, memory: CallMemory, line: str) -> None:
    lines = list(block(replace(result(tmp_path), memory=memory), world_size=8))
    assert lines[-1] == line


def test_block_of_a_refused_graph_reads_the_log(tmp_path: Path) -> None:
    (tmp_path / "train_0.log").write_text(
        "[ERROR] DEVICE(1,7f,python):2026-11-22-00:15:00.1 [mindspore/ccsrc/a.cc:248] Select] no kernel for [4, 66]\n"
        "[ERROR] DEVICE(1,7f,python):2026-11-22-00:15:00.1 [mindspore/ccsrc/a.cc:99] Init] Init failed\n"
    )
    failure = CompileFailure(phase="compile", kind="RuntimeError", text="Failure:no MatMul\n\n" + "-" * 52 + "\n- C++")
    lines = list(block(result(tmp_path, failure=failure), world_size=8))
    assert lines == [
        "train, rank 0 of 8: FAILED (compile)",
        "  error        RuntimeError: no MatMul",
        "  because      no kernel for [4, 66]",
        f"  log          {tmp_path}/train_0.log",
    ]


def test_last_line(tmp_path: Path) -> None:
    good = [result(tmp_path, graph, rank) for graph in ("train", "reference") for rank in (0, 4)]
    bad = result(tmp_path, "decode", failure=CompileFailure(phase="process", kind="no answer", text="killed"))
    assert summary(good, seconds=93.2) == "4 graphs of 2 ranks compiled for Ascend in 93 s"
    assert summary(good[:1], seconds=1.0).startswith("1 graph of 1 rank compiled")
    assert summary([*good, bad], seconds=93.2) == "1 of 5 failed, 4 compiled for Ascend, in 93 s"
    assert summary([bad], seconds=2.0) == "1 of 1 failed, 0 compiled for Ascend, in 2 s"


@pytest.mark.parametrize("size, text", [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 29, "1.50 GiB"), (5 << 50, "5120.00 TiB"),
    (None, "size known at run time"),
])  # fmt: skip
def test_sizes(size: int | None, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize("ranks, text", [
    ((), "?"), ((3,), "3"), ((0, 1), "0,1"), ((4, 5, 6, 7), "4-7"), ((0, 4), "0,4"), ((0, 2, 4, 6), "0,2,4,6"),
    (tuple(range(0, 64, 8)), "0,8,..,56"), ((0, 1, 4, 5), "0,1,4,5"),
])  # fmt: skip
def test_ranks(ranks: tuple[int, ...], text: str) -> None:
    assert rank_text(ranks) == text


def test_our_own_lines_are_shown_from_the_package_on() -> None:
    project = Path(__file__).resolve().parents[3]
    text = (
        "Failure:operator MatMul init failed\n\n----------------------------------------------------\n"
        "# In file /venv/site-packages/mindspore/nn/cell.py:7, 8~9\n        return outer(x)\n               ^~~~\n\n"
        f"# In file {project}/mindgspo/parallel/layers.py:120~122, 8~9\n    def construct(self, x):\n    ^\n\n"
        f"# In file {project}/mindgspo/parallel/layers.py:121, 8~9\n        return self.matmul(x)\n        ^~~~\n\n"
        "# In file /venv/site-packages/mindspore/ops/add.py:3, 8~9\n        return inner(x)\n               ^~~~\n"
    )
    found = refusal_of(CompileFailure(phase="compile", kind="RuntimeError", text=text), "")
    assert found == Refusal(
        message="RuntimeError: operator MatMul init failed",
        reasons=(),
        place="mindgspo/parallel/layers.py:121: return self.matmul(x)",
    )


def test_an_error_of_ours_is_shown_as_it_is_and_one_without_words_by_its_class() -> None:
    failure = CompileFailure(
        phase="build", kind="ConfigError", text="plans.train:\n  one\n  two", place="a.py:3: raise x"
    )
    assert refusal_of(failure, "") == Refusal(message="plans.train:\n  one\n  two", reasons=(), place="a.py:3: raise x")
    assert refusal_of(CompileFailure(phase="build", kind="AssertionError", text=""), "").message == "AssertionError"


def test_only_the_last_reasons_are_shown_and_long_ones_are_cut() -> None:
    line = "[ERROR] DEVICE(1,7f0000000000,python):2026-11-22-00:15:00.398.201 [mindspore/ccsrc/a.cc:248] Check] "
    log = "".join(f"{line}Add: reason {number}{'!' * (1000 if number == 9 else 0)}\n" for number in range(10))
    reasons = refusal_of(CompileFailure(phase="compile", kind="RuntimeError", text="refused"), log).reasons
    assert reasons[:2] == ("Add: reason 7", "Add: reason 8")
    assert reasons[2].endswith("!!! ...") and len(reasons[2]) < 700


# Rank 4 of 8, the second of two pipeline stages with model_parallel 4: one matrix product and a bias, a sum, two
# micro-batches of 4 rows by lazy_inline, AdamWeightDecay. What MindSpore 2.10.0 made of a cell that it divided itself.
PIPELINE = Path(__file__).with_name("pipeline_rank_4.txt")


@pytest.fixture(scope="module")
def pipeline() -> GraphFacts:
    groups = {"4-15700679239691767905": (4, 5, 6, 7), "2-16453000547691086251Send": (0, 4)}
    return read_graph(PIPELINE.read_text(encoding="utf-8"), 8, groups)


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
    assert pipeline.products == {"Float32": 6} and pipeline.fused == {"AdamWeightDecay": 2}
    assert pipeline.operators["MatMul"] == 6 and pipeline.operators["AdamWeightDecay"] == 2


def test_collectives_with_groups_counts_and_bytes(pipeline: GraphFacts) -> None:
    kinds = {(entry.kind, entry.ranks): (entry.count, entry.bytes) for entry in pipeline.collectives}
    # [4, 16] is this rank's quarter of 4 rows of 64 numbers: 256 bytes. ReduceScatter takes all four quarters.
    assert kinds == {
        ("AllGather", (4, 5, 6, 7)): (2 * 2, 2 * 2 * 256),
        ("ReduceScatter", (4, 5, 6, 7)): (2 * 2, 2 * 2 * 1024),
        ("Receive", (0, 4)): (2, 2 * 256),
        ("Send", (0, 4)): (2, 2 * 256),
    }


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


@pytest.mark.parametrize("functions, operators", [
    (("main: call @step(%0); call @step(%1); PrimFunc_Add(%0, %1)",
        "step: call @layer(%0); call @layer(%1); call @layer(%2); PrimFunc_Mul(%0, %0)",
        "layer: PrimFunc_Exp(%para1_x)"), {"Add": 1, "Exp": 6, "Mul": 2}),
    (("main: Partial(@back, %0); %0[@Partial(@back)](%1); %0[@@back](%2)", "back: PrimFunc_Exp(%para1_x)"),
        {"Exp": 2, "Partial": 1}),
    (("main: Switch(%0, @yes, @no)", "yes: PrimFunc_Exp(%0)", "no: PrimFunc_Log(%0)"),
        {"Exp": 1, "Log": 1, "Switch": 1}),
    (("main: call @body(%0)", "body: PrimFunc_Exp(%0); call @body(%0)"), {"Exp": 1}),
], ids=["calls multiply", "a partial where it is called", "only handed around", "a loop's body once"])  # fmt: skip
def test_functions_count_where_they_are_called(functions: tuple[str, ...], operators: dict[str, int]) -> None:
    assert read_graph(graph(*functions), 1).operators == operators


@pytest.mark.parametrize("attributes, group, ranks", [
    ('fusion: I64(0), group: "ours", op: "sum"', "ours", (0, 4)),
    ('group: "hccl_world_group", op: "sum"', "hccl_world_group", (0, 1, 2, 3)),
    ('op: "sum"', "hccl_world_group", (0, 1, 2, 3)),
    ('group: "mine"', "mine", ()),
])  # fmt: skip
def test_groups_of_collectives(attributes: str, group: str, ranks: tuple[int, ...]) -> None:
    facts = read_graph(graph(f"main: {reduce(attributes)}"), 4, {"ours": (0, 4)})
    assert facts.collectives == (Collective(kind="AllReduce", group=group, ranks=ranks, count=1, bytes=32),)


def test_sizes_of_collectives_add_up_over_dtypes_and_calls() -> None:
    attributes = 'group: "g"'
    (found,) = read_graph(
        graph(f"main: call @f(%0); call @f(%1); {reduce(attributes)}", f"f: {reduce(attributes, '(8)', 'BFloat16')}"),
        2,
        {"g": (0, 1)},
    ).collectives
    assert found == Collective(kind="AllReduce", group="g", ranks=(0, 1), count=3, bytes=4 * 8 + 2 * 2 * 8)
    (found,) = read_graph(graph(f"main: {reduce(attributes, '(-1, 2)')}; {reduce(attributes)}"), 2).collectives
    assert (found.bytes, found.count) == (None, 2), "a shape known at run time has no size"
    types = "(<Tuple[Tensor[Float32]*2, Tensor[Float16]], TupleShape((2, 2), (3), (5))>) -> (<Tensor[Float32], (10)>)"
    facts = read_graph(graph(f'main: AlltoAllV(%0) primitive_attrs: {{group: "hccl_world_group"}} : {types}'), 2)
    assert facts.collectives[0].bytes == 4 * 4 + 3 * 4 + 5 * 2, "tuples of tensors are summed"


def test_products_by_dtype_and_gradients_of_fused_operators() -> None:
    types = "(<Ref[Tensor[{0}]], (4, 8), ref_key=a, is_parameter>, <Tensor[{0}], (8, 2)>) -> (<Tensor[{0}], (4, 2)>)"
    nodes = [
        f"PrimFunc_MatMul(%0, %1, Bool(0), Bool(0)) : {types.format('BFloat16')}",
        f"PrimFunc_BatchMatMul(%0, %1) : {types.format('BFloat16')}",
        f"PrimFunc_MatMulExt(%0, %1) : {types.format('Float32')}",
    ]
    assert read_graph(graph(f"main: {'; '.join(nodes)}"), 1).products == {"BFloat16": 2, "Float32": 1}
    fused = ("FlashAttentionScore", "FlashAttentionScoreGrad", "RmsNormGrad")
    nodes = [f"PrimFunc_{name}(%0)" for name in (*fused, "Add")]
    assert read_graph(graph(f"main: {'; '.join(nodes)}"), 1).fused == dict.fromkeys(fused, 1)


def test_sizes_of_tensors() -> None:
    sizes = {("BFloat16", (3, 5)): 30, ("Float32", ()): 4, ("Float32", (3, -1)): None, ("String", (3,)): None}
    assert {key: TensorType(dtype=key[0], shape=key[1]).bytes for key in sizes} == sizes
    held = HeldParameter(name="w", dtype="Int8", shape=(7,))
    assert GraphFacts(parameters=(held, held)).parameter_bytes == 14
