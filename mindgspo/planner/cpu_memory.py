"""Estimated memory of one rank's graphs of kernels on CPU, in addition to its holdings: float32; graphs composed of
MindSpore's small operators keep more and are not covered.

Per token the backward pass keeps of each layer: its input and what it becomes after
attention, and both normed (4 hidden); rotated queries and attention's output (2 query); keys and values (2 key/value);
gate, up and their product (3 inner); with adapters what is between their matrices A and B.
"""

from __future__ import annotations

from collections.abc import Collection

from mindgspo.config.generation import merges_adapters
from mindgspo.planner.memory_plan import MIB, Part, Parts
from mindgspo.planner.rank_work import (
    FLOAT,
    RankWidths,
    RankWork,
    log_odds_elements,
    trained_bytes,
    trained_sizes,
    weight_sizes,
    whole_bytes,
)
from mindgspo.swap.states import Phase

# Measured with MindSpore 2.10: a process with a first small graph, what a rank of a cluster has beyond that, and
# compiled graphs of all phases.
_PROCESS, _CLUSTER = 450 * MIB, 150 * MIB
_GRAPHS, _GRAPHS_PER_LAYER = 100 * MIB, 27 * MIB
# Logits that the log-prob head has at once: of a chunk where ranks split the vocabulary, else of so many entries and
# predictions (kernels/log_prob.cc).
_CHUNK_BYTES, _ENTRIES, _PREDICTIONS = 64 * MIB, 4096, 1024


def cpu_reserve(work: RankWork) -> int:
    """The process itself."""
    return _PROCESS + (_CLUSTER if work.plan.world_size > 1 else 0)


def cpu_standing(work: RankWork, phases: Collection[Phase]) -> Parts:
    """Memory that lives as long as the process: compiled graphs, the matrices packed for decoding, and the pool that
    graphs allocate from. It returns nothing to the system, so it is as large as the largest graph needs."""
    pools = [_update(work)] if Phase.UPDATE in phases else []
    if Phase.ROLLOUT in phases:
        pools.append(_rollout(work))
    if Phase.SCORE in phases:
        pools += [_score(*one) for one in work.scoring]
    packed = FLOAT * _packed(work) if Phase.ROLLOUT in phases else 0
    graphs = _GRAPHS + _GRAPHS_PER_LAYER * work.train.layers
    pool = max(pools, key=lambda parts: sum(parts.values()), default={})
    return {**pool, Part.GRAPHS: graphs, Part.PACKED_WEIGHTS: packed}


def cpu_temporary(work: RankWork, phase: Phase) -> Parts:
    """Rank 0 gathers whole weights and both moments before they are written, in the background while the run goes
    on."""
    is_copied = work.rank == 0 and (phase is Phase.SAVE or work.config.trainer.save_in_background)
    model = work.config.model
    return {Part.COPIES: whole_bytes(model) + 2 * trained_bytes(model)} if is_copied else {}


def _update(work: RankWork) -> Parts:
    """The backward pass starts with everything kept and the output table's gradient, where it is trained, and ends with
    all gradients; those of both uses of a tied table exist together with their sum."""
    width, tokens = work.train, work.tokens(work.train)
    kept = width.layers * tokens * width.hidden
    if work.plan.recompute != "full":
        sparse = width.layers - width.dense_layers
        kept = width.dense_layers * _kept(width, tokens, dense=True) + sparse * _kept(width, tokens)
    table = width.output_rows * width.hidden if width.is_last and work.config.model.lora is None else 0
    gradients = sum(trained_sizes(work.config.model, work.plan, work.rank).values())
    if work.config.model.tie_word_embeddings and width.is_first:
        gradients += 2 * table
    has_odds = width.is_last and work.config.algorithm.teacher_top_k > 0
    activations, new = max((kept, table * (1 + has_odds)), (0, gradients), key=sum)
    odds = log_odds_elements(work, width, _CHUNK_BYTES) if has_odds else 0
    return {
        Part.ACTIVATIONS: FLOAT * (activations + _at_work(width, tokens)),
        Part.NEW_GRADIENTS: FLOAT * new,
        Part.LOGITS: FLOAT * (_head(work, width) + odds),
    }


def _score(work: RankWork, width: RankWidths) -> Parts:
    return {Part.ACTIVATIONS: FLOAT * _at_work(width, work.tokens(width)), Part.LOGITS: FLOAT * _head(work, width)}


def _kept(width: RankWidths, tokens: int, *, dense: bool = False) -> int:
    """Elements that a layer keeps for its backward pass. recompute=selective saves nothing of kernels'."""
    block, heads = width.feed_forward(tokens, dense=dense), width.query + width.key_value
    token = (4 + width.block_norms) * width.hidden + (2 + width.has_head_norms) * heads + width.latents + width.low
    return tokens * token + 3 * block.inner + 2 * block.routed


def _at_work(width: RankWidths, tokens: int) -> int:
    """Elements of one layer's tensors, or their gradients, and of what its widest product packs: weights and input."""
    widest = max(2 * width.widest_inner, width.query + 2 * width.key_value)
    packed = width.hidden * widest + max(tokens * width.hidden, width.feed_forward(tokens).widest)
    return _kept(width, tokens) + packed


def _rollout(work: RankWork) -> Parts:
    """A prefill with all keys and values, compared with which a decode step is small, and the logits of a step."""
    width = work.infer
    prefill = max(
        2 * width.layers * rows * length * width.key_value + _at_work(width, rows * length)
        for rows, length in work.prefills
    )
    return {Part.ACTIVATIONS: FLOAT * prefill, Part.LOGITS: FLOAT * work.slots * work.config.model.rows}


def _packed(work: RankWork) -> int:
    """Elements of the rollout's matrices: see `rollout.graphs.PackedWeights`."""
    width, model = work.infer, work.config.model
    is_packed = model.lora is None or merges_adapters(work.config)
    sizes = weight_sizes(model.base, work.config.plans.infer, work.rank) if is_packed else {}
    layers = sum(size for name, size in sizes.items() if name.endswith("_proj.weight") and "experts." not in name)
    takes_rows = model.tie_word_embeddings and width.input_rows > width.output_rows
    return layers + (0 if takes_rows else width.output_rows * width.hidden)


def _head(work: RankWork, width: RankWidths) -> int:
    """Elements that the log-prob head works with: hidden states and their gradients, and logits and packed matrices of
    one part, or chunks of logits where the vocabulary is split."""
    if not width.is_last:
        return 0
    predictions, hidden, entries = work.scored_tokens(width), width.hidden, width.output_rows
    if entries < work.config.model.rows:
        return 3 * min(max(1, _CHUNK_BYTES // (FLOAT * entries)), predictions) * entries
    some, part = min(predictions, _PREDICTIONS), min(entries, _ENTRIES)
    return 2 * predictions * hidden + some * (part + hidden) + 2 * part * hidden
