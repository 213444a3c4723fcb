"""The pipeline's schedule: every micro-batch once, at most as many in flight as stages, no deadlock."""

from __future__ import annotations

import pytest

from mindgspo.parallel.pipeline_schedule import Act, Action, one_forward_one_backward

SIZES = [(stages, batches) for stages in range(1, 6) for batches in range(1, 9)]


def actions(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    return list(one_forward_one_backward(stage, num_stages, num_micro_batches))


def test_two_stages_and_three_micro_batches_by_hand():
    first = [
        (Act.FORWARD, 0),
        (Act.SEND_OUTPUT, 0),
        (Act.FORWARD, 1),
        (Act.SEND_OUTPUT, 1),
        (Act.RECEIVE_GRADIENT, 0),
        (Act.BACKWARD, 0),
        (Act.FORWARD, 2),
        (Act.SEND_OUTPUT, 2),
        (Act.RECEIVE_GRADIENT, 1),
        (Act.BACKWARD, 1),
        (Act.RECEIVE_GRADIENT, 2),
        (Act.BACKWARD, 2),
    ]
    last = [
        (Act.RECEIVE_INPUT, 0),
        (Act.BACKWARD, 0),
        (Act.RECEIVE_INPUT, 1),
        (Act.SEND_GRADIENT, 0),
        (Act.BACKWARD, 1),
        (Act.RECEIVE_INPUT, 2),
        (Act.SEND_GRADIENT, 1),
        (Act.BACKWARD, 2),
        (Act.SEND_GRADIENT, 2),
    ]
    assert actions(0, 2, 3) == first and actions(1, 2, 3) == last


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_every_stage_does_everything_once_and_holds_few(num_stages: int, num_micro_batches: int):
    numbers = list(range(num_micro_batches))
    for stage in range(num_stages):
        found = actions(stage, num_stages, num_micro_batches)
        by_act = {act: [number for done, number in found if done is act] for act in Act}
        is_first, is_last = stage == 0, stage == num_stages - 1
        assert by_act[Act.BACKWARD] == numbers
        assert by_act[Act.FORWARD] == by_act[Act.SEND_OUTPUT] == by_act[Act.RECEIVE_GRADIENT]
        assert by_act[Act.FORWARD] == ([] if is_last else numbers)
        assert by_act[Act.RECEIVE_INPUT] == by_act[Act.SEND_GRADIENT] == ([] if is_first else numbers)
        in_flight, most = 0, 0
        for act, _ in found:
            in_flight += (act is Act.FORWARD) - (act is Act.BACKWARD and not is_last)
            most = max(most, in_flight)
        assert most <= num_stages - stage


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SIZES)
def test_no_circle_where_a_send_waits_for_its_receive(num_stages: int, num_micro_batches: int):
    waiting = [actions(stage, num_stages, num_micro_batches) for stage in range(num_stages)]
    answers = {Act.SEND_OUTPUT: (1, Act.RECEIVE_INPUT), Act.SEND_GRADIENT: (-1, Act.RECEIVE_GRADIENT)}
    moved = True
    while moved:
        moved = False
        for stage in range(num_stages):
            if not waiting[stage]:
                continue
            act, number = waiting[stage][0]
            if act in (Act.FORWARD, Act.BACKWARD):
                waiting[stage].pop(0)
                moved = True
            elif act in answers:
                offset, answer = answers[act]
                other = waiting[stage + offset]
                if other and other[0] == (answer, number):
                    waiting[stage].pop(0)
                    other.pop(0)
                    moved = True
    assert not any(waiting), waiting
