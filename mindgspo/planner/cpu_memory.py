"""Memory of one rank's graphs on CPU beside its holdings: a rough estimate in float32.

Same interface as `ascend_memory`. Per token the backward pass keeps of each layer: its input, two norms and what they
scale (6 hidden), queries and attention's output (2 query), keys and values (2 key/value), gate, sigmoid, SiLU, up and
their product (5 inner), and per row and head the softmax of the scores [T, T].
"""

from __future__ import annotations

from collections.abc import Collection

from mindgspo.parallel.swap.states import Phase
from mindgspo.planner.memory_plan import MIB, Part, Parts
from mindgspo.planner.rank_work import FLOAT, RankWidths, RankWork, weight_sizes, whole_bytes

# Measured with MindSpore 2.10: a process with a first small graph, what a rank of a cluster has beyond that, and
# compiled graphs of all phases.
_PROCESS, _CLUSTER = 450 * MIB, 150 * MIB
_GRAPHS, _GRAPHS_PER_LAYER = 150 * MIB, 30 * MIB
_CHUNK_BYTES = 64 * MIB


def reserve(work: RankWork) -> int:
    """The process itself."""
    return _PROCESS + (_CLUSTER if work.plan.world_size > 1 else 0)


def standing(work: RankWork, phases: Collection[Phase]) -> Parts:
    """Compiled graphs, which live as long as the process."""
    return {Part.GRAPHS: _GRAPHS + _GRAPHS_PER_LAYER * work.train.layers}


def temporary(work: RankWork, phase: Phase) -> Parts:
    """What a phase uses at its peak beside the holdings."""
    # Rank 0 gathers whole weights and both moments before they are written, in the background while the run goes on.
    copies = {Part.COPIES: 3 * whole_bytes(work.config.model) if work.rank == 0 else 0}
    lasting = copies if work.config.trainer.save_in_background else {}
    if phase is Phase.SAVE:
        return copies
    if phase is Phase.UPDATE:
        return {**_update(work), **lasting}
    if phase is Phase.SCORE:
        peaks = [_score(work, width) for _, width in work.scoring]
        return {**max(peaks, key=lambda parts: sum(parts.values()), default={}), **lasting}
    return {**_rollout(work), **lasting} if phase is Phase.ROLLOUT else {}


def _update(work: RankWork) -> Parts:
    width = work.train
    kept = width.layers * _kept_per_layer(work, work.plan.recompute)
    again = _kept_per_layer(work, "none") if work.plan.recompute != "none" else 0
    # The gradient of the output table so far, this chunk's, and their sum.
    table = width.output_rows * width.hidden
    return {
        Part.ACTIVATIONS: FLOAT * (kept + again),
        Part.NEW_GRADIENTS: FLOAT * sum(weight_sizes(work.config.model, work.plan, work.rank).values()),
        Part.LOGITS: 3 * FLOAT * max(table, _chunk(work, width)),
    }


def _kept_per_layer(work: RankWork, recompute: str) -> int:
    """Elements that a layer keeps for its backward pass. selective: without norms, the product and the softmax."""
    width, tokens = work.train, work.tokens
    if recompute == "full":
        return tokens * width.hidden
    block = width.feed_forward(tokens)
    heads = (2 * width.query + 2 * width.key_value) * (2 if width.has_head_norms else 1)
    if recompute == "selective":
        return tokens * (4 * width.hidden + heads) + 4 * block.inner + 2 * block.routed
    return tokens * (6 * width.hidden + heads) + 5 * block.inner + 2 * block.routed + work.scores


def _score(work: RankWork, width: RankWidths) -> Parts:
    return {
        Part.ACTIVATIONS: FLOAT * _one_layer(width, work.tokens, work.scores_of(width)),
        Part.LOGITS: 3 * FLOAT * _chunk(work, width),
    }


def _rollout(work: RankWork) -> Parts:
    """A prefill with all keys and values; a step's scores, with gathered keys and values and where they were; and its
    logits with what sampling makes."""
    width, rollout = work.infer, work.config.rollout
    prefill = max(
        2 * width.layers * rows * length * width.key_value
        + _one_layer(width, rows * length, rows * width.heads * length**2)
        for rows, length in work.prefills
    )
    step = work.slots * work.columns * (4 * width.heads + 2 * width.key_value + 3 * width.kv_heads)
    tensors = 10 if rollout.top_k > 0 or rollout.top_p < 1 else 4
    return {
        Part.ACTIVATIONS: FLOAT * max(prefill, step),
        Part.LOGITS: FLOAT * tensors * work.slots * work.config.model.vocab_size,
    }


def _one_layer(width: RankWidths, tokens: int, scores: int) -> int:
    """Elements of a forward pass through one layer."""
    block = width.feed_forward(tokens)
    return tokens * (3 * width.hidden + 2 * width.key_value) + 4 * block.inner + 2 * block.routed + 3 * scores


def _chunk(work: RankWork, width: RankWidths) -> int:
    """Elements of one chunk of logits of the log-prob head."""
    rows = max(1, _CHUNK_BYTES // (FLOAT * width.output_rows))
    return min(rows, work.scored_tokens) * width.output_rows if width.is_last else 0
