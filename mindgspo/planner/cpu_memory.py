"""What the graphs of one rank take on CPU beside the holdings: the composed float32 ops of MindSpore 2.10.

What enters: a rank's work and a phase. What leaves: bytes by part. Same interface as `ascend_memory`; called by
`expected`. Read off the execution order of the compiled graphs and the allocations of MindSpore's pool; judged by
`tools/bench_memory_plan.py` in one process. Ranks of a cluster are taken to do the same with their slices.

- The pool gives nothing back, so what the largest phase needed stays for all others.
- Of a layer the backward pass keeps, per token: the layer's input, the norm's scale and its result, twice (6 hidden);
  scaled queries and attention output (2 query); keys and values as attention reads them (2 key/value); gate, its
  sigmoid, silu, up and their product (5 inner); and per row and head the softmax of the scores [T, T].
  Experts: the same for each slot (inner), the hidden states of the slots before and behind them (2 routed), and on the
  way through a layer copies of their matrices for every block of slots.
- Gradients of weights are computed as soon as they can be, but added to the accumulated ones in the order of the
  parameters, the input table first, whose gradient comes last: all of them wait for it.
- A transpose keeps a table of its elements' places and a broadcast op two (8 bytes per element) as long as its graph
  lives: the price of splitting heads, of biases, and of the softmax's backward pass.
- Compiling leaves a graph, and freed memory that malloc keeps and the next compilation uses again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mindgspo.parallel.swap.states import Phase
from mindgspo.planner.cpu_kernels import compiled_bytes, forward_kernels, rollout_kernels, update_kernels
from mindgspo.planner.holdings import weight_sizes, whole_bytes
from mindgspo.planner.memory_plan import MIB, Part, Parts
from mindgspo.planner.rank_work import FLOAT, RankWidths, RankWork

KEEPS_POOL = True
"""Memory that a graph has given back serves other graphs alone."""

# Measured: the process with MindSpore imported and a first small graph behind it; and what ranks of a cluster of four
# (1 x 2 x 2) had beyond the rest of this estimate, 90 to 250 MiB: messages, and graphs with collectives in them.
_PROCESS, _CLUSTER = 450 * MIB, 150 * MIB
# Best fit leaves holes: pages touched over the most bytes in use, 1.01 to 1.12 in traces of the pool, more where layers
# are computed again.
_HOLES, _HOLES_OF_RECOMPUTE = 1.04, 1.14
_CHUNK_BYTES = 64 * MIB


def reserve(work: RankWork) -> int:
    """The process before its first graph, and what it takes to be one of several."""
    return _PROCESS + (_CLUSTER if work.plan.world_size > 1 else 0)


def temporary(work: RankWork, phase: Phase) -> Parts:
    """What the phase's graphs use at their peak and give back to the pool; for SAVE what numpy gives back."""
    # Rank 0 gathers whole weights and both moments before they are written, in the background while the run goes on.
    copies = {Part.COPIES: 3 * whole_bytes(work.config.model) if work.rank == 0 else 0}
    if phase is Phase.SAVE:
        return copies
    peaks = {Phase.ROLLOUT: _rollout_peaks, Phase.SCORE: _score_peaks, Phase.UPDATE: _update_peaks}
    if phase not in peaks:
        return {}
    peak = max(peaks[phase](work), key=lambda peak: peak.total, default=_Peak())
    lasting = copies if work.config.trainer.save_in_background else {}
    is_recomputed = phase is Phase.UPDATE and work.plan.recompute != "none"
    bytes_each = FLOAT * (_HOLES_OF_RECOMPUTE if is_recomputed else _HOLES)
    return {
        Part.ACTIVATIONS: int(bytes_each * peak.activations),
        Part.NEW_GRADIENTS: int(bytes_each * peak.gradients),
        Part.LOGITS: int(bytes_each * peak.logits),
        **lasting,
    }


def standing(work: RankWork, phases: Collection[Phase]) -> Parts:
    """What the graphs of these phases keep as long as the process lives."""
    kernels = {Phase.ROLLOUT: rollout_kernels, Phase.SCORE: forward_kernels, Phase.UPDATE: update_kernels}
    graphs = [compiled_bytes(work, phase) for phase in phases if phase in kernels]
    constants = 0
    if Phase.UPDATE in phases and work.train.is_last:
        constants = FLOAT * work.train.output_rows * work.train.hidden  # zeros, with which the table's gradient begins
    return {
        Part.KERNELS: sum(kernels[phase](work) for phase in phases if phase in kernels),
        Part.GRAPHS: sum(graph.lasting for graph in graphs)
        + max((graph.passing for graph in graphs), default=0)
        + constants,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """Elements in use at one point of a graph."""

    activations: float = 0
    gradients: float = 0
    logits: float = 0

    @property
    def total(self) -> float:
        return self.activations + self.gradients + self.logits


def _update_peaks(work: RankWork) -> list[_Peak]:
    """Where one of the update's graphs may need most."""
    width, tokens, scores = work.train, work.tokens, work.scores
    last, block = width.layers - 1, width.feed_forward(tokens, in_blocks=True)
    everything, kept = _layer(work, "none"), _layer(work, work.plan.recompute)
    in_attention = everything - 5 * block.inner - 2 * block.routed + 2 * scores
    in_feed_forward = everything + 3 * block.inner + 2 * block.routed + 2 * block.copied
    # The rotary tables spread over the heads; the final norm; inputs that wait for their backward pass.
    shared = 2 * tokens * (width.query + width.key_value + (width.hidden if width.is_last else 0))
    if work.plan.pipeline_stage > 1:
        shared += work.in_flight * tokens * width.hidden
    table, input_table = _tables(work)
    is_one_table = work.config.model.tie_word_embeddings and width.is_first and width.is_last
    weights = weight_sizes(work.config.model, work.plan, work.rank)
    gradients = sum(size for name, size in weights.items() if ".layers." in name)
    feed_forward = 3 * width.hidden * width.inner * max(width.experts, 1)
    return [
        # Forward pass, in the last layer's softmax: scores, mask, and their sum.
        _Peak(activations=last * kept + shared + in_attention),
        # The log-prob head, forwards and backwards, behind the forward pass.
        _Peak(
            activations=width.layers * kept + shared + 2 * work.scored_tokens * width.hidden, logits=_head(work, table)
        ),
        # Backwards in the last layer's SwiGLU and softmax. The output table's gradient waits from here on.
        _Peak(activations=last * kept + shared + in_feed_forward, logits=table),
        _Peak(activations=last * kept + shared + in_attention, gradients=feed_forward, logits=table),
        # The same in the first layer: the gradients of all others wait.
        _Peak(activations=shared + in_feed_forward, gradients=gradients * last / width.layers, logits=table),
        _Peak(
            activations=shared + in_attention, gradients=gradients * last / width.layers + feed_forward, logits=table
        ),
        # The input table's gradient; where both tables are one, the sum of their gradients too.
        _Peak(gradients=gradients, logits=table + (2 if is_one_table else 1) * input_table),
        # The optimizer's step on the largest weight: its decay, the clipped gradient, and Adam's own.
        _Peak(gradients=4 * max(weights.values())),
    ]


def _layer(work: RankWork, recompute: str) -> int:
    """Elements that a layer keeps for its backward pass; see the head of this file. recompute=selective: without the
    norms' results, a product of SwiGLU and the softmax; full: its input."""
    width = work.train
    if recompute == "full":
        return work.tokens * width.hidden
    heads, block = 2 * width.query + 2 * width.key_value, width.feed_forward(work.tokens, in_blocks=True)
    if recompute == "selective":
        return work.tokens * (4 * width.hidden + heads) + 4 * block.inner + 2 * block.routed
    if width.has_head_norms:
        heads *= 2  # what is normed, and the norm's scale
    return work.tokens * (6 * width.hidden + heads) + 5 * block.inner + 2 * block.routed + work.scores


def _tables(work: RankWork) -> tuple[int, int]:
    """Elements of the rank's output and input tables; 0 where its stage does not read them."""
    width = work.train
    output_table = width.output_rows * width.hidden if width.is_last else 0
    return output_table, width.input_rows * width.hidden if width.is_first else 0


def _head(work: RankWork, table: int) -> int:
    """Chunk by chunk: logits and log-probs beside the table's gradient so far; then probabilities, and their product
    that is to be added; then the sum."""
    if not work.train.is_last:
        return 0
    chunk = _chunk(work, work.train, entropy=work.has_entropy)
    if work.has_entropy:
        return max(table + 4 * chunk, 3 * table + chunk, 4 * table)
    return max(table + 2 * chunk, 2 * table + chunk, 3 * table)


def _chunk(work: RankWork, width: RankWidths, *, entropy: bool) -> int:
    """Elements of one chunk of logits (`parallel.layers.ChunkedLogProb`)."""
    limit = _CHUNK_BYTES // (2 if entropy else 1)
    vocabulary = width.output_rows
    return min(max(1, limit // (FLOAT * vocabulary)), work.scored_tokens) * vocabulary


def _score_peaks(work: RankWork) -> list[_Peak]:
    peaks = []
    for _, width in work.scoring:
        peaks += _forward_peaks(width, work.tokens, work.scores_of(width))
        if width.is_last:
            activations = work.scored_tokens * width.hidden
            peaks.append(_Peak(activations=activations, logits=3 * _chunk(work, width, entropy=True)))
    return peaks


def _forward_peaks(width: RankWidths, tokens: int, scores: float, held: float = 0) -> list[_Peak]:
    """Of one layer: in its feed-forward block, in its attention. held: elements that stay beside it."""
    streams, block = (
        tokens * (3 * width.hidden + 2 * width.key_value) + held,
        width.feed_forward(tokens, in_blocks=True),
    )
    # Copies of three matrices of an expert layer: two are in use together, and the pool takes about as much again.
    return [
        _Peak(activations=streams + 4 * block.inner + 2 * block.routed + 3 * block.copied + scores),
        _Peak(activations=streams + tokens * width.key_value + 3 * scores),
    ]


def _rollout_peaks(work: RankWork) -> list[_Peak]:
    """A prefill, whose keys and values wait for their slots (the last one's, too, if there are several), or a step."""
    width, rollout = work.infer, work.config.rollout
    tokens = work.prompts * work.prompt_length
    prefilled = 2 * width.layers * tokens * width.key_value
    scores = work.prompts * width.heads * work.prompt_length**2
    earlier = prefilled if work.prefills > 1 else 0
    # A layer's scores, mask, their sum and softmax. Logits, log-probs, probabilities and their running sum; a cut by
    # top-k or top-p sorts and compares besides.
    step = 4 * work.slots * width.heads * work.columns
    is_cut = rollout.top_k > 0 or rollout.top_p < 1
    logits = (10 if is_cut else 4) * work.slots * work.config.model.vocab_size
    return [
        # Of the last layer only keys and values are computed.
        *_forward_peaks(width, tokens, scores, held=earlier + prefilled * (width.layers - 1) / width.layers),
        _Peak(activations=prefilled + step),
        _Peak(activations=prefilled, logits=logits),
    ]
