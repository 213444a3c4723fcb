"""What the graphs of one rank take on CPU beside the holdings: the composed float32 ops of MindSpore 2.10.

What enters: a rank's work and a phase. What leaves: bytes by part. Same interface as `ascend_memory`; called by
`expected`. Read off the execution order of the compiled graphs and the allocations of MindSpore's pool; checked by
`tools/bench_memory_plan.py` in one process. Ranks of a cluster are taken to do the same with their slices.

- The pool gives nothing back, so what the largest phase needed stays for all others.
- Of a layer the backward pass keeps, per token: the layer's input, the norm's scale and its result, twice (6 hidden);
  scaled queries and attention output (2 query); keys and values as attention reads them (2 key/value); gate, its
  sigmoid, silu, up and their product (5 inner); and per row and head the softmax of the scores [T, T].
- Gradients of weights are computed as soon as they can be, but added to the accumulated ones in the order of the
  parameters, hence from the input table on, whose gradient comes last: all wait for it.
- A transpose keeps a table of its elements' places and a broadcast op two (8 bytes per element), for as long as the
  graph lives: the price of splitting heads, of biases, and of the softmax's backward pass.
- Compiling leaves the graph, and freed memory that malloc keeps and the next compilation uses again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mindgspo.parallel.swap.states import Phase
from mindgspo.planner.holdings import weight_sizes, whole_bytes
from mindgspo.planner.memory_plan import MIB, Part, Parts
from mindgspo.planner.rank_work import FLOAT, RankWidths, RankWork

KEEPS_POOL = True

# Measured: the process after importing MindSpore and a first small graph.
_PROCESS = 450 * MIB
# Best fit leaves holes: pages touched over the most bytes in use, 1.01 to 1.12 in traces of the pool.
_HOLES = 1.04
_INDEX_BYTES = 8
_CHUNK_BYTES = 64 * MIB


def reserve(work: RankWork) -> int:
    """The process before its first graph."""
    return _PROCESS


def temporary(work: RankWork, phase: Phase) -> Parts:
    """What the phase's graphs use at their peak and give back to the pool; for SAVE what numpy gives back."""
    if phase is Phase.SAVE:
        # Rank 0 gathers whole weights and both moments before they are written.
        return {Part.COPIES: 3 * whole_bytes(work.config.model) if work.rank == 0 else 0}
    peaks = {Phase.ROLLOUT: _rollout_peaks, Phase.SCORE: _score_peaks, Phase.UPDATE: _update_peaks}
    if phase not in peaks:
        return {}
    peak = max(peaks[phase](work), key=lambda peak: peak.total)
    return {
        Part.ACTIVATIONS: int(_HOLES * FLOAT * peak.activations),
        Part.NEW_GRADIENTS: int(_HOLES * FLOAT * peak.gradients),
        Part.LOGITS: int(_HOLES * FLOAT * peak.logits),
    }


def standing(work: RankWork, phases: Collection[Phase]) -> Parts:
    """What the graphs of these phases keep as long as the process lives."""
    kernels = {Phase.ROLLOUT: _rollout_kernels, Phase.SCORE: _score_kernels, Phase.UPDATE: _update_kernels}
    compiled = [_compiled(work, phase) for phase in phases if phase in kernels]
    constants = 0
    if Phase.UPDATE in phases and work.train.is_last:
        constants = FLOAT * work.train.output_rows * work.train.hidden  # zeros that the table's gradient begins with
    return {
        Part.KERNELS: int(sum(kernels[phase](work) for phase in phases if phase in kernels)),
        Part.GRAPHS: sum(lasting for lasting, _ in compiled)
        + max((passing for _, passing in compiled), default=0)
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


# ----- update


def _update_peaks(work: RankWork) -> list[_Peak]:
    """Where one of the update's graphs may need most."""
    width, tokens = work.train, work.tokens
    sizes, scores = weight_sizes(work), _scores(work)
    kept = tokens * (6 * width.hidden + 2 * width.query + 2 * width.key_value + 5 * width.inner) + scores
    # The rotary tables spread over the heads, the final norm; on a later stage inputs wait in host memory.
    shared = 2 * tokens * (width.query + width.key_value) + 2 * tokens * width.hidden
    waiting = work.in_flight * tokens * width.hidden if work.plan.pipeline_stage > 1 else 0
    before = width.layers * kept + shared + waiting
    table = width.output_rows * width.hidden if width.is_last else 0
    input_table = width.input_rows * width.hidden if width.is_first else 0
    tables = table + input_table if work.config.model.tie_word_embeddings or width.layers == 0 else table + input_table
    per_layer = (sum(sizes) - (_distinct_tables(work))) / width.layers
    feed_forward = 3 * width.hidden * width.inner
    return [
        # Forward pass, softmax of the last layer: scores, their mask and their sum.
        _Peak(activations=before - tokens * 5 * width.inner + 2 * scores),
        # Log-prob head, behind the forward pass.
        _Peak(activations=before + 2 * work.scored_tokens * width.hidden, logits=_head_backward(work)),
        # Last layer's SwiGLU, then its softmax, backwards; the table's gradient waits.
        _Peak(activations=before + 3 * tokens * width.inner, logits=table),
        _Peak(activations=before - 5 * tokens * width.inner + 2 * scores, gradients=feed_forward, logits=table),
        # First layer backwards: all others' gradients wait.
        _Peak(
            activations=kept + shared + 2 * scores, gradients=(width.layers - 1) * per_layer + feed_forward, logits=table
        ),
        # The input table's gradient, and its sum with the output table's where they are one.
        _Peak(gradients=width.layers * per_layer, logits=table + (2 if _is_tied_here(work) else 1) * input_table),
        # The step on the largest weight: decay, its product, the clipped gradient, Adam's own.
        _Peak(gradients=4 * max(sizes)),
    ]


def _distinct_tables(work: RankWork) -> int:
    """Elements of the rank's input and output tables; one table that is both counts once."""
    width = work.train
    output = width.output_rows if width.is_last and not work.config.model.tie_word_embeddings else 0
    reads = width.is_first or (width.is_last and work.config.model.tie_word_embeddings)
    return (output + (width.input_rows if reads else 0)) * width.hidden


def _is_tied_here(work: RankWork) -> bool:
    return work.config.model.tie_word_embeddings and work.train.is_first and work.train.is_last


def _head_backward(work: RankWork) -> float:
    """Chunk by chunk: logits and log-probs; then a chunk of probabilities, the table's gradient so far, the product to
    be added; then the sum."""
    width = work.train
    if not width.is_last:
        return 0
    table, chunk = width.output_rows * width.hidden, _chunk(work, entropy=work.has_entropy)
    if work.has_entropy:
        return max(table + 4 * chunk, 3 * table + chunk, 4 * table)
    return max(table + 2 * chunk, 2 * table + chunk, 3 * table)


def _update_kernels(work: RankWork) -> float:
    width, tokens = work.train, work.tokens
    forward, backward = _forward_tables(width, tokens), _forward_tables(width, tokens, is_biased=False)
    softmax = 2 * _scores(work) * width.layers
    head = 8 * work.scored_tokens * width.hidden if width.is_last else 0
    graphs = 1 if width.is_last or width.layers == 0 else 2  # an earlier stage also has a forward graph of its own
    return (
        _INDEX_BYTES * (graphs * forward + backward + softmax + head)
        + graphs * _forward_scratch(width)
        + _backward_scratch(width, tokens)
    )


# ----- forward passes: log-probs, prompts, tokens


def _score_peaks(work: RankWork) -> list[_Peak]:
    width, scores = work.train, _scores(work)
    peaks = _forward_peaks(width, work.tokens, scores)
    if width.is_last:
        chunk = _chunk(work, entropy=True)
        peaks.append(_Peak(activations=work.scored_tokens * width.hidden, logits=3 * chunk))
    return peaks


def _forward_peaks(width: RankWidths, tokens: int, scores: float, held: float = 0) -> list[_Peak]:
    """Of one layer: in its feed-forward block, in its attention. held: elements that stay beside it."""
    streams = tokens * (3 * width.hidden + 2 * width.key_value) + held
    return [
        _Peak(activations=streams + 4 * tokens * width.inner + scores),
        _Peak(activations=streams + tokens * width.key_value + 3 * scores),
    ]


def _score_kernels(work: RankWork) -> float:
    policies = 2 if work.has_reference else 1
    return policies * (_INDEX_BYTES * _forward_tables(work.train, work.tokens) + _forward_scratch(work.train))


def _rollout_peaks(work: RankWork) -> list[_Peak]:
    """A prefill, whose keys and values wait for their slots (the last one's too, if there are several), or a step."""
    width, rollout = work.infer, work.config.rollout
    tokens = work.prompts * work.prompt_length
    prefilled = 2 * width.layers * tokens * width.key_value
    scores = work.prompts * width.heads * work.prompt_length**2
    before = prefilled if work.prefills > 1 else 0
    # Scores, mask, sum and softmax of a layer; logits, log-probs, probabilities and their sums.
    step = 4 * work.slots * width.heads * work.columns
    is_cut = rollout.top_k > 0 or rollout.top_p < 1
    logits = (10 if is_cut else 4) * work.slots * work.config.model.vocab_size
    return [
        *_forward_peaks(width, tokens, scores, held=before + prefilled),
        _Peak(activations=prefilled + step),
        _Peak(activations=prefilled, logits=logits),
    ]


def _rollout_kernels(work: RankWork) -> float:
    width = work.infer
    tables = _forward_tables(width, work.prompts * work.prompt_length)
    tables += 2 * width.layers * work.slots * (width.query + 2 * width.key_value)
    tables += 2 * work.slots * work.config.model.vocab_size
    return _INDEX_BYTES * tables + 2 * _forward_scratch(width)


# ----- common


def _scores(work: RankWork) -> int:
    """Elements of one layer's attention scores."""
    return work.rows * work.train.heads * work.row_length**2


def _chunk(work: RankWork, *, entropy: bool) -> int:
    """Elements of one chunk of logits (`parallel.layers.VocabParallelLogProb`)."""
    limit = _CHUNK_BYTES // (2 if entropy else 1)
    vocabulary = work.train.output_rows
    return min(max(1, limit // (FLOAT * vocabulary)), work.scored_tokens) * vocabulary


def _forward_tables(width: RankWidths, tokens: int, *, is_biased: bool = True) -> float:
    """Entries of index tables: four transposes per layer (q, k, v, output), two for each bias."""
    entries = 2 * width.query + 2 * width.key_value
    if is_biased:
        entries += 2 * (width.query + 2 * width.key_value)
    return width.layers * tokens * entries


# oneDNN keeps a buffer per matrix product, at most about 1.3 MB, whatever the matrices' sizes: measured sums per layer
# (two cores, AVX-512). Those of weights' gradients grow with the tokens up to 512.
def _forward_scratch(width: RankWidths) -> float:
    return 2.7 * MIB * width.layers


def _backward_scratch(width: RankWidths, tokens: int) -> float:
    return (2 + 9 * min(1, tokens / 512)) * MIB * width.layers


# Measured on 2 to 36 layers: what stays of the graphs of a phase, and what their compilation needs besides.
def _compiled(work: RankWork, phase: Phase) -> tuple[int, int]:
    """Bytes that last, bytes that the next compilation uses again."""
    if phase is Phase.ROLLOUT:
        layers = work.infer.layers
        return int((2 + 5.5 * layers) * MIB), int((63 + 5.9 * layers) * MIB)
    layers = work.train.layers
    if phase is Phase.SCORE:
        policies = 2 if work.has_reference else 1
        return int(policies * (2 + 3.8 * layers) * MIB), int((65 + 5 * layers) * MIB)
    return int((23 + 5.8 * layers) * MIB), int((75 + 16.5 * layers + 25 * max(0, layers - 12)) * MIB)
