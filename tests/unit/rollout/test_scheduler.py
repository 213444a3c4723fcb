"""Which sequences are decoded and where their keys and values lie, driven by a model that lives in this file.

The model's cache holds, in each place, which token of which sequence was written there; every step reads back all
columns of each sequence. So a block used twice, a column not written or a copy that comes too early is seen.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.rollout.scheduler import Scheduler
from mindgspo.rollout.sequences import Admissions, BlockAllocator, DecodeRun, EndedRequest, num_blocks_for
from mindgspo.rollout.service import Request
from mindgspo.types import FinishReason, Prompt

EOS = 99
STREAM = RandomStream(seed=1, purpose=Purpose.TRAINING, step=1)
Planned = Callable[[int, int], list[int]]
"""Tokens that sample s of prompt p emits."""


def make_prompt(index: int, length: int) -> Prompt:
    """Its tokens are unlike those of any other."""
    ids = (1000 * (index + 1) + np.arange(length)).astype(np.int32)
    return Prompt(index=index, ids=ids, text="", answer="", data_source="test")


def make_scheduler(
    prompts: list[Prompt], *, num_samples: int, num_slots: int, max_new_tokens: int, num_blocks: int | None = None,
    block: int = 4, tokens_per_sync: int = 1, temperature: float = 1.0, clock: Callable[[], float] = time.perf_counter,
    longest: int | None = None,
) -> tuple[Scheduler, BlockAllocator]:  # fmt: skip
    most = num_blocks_for(longest or max(prompt.ids.size for prompt in prompts) + max_new_tokens, block)
    allocator = BlockAllocator(num_slots * most + 1 if num_blocks is None else num_blocks)
    scheduler = Scheduler(
        num_slots=num_slots, max_new_tokens=max_new_tokens, block=block, most_blocks=most, allocator=allocator,
        tokens_per_sync=tokens_per_sync, eos_ids={EOS, 98}, clock=clock,
    )  # fmt: skip
    drawn = sampling(num_samples, max_new_tokens, temperature)
    for number, prompt in enumerate(prompts):
        scheduler.add(Request(number=number, prompt=prompt, samples=tuple(range(num_samples)), settings=drawn))
    return scheduler, allocator


def sampling(num_samples: int, max_new_tokens: int, temperature: float = 1.0) -> SamplingSettings:
    return SamplingSettings(
        num_samples=num_samples, temperature=temperature, max_new_tokens=max_new_tokens, stream=STREAM
    )


def ended(scheduler: Scheduler) -> list[EndedRequest]:
    """All requests, in order; they have ended since the last call."""
    return sorted(scheduler.ended(), key=lambda one: one.request.number)


@dataclass
class FakeModel:
    """Reads from the cache which sequence it goes on with: the prompt's tokens say which prompt, the uniform of the
    first token which sample."""

    prompts: Sequence[Prompt]
    planned: Planned
    num_samples: int
    max_new_tokens: int
    block: int
    cache: dict[int, int] = field(default_factory=dict)
    prefills: int = 0
    steps: int = 0
    busy: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sample_of = {
            (prompt.index, token, float(uniform)): sample
            for prompt in self.prompts
            for sample in range(self.num_samples)
            for token, uniform in enumerate(STREAM.uniforms(prompt.index, sample, self.max_new_tokens))
        }

    def admit(self, admissions: Admissions) -> None:
        """Prefills first, then copies."""
        for row in admissions.prefills:
            self.prefills += 1
            self.cache |= dict(zip(row.cache_rows.tolist(), row.ids.tolist(), strict=True))
        for source, target in admissions.copies:
            for place in range(self.block):
                if source * self.block + place in self.cache:
                    self.cache[target * self.block + place] = self.cache[source * self.block + place]

    def run(self, run: DecodeRun) -> tuple[np.ndarray, np.ndarray]:
        """Ids and log-probs (-id) of the steps."""
        ids, drawn = run.ids_S.copy(), []
        self.busy.append(run.num_rows)
        for positions, cache_rows, uniforms in zip(run.positions_JS, run.cache_rows_JS, run.uniforms_JS, strict=True):
            self.steps += 1
            written = [row for row in cache_rows[: run.num_rows].tolist() if row >= self.block]
            assert len(set(written)) == len(written), "two rows write into one place"
            self.cache |= dict(zip(cache_rows.tolist(), ids.tolist(), strict=True))
            for row in range(ids.size):
                is_busy = cache_rows[row] >= self.block
                assert row < run.num_rows or not is_busy
                ids[row] = self._next(run.table_SP[row], int(positions[row]), float(uniforms[row])) if is_busy else 55
            drawn.append(ids.copy())
        ids_JS = np.array(drawn)
        return ids_JS, -ids_JS.astype(np.float32)

    def _next(self, table: np.ndarray, position: int, uniform: float) -> int:
        columns = np.arange(position + 1)
        places = table[columns // self.block] * self.block + columns % self.block
        tokens = [self.cache[place] for place in places.tolist()]
        number = next(n for n, prompt in enumerate(self.prompts) if prompt.index == tokens[0] // 1000 - 1)
        prompt = self.prompts[number]
        assert tokens[: prompt.ids.size] == prompt.ids.tolist()
        emitted = tokens[prompt.ids.size :]
        sample = self.sample_of[prompt.index, len(emitted), uniform]
        planned = self.planned(number, sample)
        if len(emitted) >= len(planned):
            return 55  # behind its end
        assert emitted == planned[: len(emitted)]
        return planned[len(emitted)]


def turn(scheduler: Scheduler, model: FakeModel) -> None:
    scheduler.grow()
    model.admit(scheduler.admit())
    scheduler.take(*model.run(scheduler.next_run()))


def drive(scheduler: Scheduler, model: FakeModel) -> None:
    for _ in range(10_000):
        if scheduler.done:
            return
        turn(scheduler, model)
    raise AssertionError("the scheduler never gets done")


@settings(max_examples=150)
@given(data=st.data())
def test_every_sample_ends_exactly_once_with_its_own_tokens(data: st.DataObject) -> None:
    num_prompts, num_samples = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    num_slots, tokens_per_sync = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 5))
    max_new_tokens, block = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    prompts = [make_prompt(3 * p + 1, data.draw(st.integers(1, 9))) for p in range(num_prompts)]
    count = num_prompts * num_samples
    lengths = data.draw(st.lists(st.integers(1, max_new_tokens), min_size=count, max_size=count))
    ends_in_eos = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    most = num_blocks_for(max(prompt.ids.size for prompt in prompts) + max_new_tokens, block)
    # From one longest sequence to all slots at their longest.
    num_blocks = 1 + data.draw(st.integers(most, most * num_slots))

    def planned(prompt: int, sample: int) -> list[int]:
        number = prompt * num_samples + sample
        tokens = [1 + (number * 7 + t) % 90 for t in range(lengths[number])]
        if ends_in_eos[number] or lengths[number] < max_new_tokens:
            tokens[-1] = EOS - number % 2
        return tokens

    scheduler, allocator = make_scheduler(
        prompts, num_samples=num_samples, num_slots=num_slots, max_new_tokens=max_new_tokens, block=block,
        num_blocks=num_blocks, tokens_per_sync=tokens_per_sync,
    )  # fmt: skip
    model = FakeModel(prompts, planned, num_samples, max_new_tokens, block)
    drive(scheduler, model)
    assert allocator.num_in_use == 0 and allocator.most_in_use <= num_blocks - 1
    if num_blocks == 1 + most * num_slots:
        assert scheduler.preemptions == 0 and model.prefills == num_prompts
        if tokens_per_sync == 1:  # a slot waits for nobody: a greedy list schedule ends within the bound of Graham
            assert model.steps <= sum(lengths) / num_slots + max(lengths)
    requests = ended(scheduler)
    assert [one.request.prompt.index for one in requests] == [prompt.index for prompt in prompts]
    for p, one in enumerate(requests):
        assert len(one.pieces) == num_samples
        for s, response in enumerate(one.pieces):
            tokens = planned(p, s)
            reason = FinishReason.STOP if tokens[-1] in (EOS, EOS - 1) else FinishReason.LENGTH
            assert (response.ids.tolist(), response.finish_reason) == (tokens, reason)
            assert response.logprobs.tolist() == [-float(token) for token in tokens]


def test_what_each_step_is_fed() -> None:
    prompts = [make_prompt(4, 3)]
    scheduler, _ = make_scheduler(prompts, num_samples=2, num_slots=3, max_new_tokens=3, tokens_per_sync=2)
    admissions = scheduler.admit()
    run = scheduler.next_run()
    # The prompt's last token at its own position, then the sampled token one position on.
    assert run.num_rows == 2 and run.ids_S.tolist() == [5002, 5002, 0]
    assert run.positions_JS.tolist() == [[2, 2, 0], [3, 3, 0]]
    first, second = (STREAM.uniforms(4, sample, 3) for sample in (0, 1))
    assert run.uniforms_JS.tolist() == [[first[0], second[0], 1.0], [first[1], second[1], 1.0]]
    # One prefill, into the first sibling's block, and a copy for the second.
    (row,), ((source, target),) = admissions.prefills, admissions.copies
    assert row.ids.tolist() == [5000, 5001, 5002] and row.cache_rows.tolist() == [4 * source + c for c in range(3)]
    assert run.table_SP[:, 0].tolist() == [source, target, 0] and source != target
    assert run.cache_rows_JS.tolist() == [[4 * source + c, 4 * target + c, 0] for c in (2, 3)]
    scheduler.take(np.array([[41, EOS, 17], [42, 43, 17]], np.int32), np.zeros((2, 3), np.float32))
    assert not scheduler.done
    scheduler.grow()
    run = scheduler.next_run()
    assert run.ids_S.tolist() == [42, 0, 0] and run.positions_JS.tolist() == [[4, 0, 0]], "one token is left"


def test_siblings_share_the_full_blocks_of_their_prompt() -> None:
    scheduler, allocator = make_scheduler([make_prompt(0, 9)], num_samples=3, num_slots=3, max_new_tokens=3)
    admissions = scheduler.admit()
    tables = scheduler.next_run().table_SP[:, :3]
    assert (tables[:, :2] == tables[0, :2]).all() and len(set(tables[:, 2].tolist())) == 3
    # Nine tokens in blocks of four: the last block would hold the last token alone, which is fed again.
    assert len(admissions.prefills) == 1 and not admissions.copies and allocator.num_in_use == 5


def test_the_youngest_is_preempted_and_goes_on_with_its_tokens() -> None:
    # Two sequences of four blocks each do not fit into six blocks.
    prompts = [make_prompt(0, 4), make_prompt(1, 4)]
    scheduler, allocator = make_scheduler(prompts, num_samples=1, num_slots=2, max_new_tokens=12, num_blocks=7)
    planned = {0: list(range(1, 13)), 1: list(range(21, 33))}
    model = FakeModel(prompts, lambda p, s: planned[p], 1, 12, 4)
    drive(scheduler, model)
    assert scheduler.preemptions == 1 and model.prefills == 3 and allocator.most_in_use == 6
    assert [one.pieces[0].ids.tolist() for one in ended(scheduler)] == [planned[0], planned[1]]


def test_a_slot_is_filled_again_in_the_step_after_its_sample_ends() -> None:
    # Two slots; the first sample takes 6 steps, the others 1 to 3: 6 + 6 tokens fit exactly into 2 x 6.
    lengths = [6, 1, 2, 3]
    prompts = [make_prompt(0, 1), make_prompt(1, 2)]
    model = FakeModel(prompts, lambda p, s: [1] * (lengths[2 * p + s] - 1) + [EOS], 2, 7, 4)
    scheduler, _ = make_scheduler(prompts, num_samples=2, num_slots=2, max_new_tokens=7, clock=lambda: model.steps)
    drive(scheduler, model)
    assert (model.steps, sum(model.busy)) == (6, 12)
    assert [seconds for one in ended(scheduler) for seconds in one.seconds] == lengths, "waiting is not counted"


def test_a_pre_empted_samples_time_goes_on() -> None:
    # 29 columns for two sequences of 24: the second leaves in step 15 and comes back when the first has ended.
    prompts = [make_prompt(0, 1), make_prompt(1, 1)]
    model = FakeModel(prompts, lambda p, s: [1] * 23 + [EOS], 1, 24, 1)
    scheduler, _ = make_scheduler(
        prompts, num_samples=1, num_slots=2, max_new_tokens=24, num_blocks=30, block=1, clock=lambda: model.steps
    )
    drive(scheduler, model)
    assert (scheduler.preemptions, [one.seconds[0] for one in ended(scheduler)]) == (1, [24, 34])


def test_greedy_sampling_asks_for_no_random_numbers() -> None:
    scheduler, _ = make_scheduler([make_prompt(0, 1)], num_samples=1, num_slots=2, max_new_tokens=3, temperature=0.0)
    scheduler.admit()
    assert scheduler.next_run().uniforms_JS.tolist() == [[1.0, 1.0]]


def test_a_cache_that_does_not_hold_one_sequence_is_refused() -> None:
    with pytest.raises(AssertionError):
        make_scheduler([make_prompt(0, 9)], num_samples=1, num_slots=1, max_new_tokens=8, num_blocks=5)


def test_two_and_a_half_times_as_many_sequences_as_with_whole_slots() -> None:
    """Lengths of a published run (Qwen3-32B, DAPO): prompts to 2k, responses to 20k, 7.5k columns on average."""
    rng = np.random.default_rng(0)
    longest_prompt, longest_response, group, num_prompts, whole_slots = 2048, 20480, 16, 40, 16
    prompts = [make_prompt(index, int(rng.integers(100, longest_prompt + 1))) for index in range(num_prompts)]
    lengths = np.minimum(rng.gamma(1.6, 4300, (num_prompts, group)).astype(int) + 1, longest_response)
    columns = np.mean([prompt.ids.size for prompt in prompts]) + lengths.mean()
    assert 7300 < columns < 7700, columns
    blocks = whole_slots * num_blocks_for(longest_prompt + longest_response, 128)
    scheduler, _ = make_scheduler(
        prompts, num_samples=group, num_slots=128, max_new_tokens=longest_response, num_blocks=blocks + 1, block=128,
        tokens_per_sync=64, temperature=0.0,
    )  # fmt: skip
    active, recomputed = [], 0
    while not scheduler.done:
        scheduler.grow()
        recomputed += sum(row.ids.size for row in scheduler.admit().prefills)
        run = scheduler.next_run()
        # Of the time in which sequences wait: at the end there are none left to take a place.
        if scheduler._front() is not None:
            active += [run.num_rows] * run.num_steps
        ids = np.ones((run.num_steps, 128), np.int32)
        for row, slot in enumerate(scheduler._rows):
            job, sample = scheduler._sequence(slot)
            end = lengths[job.request.number, sample] - scheduler._lengths[slot] - 1
            if end < run.num_steps:
                ids[end, row] = EOS
        scheduler.take(ids, np.zeros(ids.shape, np.float32))
    assert np.mean(active) >= 2.5 * whole_slots
    # What pre-emptions cost: prompts and tokens that are run once more, cheaper by far than decoding them.
    assert recomputed < 0.15 * lengths.sum(), (recomputed, lengths.sum(), scheduler.preemptions)


@settings(max_examples=60)
@given(data=st.data())
def test_requests_that_come_later_and_are_cut_go_on_where_they_were(data: st.DataObject) -> None:
    """Cut at any look, any number of times, and asked for again with their tokens: each sample gets what it gets when
    nobody cuts."""
    num_samples, max_new_tokens, block = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9)), 3
    prompts = [make_prompt(p, data.draw(st.integers(1, 7))) for p in range(data.draw(st.integers(1, 4)))]
    looks = data.draw(st.lists(st.integers(0, 4), max_size=6))

    def planned(prompt: int, sample: int) -> list[int]:
        length = 1 + (3 * prompt + 5 * sample) % max_new_tokens
        tokens = [1 + (prompt * 31 + sample * 7 + t) % 90 for t in range(length)]
        return tokens if len(tokens) == max_new_tokens else [*tokens[:-1], EOS]

    scheduler, allocator = make_scheduler(
        prompts[:1], num_samples=num_samples, num_slots=3, max_new_tokens=max_new_tokens, block=block,
        num_blocks=1 + 2 * num_blocks_for(7 + max_new_tokens, block), longest=7 + max_new_tokens,
        tokens_per_sync=data.draw(st.integers(1, 3)),
    )  # fmt: skip
    model = FakeModel(prompts, planned, num_samples, max_new_tokens, block)
    drawn = {(p, s): [] for p in range(len(prompts)) for s in range(num_samples)}
    ends: dict[tuple[int, int], FinishReason] = {}
    drawing = sampling(num_samples, max_new_tokens)
    numbers = iter(range(100, 10_000))

    def ask(prompt: int, samples: tuple[int, ...]) -> None:
        prefix = np.array(drawn[prompt, samples[0]], np.int32)
        scheduler.add(
            Request(number=next(numbers), prompt=prompts[prompt], samples=samples, settings=drawing, prefix=prefix)
        )

    def note(requests: list[EndedRequest]) -> None:
        for one in requests:
            for sample, piece in zip(one.request.samples, one.pieces, strict=True):
                key = one.request.prompt.index, sample
                drawn[key] += piece.ids.tolist()
                assert piece.logprobs.tolist() == [-float(token) for token in piece.ids]
                if piece.finish_reason is not None:
                    assert key not in ends
                    ends[key] = piece.finish_reason

    def look() -> None:
        if not scheduler.done:
            turn(scheduler, model)
            note(scheduler.ended())

    look()
    for prompt in range(1, len(prompts)):
        ask(prompt, tuple(range(num_samples)))
    for number in looks:
        for _ in range(number):
            look()
        note(scheduler.abort())
        assert allocator.num_in_use == 0
        for prompt in range(len(prompts)):
            rest = [sample for sample in range(num_samples) if (prompt, sample) not in ends]
            fresh = tuple(sample for sample in rest if not drawn[prompt, sample])
            for samples in [fresh] * bool(fresh) + [(sample,) for sample in rest if drawn[prompt, sample]]:
                ask(prompt, samples)
    for _ in range(1000):
        look()
    assert drawn == {key: planned(*key) for key in drawn}
    assert ends == {
        key: FinishReason.STOP if tokens[-1] == EOS else FinishReason.LENGTH for key, tokens in drawn.items()
    }


def test_only_the_requests_named_are_cut() -> None:
    prompts = [make_prompt(0, 3), make_prompt(1, 3), make_prompt(2, 3)]
    planned = {p: [10 * p + t for t in range(1, 7)] for p in range(3)}
    scheduler, allocator = make_scheduler(prompts, num_samples=1, num_slots=2, max_new_tokens=6)
    model = FakeModel(prompts, lambda prompt, sample: planned[prompt], 1, 6, 4)
    turn(scheduler, model)
    turn(scheduler, model)
    # The first two run, the third waits.
    cut = {one.request.number: one.pieces[0] for one in scheduler.abort({1, 2, 7})}
    assert {number: piece.ids.tolist() for number, piece in cut.items()} == {1: [11, 12], 2: []}
    assert all(piece.finish_reason is None for piece in cut.values())
    drive(scheduler, model)
    assert [one.pieces[0].ids.tolist() for one in ended(scheduler)] == [planned[0]] and allocator.num_in_use == 0


def test_a_cut_among_siblings_that_wait_and_were_pre_empted() -> None:
    # Twelve blocks of one token: the second prompt's siblings hold its blocks, or are pre-empted, when they are cut.
    prompts = [make_prompt(0, 3), make_prompt(1, 4)]
    for looks in range(1, 14):
        slots = {"num_slots": 3, "num_blocks": 13, "block": 1}
        scheduler, allocator = make_scheduler(prompts, num_samples=3, max_new_tokens=8, **slots)
        model = FakeModel(prompts, lambda prompt, sample: [1 + prompt + sample] * (3 + sample) + [EOS], 3, 8, 1)
        for _ in range(looks):
            turn(scheduler, model)
        before = scheduler.ended()
        cut = [one.request.number for one in (*before, *scheduler.abort({1}))]
        assert cut.count(1) == 1
        drive(scheduler, model)
        assert allocator.num_in_use == 0
        (first,) = (one for one in (*before, *scheduler.ended()) if one.request.number == 0)
        assert [piece.ids.tolist() for piece in first.pieces] == [[1 + s] * (3 + s) + [EOS] for s in range(3)]


@settings(max_examples=150)
@given(data=st.data())
def test_a_sequence_that_is_continued_feeds_what_was_put_behind_it(data: st.DataObject) -> None:
    """Episodes of several turns with observations between them, answered after any number of looks: every token comes
    once, and nothing is prefilled again where the cache holds all sequences."""
    num_samples, block, tokens_per_sync = (data.draw(st.integers(1, most)) for most in (3, 4, 3))
    num_slots = data.draw(st.integers(1, 5))
    prompts = [make_prompt(p, data.draw(st.integers(1, 6))) for p in range(data.draw(st.integers(1, 3)))]
    turns = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(0, 5)), min_size=1, max_size=3)
    plans = {(p, s): data.draw(turns) for p in range(len(prompts)) for s in range(num_samples)}

    def parts(prompt: int, sample: int) -> list[tuple[list[int], list[int]]]:
        """Drawn and observed tokens by turn."""
        base = 1 + (prompt * 31 + sample * 7) % 40
        return [
            ([base + t for t in range(drawn - 1)] + [EOS], [base + 40 + t for t in range(observed)])
            for drawn, observed, _ in plans[prompt, sample]
        ]

    def planned(prompt: int, sample: int) -> list[int]:
        return [token for drawn, observed in parts(prompt, sample) for token in (*drawn, *observed)]

    longest = max(prompt.ids.size for prompt in prompts) + 34
    most = num_blocks_for(longest, block)
    is_ample = data.draw(st.booleans())
    num_blocks = 1 + (most * len(plans) if is_ample else data.draw(st.integers(most, most * num_slots)))
    scheduler, allocator = make_scheduler(
        [], num_samples=num_samples, num_slots=num_slots, max_new_tokens=34, block=block, num_blocks=num_blocks,
        longest=longest, tokens_per_sync=tokens_per_sync,
    )  # fmt: skip
    model = FakeModel(prompts, planned, num_samples, 34, block)
    for number, prompt in enumerate(prompts):
        scheduler.add(
            Request(
                number=number, prompt=prompt, samples=tuple(range(num_samples)), settings=sampling(num_samples, 34),
                may_continue=True,
            )
        )  # fmt: skip
    numbers, so_far = iter(range(100, 10_000)), {key: [] for key in plans}
    turn_of, waiting = dict.fromkeys(plans, 0), {}
    for _ in range(2000):
        if not scheduler.done:
            turn(scheduler, model)
        for one in scheduler.ended():
            (sample,), (piece,) = one.request.samples, one.pieces
            key = prompts.index(one.request.prompt), sample
            drawn, observed = parts(*key)[turn_of[key]]
            assert (piece.ids.tolist(), piece.finish_reason) == (drawn, FinishReason.STOP)
            so_far[key] += [*drawn, *observed]
            turn_of[key] += 1
            if turn_of[key] < len(plans[key]):
                waiting[key] = plans[key][turn_of[key] - 1][2]
        for key in [key for key, looks in waiting.items() if looks == 0]:
            scheduler.add(
                Request(
                    number=next(numbers), prompt=prompts[key[0]], samples=(key[1],), settings=sampling(1, 34),
                    prefix=np.array(so_far[key], np.int32), may_continue=True,
                )
            )  # fmt: skip
            del waiting[key]
        waiting = {key: looks - 1 for key, looks in waiting.items()}
    assert scheduler.done and turn_of == {key: len(plan) for key, plan in plans.items()}
    assert so_far == {key: planned(*key) for key in plans}
    if is_ample:
        assert model.prefills <= len(prompts) and scheduler.preemptions == 0
    scheduler.abort()
    assert allocator.num_in_use == 0


def test_observed_tokens_take_the_rows_that_have_no_sequence() -> None:
    prompt = make_prompt(0, 3)
    scheduler, _ = make_scheduler([], num_samples=1, num_slots=4, max_new_tokens=12, longest=15)
    planned = [7, EOS, 51, 52, 53, 54, 55, 8, EOS]
    model = FakeModel([prompt], lambda prompt, sample: planned, 1, 12, 4)
    asked = {"prompt": prompt, "samples": (0,), "settings": sampling(1, 12), "may_continue": True}
    scheduler.add(Request(number=0, **asked))
    drive(scheduler, model)
    scheduler.add(Request(number=1, **asked, prefix=np.array(planned[:7], np.int32)))
    drive(scheduler, model)
    # The EOS and five observed tokens are not in the cache: four of them, then two, and the last one draws.
    assert model.busy == [1, 1, 4, 2, 1] and scheduler.num_observed == 5 and model.prefills == 1
    first, second = scheduler.ended()
    assert (first.pieces[0].ids.tolist(), second.pieces[0].ids.tolist()) == ([7, EOS], [8, EOS])
