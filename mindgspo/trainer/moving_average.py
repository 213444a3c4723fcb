"""A moving average of the policy's weights, kept by another model, over the plans of both.

What enters: both models, each with its placement, and the decay. What leaves: the second model's weights, changed in
place. Called by the reference policy, on all ranks at once.

    ref <- ref + (1 - decay) * (policy - ref)        = decay * ref + (1 - decay) * policy

element by element in float32: 1 - decay is rounded once, then the difference, the product and the sum are. So the plans
do not show in the result, and a reference that equals the policy stays what it is. A change of less than half a unit in
the last place of a weight (2^-25 to 2^-24 of it) is lost: with a decay near 1 and a small learning rate let the average
move seldom, with a smaller decay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mindspore import Parameter, nn

from mindgspo.config import ModelSection
from mindgspo.config.schema import ReshardSection
from mindgspo.models.weights import held_parameters, weight_layouts, weight_views
from mindgspo.parallel.parameter_memory import commit_values, values_of
from mindgspo.parallel.reshard.resharder import Resharder


class MovingAverage:
    """Planned once. Beside both sets of weights there is memory for one step of the reshard."""

    def __init__(self, policy: nn.Cell, averaged: nn.Cell, model: ModelSection, section: ReshardSection) -> None:
        self._policy, self._averaged = policy, averaged
        self._resharder = Resharder(
            weight_layouts(model, policy.place),
            weight_layouts(model, averaged.place),
            bucket_bytes=section.bucket_mb << 20,
            residency=self._mixed_after,
        )
        self._parameters: dict[str, Parameter] = {}
        self._arrived: dict[str, np.ndarray] = {}
        self._share = np.float32(0)

    def mix(self, decay: float) -> None:
        """Move the average by one step towards the policy."""
        self._share = np.float32(1 - decay)
        self._parameters = {parameter.name: parameter for parameter in held_parameters(self._averaged)}
        # Not touched, hence no memory, before their step of the reshard; gone after it.
        self._arrived = {
            name: np.empty(tuple(parameter.shape), np.float32) for name, parameter in self._parameters.items()
        }
        self._resharder.run(weight_views(self._policy), self._arrived)
        assert not self._arrived, f"never arrived: {sorted(self._arrived)}"

    @contextmanager
    def _mixed_after(self, names: tuple[str, ...]) -> Iterator[None]:
        """Around a step of the reshard: what it brought is mixed into the average."""
        yield
        for name in names:
            if name in self._arrived:
                self._mix_in(self._parameters[name], self._arrived.pop(name))

    def _mix_in(self, parameter: Parameter, policy: np.ndarray) -> None:
        average = values_of(parameter)
        policy -= average
        policy *= self._share
        average += policy
        commit_values(parameter, average)
