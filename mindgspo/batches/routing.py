"""The experts that a mixture's routers chose, in numpy: where recorded routing belongs among the tokens of a graph, how
much two routings differ, and how evenly experts are used.

Legend: R rows, T token slots, M tokens of a graph, J tokens whose routing is recorded, L layers with a router,
K experts per token, X = L * K, E experts.

Metrics:
  Routing of a mixture of experts:
    router/load_max_over_mean:
      meaning: tokens of a layer's busiest expert while sampling, in multiples of the mean; the layer where
        that is largest
      healthy: steady, and far below the number of experts divided by those per token
      action: 'with expert_parallel the rank of the busiest expert sets the pace; growing: lower optimizer.lr'
    router/load_entropy:
      meaning: entropy of the experts' shares of the tokens, divided by its largest value; the layer where that
        is smallest
      unit: share
      healthy: above 0.7
      action: 'falling: a layer uses fewer and fewer experts; lower optimizer.lr'
    router/dead_expert_share:
      meaning: experts of all layers without a token in this step
      unit: share
      healthy: near 0 in a step of many tokens
      action: 'growing: experts are lost; lower optimizer.lr'
    router/layer_<layer>/load_max_over_mean:
      meaning: as router/load_max_over_mean, of one layer
    router/layer_<layer>/load_entropy:
      meaning: as router/load_entropy, of one layer
      unit: share
    router/layer_<layer>/dead_experts:
      meaning: experts of one layer without a token in this step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindgspo.types import Batch, ExpertArray, Routing

_ONE_BYTE = 256  # expert numbers that a byte can hold


def expert_dtype(num_experts: int) -> np.dtype:
    """The smallest type that holds the experts' numbers and that every device supports."""
    return np.dtype(np.uint8 if num_experts <= _ONE_BYTE else np.int16)


def no_routing(num_layers: int, experts_per_token: int | None, num_experts: int | None) -> ExpertArray:
    """Return an array [0, X] of the type and width that the routing of such a mixture has."""
    assert experts_per_token is not None and num_experts is not None, "routing of a dense model"
    return np.zeros((0, num_layers * experts_per_token), expert_dtype(num_experts))


def with_experts(batch: Batch, routing: Mapping[int, Routing], *, like: ExpertArray) -> Batch:
    """The batch with the routing of its samples, by their numbers in `Batch.samples_N`. like: of its type and width."""
    experts_RTX = np.zeros((*batch.ids_RT.shape, like.shape[1]), like.dtype)
    for place_K, number in zip(batch.place_NK, batch.samples_N.tolist(), strict=True):
        if number >= 0:
            last_of_prompt = batch.predict_P[place_K[0]]
            start, whole_LX = last_of_prompt - batch.positions_RT.flat[last_of_prompt], routing[number].whole
            _flat(experts_RTX)[start : start + len(whole_LX)] = whole_LX
    return replace(batch, experts_RTX=experts_RTX)


class RoutedTokens(NamedTuple):
    """The tokens of a batch whose routing is recorded: all but padding and the last token of each sample."""

    source_J: np.ndarray
    """Their places among the batch's R * T tokens."""
    place_J: np.ndarray
    """Their places among those of the graph; samples may share the places of a prompt."""

    @classmethod
    def unpacked(cls, batch: Batch) -> RoutedTokens:
        """The routed tokens of a graph that computes the batch's own rows."""
        segments_RT = batch.segments_RT
        is_last_RT = np.ones(segments_RT.shape, bool)
        is_last_RT[:, :-1] = segments_RT[:, 1:] != segments_RT[:, :-1]
        source_J = np.flatnonzero((segments_RT > 0) & ~is_last_RT)
        return cls(source_J, source_J)

    @classmethod
    def packed(cls, place_M: np.ndarray) -> RoutedTokens:
        """The routed tokens of a graph that computes only the tokens in use; see `rows.PackedTokens`."""
        source_J = np.flatnonzero(place_M >= 0)
        return cls(source_J, place_M[source_J])

    def given(self, batch: Batch) -> ExpertArray:
        """`Batch.experts_RTX`, [R, T, X], in the order of the graph's tokens."""
        given = np.zeros_like(_known(batch))
        _flat(given)[self.place_J] = _flat(_known(batch))[self.source_J]
        return given

    def in_rows(self, batch: Batch, chosen_MX: ExpertArray) -> ExpertArray:
        """The routing that a graph chose, in the form of `Batch.experts_RTX`. chosen_MX: as `PolicyLogProbs` returns
        it."""
        experts_RTX = np.zeros((*batch.ids_RT.shape, chosen_MX.shape[1]), chosen_MX.dtype)
        _flat(experts_RTX)[self.source_J] = chosen_MX[self.place_J]
        return experts_RTX

    def differing(self, batch: Batch, chosen_MX: np.ndarray, num_layers: int) -> RoutingDifference:
        """Difference between the batch's routing and what a graph chose; a token of the graph counts once."""
        place_J, first_J = np.unique(self.place_J, return_index=True)
        return routing_difference(_flat(_known(batch))[self.source_J[first_J]], chosen_MX[place_J], num_layers)


def _known(batch: Batch) -> ExpertArray:
    assert batch.experts_RTX is not None, "a batch without routing"
    return batch.experts_RTX


def _flat(experts_RTX: ExpertArray) -> ExpertArray:
    """A view of it, [R * T, X]."""
    return experts_RTX.reshape(-1, experts_RTX.shape[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDifference:
    """Difference between two routings of the same tokens."""

    differing: tuple[int, ...]
    """By layer, choices of one routing that are not among the other's of the same token."""
    total: int
    """Choices per layer."""

    @staticmethod
    def sum(parts: Sequence[RoutingDifference]) -> RoutingDifference:
        """The difference over all tokens, from parts of them."""
        differing = np.sum([part.differing for part in parts], axis=0)
        return RoutingDifference(differing=tuple(differing.tolist()), total=sum(part.total for part in parts))

    @property
    def share(self) -> float:
        """Share of all layers' choices that differ; 0 if there are none."""
        choices = self.total * len(self.differing)
        return sum(self.differing) / choices if choices else 0.0

    @property
    def array(self) -> np.ndarray:
        """int64 [L + 1], to be sent."""
        return np.array([*self.differing, self.total], np.int64)

    @classmethod
    def of(cls, array: np.ndarray) -> RoutingDifference:
        """The difference that `array` was made of."""
        *differing, total = array.tolist()
        return cls(differing=tuple(differing), total=total)


def routing_difference(a_JX: np.ndarray, b_JX: np.ndarray, num_layers: int) -> RoutingDifference:
    """Difference between two routings of the same tokens; the order of a token's experts does not matter."""
    assert a_JX.shape == b_JX.shape, (a_JX.shape, b_JX.shape)
    a_JLK, b_JLK = (x.reshape(len(x), num_layers, -1) for x in (a_JX, b_JX))
    kept_JLK = np.zeros(a_JLK.shape, bool)
    for k in range(b_JLK.shape[2]):
        kept_JLK |= a_JLK == b_JLK[:, :, k : k + 1]
    differing = kept_JLK.shape[0] * kept_JLK.shape[2] - kept_JLK.sum(axis=(0, 2))
    return RoutingDifference(differing=tuple(differing.tolist()), total=kept_JLK.shape[0] * kept_JLK.shape[2])


def expert_loads(experts_JX: np.ndarray, num_layers: int, num_experts: int) -> np.ndarray:
    """int64 [L, E]: how many tokens each expert is given."""
    layers = np.split(experts_JX, num_layers, axis=1)
    return np.array([np.bincount(of_layer.reshape(-1), minlength=num_experts) for of_layer in layers], np.int64)


def load_metrics(loads_LE: np.ndarray, *, first_layer: int = 0) -> dict[str, float]:
    """Metrics of how evenly experts are used; none without a token. first_layer: number of the first layer with a
    router.

    By layer: load_max_over_mean, tokens of the busiest expert in multiples of the mean; load_entropy, entropy of the
    experts' shares divided by log E, 1 where they are equal; dead_experts, those without a token. Over all layers: the
    worst of the first two, and the share of dead experts.
    """
    if not loads_LE.sum():
        return {}
    shares_LE = loads_LE / loads_LE.sum(axis=1, keepdims=True)
    logs_LE = np.log(shares_LE, out=np.zeros_like(shares_LE), where=shares_LE > 0)
    by_layer = {
        "load_max_over_mean": shares_LE.max(axis=1) * shares_LE.shape[1],
        "load_entropy": -(shares_LE * logs_LE).sum(axis=1) / np.log(shares_LE.shape[1]),
        "dead_experts": (loads_LE == 0).sum(axis=1),
    }
    return {
        "router/load_max_over_mean": float(by_layer["load_max_over_mean"].max()),
        "router/load_entropy": float(by_layer["load_entropy"].min()),
        "router/dead_expert_share": float(by_layer["dead_experts"].sum() / loads_LE.size),
        **{
            f"router/layer_{layer}/{name}": float(value)
            for name, values_L in by_layer.items()
            for layer, value in enumerate(values_L, first_layer)
        },
    }
