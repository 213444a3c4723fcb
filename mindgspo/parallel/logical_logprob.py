"""The log-prob head of a logical graph: the compiler splits the vocabulary under model_parallel, and nobody ever holds
[tokens, vocabulary].

What enters: hidden states, the whole output table, target ids. What leaves: log-probs and entropies, as
`layers.VocabParallelLogProb` has them. Built by `sharded_logprob.log_prob_head`. It is composed of ops that the
compiler can cut along the vocabulary (softmax kernels are not among them), with its own derivatives: the compiler does
not look into a hand-written backward pass. A chunk's logits are computed again there instead of being kept.

Nothing in the chunks' data says in which order they come, and MindSpore's order of execution is breadth first: it would
compute the logits of all chunks before it is done with the first. So chunks are chained, in both passes. Hidden states
and table go through the chain too, so that their gradients are added up chunk by chunk.

Legend: M tokens, D data-parallel replicas, C tokens of one chunk and replica, V vocabulary entries, H hidden units.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.parallel.layers import chunk_tokens
from mindgspo.parallel.placement import Placement
from mindgspo.parallel.splits import DATA, MODEL, WHOLE

_TOKENS = (DATA, WHOLE)
_LOGITS = (DATA, MODEL)


class LogicalLogProb(nn.Cell):
    """construct(hidden_MH, weight_VH, targets_M) -> (logp_M, entropy_M), float32, under
    softmax(hidden W^T / temperature); tokens of a replica are consecutive. Without `with_entropy` entropy_M is no
    entropy. chunk_bytes: of one rank's logits of a chunk; larger than elsewhere, since the graph holds every chunk."""

    def __init__(
        self, place: Placement, *, temperature: float, with_entropy: bool, chunk_bytes: int = 512 << 20
    ) -> None:
        super().__init__(auto_prefix=False)
        assert temperature > 0, temperature
        self.num_replicas = place.parts(DATA)
        self.vocabulary_parts = place.parts(MODEL)
        self.chunk_bytes = chunk_bytes
        self.chunk = ChunkLogProb(place, temperature=temperature, with_entropy=with_entropy)
        self.chunk.recompute()
        self.hidden_in_turn = place.split_function(in_turn, (DATA, WHOLE, WHOLE), _TOKENS, gradient=in_turn_gradient)
        self.weight_in_turn = place.split_function(in_turn, (MODEL, WHOLE), _TOKENS, gradient=in_turn_gradient)
        self.take_hidden = place.split(ops.StridedSlice(), (DATA, WHOLE, WHOLE))
        self.take_targets = place.split(ops.StridedSlice(), (DATA, WHOLE))
        self.join = place.split(ops.Concat(axis=1), _TOKENS, _TOKENS)

    def construct(self, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
        replicas, hidden_size = self.num_replicas, hidden_MH.shape[1]
        own = hidden_MH.shape[0] // replicas
        chunk = chunk_tokens(weight_VH.shape[0] // self.vocabulary_parts, self.chunk_bytes)
        hidden_DMH = hidden_MH.reshape(replicas, own, hidden_size)
        targets_DM = targets_M.reshape(replicas, own)
        logp_DM, entropy_DM, done = None, None, targets_DM
        for start in range(0, own, chunk):
            stop = min(start + chunk, own)
            # Also before the first: the compiler sums each use of a parameter over the replicas by itself.
            hidden_DMH = self.hidden_in_turn(hidden_DMH, done)
            weight_VH = self.weight_in_turn(weight_VH, done)
            hidden_DCH = self.take_hidden(hidden_DMH, (0, start, 0), (replicas, stop, hidden_size), (1, 1, 1))
            targets_DC = self.take_targets(targets_DM, (0, start), (replicas, stop), (1, 1))
            logp, entropy = self.chunk(hidden_DCH.reshape(-1, hidden_size), weight_VH, targets_DC.reshape(-1, 1))
            logp, entropy = logp.reshape(replicas, -1), entropy.reshape(replicas, -1)
            # A strategy names every input, and how many chunks there are is known here alone: one by one.
            logp_DM = logp if logp_DM is None else self.join((logp_DM, logp))
            entropy_DM = entropy if entropy_DM is None else self.join((entropy_DM, entropy))
            done = logp_DM
        return logp_DM.reshape(-1), entropy_DM.reshape(-1)


def in_turn(x: Tensor, done: Tensor) -> Tensor:
    """x, when `done` has been computed."""
    return ops.depend(x, done)


def in_turn_gradient(x: Tensor, done: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    """Of x, and zeros for `done` when that of x has been computed: the backward pass of what made `done` waits."""
    return dout, ops.depend(ops.zeros_like(done), dout)


class ChunkLogProb(nn.Cell):
    """Log-prob of the target and entropy of one chunk, each float32 [C, 1]."""

    def __init__(self, place: Placement, *, temperature: float, with_entropy: bool) -> None:
        super().__init__(auto_prefix=False)
        self.inverse_temperature = 1.0 / temperature
        self.with_entropy = with_entropy
        self.scale = place.split(ops.Mul(), _TOKENS, ())
        self.matmul = place.split(ops.MatMul(transpose_b=True), _TOKENS, (MODEL, WHOLE))
        self.widen = place.split(ops.Cast(), _LOGITS)
        self.highest = place.split(ops.ReduceMax(keep_dims=True), _LOGITS)
        self.shift = place.split(ops.Sub(), _LOGITS, _TOKENS)
        self.exp = place.split(ops.Exp(), _LOGITS)
        self.sum = place.split(ops.ReduceSum(keep_dims=True), _LOGITS)
        self.log = place.split(ops.Log(), _TOKENS)
        self.take = place.split(ops.GatherD(), _LOGITS, _TOKENS)
        self.minus = place.split(ops.Sub(), _TOKENS, _TOKENS)
        self.times = place.split(ops.Mul(), _LOGITS, _LOGITS)
        self.over = place.split(ops.RealDiv(), _TOKENS, _TOKENS)

    def construct(self, hidden_CH: Tensor, weight_VH: Tensor, targets_C1: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = self.matmul(self.scale(hidden_CH, self.inverse_temperature), ops.cast(weight_VH, hidden_CH.dtype))
        logits_CV = self.widen(logits_CV, ms.float32)
        shifted_CV = self.shift(logits_CV, ops.stop_gradient(self.highest(logits_CV, -1)))
        exp_CV = self.exp(shifted_CV)
        total_C1 = self.sum(exp_CV, -1)
        log_total_C1 = self.log(total_C1)
        logp_C1 = self.minus(self.take(shifted_CV, 1, targets_C1), log_total_C1)
        if not self.with_entropy:
            unmoved_C1 = ops.stop_gradient(log_total_C1)
            return logp_C1, self.minus(unmoved_C1, unmoved_C1)
        mean_C1 = self.over(self.sum(self.times(exp_CV, shifted_CV), -1), total_C1)
        return logp_C1, self.minus(log_total_C1, mean_C1)
