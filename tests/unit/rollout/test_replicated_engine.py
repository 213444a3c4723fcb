"""Counters of several replicas, over a single process that stands for them."""

from dataclasses import replace

import numpy as np
import pytest
from episodes import episode_of, response_of
from scripted_engine import ScriptedEngine

from mindgspo.metrics import unknown_names
from mindgspo.parallel.collectives.replicas import pack_arrays, unpack_arrays
from mindgspo.parallel.plans.placement import ALONE
from mindgspo.rollout.protocol import Purpose, RandomStream, RolloutCounters, SamplingSettings
from mindgspo.trainer.metrics import rollout_metrics
from mindgspo.types import EpisodeEnd, Prompt


def counters(numbers: int) -> RolloutCounters:
    return RolloutCounters(**dict.fromkeys(("slot_steps", "generated_tokens", "preemptions", "most_blocks"), numbers))


def test_counters_of_replicas_are_combined() -> None:
    total = RolloutCounters.total([counters(2), counters(5)])
    assert (total.generated_tokens, total.preemptions, total.most_blocks) == (7, 7, 5)
    assert RolloutCounters.total([]) == RolloutCounters()
    slow = replace(counters(1), fastest_us=5, slowest_us=90, slowest_prompt=3, slowest_response=40)
    fast = replace(counters(1), fastest_us=2, slowest_us=60, slowest_prompt=7, slowest_response=30)
    total = RolloutCounters.total([fast, counters(0), slow])  # a replica without prompts measures nothing
    assert (total.fastest_us, total.slowest_us) == (2, 90)
    assert (total.slowest_prompt, total.slowest_response) == (3, 40)
    assert not any("agent_loop" in name for name in rollout_metrics(counters(1)))
    metrics = rollout_metrics(total)
    assert unknown_names(metrics) == []
    names = ("generate_sequences/min", "generate_sequences/max", "slowest/prompt_length", "slowest/response_length")
    assert [metrics[f"timing_s/agent_loop/{name}"] for name in names] == [2e-6, 9e-5, 3, 40]


@pytest.mark.usefixtures("cpu_runtime")
def test_episodes_travel_between_ranks_and_plain_responses_as_without_them() -> None:
    from mindgspo.rollout.build import _packed, _unpacked

    episode = episode_of((0, 2), (4, 5), end=EpisodeEnd.MAX_TURNS, reward=0.5, info={"moves": 2.0}, message="none left")
    plain, observed = response_of([5, 6, 7], None), response_of([8, 9, 1, 2, 10, 3], episode, sample=1)
    prompt = Prompt(index=0, ids=np.array([5], np.int32), text="", answer="", data_source="test")
    stream = RandomStream(seed=1, purpose=Purpose.TRAINING, step=1)
    settings = SamplingSettings(num_samples=2, temperature=1.0, max_new_tokens=3, stream=stream)
    assert len(_packed([plain])) == 4 and len(_packed([plain, observed])) == 5
    for siblings in ([plain], [plain, observed], [replace(observed, sample_index=0)]):
        (arrays,) = unpack_arrays(pack_arrays([_packed(siblings)]))
        for one, other in zip(siblings, _unpacked(arrays, prompt, settings, 3), strict=True):
            assert (one.ids.tolist(), one.logprobs.tolist()) == (other.ids.tolist(), other.logprobs.tolist())
            assert one.episode == other.episode and one.finish_reason is other.finish_reason


@pytest.mark.usefixtures("cpu_runtime")
def test_a_single_replica_is_its_engine() -> None:
    from mindgspo.rollout.build import ReplicatedEngine

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
