"""The ledger's sums by hand: two phases, a shared holding, and the printed table."""

from __future__ import annotations

from mindgspo.swap.states import NEEDS, Holding, Phase, SwapLedger

MIB = 2**20


def two_phases() -> SwapLedger:
    """30 MiB of weights that actor and rollout share, 1,060 MiB of moments; an update, then two rollouts."""
    ledger = SwapLedger()
    ledger.register(Holding.ACTOR_WEIGHTS, Holding.ACTOR_WEIGHTS, 30 * MIB)
    ledger.register(Holding.MOMENTS, Holding.MOMENTS, 1060 * MIB)
    ledger.register(Holding.ROLLOUT_WEIGHTS, Holding.ACTOR_WEIGHTS, 30 * MIB)
    ledger.move_out(Holding.MOMENTS, 1060 * MIB)
    ledger.wait(0.5, is_load=False)
    ledger.enter(Phase.UPDATE)
    ledger.move_in(Holding.MOMENTS, 1060 * MIB)
    ledger.wait(2.25, is_load=True)
    ledger.note_peak()
    for seconds in (1.0, 0.25):
        ledger.enter(Phase.ROLLOUT)
        if ledger.resident[Holding.MOMENTS]:
            ledger.move_out(Holding.MOMENTS, 1060 * MIB)
        ledger.wait(seconds, is_load=False)
        ledger.note_peak()
    return ledger


def test_sums_of_two_phases():
    ledger = two_phases()
    update, rollout = ledger.records[Phase.UPDATE], ledger.records[Phase.ROLLOUT]
    assert (update.peak_total, update.peak_bytes[Holding.MOMENTS]) == (1090 * MIB, 1060 * MIB)
    assert (update.bytes_in, update.bytes_out, update.seconds_in, update.seconds_out) == (1060 * MIB, 0, 2.25, 0)
    assert (rollout.entries, rollout.bytes_out, rollout.seconds_out) == (2, 1060 * MIB, 1.25)
    assert rollout.peak_total == 30 * MIB, "what left at the entry was never there during the phase"
    assert ledger.resident.total() == 30 * MIB
    assert ledger.held == {Holding.ACTOR_WEIGHTS: 30 * MIB, Holding.MOMENTS: 1060 * MIB}


def test_a_load_that_did_not_come_is_taken_back():
    ledger = SwapLedger()
    ledger.register(Holding.MOMENTS, Holding.MOMENTS, 8)
    ledger.move_out(Holding.MOMENTS, 8)
    ledger.enter(Phase.SCORE)
    ledger.move_in(Holding.MOMENTS, 8)
    ledger.cancel_move_in(Holding.MOMENTS, 8)
    assert (ledger.resident.total(), ledger.records[Phase.SCORE].bytes_in) == (0, 0)


def test_the_table_by_phase():
    expected = """\
phase    entered  actor weights  moments  together   MiB in  MiB out  s in  s out
set-up                     30.0  1,060.0   1,090.0      0.0  1,060.0  0.00   0.50
update         1           30.0  1,060.0   1,090.0  1,060.0      0.0  2.25   0.00
rollout        2           30.0      0.0      30.0      0.0  1,060.0  0.00   1.25
30.0 MiB of rollout weights are actor weights: the same parameters, counted once"""
    assert two_phases().table() == expected


def test_every_phase_declares_its_needs_and_every_holding_is_needed():
    assert set(NEEDS) == set(Phase)
    assert {holding for needs in NEEDS.values() for holding in needs} == set(Holding)
    assert NEEDS[Phase.EVALUATE] == NEEDS[Phase.ROLLOUT]
