"""The bookkeeping of slots, driven by a model that lives in this file."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.rollout.slots import Admission, SlotTable
from mindgspo.types import FinishReason, Prompt

EOS = 99
STREAM = RandomStream(seed=1, purpose=Purpose.TRAINING, step=1)


def make_prompt(index: int, length: int) -> Prompt:
    return Prompt(index=index, ids=np.arange(1, length + 1, dtype=np.int32), text="", answer="", data_source="test")


def make_table(
    prompts: list[Prompt], *, num_samples: int, num_slots: int, max_new_tokens: int, temperature: float = 1.0
) -> SlotTable:
    settings_ = SamplingSettings(
        num_samples=num_samples, temperature=temperature, max_new_tokens=max_new_tokens, stream=STREAM
    )
    return SlotTable(prompts, settings_, num_slots=num_slots, eos_ids={EOS, 98}, weight_version=5)


@dataclass
class Journal:
    """What one simulated rollout did."""

    admitted: list[Admission] = field(default_factory=list)
    steps: int = 0
    busy: int = 0
    idle_while_waiting: int = 0


def drive(table: SlotTable, planned: Callable[[int, int], list[int]], limit: int, num_samples: int) -> Journal:
    """Decode with a fake model: sample s of prompt p emits the tokens of planned(p, s), with log-prob -token."""
    journal, occupant, emitted = Journal(), {}, {}
    while not table.done:
        while admissions := table.admissions(limit):
            assert len(admissions) <= limit
            for admission in admissions:
                assert admission.slot not in occupant, "the slot still holds an unfinished sample"
                table.place(admission)
                occupant[admission.slot] = (admission.prompt, admission.sample)
                emitted[admission.slot] = 0
                journal.admitted.append(admission)
        assert table.num_busy == len(occupant)
        journal.steps, journal.busy = journal.steps + 1, journal.busy + table.num_busy
        assert journal.steps < 10_000, "the table never gets done"
        ids = np.full(table.ids_S.size, 55, np.int32)  # idle slots emit rubbish
        for slot, key in occupant.items():
            ids[slot] = planned(*key)[emitted[slot]]
        table.advance(ids, -ids.astype(np.float32))
        for slot, key in list(occupant.items()):
            emitted[slot] += 1
            if emitted[slot] == len(planned(*key)):
                del occupant[slot]
    return journal


@settings(max_examples=150)
@given(data=st.data())
def test_every_sample_ends_exactly_once_with_its_own_tokens(data: st.DataObject) -> None:
    num_prompts, num_samples = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    num_slots, limit = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 8))
    max_new_tokens = data.draw(st.integers(1, 6))
    prompts = [make_prompt(10 * p + 3, data.draw(st.integers(1, 4))) for p in range(num_prompts)]
    lengths = data.draw(
        st.lists(st.integers(1, max_new_tokens), min_size=num_prompts * num_samples, max_size=num_prompts * num_samples)
    )
    ends_in_eos = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))

    def planned(prompt: int, sample: int) -> list[int]:
        number = prompt * num_samples + sample
        tokens = [1 + (number * 7 + t) % 90 for t in range(lengths[number])]
        if ends_in_eos[number] or lengths[number] < max_new_tokens:
            tokens[-1] = EOS - number % 2
        return tokens

    table = make_table(prompts, num_samples=num_samples, num_slots=num_slots, max_new_tokens=max_new_tokens)
    journal = drive(table, planned, limit, num_samples)
    order = [(admission.prompt, admission.sample) for admission in journal.admitted]
    assert order == [(p, s) for p in range(num_prompts) for s in range(num_samples)]
    assert journal.busy == sum(lengths)
    # A slot waits for nobody: a greedy list schedule ends within the bound of Graham.
    assert journal.steps <= sum(lengths) / num_slots + max(lengths)
    responses = table.responses()
    assert len(responses) == num_prompts
    for p, siblings in enumerate(responses):
        assert [response.sample_index for response in siblings] == list(range(num_samples))
        for s, response in enumerate(siblings):
            tokens = planned(p, s)
            assert response.prompt_index == prompts[p].index and response.weight_version == 5
            assert response.ids.tolist() == tokens
            assert response.logprobs.tolist() == [-float(token) for token in tokens]
            stopped = tokens[-1] in (EOS, EOS - 1)
            assert response.finish_reason == (FinishReason.STOP if stopped else FinishReason.LENGTH)


def test_what_each_step_is_fed() -> None:
    table = make_table([make_prompt(4, 3)], num_samples=2, num_slots=3, max_new_tokens=2)
    for admission in table.admissions(8):
        table.place(admission)
    # The prompt's last token at its own position, then the sampled token one position on.
    assert table.ids_S.tolist() == [3, 3, 0] and table.positions_S.tolist() == [2, 2, 0]
    expected = [STREAM.uniforms(4, 0, 2), STREAM.uniforms(4, 1, 2)]
    assert table.uniforms().tolist() == [expected[0][0], expected[1][0], 1.0]
    table.advance(np.array([41, EOS, 17], np.int32), np.zeros(3, np.float32))
    assert table.ids_S.tolist() == [41, 0, 0] and table.positions_S.tolist() == [3, 0, 0]
    assert table.uniforms()[0] == expected[0][1]
    assert table.num_busy == 1 and not table.done


def test_an_eos_in_the_last_place_is_a_stop() -> None:
    table = make_table([make_prompt(0, 1)], num_samples=1, num_slots=1, max_new_tokens=1)
    drive(table, lambda prompt, sample: [EOS], 1, 1)
    assert table.responses()[0][0].finish_reason == FinishReason.STOP


def test_a_slot_is_filled_again_in_the_step_after_its_sample_ends() -> None:
    # Two slots; the first sample takes 6 steps, the others 1 to 3: 6 + 6 tokens fit exactly into 2 x 6.
    lengths = [6, 1, 2, 3]
    table = make_table([make_prompt(0, 1), make_prompt(1, 2)], num_samples=2, num_slots=2, max_new_tokens=7)
    journal = drive(table, lambda p, s: [1] * (lengths[2 * p + s] - 1) + [EOS], 2, 2)
    assert (journal.steps, journal.busy) == (6, 12)


def test_greedy_tables_ask_for_no_random_numbers() -> None:
    table = make_table([make_prompt(0, 1)], num_samples=1, num_slots=2, max_new_tokens=3, temperature=0.0)
    table.place(table.admissions(1)[0])
    assert table.uniforms().tolist() == [1.0, 1.0]
