"""What CPU kernels and compiled graphs keep from one call to the next: index tables, scratch, the graphs themselves.

What enters: a rank's work. What leaves: bytes. Part of `cpu_memory`; seen in MindSpore 2.10.0 with oneDNN 3.10 on two
cores with AVX-512, by listing what malloc had given out after a phase.
"""

from __future__ import annotations

from typing import NamedTuple

from mindgspo.parallel.swap.states import Phase
from mindgspo.planner.memory_plan import MIB
from mindgspo.planner.rank_work import RankWidths, RankWork

_ENTRY_BYTES = 8

# oneDNN keeps a buffer per matrix product, of at most 1.3 MB whatever the matrices: sums over the products of a layer.
# Those of weights' gradients grow with the tokens, up to 512.
_FORWARD_SCRATCH, _BACKWARD_SCRATCH, _GRADIENT_SCRATCH = 2.7 * MIB, 2 * MIB, 9 * MIB
_SCRATCH_TOKENS = 512


def forward_kernels(work: RankWork) -> int:
    """Of log-probs, for each policy."""
    return int(
        sum(
            _ENTRY_BYTES * _forward_entries(width, work.tokens, width.layers) + _FORWARD_SCRATCH * width.layers
            for _, width in work.scoring
        )
    )


def update_kernels(work: RankWork) -> int:
    """Of the forward and the backward pass; an earlier stage has a forward graph of its own besides. What is computed
    again is done by kernels of its own."""
    width, tokens = work.train, work.tokens
    passes = {"none": 1, "selective": 1, "full": 2}[work.plan.recompute] + (0 if width.is_last else 1)
    forward = _ENTRY_BYTES * _forward_entries(width, tokens, width.layers) + _FORWARD_SCRATCH * width.layers
    # Transposes of the gradients of queries, keys, values and attention's output; the softmax's difference.
    entries = width.layers * (tokens * (2 * width.query + 2 * width.key_value) + 2 * work.scores)
    if width.is_last:
        entries += 8 * work.scored_tokens * width.hidden  # four products by a column in the log-prob head
    if work.plan.recompute == "selective":
        entries += width.layers * tokens * (width.query + 2 * width.key_value)
    scratch = _BACKWARD_SCRATCH + _GRADIENT_SCRATCH * min(1, tokens / _SCRATCH_TOKENS)
    return int(forward * passes + _ENTRY_BYTES * entries + scratch * width.layers)


def rollout_kernels(work: RankWork) -> int:
    """Of a prefill, which needs keys and values alone of its last layer, and of a step."""
    width, tokens = work.infer, work.prompts * work.prompt_length
    entries = _forward_entries(width, tokens, width.layers - 1) + _key_value_entries(width, tokens)
    entries += 2 * work.slots * work.config.model.vocab_size  # logits by the slots' temperatures
    if width.has_biases:
        entries += width.layers * _bias_entries(width, work.slots)
    return int(_ENTRY_BYTES * entries + _FORWARD_SCRATCH * width.layers)


def _forward_entries(width: RankWidths, tokens: int, layers: int) -> int:
    """Transposes of queries, keys, values and attention's output; biases."""
    transposes = tokens * (2 * width.query + 2 * width.key_value)
    return layers * (transposes + (_bias_entries(width, tokens) if width.has_biases else 0))


def _key_value_entries(width: RankWidths, tokens: int) -> int:
    return tokens * width.key_value * (6 if width.has_biases else 2)


def _bias_entries(width: RankWidths, tokens: int) -> int:
    return 2 * tokens * (width.query + 2 * width.key_value)


class GraphBytes(NamedTuple):
    """lasting: as long as the graph lives. passing: what its compilation leaves to malloc for the next one."""

    lasting: int
    passing: int


def compiled_bytes(work: RankWork, phase: Phase) -> GraphBytes:
    """Of all graphs of a phase, for one shape of its inputs; measured on 2 to 36 layers of a model of no width."""
    layers = work.infer.layers if phase is Phase.ROLLOUT else work.train.layers
    if phase is Phase.ROLLOUT:
        lasting, passing = 2 + 5.5 * layers, 63 + 5.9 * layers
    elif phase is Phase.SCORE:
        if not work.scoring:
            return GraphBytes(0, 0)
        lasting = sum(2 + 3.8 * width.layers for _, width in work.scoring)
        passing = 65 + 5.0 * max(width.layers for _, width in work.scoring)
    else:
        # The optimizer's step is a loop over all weights, whose compilation needs more than their number would say.
        again = {"none": 0, "selective": 7.8, "full": 8.9}[work.plan.recompute]
        lasting, passing = 23 + 5.8 * layers, 75 + (16.5 + again) * layers + 25 * max(0, layers - 12)
    return GraphBytes(int(lasting * MIB), int(passing * MIB))
