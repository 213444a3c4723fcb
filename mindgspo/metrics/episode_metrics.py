"""Metrics of the episodes of a step: what the policy did in its environment, and how that ended.

Metrics:
  Environment:
    env/turns/mean:
      meaning: assistant turns of an episode
      unit: turns
      healthy: as many as the task takes
      action: 'near environment.max_turns: see env/end/max_turns; 1 although tools would help: read samples.jsonl'
    env/turns/max:
      meaning: assistant turns of the longest episode
      unit: turns
    env/tool_calls/mean:
      meaning: calls of tools in an episode, those that could not be read among them
      unit: calls
      healthy: above 0 where tools help
      action: '0: the prompt must name the tools, and the parser must be that of the chat template; read
        samples.jsonl'
    env/tool_error_share/<name>:
      meaning: calls of tools that ended in an error of this kind; absent without a call
      unit: share of calls
      healthy: near 0
      action: 'high: read samples.jsonl: malformed and bad_arguments fall as the policy learns the form; failed
        is the tool''s own'
    env/seconds/mean:
      meaning: time of an episode in its environment
      unit: s
      healthy: short beside timing_s/gen
    env/action_token_share:
      meaning: tokens of all responses that the policy sampled; the others are observations, which are computed
        and not trained
      unit: share of tokens
      healthy: above 0.3
      action: 'low: shorten what tools return'
    env/end/<reason>:
      meaning: episodes that ended so (done, max_turns, turn_tokens, episode_tokens, failed)
      unit: share of episodes
      healthy: done near 1, failed 0
      action: 'raise the limit that the others name, or reward shorter episodes; failed: read the messages in
        samples.jsonl'
    env/observation_tokens/mean:
      meaning: tokens of the observations of an episode
      unit: tokens
    env/left_out_tokens/mean:
      meaning: tokens of observations that were left out by a limit, in an episode
      unit: tokens
      healthy: '0'
      action: shorten what tools return, or raise the limit of an observation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindgspo.types import EpisodeEnd, Response


def episode_metrics(responses: Sequence[Response]) -> dict[str, float]:
    """env/* of the responses that have an episode; {} if none has."""
    observed = [(response, response.episode) for response in responses if response.episode is not None]
    if not observed:
        return {}
    turns = [episode.turns for _, episode in observed]
    calls = [sum(max(turn.num_calls, len(turn.errors)) for turn in own) for own in turns]
    errors = Counter(kind for own in turns for turn in own for kind in turn.errors)
    ends = Counter(episode.end for _, episode in observed)
    tokens = [response.ids.size for response, _ in observed]
    sampled = [response.length for response, _ in observed]
    means = {
        "turns": [len(own) for own in turns],
        "tool_calls": calls,
        "seconds": [sum(turn.seconds for turn in own) for own in turns],
        "observation_tokens": np.subtract(tokens, sampled),
        "left_out_tokens": [sum(turn.num_left_out for turn in own) for own in turns],
    }
    return {
        **{f"env/{name}/mean": float(np.mean(values)) for name, values in means.items()},
        "env/turns/max": max(map(len, turns)),
        "env/action_token_share": sum(sampled) / sum(tokens),
        **{f"env/tool_error_share/{kind}": count / sum(calls) for kind, count in sorted(errors.items())},
        **{f"env/end/{end.value}": ends[end] / len(observed) for end in EpisodeEnd},
    }
