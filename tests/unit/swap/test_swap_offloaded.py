"""The Ascend tier: which calls of MindSpore are made in which order, and what their failures become."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from mindgspo.config.schema import SwapSection
from mindgspo.errors import TrainingError
from mindgspo.swap.offloaded_memory import OffloadedMemory
from mindgspo.swap.states import Holding, Phase
from mindgspo.swap.swap import Swap


@pytest.fixture
def weight(cpu_runtime: None) -> Parameter:
    return Parameter(Tensor(np.arange(4, dtype=np.float32)), name="w")


class Device:
    """A diary of the calls; `broken` names those that fail as MindSpore's do."""

    def __init__(self, *broken: str) -> None:
        self.diary: list[str] = []
        self.broken = broken

    def tier(self) -> OffloadedMemory:
        return OffloadedMemory(
            offload=self._call("offload"), load=self._call("load"), synchronize=self._call("synchronize")
        )

    def _call(self, name: str) -> Callable[..., None]:
        def call(*parameters: Parameter) -> None:
            if name in self.broken:
                raise RuntimeError(f"\nMemory not enough in {name}\n\n- C++ Call Stack: ...")
            self.diary.append(" ".join([name, *(parameter.name for parameter in parameters)]))

        return call


def test_graphs_are_waited_for_before_memory_is_taken_away(weight: Parameter):
    device = Device()
    swap = Swap(SwapSection(enabled=True, prefetch=True), device.tier())
    swap.register(Holding.ACTOR_WEIGHTS, [weight])
    with swap.phase(Phase.ROLLOUT):
        swap.prefetch(Phase.SCORE)
    with swap.phase(Phase.SCORE):
        pass
    assert device.diary == ["synchronize", "offload w", "load w"], "and nothing was loaded in another thread"


@pytest.mark.parametrize(("broken", "message"), [
    ("offload", "w could not be moved to the host .Memory not enough in offload.; it is still on the device"),
    ("synchronize", "w could not be moved to the host .Memory not enough in synchronize.; it is still on"),
    ("load", "w could not be moved to the device .Memory not enough in load.; it is still on the host. Lower"),
])  # fmt: skip
def test_failures_say_where_the_parameter_is(weight: Parameter, broken: str, message: str):
    tier = Device(broken).tier()
    with pytest.raises(TrainingError, match=message):
        tier.load(weight) if broken == "load" else tier.evict(weight)


def test_mindspore_offers_the_calls_and_changes_nothing_on_cpu(weight: Parameter):
    swap = Swap(SwapSection(enabled=True), OffloadedMemory())
    swap.register(Holding.ACTOR_WEIGHTS, [weight])
    with swap.phase(Phase.SCORE):
        np.testing.assert_array_equal(weight.asnumpy(), np.arange(4, dtype=np.float32))
    swap.close()
