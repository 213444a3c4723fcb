"""Counters of several replicas, over a single process that stands for them."""

import numpy as np
import pytest
from scripted_engine import ScriptedEngine

from mindgspo.parallel.placement import ALONE
from mindgspo.rollout.protocol import Purpose, RandomStream, RolloutCounters, SamplingSettings
from mindgspo.types import Prompt


def counters(numbers: int) -> RolloutCounters:
    return RolloutCounters(
        prefilled_prompts=numbers, decode_steps=numbers, busy_slot_steps=numbers, slot_steps=numbers,
        generated_tokens=numbers, preemptions=numbers, most_blocks=numbers,
    )  # fmt: skip


def test_counters_add_up_but_for_the_most() -> None:
    total = RolloutCounters.total([counters(2), counters(5)])
    assert (total.generated_tokens, total.preemptions, total.most_blocks) == (7, 7, 5)
    assert RolloutCounters.total([]) == counters(0)


@pytest.mark.usefixtures("cpu_runtime")
def test_a_single_replica_is_its_engine() -> None:
    from mindgspo.rollout.replicated import ReplicatedEngine

    own = ScriptedEngine(lambda prompt, sample: [7, 8, 9][: sample + 1])
    brought: list[int] = []
    engine = ReplicatedEngine(own, ALONE, brought.append)
    engine.load_weights(3)
    assert brought == [3]
    prompts = [Prompt(index=i, ids=np.array([5], np.int32), text="", answer="", data_source="test") for i in (4, 2)]
    stream = RandomStream(seed=1, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=2, temperature=1.0, max_new_tokens=3, stream=stream)
    found = engine.generate(prompts, settings, weight_version=3)
    expected = own.generate(prompts, settings, weight_version=3)
    assert found.counters == expected.counters
    for group, other in zip(found.responses, expected.responses, strict=True):
        assert [response.ids.tolist() for response in group] == [response.ids.tolist() for response in other]
