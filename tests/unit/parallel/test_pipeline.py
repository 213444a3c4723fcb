"""The order of a pipeline's work, followed over all stages at once: a message goes when both sides have come to it."""

from __future__ import annotations

import pytest

from mindgspo.parallel.pipeline import Act, Action, stage_order

STAGES, MICRO_BATCHES = range(1, 9), range(17)
# What a message is on the other side, and which stage that is.
OTHER_SIDE = {
    Act.SEND_ACTIVATIONS: (Act.RECEIVE_ACTIVATIONS, 1),
    Act.RECEIVE_ACTIVATIONS: (Act.SEND_ACTIVATIONS, -1),
    Act.SEND_GRADIENT: (Act.RECEIVE_GRADIENT, -1),
    Act.RECEIVE_GRADIENT: (Act.SEND_GRADIENT, 1),
}
NEEDS = {
    Act.FORWARD: Act.RECEIVE_ACTIVATIONS,
    Act.SEND_ACTIVATIONS: Act.FORWARD,
    Act.BACKWARD: Act.RECEIVE_GRADIENT,
    Act.SEND_GRADIENT: Act.BACKWARD,
}


def orders_of(stages: int, count: int, has_backward: bool) -> list[list[Action]]:
    return [stage_order(stage, stages, count, has_backward=has_backward) for stage in range(stages)]


def run(orders: list[list[Action]]) -> list[list[Action]]:
    """What each stage has done when nobody can go on: everything, unless they wait for each other in a ring."""
    done: list[list[Action]] = [[] for _ in orders]

    def next_of(stage: int) -> Action | None:
        return orders[stage][len(done[stage])] if len(done[stage]) < len(orders[stage]) else None

    moved = True
    while moved:
        moved = False
        for stage in range(len(orders)):
            action = next_of(stage)
            if action is None:
                continue
            if action.act in OTHER_SIDE:
                act, step = OTHER_SIDE[action.act]
                answer = next_of(stage + step)
                if answer is None or (answer.act, answer.number) != (act, action.number):
                    continue
                done[stage + step].append(answer)
            done[stage].append(action)
            moved = True
    return done


@pytest.mark.parametrize("has_backward", [True, False], ids=["training", "scoring"])
def test_no_stage_waits_in_a_ring_and_all_work_is_done_once(has_backward: bool):
    passes = {Act.FORWARD, Act.BACKWARD} if has_backward else {Act.FORWARD}
    for stages in STAGES:
        for count in MICRO_BATCHES:
            orders = orders_of(stages, count, has_backward)
            assert run(orders) == orders, f"{count} micro-batches over {stages} stages"
            for order in orders:
                done = [(action.act, action.number) for action in order if action.act in passes]
                assert sorted(done, key=str) == sorted(((a, m) for a in passes for m in range(count)), key=str)


def test_a_pass_follows_what_it_needs_and_the_last_stage_turns_round_at_once():
    for stages in STAGES:
        for count in MICRO_BATCHES:
            for stage, order in enumerate(orders_of(stages, count, True)):
                place = {(action.act, action.number): at for at, action in enumerate(order)}
                for (act, number), at in place.items():
                    need = place.get((NEEDS.get(act), number), -1)
                    assert need < at, (act, number, stage, stages, count)
                    if act is Act.BACKWARD:
                        assert place[Act.FORWARD, number] < at
                        if stage == stages - 1:
                            between = {a.act for a in order[place[Act.FORWARD, number] + 1 : at]}
                            assert not between & {Act.FORWARD, Act.BACKWARD}


def test_a_stage_holds_no_more_micro_batches_than_stages_from_it_on():
    for stages in STAGES:
        for count in MICRO_BATCHES:
            for stage, order in enumerate(orders_of(stages, count, True)):
                begins = Act.RECEIVE_ACTIVATIONS if stage else Act.FORWARD
                held, most = 0, 0
                for action in order:
                    held += (action.act is begins) - (action.act is Act.BACKWARD)
                    most = max(most, held)
                assert most == min(count, stages - stage), (stage, stages, count)


def test_slots_are_one_pass_each_and_stages_are_idle_in_the_known_share_of_them():
    """(S - 1) / (M + S - 1) of the time, as in GPipe; of a forward pass alone, too."""
    for stages in STAGES:
        for count in range(1, 17):
            for has_backward, passes in ((True, 2), (False, 1)):
                orders = orders_of(stages, count, has_backward)
                used = [[a.slot for a in order if a.act in (Act.FORWARD, Act.BACKWARD)] for order in orders]
                assert all(len(set(slots)) == passes * count for slots in used)
                length = max(map(max, used)) + 1
                assert length == passes * (count + stages - 1)
                assert min(map(min, used)) == 0


def test_the_order_of_two_stages_and_three_micro_batches_is_this_one():
    names = {Act.FORWARD: "F", Act.BACKWARD: "B", Act.SEND_ACTIVATIONS: "send", Act.RECEIVE_ACTIVATIONS: "receive",
             Act.SEND_GRADIENT: "send d", Act.RECEIVE_GRADIENT: "receive d"}  # fmt: skip
    first, last = ([f"{names[a.act]}{a.number}" for a in order] for order in orders_of(2, 3, True))
    assert first == ["F0", "send0", "F1", "receive d0", "send1", "B0", "F2", "receive d1", "send2", "B1",
                     "receive d2", "B2"]  # fmt: skip
    assert last == ["receive0", "F0", "B0", "send d0", "receive1", "F1", "B1", "send d1", "receive2", "F2", "B2",
                    "send d2"]  # fmt: skip
