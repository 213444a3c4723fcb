"""Recorded routing of a mixture of experts on its way from the rank that sampled a response to those that train it.

It is the largest thing that a response has (384 bytes per token of Qwen3-30B-A3B), so it is sent to no other rank.

Legend: X experts that one token goes to, in all layers; L layers, E experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindgspo.batches.routing import expert_loads, no_routing, with_experts
from mindgspo.config import ModelSection
from mindgspo.parallel.collectives.host import send_between, sum_over_world
from mindgspo.parallel.plans.placement import Placement, Ranks
from mindgspo.types import Batch, ExpertArray, Response, Routing, ScoredGroup


class Wanted(NamedTuple):
    """A request for the routing of responses."""

    numbers: tuple[int, ...]
    """Responses, counted group by group."""
    receivers: Ranks
    """Ranks that want it."""


class RoutingTransfer:
    """One rank's view of the transfer; all ranks call its methods together, with the same groups. Until then, routing
    is in the responses on the leader of the replica that sampled them.

    train: placement of this rank in the training plan.
    """

    def __init__(self, train: Placement, model: ModelSection) -> None:
        self._rank, self._world_size = train.rank, train.plan.world_size
        assert model.num_experts is not None, "routing of a dense model"
        self._num_layers, self._num_experts = len(model.expert_layers), model.num_experts
        self._no_rows = no_routing(len(model.expert_layers), model.num_experts_per_tok, model.num_experts)
        replicas = [train.grid.coordinates(rank).data for rank in range(self._world_size)]
        self._own = replicas[self._rank]
        self._trainers: list[Ranks] = [
            tuple(rank for rank, replica in enumerate(replicas) if replica == number)
            for number in range(train.plan.data_parallel)
        ]
        self._leaders = train.replica_leaders()
        self.bytes_sent = 0
        """Bytes that this rank has sent so far."""

    def routed(self, mini_batches: Sequence[Sequence[Batch]], groups: Sequence[ScoredGroup]) -> list[list[Batch]]:
        """The batches with the routing of their samples, on the ranks that train them; others have the same batches. In
        each mini-batch replicas take batches by turns."""
        count = len(self._trainers)
        wanted = [
            Wanted(_numbers(batch for batches in mini_batches for batch in batches[replica::count]), ranks)
            for replica, ranks in enumerate(self._trainers)
        ]
        routing = self.brought(groups, wanted)
        return [
            [
                with_experts(batch, routing, like=self._no_rows) if place % count == self._own else batch
                for place, batch in enumerate(batches)
            ]
            for batches in mini_batches
        ]

    def shared(self, mini_batches: Sequence[Sequence[Batch]]) -> list[list[Batch]]:
        """The same batches with the routing of the scoring pass on all ranks of the replica that trains them; until
        then only its leader has it."""
        count, leader = len(self._trainers), self._leaders[self._own]
        own = [batch for batches in mini_batches for batch in batches[self._own :: count]]
        sizes = [batch.ids_RT.size * self._no_rows.shape[1] for batch in own]
        if self._world_size == 1:
            return [list(batches) for batches in mini_batches]
        if self._rank == leader:
            flat = np.concatenate([self._no_rows.reshape(-1), *(_routing_of(batch).reshape(-1) for batch in own)])
            send_between({rank: flat.view(np.uint8) for rank in self._trainers[self._own] if rank != leader}, {})
        else:
            num_bytes = sum(sizes) * self._no_rows.itemsize
            flat = send_between({}, {leader: num_bytes})[leader].view(self._no_rows.dtype)
        parts = iter(np.split(flat, np.cumsum(sizes)[:-1]))
        return [
            [
                replace(batch, experts_RTX=next(parts).reshape(*batch.ids_RT.shape, -1))
                if place % count == self._own
                else replace(batch, experts_RTX=None)
                for place, batch in enumerate(batches)
            ]
            for batches in mini_batches
        ]

    def brought(self, groups: Sequence[ScoredGroup], wanted: Sequence[Wanted]) -> dict[int, Routing]:
        """Exchange routing; return that of the responses that this rank trains, by their number."""
        sampled = _Sampled.of(groups)
        holders = self._holders(sampled.responses)
        found: dict[int, Routing] = {}
        parts: dict[int, list[np.ndarray]] = {}
        coming: dict[int, list[Sequence[int]]] = {}
        for numbers, receivers in wanted:
            for sender in sorted(set(holders[list(numbers)].tolist())):
                from_sender = [number for number in numbers if holders[number] == sender]
                if sender == self._rank:
                    message = sampled.flattened(from_sender)
                    for receiver in receivers:
                        if receiver == self._rank:
                            found |= {number: sampled.routing(number) for number in from_sender}
                        else:
                            parts.setdefault(receiver, []).append(message)
                elif self._rank in receivers:
                    coming.setdefault(sender, []).append(from_sender)
        row_bytes = self._no_rows.shape[1] * self._no_rows.itemsize
        expected = {sender: sum(map(sampled.num_rows, of)) * row_bytes for sender, of in coming.items()}
        messages = {receiver: np.concatenate(of).reshape(-1).view(np.uint8) for receiver, of in parts.items()}
        self.bytes_sent += sum(message.nbytes for message in messages.values())
        for sender, received in (send_between(messages, expected) if self._world_size > 1 else {}).items():
            rows_LX = received.view(self._no_rows.dtype).reshape(-1, self._no_rows.shape[1])
            for numbers in coming[sender]:
                count = sampled.num_rows(numbers)
                found |= sampled.unflattened(rows_LX[:count], numbers)
                rows_LX = rows_LX[count:]
        return found

    def loads(self, responses: Sequence[Response]) -> np.ndarray:
        """int64 [L, E]: tokens of all responses by layer and expert."""
        recorded = [response.routing.response_LX for response in responses if response.routing is not None]
        loads_LE = expert_loads(np.concatenate([self._no_rows, *recorded]), self._num_layers, self._num_experts)
        if self._world_size > 1:
            counts_LE = loads_LE.astype(np.int32)
            sum_over_world(counts_LE)
            loads_LE = counts_LE.astype(np.int64)
        return loads_LE

    def _holders(self, responses: Sequence[Response]) -> np.ndarray:
        """The rank that has the routing of each response."""
        held = np.array([response.routing is not None for response in responses])
        holders = np.where(held, np.int32(self._rank + 1), np.int32(0))
        if self._world_size > 1:
            sum_over_world(holders)
        assert holders.all() and holders.max(initial=1) <= self._world_size, "a response with no routing, or with two"
        return holders - 1


def _routing_of(batch: Batch) -> ExpertArray:
    assert batch.experts_RTX is not None, "a batch that was not scored here"
    return batch.experts_RTX


def _numbers(batches: Iterable[Batch]) -> tuple[int, ...]:
    return tuple(sorted(number for batch in batches for number in batch.samples_N.tolist() if number >= 0))


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Responses, and for each the number of its group and the rows of its prompt, which siblings share."""

    responses: list[Response]
    groups: list[int]
    prompt_rows: list[int]

    @classmethod
    def of(cls, groups: Sequence[ScoredGroup]) -> _Sampled:
        return cls(
            [response for group in groups for response in group.responses],
            [number for number, group in enumerate(groups) for _ in group.responses],
            [group.prompt.ids.size - 1 for group in groups for _ in group.responses],
        )

    def routing(self, number: int) -> Routing:
        routing = self.responses[number].routing
        assert routing is not None, number
        return routing

    def num_rows(self, numbers: Sequence[int]) -> int:
        """Rows of a message with the routing of these responses."""
        prompts = {self.groups[number]: self.prompt_rows[number] for number in numbers}
        return sum(prompts.values()) + sum(self.responses[number].ids.size for number in numbers)

    def flattened(self, numbers: Sequence[int]) -> ExpertArray:
        """[rows, X]: routing of each response, preceded by its prompt's where it is the first of its group here."""
        parts: list[ExpertArray] = []
        seen: set[int] = set()
        for number in numbers:
            routing, group = self.routing(number), self.groups[number]
            parts += [routing.response_LX] if group in seen else [routing.prompt_LX, routing.response_LX]
            seen.add(group)
        return np.concatenate(parts)

    def unflattened(self, rows_LX: ExpertArray, numbers: Sequence[int]) -> dict[int, Routing]:
        """The inverse of `flattened`."""
        found: dict[int, Routing] = {}
        prompts: dict[int, ExpertArray] = {}
        for number in numbers:
            group, rows, length = self.groups[number], self.prompt_rows[number], self.responses[number].ids.size
            if group not in prompts:
                prompts[group], rows_LX = rows_LX[:rows], rows_LX[rows:]
            found[number] = Routing(prompt_LX=prompts[group], response_LX=rows_LX[:length])
            rows_LX = rows_LX[length:]
        return found
