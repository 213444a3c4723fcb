"""Log-probs under the current weights, without gradients: of the response tokens of batches (the old and the reference
policy), and of whole rows of ids (`mindgspo logprobs`).

Legend: R rows, T token slots per row, N samples, K response-token slots, A likeliest tokens, M = R * T flattened
tokens, H hidden units, V vocabulary entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.batches.routing import RoutingDifference, expert_dtype, no_routing
from mindgspo.batches.rows import in_rounds
from mindgspo.models.log_prob import ChunkedLogProb
from mindgspo.models.model import Model
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.transformer import without_padding
from mindgspo.parallel.collectives.host import GraphOfRanks
from mindgspo.parallel.collectives.replicas import Replicas
from mindgspo.parallel.ops.device import PolicyInputs, attention_segments, likeliest_op, policy_inputs, takes_packed
from mindgspo.parallel.ops.kernels import LinearKernel, LogProbKernel, RowsKernel
from mindgspo.parallel.pipeline import Stage, entering
from mindgspo.parallel.platform.runtime import call_compiled
from mindgspo.types import Batch, ExpertArray, Float32Array, Int32Array

# One graph is compiled per row length: powers of two up to _FINE, then multiples of it.
_SHORTEST, _FINE = 64, 1024
_TOKENS_PER_CALL = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """logp_NK, entropy_NK: float32 per response token of a batch, 0 where masked. mismatch: difference between the
    routers' choices and the batch's routing; None if either is missing. experts_RTX: their choices, in the form of
    `Batch`, on the ranks that scored the batch. top_ids_NKA, top_logp_NKA: int32 and float32, the likeliest ids in
    place of each token and their log-probs; anything where masked; None unless asked for."""

    logp_NK: Float32Array
    entropy_NK: Float32Array
    mismatch: RoutingDifference | None = None
    experts_RTX: ExpertArray | None = None
    top_ids_NKA: Int32Array | None = None
    top_logp_NKA: Float32Array | None = None

    @classmethod
    def of(cls, batch: Batch, logp_NK: Float32Array, entropy_NK: Float32Array, *mismatch: np.ndarray) -> TokenScores:
        """Masks the results of a graph. mismatch: `RoutingDifference.array`, if there is one."""
        zero = np.float32(0)
        return cls(
            logp_NK=np.where(batch.mask_NK, logp_NK, zero),
            entropy_NK=np.where(batch.mask_NK, entropy_NK, zero),
            mismatch=RoutingDifference.of(*mismatch) if mismatch else None,
        )


class PolicyScorer:
    """Scores batches; every replica of the model's plan scores its share.

    replays_experts: with the routing of the batches. returns_routing: see `TokenScores`. likeliest: how many ids to
    find, and the vocabulary size below which they are; None: none.
    """

    def __init__(
        self,
        model: Model,
        *,
        temperature: float,
        replays_experts: bool = False,
        returns_routing: bool = False,
        likeliest: tuple[int, int] | None = None,
    ) -> None:
        policy = PolicyLogProbs(
            model,
            temperature=temperature,
            with_entropy=True,
            replays_experts=replays_experts,
            returns_routing=returns_routing,
            likeliest=likeliest,
        )
        self._num_arrays = 2 if likeliest is None else 4
        self._policy, self._is_packed = GraphOfRanks(policy, model.place.graph_ranks), policy.is_packed
        self._replays_experts, self._returns_routing = replays_experts, returns_routing
        self._num_routers, self._expert_dtype = policy.num_routers, expert_dtype(model.config.num_experts or 0)
        section, self._no_routing = model.config, None
        if replays_experts:
            self._no_routing = no_routing(len(section.expert_layers), section.num_experts_per_tok, section.num_experts)
        self._place, self._replicas, self._stage = model.place, Replicas(model.place), Stage(model.place, model)

    @property
    def policy(self) -> nn.Cell:
        """The graph that scores."""
        return self._policy.cell

    def score(self, batches: Sequence[Batch]) -> list[TokenScores]:
        """One result per batch, on every rank; all graphs are launched before the first result is awaited."""
        given, plan = batches, self._place.plan
        if plan.couples_replicas:
            given = in_rounds(batches, plan.data_parallel, self._no_routing)
        own, numbers = self._replicas.own(given), self._replicas.own(range(len(given)))
        inputs = [policy_inputs(batch, is_packed=self._is_packed, place=self._place) for batch in own]
        tensors = [self._tensors(batch, of) for batch, of in zip(own, inputs, strict=True)]
        pending: list[tuple[Tensor, ...]] = []

        def forward(number: int, came: Tensor | None) -> Tensor | None:
            found = self._policy(*entering(tensors[number], came))
            pending.append(found if self._stage.is_last else found[1:])
            return found[0]

        self._stage.prepare((self._policy, self._inputs_like(of_batch)) for of_batch in tensors)
        self._stage.run([of_batch[0].size for of_batch in tensors], forward=forward)
        results = [tuple(tensor.asnumpy() for tensor in result) for result in pending]
        choices = self._stage.choices_of_all([result[-1] for result in results if self._returns_routing])
        found = [result[: self._num_arrays] for result in results if self._stage.is_last]
        chosen: list[ExpertArray | None] = [None] * len(given)
        for index, chosen_MX in enumerate(choices):
            batch, routed = own[index], inputs[index].routed
            chosen[numbers[index]] = routed.in_rows(batch, chosen_MX.astype(self._expert_dtype))
            if self._stage.is_last and batch.experts_RTX is not None:
                found[index] += (routed.differing(batch, chosen_MX, self._num_routers).array,)
        collected = self._replicas.collect(found, num_items=len(given))
        scores = []
        for batch, arrays, experts_RTX in zip(batches, collected, chosen, strict=False):
            (rows, width), (samples, slots) = batch.ids_RT.shape, batch.mask_NK.shape
            logp, entropy, *top = (array[:samples, :slots] for array in arrays[: self._num_arrays])
            score = TokenScores.of(batch, logp, entropy, *arrays[self._num_arrays :])
            if top:
                score = replace(score, top_logp_NKA=top[0], top_ids_NKA=top[1])
            experts_RTX = None if experts_RTX is None else experts_RTX[:rows, :width]
            scores.append(replace(score, experts_RTX=experts_RTX))
        return scores

    def graph_for(self, batch: Batch) -> tuple[nn.Cell, tuple[Tensor, ...]]:
        """The graph of one micro-batch, with its inputs."""
        inputs = policy_inputs(batch, is_packed=self._is_packed, place=self._place)
        return self._policy.cell, self._inputs_like(self._tensors(batch, inputs))

    def _inputs_like(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """With zeros for hidden states that come from another stage."""
        return entering(tensors, self._stage.like_what_comes(tensors[0]))

    def _tensors(self, batch: Batch, inputs: PolicyInputs) -> tuple[Tensor, ...]:
        given = (inputs.given(batch),) if self._replays_experts else ()
        return tuple(Tensor(array) for array in (*inputs.arrays, *given))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScore:
    """logprobs: float32 [L - 1], of all ids of the row except the first, each given those before it, at temperature 1.
    next_id: the likeliest id after the row."""

    logprobs: Float32Array
    next_id: int


class LogProbsAndNext(nn.Cell):
    """Log-prob of a target at every position, and the likeliest id after one position per row."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.is_packed = takes_packed(model)
        if self.is_packed:
            self.head = LogProbKernel(temperature=1.0, with_entropy=False)
            self.rows, self.output = RowsKernel(), LinearKernel(1, has_bias=False, dtype=ms.float32)
        else:
            self.head = ChunkedLogProb(temperature=1.0)
        self.gather = ops.Gather()
        self.logits = ops.MatMul(transpose_b=True)
        self.likeliest = likeliest_op()

    def construct(
        self, ids_RT: Tensor, positions_RT: Tensor, segments_RT: Tensor, targets_RT: Tensor, last_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """logp_RT float32, next_R int32, and the head's other outputs, which the compiler must not remove. last_R:
        int32, flattened [R * T] index of each row's last token."""
        hidden_MH = self.model(ids_RT, positions_RT, segments_RT)
        weight_VH = without_padding(self.model)
        if self.is_packed:
            every_M = ops.cast(ops.arange(hidden_MH.shape[0]), ms.int32)
            logp_M, entropy_M = self.head(hidden_MH, weight_VH, every_M, targets_RT.reshape(-1), segments_RT)
            every_row_1 = ops.ones((1,), ms.int32) * last_R.shape[0]
            last_RH = self.rows(last_R, hidden_MH, every_row_1)
            logits_RV = self.output(last_RH, every_row_1, weight_VH)
        else:
            logp_M, entropy_M = self.head(hidden_MH, weight_VH, targets_RT.reshape(-1))
            last_RH = self.gather(hidden_MH, last_R, 0)
            logits_RV = self.logits(last_RH, ops.cast(weight_VH, last_RH.dtype))
        next_R = self.likeliest(ops.cast(logits_RV, ms.float32))
        return logp_M.reshape(ids_RT.shape), next_R, entropy_M


def score_rows(model: Model, rows: Sequence[Int32Array]) -> list[RowScore]:
    """Rows of 1 to max_position_embeddings ids below vocab_size; the result does not depend on their neighbours."""
    cell = LogProbsAndNext(model)
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_length[padded_length(row.size, model.config.max_position_embeddings)].append(number)
    scores: dict[int, RowScore] = {}
    for length, numbers in sorted(by_length.items()):
        width = min(len(numbers), max(1, _TOKENS_PER_CALL // length))
        for start in range(0, len(numbers), width):
            part = numbers[start : start + width]
            found = _score_padded(cell, [rows[number] for number in part], width=width, length=length)
            scores.update(zip(part, found, strict=True))
    return [scores[number] for number in range(len(rows))]


def padded_length(length: int, limit: int) -> int:
    """The row length of the graph that a row of `length` ids goes through."""
    if length > _FINE:
        return min(-(-length // _FINE) * _FINE, limit)
    return min(max(_SHORTEST, 1 << (length - 1).bit_length()), limit)


def _score_padded(cell: LogProbsAndNext, rows: Sequence[Int32Array], *, width: int, length: int) -> list[RowScore]:
    """`rows` in a graph of `width` rows of `length` ids; unused rows hold a single id 0."""
    ids_RT, targets_RT = np.zeros((width, length), np.int32), np.zeros((width, length), np.int32)
    segments_RT, last_R = np.zeros((width, length), np.int32), np.arange(width, dtype=np.int32) * length
    for index, row in enumerate(rows):
        ids_RT[index, : row.size], targets_RT[index, : row.size - 1] = row, row[1:]
        segments_RT[index, : row.size] = 1
        last_R[index] += row.size - 1
    positions_RT = np.tile(np.arange(length, dtype=np.int32), (width, 1))
    segments = attention_segments(segments_RT, is_packed=cell.is_packed)
    inputs = (ids_RT, positions_RT, segments, targets_RT, last_R)
    logp, next_ids, _ = call_compiled(cell, *(Tensor(array) for array in inputs))
    logp_RT, next_R = logp.asnumpy(), next_ids.asnumpy()
    return [
        RowScore(logprobs=logp_RT[index, : row.size - 1].copy(), next_id=int(next_R[index]))
        for index, row in enumerate(rows)
    ]
