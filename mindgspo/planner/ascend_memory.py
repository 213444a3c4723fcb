"""Estimated memory of one rank's graphs on an Ascend card, in addition to the holdings.

Which tensors are alive at once was read off the allocations of MindSpore 2.10's own allocator
(`mindgspo dryrun`), whose order of execution is breadth first; `docs/memory_table.md` compares both.

Per token and layer the backward pass needs, in the compute type, with all widths but `hidden` divided by
model_parallel, and `hidden` too where use_seq_parallel splits the tokens, but for results of norms, which are gathered:
    recompute none        4 hidden + 2 query + 2 key_value + 3 inner: inputs and results of two norms; queries, keys,
                          values and the attention's output; gate and up side by side; their product; with head norms
                          queries and keys before these, too
    both                  2 hidden where blocks' outputs are normed: these outputs
    recompute selective   2 hidden + 2 query + 2 key_value + 2 inner: without norms' results and the product
    recompute full        hidden: the layer's input; and once all of the above, for the layer that is computed again
with context_parallel attention's output twice, by heads and by tokens, and keys and values as often as ranks share
them; with experts hidden states of their tokens, before and after them, and inner counts for each of them; and from
flash attention two float32 statistics of 8 numbers per query head; with adapters what is between their matrices A and
B; and the matrices in the compute type, where a layer is not computed again. All of that of one micro-batch: a pipeline
stage that is not the last computes its forward pass again in the graph of its backward pass, and keeps of the others in
flight what came from the stage before.

Workspaces, which a dry run does not see: PagedAttention's by the host code of MindSpore's own kernels, which answers
16.25 MiB for each core, and 7 KiB per cache column, of a float16 cache 3 KiB, whatever the batch; and of
FlashAttention's backward pass float32 gradients of queries, keys and values, as its tiling in CANN's sources asks for.

The gradients of a micro-batch have four moments at which they may need most: the head's backward pass, the last
layer's, the first layer's, and the end, where all of them wait for the input table's. The fullest one counts. What
follows are graphs of their own, for sums over ranks and for the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mindgspo.config.distillation_rules import local_teachers
from mindgspo.config.generation import reads_trained_weights
from mindgspo.parallel.plans.placement import Placement
from mindgspo.planner.memory_plan import MIB, Part, Parts
from mindgspo.planner.rank_work import (
    FLOAT,
    TYPE_BYTES,
    RankWidths,
    RankWork,
    built_bytes,
    generating_bytes,
    held_bytes,
    log_odds_elements,
    moment_sizes,
    trained_sizes,
    weight_sizes,
)
from mindgspo.swap.states import Holding, Phase

BUFFER_MB = 200
"""Default of HCCL_BUFFSIZE, which each group of ranks takes twice (CANN's documentation)."""
_CHUNK_BYTES = 512 * MIB  # models.log_prob
_BUCKET_BYTES = 64 * MIB  # algorithms.optim.over_ranks
_FLASH_STATISTICS = 2 * 8  # float32 per token and head: maximum and sum of the softmax, 8 times each
_MASK_BYTES = 2048 * 2048  # parallel.ops.device.SegmentMask
_CORES = 25  # of a die of Atlas A3, the most; a 910B3 has 20
_PAGED_BASE, _PAGED_COLUMNS = 16.25 * MIB, 16_384  # per core; columns that count at most
_LATENT_WORKSPACE = 1.125 * MIB  # of PagedAttention over latents, per core
GRAPHS: Mapping[Phase, tuple[str, ...]] = {
    Phase.ROLLOUT: ("prefill", "decode"),
    Phase.SCORE: ("reference", "old_policy"),
    Phase.UPDATE: ("train", "sum", "step"),
}
"""The graphs of a phase, as the dry run calls them."""


def hccl_buffers(work: RankWork) -> int:
    """Bytes of buffers of the rank's groups of more than one: all ranks, and those that share an axis of a plan. HCCL
    takes them beside MindSpore's pool."""
    sizes = {"world": work.plan.world_size}
    plans = {"train": work.plan, "infer": work.config.plans.infer}
    if work.config.algorithm.kl.placement != "none" and work.config.plans.reference is not None:
        plans["reference"] = work.config.plans.reference
    teachers = enumerate(local_teachers(work.config))
    plans |= {f"teacher {number}": teacher.plan for number, teacher in teachers if teacher.plan is not None}
    for name, plan in plans.items():
        for axis in ("token_parts", "context_parallel", "model_parallel", "pipeline_stage"):
            sizes[f"{name} {axis}"] = getattr(plan, axis)
        if plan.expert_block != plan.model_parallel:
            sizes[f"{name} experts"] = plan.expert_block
    return 2 * BUFFER_MB * MIB * sum(size > 1 for size in sizes.values())


def largest_message(work: RankWork) -> int:
    """Bytes of the largest message of a micro-batch: its activations where a plan splits the model or sequences, or a
    bucket of gradients; 0 for one rank."""
    plan, size = work.plan, TYPE_BYTES[work.config.model.dtype]
    if plan.world_size == 1:
        return 0
    is_split = plan.model_parallel * plan.context_parallel * plan.pipeline_stage > 1
    return max(_BUCKET_BYTES, is_split * work.tokens(work.train) * work.train.hidden * size)


def ascend_temporary(work: RankWork, phase: Phase) -> Parts:
    """Peak of the phase's graphs, which run one after the other."""
    if phase is Phase.SCORE:
        return _fullest(_scoring(*one) for one in work.scoring)
    return _fullest(moment for graph in GRAPHS.get(phase, ()) for moment in graph_moments(work, graph))


def graph_moments(work: RankWork, graph: str) -> Iterator[Parts]:
    """What one graph needs beside the holdings, at each moment at which that may be most."""
    if graph == "train":
        yield from _moments_of_gradients(work)
    elif graph in ("sum", "step"):
        yield {Part.STEP: {"sum": _sum, "step": _step}[graph](work)}
    elif graph == "prefill":
        yield _prefill(work)
    elif graph == "decode":
        yield from _moments_of_decode(work)
    else:
        yield _scoring(work, {"reference": work.reference, "old_policy": work.train}[graph])


def graph_bytes(work: RankWork, graph: str) -> int:
    """Bytes that a process with this graph alone holds at its peak, without workspaces."""
    held, plans = held_bytes(work), work.config.plans
    if graph in GRAPHS[Phase.UPDATE]:
        resident = sum(held[each] for each in (Holding.ACTOR_WEIGHTS, Holding.GRADIENTS, Holding.MOMENTS))
    elif graph in ("prefill", "decode"):
        weights = generating_bytes(work.config, work.rank)
        read = [size for name, size in weights.items() if graph != "prefill" or _is_prefilled(work, name)]
        resident = sum(read) + held[Holding.KV_CACHE]
    else:
        plan = {"reference": plans.scoring, "old_policy": plans.train}.get(graph, plans.infer)
        resident = sum(built_bytes(work.config.model, plan, work.rank).values())
    tensors = ({**moment, Part.WORKSPACE: 0} for moment in graph_moments(work, graph))
    return resident + sum(_fullest(tensors).values())


def _is_prefilled(work: RankWork, name: str) -> bool:
    """Whether a prefill reads the weight: of the last layer it needs only keys and values."""
    last = f"model.layers.{work.config.model.num_hidden_layers - 1}."
    if name.startswith(last):
        return any(word in name for word in (".input_layernorm.", ".k_proj.", ".v_proj.", ".k_norm."))
    return name not in ("model.norm.weight", "lm_head.weight")


def _fullest(moments: Iterator[Parts]) -> Parts:
    return max(moments, key=lambda parts: sum(parts.values()), default={})


def _moments_of_gradients(work: RankWork) -> Iterator[Parts]:
    plan, width, size = work.plan, work.train, TYPE_BYTES[work.config.model.dtype]
    weights = weight_sizes(work.config.model, plan, work.rank)
    in_layers = sum(_matrices(weights).values())
    trained = _matrices(trained_sizes(work.config.model, plan, work.rank))
    gradients = sum(trained.values())
    trains_tables = work.config.model.lora is None
    table = width.output_rows * width.hidden if width.is_last else 0
    trained_table = table if trains_tables else 0
    tokens = work.tokens(width)

    layers = Placement(plan=plan, rank=work.rank).own_layers(work.config.model.num_hidden_layers)
    states = tokens * _hidden(work) * size
    # Of one micro-batch; of the others in flight what came in, and of this one the gradient of what went.
    kept = width.dense_layers * _layer_bytes(work, plan.recompute, dense=True) + _rotation(work, width)
    kept += (width.layers - width.dense_layers) * _layer_bytes(work, plan.recompute)
    passed = (0 if width.is_first else (work.in_flight - 1) * states) + (0 if width.is_last else states)
    workspace = FLOAT * tokens * (width.query + 2 * _own_or_shared_key_values(width))
    passing, attending = _passing(work, dense=width.dense_layers == width.layers)

    # Layers that are computed again cast their matrices again. Those that are held in the compute type are copied.
    casts = 0 if plan.recompute == "full" else in_layers
    fixed = {Part.CONSTANTS: _constants(work, attentions=1)}
    if width.is_last:
        # A chunk's log-probs, and their exponentials in both types; or what it adds to the output table's gradient,
        # in both types; or that and the sum.
        chunk = width.output_rows * _chunk(work, width)
        sums = size * chunk + (FLOAT + size) * trained_table
        logits = max((2 * FLOAT + size) * chunk, sums, 2 * FLOAT * trained_table)
        # The table's gradient by the likeliest tokens of a teacher waits for that by the others.
        has_odds = work.config.algorithm.teacher_top_k > 0
        logits += FLOAT * log_odds_elements(work, width, _CHUNK_BYTES) if has_odds else 0
        yield fixed | {
            Part.COMPUTE_WEIGHTS: _copies(work, casts + table),
            Part.NEW_GRADIENTS: FLOAT * trained_table * (1 + has_odds),
            Part.ACTIVATIONS: kept + passed + states + 2 * work.scored_tokens(width) * width.hidden * size,
            Part.LOGITS: logits,
        }
    # The output table's gradient is added up first, unless that of the input table comes to it.
    is_shared = work.config.model.tie_word_embeddings and width.is_first
    waiting = FLOAT * trained_table if is_shared else 0
    last_layer = fixed | {
        Part.COMPUTE_WEIGHTS: _copies(work, casts or _of_layer(weights, layers[-1])),
        Part.NEW_GRADIENTS: waiting,
    }
    yield last_layer | {Part.ACTIVATIONS: kept + passed + passing}
    yield last_layer | {Part.ACTIVATIONS: kept + passed + attending, Part.WORKSPACE: workspace}
    # All gradients wait for the last one, the input table's unless only adapters are trained. Where hidden states came
    # in, the first layer's product of gate and up is kept a little longer. Of experts after dense layers the gradients
    # are nearly all there before the first layer's.
    waiting += FLOAT * gradients
    first_mixture, later = layers[0] + width.dense_layers, gradients
    for number in layers[: width.dense_layers + 1]:
        dense = number < first_mixture
        later -= _of_layer(trained, number)
        if number not in (layers[0], first_mixture):
            continue
        before = (number - layers[0]) * _layer_bytes(work, plan.recompute, dense=True)
        per_layer = before + _layer_bytes(work, plan.recompute, dense=dense)
        passing, attending = _passing(work, dense=dense)
        kept_longer = 0 if width.is_first else size * width.feed_forward(tokens, dense=dense).inner
        first_layer = fixed | {
            Part.COMPUTE_WEIGHTS: _copies(work, _of_layer(weights, number)),
            Part.NEW_GRADIENTS: waiting * later // max(gradients, 1),
        }
        yield first_layer | {Part.ACTIVATIONS: per_layer + passed + passing + kept_longer}
        yield first_layer | {Part.ACTIVATIONS: per_layer + passed + attending, Part.WORKSPACE: workspace}
    # Of a whole table whose rows are the output table's, those by both uses.
    inputs = FLOAT * width.input_rows * width.hidden if width.is_first and trains_tables else 0
    inputs *= 2 if is_shared and width.input_rows > width.output_rows else 1
    yield fixed | {Part.NEW_GRADIENTS: waiting + inputs}


def _passing(work: RankWork, *, dense: bool) -> tuple[int, int]:
    """What is computed again of one layer, and gradients on their way through it: of its output, and the widest of
    activations, those of SwiGLU, by when the product of gate and up is gone; with experts those of what they returned,
    by token and by expert. And a little later, in the same layer's attention."""
    width, size, recompute = work.train, TYPE_BYTES[work.config.model.dtype], work.plan.recompute
    tokens = work.tokens(width)
    block = width.feed_forward(tokens, dense=dense)
    again = 0
    if recompute != "none":
        again = _layer_bytes(work, "none", dense=dense) - _layer_bytes(work, recompute, dense=dense)
    attending = again + tokens * _hidden(work) * size
    passing = attending + size * (2 * block.routed if block.routed else 2 * block.inner)
    return passing + (_routing(work) if block.routed else 0), attending


def _of_layer(sizes: Mapping[str, int], number: int) -> int:
    return sum(size for name, size in sizes.items() if name.startswith(f"model.layers.{number}."))


def _sum(work: RankWork) -> int:
    """The largest bucket of gradients that is on its way to other ranks, and what comes back: all of it, or rows."""
    if work.plan.world_size == 1:
        return 0
    sizes, rows = (of(work.config.model, work.plan, work.rank) for of in (weight_sizes, moment_sizes))
    return max(2 * _BUCKET_BYTES, FLOAT * max(sizes[name] + rows[name] for name in rows))


def _step(work: RankWork) -> int:
    """The decay or the clipped gradient of one weight after the other, or of the rank's rows of it."""
    return FLOAT * max(moment_sizes(work.config.model, work.plan, work.rank).values())


def _layer_bytes(work: RankWork, recompute: str, *, dense: bool = False) -> int:
    """Bytes that one layer keeps of one micro-batch. dense: see `RankWidths.feed_forward`."""
    width, size = work.train, TYPE_BYTES[work.config.model.dtype]
    hidden, tokens = _hidden(work), work.tokens(width)
    if recompute == "full":
        return tokens * size * hidden
    is_cut = width.context > 1
    heads = (3 if is_cut else 2) * width.query + 2 * _own_or_shared_key_values(width)
    wide, block = (2 + width.block_norms) * hidden + heads, width.feed_forward(tokens, dense=dense)
    inner = 2 * block.inner + 2 * block.routed
    if recompute == "none":
        # Results of norms are kept as the matrices read them: of all tokens.
        wide += 2 * width.hidden + (width.query + width.key_value if width.has_head_norms else 0)
        inner += block.inner
    return size * inner + tokens * (size * (wide + width.latents + width.low) + FLOAT * _FLASH_STATISTICS * width.heads)


def _own_or_shared_key_values(width: RankWidths) -> int:
    """Features of keys per token of the rank, as often as its parts of a sequence share them."""
    return width.key_value * max(1, width.context // width.kv_heads)


def _hidden(work: RankWork) -> int:
    """Features per token that a rank keeps between the tensor-parallel regions, on average over the tokens."""
    return work.train.hidden // (work.plan.model_parallel if work.plan.use_seq_parallel else 1)


def _routing(work: RankWork) -> int:
    """Bytes that routers and experts read: hidden states of the rank's tokens, and the same in float32."""
    tokens = round(work.tokens(work.train) * work.train.sees)
    return tokens * work.train.hidden * (FLOAT + TYPE_BYTES[work.config.model.dtype])


def _rotation(work: RankWork, width: RankWidths) -> int:
    """Cosines and sines of a micro-batch's tokens, float32."""
    assert work.config.model.head_dim is not None
    return 2 * FLOAT * work.tokens(width) * work.config.model.head_dim


def _constants(work: RankWork, *, attentions: int) -> int:
    """Rotary tables of all positions, and a mask for each operator of attention that has its own."""
    model = work.config.model
    assert model.head_dim is not None
    return 2 * FLOAT * model.max_position_embeddings * model.head_dim + attentions * _MASK_BYTES


def _chunk(work: RankWork, width: RankWidths) -> int:
    """Tokens of a chunk of logits."""
    return min(work.scored_tokens(width), max(1, _CHUNK_BYTES // (FLOAT * width.output_rows)))


def _scoring(work: RankWork, width: RankWidths) -> Parts:
    """A graph that scores, of the old policy, the reference or a teacher: the widest layer, or the head after the
    layers, whose chunks are half as long where it finds entropies: log-probs, probabilities and their products."""
    size, is_frozen = TYPE_BYTES[work.config.model.dtype], work.config.model.lora is not None  # in the compute type
    layer = {
        Part.CONSTANTS: _constants(work, attentions=1),
        Part.ACTIVATIONS: _forward(work, width, work.tokens(width)) + _rotation(work, width) * size // FLOAT,
    }
    if not width.is_last:
        return layer
    head = {
        Part.CONSTANTS: _constants(work, attentions=1),
        Part.COMPUTE_WEIGHTS: 0 if is_frozen else _copies(work, width.output_rows * width.hidden),
        Part.ACTIVATIONS: work.scored_tokens(width) * width.hidden * size,
        Part.LOGITS: 3 * FLOAT * width.output_rows * _chunk(work, width) // 2,
    }
    return _fullest(iter((layer, head)))


def _prefill(work: RankWork) -> Parts:
    """The widest layer; keys and values go to the cache layer by layer."""
    width, tokens = work.infer, max(rows * length for rows, length in work.prefills)
    return {
        Part.CONSTANTS: _constants(work, attentions=1),
        Part.COMPUTE_WEIGHTS: _expert_copies(work),
        Part.ACTIVATIONS: _forward(work, width, tokens),
    }


def _moments_of_decode(work: RankWork) -> Iterator[Parts]:
    """A step's logits: with the output table in the compute type, or all of them, and the tensors of sampling; experts;
    attention over the cache."""
    width, size, model = work.infer, TYPE_BYTES[work.config.model.dtype], work.config.model
    is_cut = work.config.rollout.top_k > 0 or work.config.rollout.top_p < 1
    fixed = {Part.CONSTANTS: _constants(work, attentions=0)}
    yield fixed | {
        Part.COMPUTE_WEIGHTS: _casts(work, width.output_rows * width.hidden),
        Part.LOGITS: size * work.slots * width.output_rows,
    }
    yield fixed | {Part.LOGITS: (4 if is_cut else 3) * FLOAT * work.slots * model.rows}
    yield fixed | {Part.COMPUTE_WEIGHTS: _expert_copies(work)}
    is_latent = model.kv_lora_rank is not None
    workspace = _CORES * _LATENT_WORKSPACE if is_latent else paged_workspace(work.columns, work.cache_dtype)
    yield fixed | {Part.WORKSPACE: int(workspace)}


def paged_workspace(columns: int, cache_dtype: str, *, cores: int = _CORES) -> int:
    """Bytes of PagedAttention's workspace. columns: of the longest sequence. cores: cube cores of the card."""
    of_column = (3 if cache_dtype == "float16" else 7) * 1024
    return int(cores * (_PAGED_BASE + of_column * min(columns, _PAGED_COLUMNS)))


def _forward(work: RankWork, width: RankWidths, tokens: int) -> int:
    """One layer at a time: gate and up, side by side once more, and the stream beside them; before that gate, up and
    what experts read; after them what they return, twice; or inputs and results of the norm in front of them; or
    queries, keys and values."""
    size = TYPE_BYTES[work.config.model.dtype]
    block = width.feed_forward(tokens)
    dense = 4 * tokens * width.dense_inner if width.dense_layers else 0
    inner, routed = max(4 * block.widest, 2 * block.widest + block.routed, dense), 2 * block.routed
    attention = tokens * (width.hidden + 3 * width.query + 3 * width.key_value)
    return size * (max(inner, routed, attention, 3 * tokens * width.hidden) + tokens * width.hidden)


def _expert_copies(work: RankWork) -> int:
    """Bytes in generation of the three stacked matrices of a layer's experts, transposed, and of one cast before."""
    sizes = weight_sizes(work.config.model, work.config.plans.infer, work.rank)
    layer = f"model.layers.{work.config.model.expert_layers.start}."
    matrices = [size for name, size in sizes.items() if name.startswith(layer) and ".experts." in name]
    return _copies(work, sum(matrices)) + _casts(work, max(matrices, default=0))


def _matrices(sizes: Mapping[str, int]) -> dict[str, int]:
    """Elements of the layers' weights, which are cast before they are used."""
    return {name: size for name, size in sizes.items() if ".layers." in name}


def _casts(work: RankWork, elements: int) -> int:
    """Bytes of weights that generation casts: a model of its own holds them in the compute type, and so are frozen
    ones."""
    return _copies(work, elements) if reads_trained_weights(work.config) and work.config.model.lora is None else 0


def _copies(work: RankWork, elements: int) -> int:
    """Bytes of copies of weights in the compute type."""
    size = TYPE_BYTES[work.config.model.dtype]
    return 0 if size == FLOAT else size * elements
