"""Which phase finds what resident, in which order things move, and what is refused; with a tier that keeps a diary."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from mindgspo.config.schema import SwapSection
from mindgspo.errors import TrainingError
from mindgspo.swap.states import NEEDS, Holding, Phase
from mindgspo.swap.swap import Swap


class FakeParameter:
    """A name and some bytes. label: what the diary calls it; the rollout's weights bear the actor's names."""

    def __init__(self, name: str, num_bytes: int, label: str) -> None:
        self.name, self.nbytes, self.label = name, num_bytes, label
        self.values = np.zeros(num_bytes // 4, np.float32)

    def asnumpy(self) -> np.ndarray:
        return self.values

    def __str__(self) -> str:
        return self.label


class FakeTier:
    """Keeps a diary of moves; refuses those in `failing` ("evict w", "load w"). `free` bounds what may be loaded.

    A load in the background waits for `gate`, which is open unless a test closes it.
    """

    def __init__(self, *, loads_in_background: bool = True, free: int | None = None) -> None:
        self.loads_in_background, self.free = loads_in_background, free
        self.diary: list[str] = []
        self.failing: set[str] = set()
        self.away: set[str] = set()
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[str] = set()

    def take_over(self, parameters: Sequence[FakeParameter], *, keeps_content: bool) -> None:
        self._note(f"take {', '.join(map(str, parameters))}{'' if keeps_content else ' (scratch)'}")

    def evict(self, parameter: FakeParameter) -> None:
        self._note(f"evict {parameter}")
        assert parameter.label not in self.away
        self.away.add(parameter.label)

    def load(self, parameter: FakeParameter) -> None:
        assert self.gate.wait(timeout=60)
        self.threads.add(threading.current_thread().name)
        self._note(f"load {parameter}")
        self.away.remove(parameter.label)

    def tidy(self) -> None:
        pass

    def free_bytes(self) -> int | None:
        return self.free

    def close(self) -> None:
        self.closed = True

    def _note(self, move: str) -> None:
        if move in self.failing:
            raise TrainingError(f"{move}: broken")
        self.diary.append(move)

    def since(self) -> list[str]:
        """The moves since the last look."""
        moves, self.diary = self.diary, []
        return moves


def parameters(prefix: str, *sizes: int, label: str = "") -> list[FakeParameter]:
    return [FakeParameter(f"{prefix}{number}", size, f"{label or prefix}{number}") for number, size in enumerate(sizes)]


def swap_of(tier: FakeTier | None, **changes: object) -> Swap:
    return Swap(SwapSection(**{"enabled": tier is not None, "prefetch": True, **changes}), tier)


def training_swap(tier: FakeTier | None, **changes: object) -> Swap:
    """Two weights of 100 and 20 bytes on both sides, and what belongs to them."""
    swap = swap_of(tier, **changes)
    swap.register(Holding.ACTOR_WEIGHTS, parameters("w", 100, 20))
    swap.register(Holding.GRADIENTS, parameters("g", 120), keeps_content=False)
    swap.register(Holding.MOMENTS, parameters("m", 240))
    swap.register(Holding.REFERENCE_WEIGHTS, parameters("ref", 120))
    swap.register(Holding.ROLLOUT_WEIGHTS, parameters("w", 100, 20, label="r"))
    swap.register(Holding.KV_CACHE, parameters("kv", 400), keeps_content=False)
    if tier:
        tier.since()
    return swap


def go_through(swap: Swap, *phases: Phase) -> None:
    for phase in phases:
        with swap.phase(phase):
            pass


def test_what_is_registered_waits_outside_until_a_phase_needs_it():
    swap = swap_of(tier := FakeTier())
    swap.register(Holding.ACTOR_WEIGHTS, parameters("w", 4, 8))
    swap.register(Holding.KV_CACHE, parameters("kv", 4), keeps_content=False)
    assert tier.since() == ["take w0, w1", "evict w0", "evict w1", "take kv0 (scratch)", "evict kv0"]
    assert swap.ledger.resident.total() == 0


def test_a_step_moves_in_the_declared_order():
    swap = training_swap(tier := FakeTier())
    with swap.phase(Phase.ROLLOUT):
        assert tier.since() == ["load r0", "load r1", "load kv0"], "the cache last"
    with swap.phase(Phase.SCORE):
        assert tier.since() == ["evict kv0", "evict r0", "evict r1", "load w0", "load w1", "load ref0"]
    with swap.phase(Phase.UPDATE):
        assert tier.since() == ["evict ref0", "load g0", "load m0"]
    with swap.phase(Phase.RESHARD):
        assert tier.since() == ["evict g0", "evict m0", "load r0", "load r1"], "the training state goes first"
    with swap.phase(Phase.ROLLOUT):
        assert tier.since() == ["evict w0", "evict w1", "load kv0"], "the actor goes before the cache comes"
    with swap.phase(Phase.EVALUATE):
        assert tier.since() == []


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_holds_its_needs_and_nothing_else(phase: Phase):
    swap = training_swap(FakeTier())
    for before in Phase:
        go_through(swap, before)
        with swap.phase(phase):
            resident = {holding for holding, num_bytes in swap.ledger.resident.items() if num_bytes}
            assert resident == set(NEEDS[phase])
            for holding in NEEDS[phase]:
                swap.require(holding)
            for holding in set(Holding) - set(NEEDS[phase]):
                with pytest.raises(AssertionError, match=f"{holding.value} read in phase .*evicted"):
                    swap.require(holding)


def test_shared_weights_are_one_block_of_memory():
    """In one process with equal plans the rollout reads the actor's own parameters."""
    swap = swap_of(tier := FakeTier())
    weights = parameters("w", 100, 20)
    swap.register(Holding.ACTOR_WEIGHTS, weights)
    swap.register(Holding.ROLLOUT_WEIGHTS, weights)
    swap.register(Holding.MOMENTS, parameters("m", 240))
    assert tier.since() == ["take w0, w1", "evict w0", "evict w1", "take m0", "evict m0"]
    for phase in (Phase.ROLLOUT, Phase.SCORE, Phase.RESHARD, Phase.ROLLOUT):
        with swap.phase(phase):
            swap.require(Holding.ACTOR_WEIGHTS)
            swap.require(Holding.ROLLOUT_WEIGHTS)
            assert swap.ledger.resident.total() == 120
    assert tier.since() == ["load w0", "load w1"], "they never leave"
    assert swap.ledger.held.total() == 360
    assert swap.ledger.shared == {(Holding.ROLLOUT_WEIGHTS, Holding.ACTOR_WEIGHTS): 120}


def test_a_partly_shared_holding_loads_what_it_lacks():
    swap = swap_of(tier := FakeTier())
    shared, own = parameters("shared", 100)[0], parameters("own", 20)[0]
    swap.register(Holding.ACTOR_WEIGHTS, [shared])
    swap.register(Holding.ROLLOUT_WEIGHTS, [shared, own, own])
    tier.since()
    with swap.phase(Phase.SCORE):
        assert tier.since() == ["load shared0"]
    with swap.phase(Phase.ROLLOUT):
        assert tier.since() == ["load own0"]
        assert swap.ledger.resident.total() == 120


@pytest.mark.parametrize("prefetches", [False, True])
def test_memory_level_1_holds_one_step_of_the_reshard_at_a_time(prefetches: bool):
    swap = training_swap(tier := FakeTier(), reshard_level=1)
    with swap.phase(Phase.UPDATE):
        tier.since()
    with swap.phase(Phase.RESHARD):
        assert tier.since() == ["evict g0", "evict m0", "evict w0", "evict w1"]
        if prefetches:  # leaves the steps alone
            swap.prefetch(Phase.ROLLOUT)
        with swap.reshard_step(("w0", "another rank's")):
            assert tier.since() == ["load w0", "load r0"], "the actor's and the rollout's"
            assert swap.ledger.resident.total() == 200
        assert tier.since() == ["evict w0", "evict r0"]
        with swap.reshard_step(["w1"]):
            assert swap.ledger.resident.total() == 40
    assert swap.ledger.records[Phase.RESHARD].peak_total == 200


def test_memory_level_0_holds_both_sets_and_steps_move_nothing():
    swap = training_swap(tier := FakeTier())
    with swap.phase(Phase.RESHARD):
        tier.since()
        with swap.reshard_step(["w0"]):
            assert swap.ledger.resident.total() == 240
        assert tier.since() == []


def test_a_step_that_fails_half_way_lets_go_of_what_it_had():
    swap = training_swap(tier := FakeTier(), reshard_level=1)
    tier.failing = {"load w1"}
    with swap.phase(Phase.RESHARD):
        with pytest.raises(TrainingError, match="load w1"), swap.reshard_step(["w0", "w1"]):
            raise AssertionError("not reached")
        assert swap.ledger.resident.total() == 0
        with pytest.raises(ZeroDivisionError), swap.reshard_step(["w0"]):
            _ = 1 / 0
        assert swap.ledger.resident.total() == 0


def test_phases_do_not_nest_and_end_with_an_error_inside():
    swap = training_swap(FakeTier())
    with swap.phase(Phase.ROLLOUT):
        with pytest.raises(AssertionError, match="phase score inside phase .*ROLLOUT"):
            go_through(swap, Phase.SCORE)
        swap.require(Holding.KV_CACHE)
    with pytest.raises(AssertionError, match="a step of the reshard during phase None"), swap.reshard_step(["w0"]):
        pass
    with pytest.raises(ZeroDivisionError), swap.phase(Phase.SCORE):
        _ = 1 / 0
    with swap.phase(Phase.UPDATE):
        swap.require(Holding.MOMENTS)


def test_misuse_is_an_assertion():
    swap = training_swap(FakeTier())
    with pytest.raises(AssertionError, match="registered twice"):
        swap.register(Holding.MOMENTS, [])
    with pytest.raises(AssertionError, match="prefetch outside a phase"):
        swap.prefetch(Phase.UPDATE)
    swap = swap_of(FakeTier())
    with swap.phase(Phase.SCORE):
        with pytest.raises(AssertionError, match="moments registered during phase"):
            swap.register(Holding.MOMENTS, [])
        with pytest.raises(AssertionError, match="closed during phase"):
            swap.close()


def test_gradients_that_are_not_zero_are_not_evicted():
    swap = training_swap(tier := FakeTier())
    with swap.phase(Phase.UPDATE):
        tier.since()
        gradient = swap._holdings[Holding.GRADIENTS][0].parameter
        gradient.values[3] = 1e-30
    with pytest.raises(AssertionError, match="phase rollout would lose gradients"):
        go_through(swap, Phase.ROLLOUT)
    assert tier.since() == [], "refused before anything has moved"
    gradient.values[3] = 0
    go_through(swap, Phase.ROLLOUT)


def test_the_updater_may_say_whether_gradients_are_zero():
    answers = iter([False, True])
    swap = swap_of(FakeTier())
    swap.register(Holding.GRADIENTS, parameters("g", 8), keeps_content=False, is_zero=lambda: next(answers))
    go_through(swap, Phase.UPDATE)
    with pytest.raises(AssertionError):
        go_through(swap, Phase.SCORE)
    go_through(swap, Phase.SCORE)


@pytest.mark.parametrize("failing", ["evict g0", "evict m0", "load r1", "load kv0"])
def test_after_a_failing_move_every_block_is_in_or_out_and_the_ledger_knows(failing: str):
    swap = training_swap(tier := FakeTier())
    go_through(swap, Phase.UPDATE)
    tier.failing = {failing}
    with pytest.raises(TrainingError, match=failing):
        go_through(swap, Phase.ROLLOUT)
    blocks = set(swap._blocks.values())
    assert sum(block.num_bytes for block in blocks if block.is_resident) == swap.ledger.resident.total()
    tier.failing = set()
    with swap.phase(Phase.ROLLOUT):
        assert +swap.ledger.resident == {Holding.ROLLOUT_WEIGHTS: 120, Holding.KV_CACHE: 400}


def test_too_little_memory_is_said_before_loading():
    tier = FakeTier(free=359)
    swap = training_swap(tier)
    with pytest.raises(TrainingError, match=r"phase update loads .* stop other processes"):
        go_through(swap, Phase.UPDATE)
    assert tier.since() == []
    tier.free = 480
    with swap.phase(Phase.UPDATE):
        assert swap.ledger.resident.total() == 480


def test_prefetch_loads_behind_the_open_phase():
    swap = training_swap(tier := FakeTier())
    with swap.phase(Phase.SCORE):
        tier.since()
        tier.threads.clear()
        tier.gate.clear()
        swap.prefetch(Phase.UPDATE)
        assert tier.since() == [], "the caller does not wait"
        assert swap.ledger.resident.total() == 240 + 360, "booked as soon as it is on its way"
        with pytest.raises(AssertionError, match="moments read in phase"):
            swap.require(Holding.MOMENTS)
        tier.gate.set()
    with swap.phase(Phase.UPDATE):
        swap.require(Holding.MOMENTS)
        assert tier.since() == ["load g0", "load m0", "evict ref0"]
        assert threading.current_thread().name not in tier.threads
    records = swap.ledger.records
    assert (records[Phase.SCORE].bytes_in, records[Phase.UPDATE].bytes_in) == (600, 0)
    assert (records[Phase.SCORE].peak_total, records[Phase.UPDATE].peak_total) == (600, 480)


def test_a_failing_prefetch_is_raised_by_the_next_phase_and_can_be_tried_again():
    swap = training_swap(tier := FakeTier())
    with swap.phase(Phase.SCORE):
        tier.failing = {"load m0"}
        swap.prefetch(Phase.UPDATE)
    with pytest.raises(TrainingError, match="load m0: broken"):
        go_through(swap, Phase.UPDATE)
    assert swap.ledger.resident.total() == 240 + 120, "the gradients had come, the moments have not"
    tier.failing = set()
    with swap.phase(Phase.UPDATE):
        swap.require(Holding.MOMENTS)


def test_what_was_prefetched_for_a_phase_that_never_came_goes_again():
    swap = training_swap(tier := FakeTier())
    with swap.phase(Phase.SCORE):
        swap.prefetch(Phase.UPDATE)
    with swap.phase(Phase.EVALUATE):
        assert swap.ledger.resident.total() == 520
    assert {"w0", "g0", "m0"} <= tier.away


@pytest.mark.parametrize(("tier", "changes"), [
    (FakeTier(loads_in_background=False), {}), (FakeTier(), {"prefetch": False}), (FakeTier(free=359), {}),
], ids=["the tier cannot", "not wanted", "no room"])  # fmt: skip
def test_prefetch_is_a_hint(tier: FakeTier, changes: dict[str, object]):
    swap = training_swap(tier, **changes)
    with swap.phase(Phase.SCORE):
        tier.since()
        swap.prefetch(Phase.UPDATE)
    swap._mover.finish()
    assert tier.since() == []


def test_without_swap_everything_stays_and_phases_still_count():
    swap = training_swap(None)
    for phase in (Phase.ROLLOUT, Phase.RESHARD, Phase.UPDATE):
        with swap.phase(phase):
            swap.prefetch(Phase.SCORE)
            for holding in Holding:
                swap.require(holding)
    with swap.phase(Phase.RESHARD), swap.reshard_step(["w0"]):
        pass
    records = swap.ledger.records
    assert {record.peak_total for phase, record in records.items() if phase} == {1120}
    assert records[Phase.RESHARD].entries == 2
    with pytest.raises(AssertionError, match="inside"), swap.phase(Phase.SCORE):
        go_through(swap, Phase.SCORE)
    swap.close()


def test_close_waits_for_a_prefetch_and_says_what_it_met():
    swap = training_swap(tier := FakeTier())
    with swap.phase(Phase.SCORE):
        tier.failing = {"load g0"}
        swap.prefetch(Phase.UPDATE)
    with pytest.raises(TrainingError, match="load g0: broken"):
        swap.close()
    assert tier.closed
