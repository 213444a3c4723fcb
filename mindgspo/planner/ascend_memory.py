"""An estimate of what the graphs of one rank take on an Ascend card beside the holdings. Nothing here was measured.

What enters: a rank's work and a phase. What leaves: bytes by part. Same interface as `cpu_memory`; called by
`expected`. The counting is that of "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198),
for this model: grouped-query attention, SwiGLU, RMSNorm, no dropout, and flash attention, which keeps no [T, T].

Per token and layer the backward pass needs, in the compute type, with all widths but `hidden` divided by
model_parallel, and `hidden` too where use_seq_parallel splits the tokens:
    recompute none        4 hidden + 2 query + 2 key_value + 3 inner: inputs and results of two norms; queries, keys,
                          values and the attention's output; gate and up; their product; with head norms queries
                          and keys before these, too
    recompute selective   2 hidden + 2 query + 2 key_value + 2 inner: without norms' results and the product
    recompute full        hidden: the layer's input; and once all of the above, for the layer that is computed again
with experts hidden states of their tokens, before and behind them, and inner counts for each of them;
and from flash attention two float32 statistics of 8 numbers per query head. Of every micro-batch in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mindgspo.parallel.swap.states import Holding, Phase
from mindgspo.planner.holdings import held_bytes, weight_sizes
from mindgspo.planner.memory_plan import GIB, MIB, Part, Parts
from mindgspo.planner.rank_work import FLOAT, TYPE_BYTES, RankWidths, RankWork

KEEPS_POOL = False
"""Memory that graphs give back to the pool serves parameters that are swapped in."""

# CANN's context, the drivers' share of the card and the pool's blocks: a round figure, not measured.
_RUNTIME = 3 * GIB
# HCCL_BUFFSIZE is 200 MB by default, and each group of ranks takes it twice (CANN's documentation).
_GROUP_BUFFERS = 2 * 200 * MIB
_CHUNK_BYTES = 512 * MIB  # parallel.logical_logprob
_FLASH_STATISTICS = 2 * 8


def reserve(work: RankWork) -> int:
    """Runtime, and buffers of the rank's groups of more than one: all ranks, and those that share an axis of a plan."""
    sizes = {"world": work.plan.world_size}
    plans = {"train": work.plan, "infer": work.config.plans.infer}
    if work.config.algorithm.kl.placement != "none" and work.config.plans.reference is not None:
        plans["reference"] = work.config.plans.reference
    for name, plan in plans.items():
        for axis in ("data_parallel", "expert_parallel", "model_parallel", "pipeline_stage"):
            sizes[f"{name} {axis}"] = getattr(plan, axis)
    return _RUNTIME + _GROUP_BUFFERS * sum(size > 1 for size in sizes.values())


def temporary(work: RankWork, phase: Phase) -> Parts:
    """What the phase's graphs use at their peak."""
    if phase is Phase.ROLLOUT:
        return _rollout(work)
    if phase is Phase.SCORE:
        return _score(work)
    return _update(work) if phase is Phase.UPDATE else {}


def standing(work: RankWork, phases: Collection[Phase]) -> Parts:
    """What no swap moves: a pipeline adds the gradients of a round up in parameters of its own."""
    if Phase.UPDATE not in phases or work.plan.pipeline_stage == 1:
        return {}
    return {Part.ROUND_GRADIENTS: held_bytes(work)[Holding.GRADIENTS]}


def _update(work: RankWork) -> Parts:
    width, size = work.train, TYPE_BYTES[work.config.model.dtype]
    everything = _layer_bytes(work, "none")
    per_layer = _layer_bytes(work, work.plan.recompute)
    again = 0 if work.plan.recompute == "none" else everything - per_layer
    # Gradients of activations on their way through one layer: those of SwiGLU are the widest.
    block = width.feed_forward(work.tokens, in_blocks=False)
    passing = size * (3 * block.inner + 2 * block.routed + 2 * work.tokens * width.hidden)
    ends = work.tokens * 2 * _hidden(work) * size
    weights = weight_sizes(work.config.model, work.plan, work.rank)
    # A pipeline's compiler adds each gradient up where it comes out: one layer's wait, or a table's. Elsewhere they are
    # added in the order of the parameters, the input table's first, which comes out last.
    in_layers = sum(elements for name, elements in weights.items() if ".layers." in name)
    is_pipeline = work.plan.pipeline_stage > 1
    waiting = max(in_layers // width.layers, *weights.values()) if is_pipeline else sum(weights.values())
    return {
        Part.COMPUTE_WEIGHTS: _compute_type(work, sum(_cast(work, weights))),
        Part.NEW_GRADIENTS: (FLOAT if is_pipeline else size) * waiting,
        Part.ACTIVATIONS: work.in_flight * (width.layers * per_layer + ends) + again + passing,
        Part.LOGITS: _head(work, work.train, is_update=True),
    }


def _layer_bytes(work: RankWork, recompute: str) -> int:
    """What one layer keeps of one micro-batch."""
    width, size = work.train, TYPE_BYTES[work.config.model.dtype]
    hidden = _hidden(work)
    if recompute == "full":
        return work.tokens * size * hidden
    heads = 2 * width.query + 2 * width.key_value
    wide, block = 2 * hidden + heads, width.feed_forward(work.tokens, in_blocks=False)
    inner = 2 * block.inner + 2 * block.routed
    if recompute == "none":
        wide += 2 * hidden + (width.query + width.key_value if width.has_head_norms else 0)
        inner += block.inner
    return size * inner + work.tokens * (size * wide + FLOAT * _FLASH_STATISTICS * width.heads)


def _hidden(work: RankWork) -> int:
    """Features per token that a rank keeps between the tensor-parallel regions, on average over the tokens."""
    return work.train.hidden // (work.plan.model_parallel if work.plan.use_seq_parallel else 1)


def _head(work: RankWork, width: RankWidths, *, is_update: bool) -> int:
    """A chunk of logits: in the compute type, widened, shifted, their exponentials. In the update its gradient too, and
    one gradient of the table per chunk, which are added up in the end."""
    if not width.is_last:
        return 0
    size, vocabulary = TYPE_BYTES[work.config.model.dtype], width.output_rows
    tokens = min(work.scored_tokens, max(1, _CHUNK_BYTES // (FLOAT * vocabulary)))
    logits = tokens * vocabulary * (size + (4 if is_update else 3) * FLOAT)
    if not is_update:
        return logits
    table, chunks = vocabulary * width.hidden, -(-work.scored_tokens // tokens)
    return logits + (chunks * size + FLOAT) * table


def _score(work: RankWork) -> Parts:
    """The old policy's graph or the reference's, whichever needs more of each."""
    if not work.scoring:
        return {}
    weights = [max(_cast(work, weight_sizes(work.config.model, plan, work.rank))) for plan, _ in work.scoring]
    return {
        Part.COMPUTE_WEIGHTS: _compute_type(work, max(weights)),
        Part.ACTIVATIONS: max(_forward(work, width, work.tokens) for _, width in work.scoring),
        Part.LOGITS: max(_head(work, width, is_update=False) for _, width in work.scoring),
    }


def _rollout(work: RankWork) -> Parts:
    """A prefill's activations, keys and values; a step's logits, in float32, and what sampling makes of them."""
    width = work.infer
    tokens = work.prompts * work.prompt_length
    prefilled = 2 * width.layers * tokens * width.key_value * TYPE_BYTES[work.cache_dtype]
    return {
        Part.COMPUTE_WEIGHTS: _compute_type(
            work, max(_cast(work, weight_sizes(work.config.model, work.config.plans.infer, work.rank)))
        ),
        Part.ACTIVATIONS: prefilled + _forward(work, width, tokens),
        Part.LOGITS: 4 * FLOAT * work.slots * work.config.model.vocab_size,
    }


def _forward(work: RankWork, width: RankWidths, tokens: int) -> int:
    """One layer at a time."""
    size = TYPE_BYTES[work.config.model.dtype]
    block = width.feed_forward(tokens, in_blocks=False)
    streams = tokens * (3 * width.hidden + 2 * width.query + 2 * width.key_value)
    return size * (streams + 4 * block.inner + 2 * block.routed)


def _cast(work: RankWork, sizes: Mapping[str, int]) -> list[int]:
    """Elements of the weights that are cast before they are used: all but an input table, of which rows are read.
    Experts' matrices are transposed besides."""
    is_tied = work.config.model.tie_word_embeddings
    return [
        size * (2 if ".experts." in name else 1)
        for name, size in sizes.items()
        if is_tied or name != "model.embed_tokens.weight"
    ]


def _compute_type(work: RankWork, elements: int) -> int:
    """Bytes of copies of weights. Without a backward pass a copy lives as long as its product."""
    size = TYPE_BYTES[work.config.model.dtype]
    return 0 if size == FLOAT else size * elements
