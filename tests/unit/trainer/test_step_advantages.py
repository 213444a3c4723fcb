"""From the rewards of a step to the advantage of every token in the batch rows, by hand for what needs the trainer."""

from __future__ import annotations

import math

import numpy as np
from scripted_engine import ScriptedEngine, assert_advantages, responses_of

from mindgspo.types import StepResult


class RecordingEngine(ScriptedEngine):
    """Answers greedy requests from a script of their own, and remembers what it was asked."""

    def __init__(self, sampled, greedy) -> None:
        super().__init__(sampled)
        self._scripts, self.asked = (sampled, greedy), []

    def generate(self, prompts, settings, *, weight_version):
        self.asked.append((settings.temperature, settings.num_samples, settings.max_new_tokens, len(prompts)))
        self._script = self._scripts[settings.temperature == 0]
        return super().generate(prompts, settings, weight_version=weight_version)


def each(result: StepResult, values: list[float | None]) -> list[np.ndarray | None]:
    """One value for all tokens of a response; None where there is none."""
    return [
        None if value is None else np.full(response.length, value)
        for response, value in zip(responses_of(result), values, strict=True)
    ]


def test_remax_alone_subtracts_the_reward_of_a_greedy_response(make_trainer, one_of_two_right, answer) -> None:
    # The greedy answer is right for prompts 0 and 3 only.
    engine = RecordingEngine(
        one_of_two_right, lambda prompt, sample: answer(prompt.answer if prompt.index in (0, 3) else "998")
    )
    trainer = make_trainer(one_of_two_right, "algorithm.advantage.estimator=remax", engine=engine)
    result = trainer.train_step(1)
    assert engine.asked == [(1.0, 2, 16, 4), (0.0, 1, 16, 4)]
    assert_advantages(result, trainer, each(result, [0, -1, 1, 0, 1, 0, 0, -1]))
    metrics = result.metrics
    assert (metrics["samples/generated"], metrics["samples/trained"]) == (8, 8), "greedy answers are no samples"
    assert metrics["critic/score/mean"] == 0.5
    engine = RecordingEngine(one_of_two_right, None)
    make_trainer(one_of_two_right, engine=engine).train_step(1)
    assert engine.asked == [(1.0, 2, 16, 4)]


def test_a_prompt_whose_greedy_response_has_no_reward_is_left_out(make_trainer, one_of_two_right, answer, fakes):
    engine = RecordingEngine(one_of_two_right, lambda prompt, sample: answer("998"))
    scorer = fakes.abstaining_scorer(
        lambda one: (one.index == 1 and "998" in one.text) or (one.index == 2 and "999" in one.text)
    )
    trainer = make_trainer(one_of_two_right, "algorithm.advantage.estimator=remax", engine=engine, reward_scorer=scorer)
    result = trainer.train_step(1)
    names = ("trained", "filtered", "filtered/no_baseline", "filtered/timeout")
    assert [result.metrics[f"samples/{name}"] for name in names] == [5, 3, 2, 1]
    assert_advantages(result, trainer, each(result, [1, 0, None, None, 1, None, 1, 0]))
    assert [batches[0].num_sequences for batches in trainer.updater.batches] == [2, 3]


REINFORCE = (
    "algorithm.name=gspo_token", "algorithm.advantage.estimator=reinforce_plus_plus", "algorithm.advantage.gamma=0.5",
)  # fmt: skip


def discounted(result: StepResult, rewards: list[float | None]) -> list[np.ndarray | None]:
    """The reward stands at the last token; every token before it sees half of what the next one does."""
    return [one if one is None else one * 0.5 ** np.arange(one.size - 1, -1, -1) for one in each(result, rewards)]


def test_discounted_returns_reach_the_rows_whitened_or_not(make_trainer, one_of_two_right, fakes) -> None:
    trainer = make_trainer(one_of_two_right, *REINFORCE, "algorithm.advantage.whiten=none")
    result = trainer.train_step(1)
    lengths = [response.length for response in responses_of(result)]
    assert len(set(lengths)) > 1 and min(lengths) > 2, "the example shows too little"
    assert_advantages(result, trainer, discounted(result, [1, 0] * 4), rtol=1e-6)
    # Over both mini-batches, without the response whose reward abstained.
    scorer = fakes.abstaining_scorer(lambda one: one.index == 1 and "999" not in one.text)
    trainer = make_trainer(one_of_two_right, *REINFORCE, reward_scorer=scorer)
    result = trainer.train_step(1)
    returns = discounted(result, [1, 0, None, 0, 1, 0, 1, 0])
    tokens = np.concatenate([array for array in returns if array is not None])
    expected = [None if array is None else (array - tokens.mean()) / tokens.std(ddof=1) for array in returns]
    assert_advantages(result, trainer, expected, rtol=1e-5, atol=1e-6)


def test_several_reward_functions_are_normalised_each_by_itself(make_trainer, tokenizer) -> None:
    """gsm8k pays 1 or 0 for "#### n", math_dapo 1 or -1 for "Answer: n".

    They prefer different siblings of prompt 0 and the same one of prompt 1; only gsm8k has a choice for prompt 2, and
    neither for prompt 3.
    """
    right = {0: ("10", "01"), 1: ("11", "00"), 2: ("11", "01"), 3: ("11", "11")}

    def script(prompt, sample):
        first, second = (prompt.answer if is_right == "1" else "9" for is_right in right[prompt.index][sample])
        return [*tokenizer.encode(f"#### {first}\nAnswer: {second}"), tokenizer.eos_ids[0]]

    settings = (
        "rollout.max_new_tokens=48", "reward.functions=[gsm8k, math_dapo]", "reward.weights=[1.0, 0.25]",
        "algorithm.advantage.combine=normalize_then_sum",
    )  # fmt: skip
    trainer = make_trainer(script, *settings)
    result = trainer.train_step(1)
    found = [[tuple(score.parts.values()) for score in group.scores] for group in result.groups]
    assert found == [[(1, -1), (0, 1)], [(1, 1), (0, -1)], [(1, 1), (0, 1)], [(1, 1), (1, 1)]], "what is meant above"
    # (r - mean) / std of two unlike rewards is +-sqrt(1/2), whatever their size: sums of 1 and 0.25 times that, with
    # both signs in each group, normalised once more over the step.
    sums = np.array([0.75, -0.75, 1.25, -1.25, 1.0, -1.0, 0, 0]) * math.sqrt(0.5)
    assert_advantages(result, trainer, each(result, list(sums / math.sqrt(np.square(sums).sum() / 7))), rtol=1e-4)
