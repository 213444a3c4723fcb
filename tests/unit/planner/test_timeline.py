"""The simulated schedules: tiny cases worked out by hand, and what must hold for any."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.planner.simulated_replicas import Rates
from mindgspo.planner.timeline import Timeline, simulate

# A decode step takes a second, training five, the hand-over one.
RATES = Rates(decode_step=1.0, train_step=5.0, push_weights=1.0)


def run(lengths: list[list[int]], schedule: str, rates: Rates = RATES, **options: object) -> Timeline:
    settings = {"prompts_per_step": 2, "replicas": 1, "slots": 1, "steps": 4} | options
    return simulate(np.array(lengths), rates, schedule=schedule, **settings)


def seconds(timeline: Timeline) -> list[float]:
    return [step.seconds for step in timeline.steps]


def moments(timeline: Timeline, number: int) -> tuple[float, ...]:
    step = timeline.steps[number - 1]
    return step.begin, step.drawn, step.trained, step.stopped, step.end


def test_sync_generates_then_trains() -> None:
    """Two groups of one response, 3 and 4 tokens, one after the other: 7 s; 5 s of training; 1 s of hand-over."""
    timeline = run([[3], [4]], "sync")
    assert seconds(timeline) == [13, 13, 13, 13]
    assert moments(timeline, 2) == (13, 20, 25, 25, 26)
    assert all(step.waiting == 7 == step.busy and step.staleness_max == 0 for step in timeline.steps)


def test_one_step_off_trains_beside_generation() -> None:
    """Four groups of 3, 4, 3, 4 tokens are begun at once. Step 1 has its two at 7 s and trains until 12; the others end
    at 14, the weights are there at 15. From then on a step's responses are there when it begins: 7 s of generation for
    the next, 1 s of hand-over. The last step draws nothing ahead: 5 + 1."""
    timeline = run([[3], [4]], "one_step_off")
    assert moments(timeline, 1) == (0, 7, 12, 14, 15)
    assert moments(timeline, 2) == (15, 15, 20, 22, 23)
    assert seconds(timeline) == [15, 8, 8, 6]
    assert [step.staleness_max for step in timeline.steps] == [0, 1, 1, 1]
    assert [step.waiting for step in timeline.steps] == [9, 2, 2, 0]


def test_one_step_off_with_slow_training() -> None:
    """Generation of 7 s hides behind 20 s of training."""
    rates = Rates(decode_step=1.0, train_step=20.0, push_weights=1.0)
    assert seconds(run([[3], [4]], "one_step_off", rates)) == [28, 21, 21, 21]


def test_bounded_cuts_and_goes_on() -> None:
    """Groups A, B, C, D of 3, 4, 9, 4 tokens, one slot, prefill of 0.1 s per token of prefix.

    Step 1: A and B are there at 7 s, trained at 12: C has 5 of its 9 tokens, D none. Hand-over at 13. Step 2 begins
    there: C goes on with a prefill of 0.5 s, and ends after 4 more at 17.5; D, 4 tokens, at 21.5. Both are due, so E
    and F (3 and 4 tokens) wait. Trained at 26.5: E has ended at 24.5, F has 2 of 4. Hand-over at 27.5.
    Step 3: F goes on after 0.2 s of prefill until 29.7. E and F have been begun with the weights before: due.
    """
    rates = Rates(decode_step=1.0, prefill_token=0.1, train_step=5.0, push_weights=1.0)
    timeline = run([[3], [4], [9], [4], [3], [4], [5], [5]], "bounded", rates)
    assert moments(timeline, 1) == pytest.approx((0, 7, 12, 12, 13))
    assert moments(timeline, 2) == pytest.approx((13, 21.5, 26.5, 26.5, 27.5))
    assert moments(timeline, 3)[:3] == pytest.approx((27.5, 29.7, 34.7))
    # Step 2 trained 5 tokens of C with the weights before it, 4 of C and 4 of D with its own.
    assert [step.staleness_max for step in timeline.steps[:2]] == [0, 1]
    assert timeline.steps[1].staleness_mean == pytest.approx(5 / 13)
    # Step 3: 3 tokens of E and 2 of F before it, 2 of F with its own.
    assert timeline.steps[2].staleness_mean == pytest.approx(5 / 7)


def test_bounded_trains_what_has_ended_first() -> None:
    """Two slots: the response of 20 tokens is passed over by step 1, which has B and C at 6 s (B: 2, C: 4), and D goes
    into the free slot. It is due in step 2."""
    timeline = run([[20], [2], [4], [4], [4]], "bounded", slots=2)
    assert moments(timeline, 1) == (0, 6, 11, 11, 12)
    # 11 of 20 tokens at 11 s, 9 more from 12 s on.
    assert moments(timeline, 2)[:2] == (12, 21)


def test_decode_steps_take_longer_with_more_sequences_and_longer_contexts() -> None:
    """Two sequences of 2 and 3 tokens with prompts of 10: (1 + 2 x 0.5 + 20 x 0.1) + (2 + 22 x 0.1), then the second
    alone: 1.5 + 12 x 0.1. Their prompt is run once, 10 x 0.01."""
    rates = Rates(decode_step=1, decode_sequence=0.5, decode_context=0.1, prefill_token=0.01)
    timeline = run([[2, 3]], "sync", rates, prompts_per_step=1, slots=2, prompt_tokens=10, steps=1)
    assert timeline.steps[0].drawn == pytest.approx(0.1 + 4.0 + 4.2 + 2.7)
    assert [span.active for span in timeline.replicas[0]] == [2, 2, 1]
    assert timeline.steps[0].tokens == 25


def test_a_cut_keeps_whole_decode_steps() -> None:
    """Training ends 2.5 s after the first group; contexts of 1, 2, ... tokens take so many tenths of a second more."""
    rates = Rates(decode_step=1.0, decode_context=0.1, train_step=2.5)
    timeline = run([[1], [9]], "bounded", rates, prompts_per_step=1, steps=3)
    # First: 1 + 0. Then 1.0, 1.1 within 2.5 s; the third, 1.2, is lost. 7 more: 1.2 + ... + 1.8 = 10.5.
    assert moments(timeline, 1) == pytest.approx((0, 1, 3.5, 3.5, 3.5))
    assert moments(timeline, 2)[:2] == pytest.approx((3.5, 14))


def test_replicas_share_requests_or_are_dealt_them() -> None:
    """Two replicas, two slots, four groups of one: dealt, the first has 9 and 9; shared, each has one of them."""
    lengths = [[9], [9], [2], [2]]
    rates = Rates(decode_step=0.0, decode_sequence=1.0)
    options = {"prompts_per_step": 4, "replicas": 2, "slots": 2, "steps": 1}
    assert run(lengths, "sync", rates, is_dealt=True, **options).steps[0].drawn == 18
    # 2 x 2 s together with a short one, 7 s alone.
    assert run(lengths, "sync", rates, **options).steps[0].drawn == 11


def test_a_replica_gets_the_next_prompt_when_it_has_room() -> None:
    """One slot each, and one more response waits there: 6, 1, 1, 1 and 1 tokens. The first replica has 6 and 1, the
    other 1 and 1, and then the last; dealt, 6 + 1 + 1."""
    options = {"prompts_per_step": 5, "replicas": 2, "steps": 1}
    shared = run([[6], [1], [1], [1], [1]], "sync", **options)
    assert shared.steps[0].drawn == 7
    assert [replica[-1].end for replica in shared.replicas] == [7, 3]
    assert run([[6], [1], [1], [1], [1]], "sync", is_dealt=True, **options).steps[0].drawn == 8


def test_a_request_keeps_its_room_until_all_its_responses_have_ended() -> None:
    """Four slots have room for eight responses, two requests of three. The third waits until they have ended, at 9 s,
    although two slots are free from 2 s on."""
    timeline = run([[9, 1, 1], [9, 1, 1], [2, 2, 2]], "sync", prompts_per_step=3, slots=4, steps=1)
    assert timeline.steps[0].drawn == 11
    assert [(span.begin, span.end, span.active) for span in timeline.replicas[0]] == [
        (0, 1, 4), (1, 2, 4), (2, 9, 2), (9, 11, 3),
    ]  # fmt: skip


lengths = st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=2), min_size=3, max_size=12)


@given(lengths=lengths, slots=st.integers(1, 6), replicas=st.integers(1, 3), train=st.integers(0, 40))
def test_without_staleness_all_schedules_are_sync(
    lengths: list[list[int]], slots: int, replicas: int, train: int
) -> None:
    rates = Rates(
        decode_step=1, decode_sequence=0.25, prefill_token=0.01, train_step=train, train_token=0.1, push_weights=2
    )
    options = {"slots": slots, "replicas": replicas, "prompt_tokens": 3, "max_staleness": 0}
    sync, *others = (run(lengths, schedule, rates, **options) for schedule in ("sync", "one_step_off", "bounded"))
    assert all(other.steps == sync.steps for other in others)


@given(lengths=lengths, slots=st.integers(1, 6), staleness=st.integers(0, 4), train=st.integers(0, 40))
def test_no_token_is_older_than_allowed(lengths: list[list[int]], slots: int, staleness: int, train: int) -> None:
    rates = Rates(decode_step=1, decode_sequence=0.25, prefill_token=0.01, train_step=train, push_weights=2)
    timeline = run(lengths, "bounded", rates, slots=slots, replicas=2, max_staleness=staleness, steps=12)
    assert max(step.staleness_max for step in timeline.steps) <= staleness
    for step, after in itertools.pairwise(timeline.steps):
        assert step.begin <= step.drawn <= step.trained == step.stopped <= step.end == after.begin
        assert step.busy <= step.seconds + 1e-9
    for replica in timeline.replicas:
        assert all(span.end <= after.begin + 1e-9 for span, after in itertools.pairwise(replica))
        assert max(span.active for span in replica) <= slots


@given(generate=st.integers(1, 50), train=st.integers(1, 50), push_weights=st.integers(0, 5))
def test_one_step_off_takes_the_longer_of_both(generate: int, train: int, push_weights: int) -> None:
    rates = Rates(decode_step=1, train_step=train, push_weights=push_weights)
    timeline = run([[generate]], "one_step_off", rates, slots=2, steps=6)
    assert seconds(timeline)[1:-1] == [max(generate, train) + push_weights] * 4


def test_one_long_response_delays_sync_and_not_bounded() -> None:
    """One response in 40 is ten times as long as the others; bounded has six steps for it."""
    rates = Rates(decode_step=1.0, train_step=20.0)
    lengths = [[10]] * 39 + [[100]]
    options = {"prompts_per_step": 4, "slots": 8, "steps": 50}
    sync, bounded = run(lengths, "sync", rates, **options), run(lengths, "bounded", rates, max_staleness=6, **options)
    assert sorted(set(seconds(sync))) == [30, 120]
    # The first step waits for its responses, every later one trains what has ended meanwhile.
    assert seconds(bounded) == [30] + [20] * 49
