"""The fake engine keeps the promises of the protocol."""

import numpy as np
import pytest
from scripted_engine import ScriptedEngine

from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.types import FinishReason, Prompt

SETTINGS = SamplingSettings(
    num_samples=2, temperature=1.0, max_new_tokens=3, stream=RandomStream(seed=0, purpose=Purpose.EVALUATION, step=0)
)
PROMPTS = [Prompt(index=i, ids=np.array([1], np.int32), text="", answer="", data_source="test") for i in (4, 9)]


def test_it_answers_by_prompt_and_sample() -> None:
    engine = ScriptedEngine(lambda prompt, sample: [prompt.index] * (1 + 3 * sample), logprob=-0.25)
    engine.load_weights(3)
    rollout = engine.generate(PROMPTS, SETTINGS, weight_version=3)
    found = [[(r.prompt_index, r.sample_index, r.ids.tolist()) for r in group] for group in rollout.responses]
    assert found == [[(4, 0, [4]), (4, 1, [4, 4, 4])], [(9, 0, [9]), (9, 1, [9, 9, 9])]]
    assert [r.finish_reason for r in rollout.responses[0]] == [FinishReason.STOP, FinishReason.LENGTH]
    assert rollout.responses[0][1].logprobs.tolist() == [-0.25] * 3
    assert rollout.counters.prefilled_prompts == 2 and rollout.counters.generated_tokens == 8
    assert rollout.counters.busy_share == 1


def test_it_refuses_stale_weights() -> None:
    engine = ScriptedEngine(lambda prompt, sample: [1])
    engine.load_weights(1)
    with pytest.raises(AssertionError):
        engine.generate(PROMPTS, SETTINGS, weight_version=2)
