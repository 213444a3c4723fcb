"""Metrics that follow from a step's groups alone: rewards, verdicts, advantages, lengths.

Metrics:
  Rewards and advantages:
    critic/score/<stat>:
      meaning: weighted sum of the reward functions, of the responses that have a reward
      unit: reward
      healthy: the mean rises
      action: 'flat: see the diagnosis lines (clipped responses, groups without signal, no answer found)'
    critic/rewards/<stat>:
      meaning: reward as it enters the advantages
      unit: reward
      healthy: as critic/score; lower by a KL penalty in the reward
    critic/advantages/<stat>:
      meaning: advantage of the responses
      unit: std of the group
      healthy: mean near 0; |max| below sqrt(G) with grpo's estimator
      action: 'mean far from 0: the estimator has no baseline; rescale or choose another algorithm.advantage.estimator'
    reward/correct_ratio:
      meaning: responses with the correct answer
      unit: share of responses
      healthy: rises; 0.2 to 0.8 gives most signal
      action: 'near 0: easier prompts or a warm-up; near 1: harder prompts, nothing is left to learn'
    reward/wrong_ratio:
      meaning: responses with an answer that is wrong
      unit: share of responses
      healthy: falls
    reward/no_answer_ratio:
      meaning: responses without a recognisable answer
      unit: share of responses
      healthy: below 0.2 and falling
      action: 'too short max_new_tokens, or an answer format the reward does not read; read samples.jsonl: prompt,
        answer format and reward function must fit together'
    reward/invalid_ratio:
      meaning: responses left out because no reward could be given (error, timeout, unreadable gold answer)
      unit: share of responses
      healthy: '0'
      action: see the ratios of the verdicts below, and the messages in samples.jsonl
    reward/unparseable_gold_ratio:
      meaning: responses to rows whose gold answer the reward function cannot read; left out
      unit: share of responses
      healthy: '0'
      action: take these rows out of the data, or name a function that reads them under reward.functions
    reward/timeout_ratio:
      meaning: responses that were not scored within reward.workers.timeout_s, so that their worker was killed;
        those of math count as wrong (reward.workers.on_timeout), others are left out
      unit: share of responses
      healthy: 0 or close to it
      action: 'above 0.02: make your reward function faster, or raise reward.workers.timeout_s; the messages
        in samples.jsonl name the function'
    reward/error_ratio:
      meaning: responses on which a reward function failed (exception, crash, more memory than reward.workers.memory_mb,
        a result that is no reward) or abstained; left out
      unit: share of responses
      healthy: '0'
      action: read the messages in samples.jsonl; the log has the first one
    reward/zero_signal_group_ratio:
      meaning: groups whose responses all have the same reward, hence advantage 0 and no gradient
      unit: share of groups
      healthy: below 0.7
      action: easier or harder prompts, a larger group, or a higher temperature; algorithm.filter_groups takes
        such groups out of the mean
    reward/part/<name>/mean:
      meaning: mean of one reward function before weighting; your own function goes by its file and its name
      unit: reward
      healthy: each part moves in its own time
      action: 'one rises while the one you care about falls: change reward.weights'
    reward/extra/<name>/<key>/mean:
      meaning: mean of a further number that your own reward function returned beside its score, by its key;
        logged only
  Lengths:
    response_length/<stat>:
      meaning: sampled tokens of a response, end token included
      unit: tokens
      healthy: steady or growing slowly while the reward rises
      action: 'longer without more reward: look at actor/grad_share_length_decile; shrinking to a few tokens:
        read samples.jsonl: prompt, answer format and reward function must fit together'
    response_length/clip_ratio:
      meaning: responses cut at rollout.max_new_tokens
      unit: share of responses
      healthy: below 0.1
      action: raise rollout.max_new_tokens; cut responses seldom hold an answer
    response/aborted_ratio:
      meaning: responses without a token; the engine of this project ends every response that it begins
      unit: share of responses
      healthy: '0'
    prompt_length/<stat>:
      meaning: prompt length
      unit: tokens
      healthy: up to data.max_prompt_length
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mindgspo.metrics.episode_metrics import episode_metrics
from mindgspo.types import FinishReason, Group, Score, Verdict


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """critic/*, reward/*, response*/*, prompt_length/* and env/* of all responses of `groups` (at least one).

    Responses without a reward (value None) count in reward/invalid_ratio and lengths, not in critic/*: if
    none is left, the critic names are absent. The shares of the six verdicts add up to 1. Names of functions and
    of a user's further numbers enter the metrics' names with "_" for what is no letter, digit, "_", "." or "-".
    """
    assert groups, "metrics of no groups"
    responses = [response for group in groups for response in group.responses]
    scores = [score for group in groups for score in group.scores]
    metrics = _verdict_shares(scores)
    metrics |= {f"reward/part/{name}/mean": mean for name, mean in _means(score.parts for score in scores)}
    metrics |= {f"reward/extra/{name}/mean": mean for name, mean in _means(score.extras for score in scores)}
    valid = [score.value for score in scores if score.value is not None]
    if valid:
        metrics |= _statistics("critic/score", valid) | _statistics("critic/rewards", valid)
        metrics |= _statistics(
            "critic/advantages",
            [
                float(advantage)
                for group in groups
                for score, advantages in zip(group.scores, group.advantages, strict=True)
                if score.value is not None
                for advantage in advantages
            ],
        )
    silent = sum(not any(advantages.any() for advantages in group.advantages) for group in groups)
    cut = sum(response.finish_reason is FinishReason.LENGTH for response in responses)
    return (
        metrics
        | {"reward/zero_signal_group_ratio": silent / len(groups)}
        | _statistics("response_length", [response.length for response in responses])
        | {"response_length/clip_ratio": cut / len(responses)}
        | {"response/aborted_ratio": sum(response.length == 0 for response in responses) / len(responses)}
        | _statistics("prompt_length", [group.prompt.ids.size for group in groups])
        | episode_metrics(responses)
    )


def _statistics(name: str, values: Iterable[float]) -> dict[str, float]:
    array = np.asarray(list(values), np.float64)
    return {
        f"{name}/mean": float(array.mean()),
        f"{name}/max": float(array.max()),
        f"{name}/min": float(array.min()),
    }


def _verdict_shares(scores: Sequence[Score]) -> dict[str, float]:
    counts = Counter(score.verdict for score in scores)
    shares = {f"reward/{verdict.value}_ratio": counts[verdict] / len(scores) for verdict in Verdict}
    return shares | {"reward/invalid_ratio": sum(score.value is None for score in scores) / len(scores)}


def _means(tables: Iterable[Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    """Mean of each name over the responses that have it; where two names become one, they are counted together."""
    values: dict[str, list[float]] = {}
    for table in tables:
        for name, value in table.items():
            values.setdefault(_metric_name(name), []).append(value)
    for name, found in sorted(values.items()):
        yield name, float(np.mean(found))


def _metric_name(name: str) -> str:
    """The keys of a user's dict may be any text; the slash between function and key stays, further ones do not."""
    return "/".join(re.sub(r"[^\w.-]", "_", part) or "_" for part in name.split("/", 1))
