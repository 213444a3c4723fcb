"""The Ascend tier: which calls of MindSpore are made in which order, and what their failures become."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from mindgspo.config.schema import SwapSection
from mindgspo.errors import TrainingError
from mindgspo.swap import swap as swap_module
from mindgspo.swap.states import Holding, Phase
from mindgspo.swap.swap import OffloadedMemory, Swap


@pytest.fixture
def weight(cpu_runtime: None) -> Parameter:
    return Parameter(Tensor(np.arange(4, dtype=np.float32)), name="w")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """calls(*broken): the calls of MindSpore from now on; the broken ones fail as MindSpore's do."""

    def record(*broken: str) -> list[str]:
        made: list[str] = []

        def call(name: str, *parameters: Parameter) -> None:
            if name in broken:
                raise RuntimeError(f"\nMemory not enough in {name}\n\n- C++ Call Stack: ...")
            made.append(" ".join([name, *(parameter.name for parameter in parameters)]))

        for name in ("offload_parameter", "load_parameter", "synchronize_device"):
            monkeypatch.setattr(swap_module, name, partial(call, name.partition("_")[0]))
        return made

    return record


def test_graphs_are_waited_for_before_memory_is_taken_away(weight: Parameter, calls: Callable[..., list[str]]):
    made = calls()
    swap = Swap(SwapSection(enabled=True, prefetch=True), OffloadedMemory())
    swap.register(Holding.ACTOR_WEIGHTS, [weight])
    with swap.phase(Phase.ROLLOUT):
        swap.prefetch(Phase.SCORE)
    with swap.phase(Phase.SCORE):
        pass
    assert made == ["synchronize", "offload w", "load w"], "and nothing was loaded in another thread"


@pytest.mark.parametrize(("broken", "message"), [
    ("offload", "w could not be moved to the host .Memory not enough in offload.; it is still on the device"),
    ("synchronize", "w could not be moved to the host .Memory not enough in synchronize.; it is still on"),
    ("load", "w could not be moved to the device .Memory not enough in load.; it is still on the host. Lower"),
])  # fmt: skip
def test_failures_say_where_the_parameter_is(
    weight: Parameter, calls: Callable[..., list[str]], broken: str, message: str
):
    calls(broken)
    tier = OffloadedMemory()
    with pytest.raises(TrainingError, match=message):
        tier.load(weight) if broken == "load" else tier.evict(weight)


def test_mindspore_offers_the_calls_and_changes_nothing_on_cpu(weight: Parameter):
    swap = Swap(SwapSection(enabled=True), OffloadedMemory())
    swap.register(Holding.ACTOR_WEIGHTS, [weight])
    with swap.phase(Phase.SCORE):
        np.testing.assert_array_equal(weight.asnumpy(), np.arange(4, dtype=np.float32))
    swap.close()
