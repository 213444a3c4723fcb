"""Metrics of episodes, and their line in samples.jsonl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from episodes import episode_of, response_of

from mindgspo.metrics import group_metrics, unknown_names
from mindgspo.metrics.episode_metrics import episode_metrics
from mindgspo.metrics.run_log import training_records, validation_records
from mindgspo.types import Episode, EpisodeEnd, Group, TurnSpan, Verdict

# Of three turns in eleven tokens, six of them sampled; two of four calls failed, one of which could not be read.
LONG = Episode(
    turns=(
        TurnSpan(start=0, stop=2, num_calls=3, errors=("bad_arguments",), seconds=0.5, num_left_out=30),
        TurnSpan(start=4, stop=7, num_calls=0, errors=("malformed",), seconds=0.25),
        TurnSpan(start=10, stop=11),
    ),
    end=EpisodeEnd.MAX_TURNS, reward=0.5, is_correct=None, info={"moves": 2.0},
)  # fmt: skip


def test_figures_of_episodes_by_hand() -> None:
    done = episode_of((0, 4))
    metrics = episode_metrics([response_of(range(11), LONG), response_of(range(4), done), response_of(range(50), None)])
    assert metrics == pytest.approx({
        "env/turns/mean": 2, "env/turns/max": 3, "env/tool_calls/mean": 2, "env/seconds/mean": 0.375,
        "env/observation_tokens/mean": 2.5, "env/left_out_tokens/mean": 15, "env/action_token_share": 10 / 15,
        "env/tool_error_share/bad_arguments": 0.25, "env/tool_error_share/malformed": 0.25, "env/end/done": 0.5,
        "env/end/max_turns": 0.5, "env/end/turn_tokens": 0, "env/end/episode_tokens": 0, "env/end/failed": 0,
    })  # fmt: skip
    assert unknown_names(metrics) == []
    assert episode_metrics([response_of(range(50), None)]) == {}


def test_groups_count_sampled_tokens_and_log_their_episodes(build_group: Callable[..., Group]) -> None:
    group = build_group(0, [Verdict.CORRECT, Verdict.WRONG])
    assert not any(name.startswith("env/") for name in group_metrics([group]))
    first = group.responses[0]
    observed = replace(first, ids=np.resize(first.ids, 14), episode=episode_of((0, 4), (8, 14), info={"moves": 2.0}))
    group = replace(group, responses=(observed, group.responses[1]))
    metrics = group_metrics([group])
    assert (metrics["response_length/mean"], metrics["env/action_token_share"]) == (10.5, 10 / 14)
    for records in (training_records(1, group, str), validation_records(1, "test", group, str)):
        line, plain = records
        assert line["length"] == 10 and "episode" not in plain
        assert (line["episode"]["end"], line["episode"]["info"]) == ("done", {"moves": 2.0})
        assert [(turn["start"], turn["stop"]) for turn in line["episode"]["turns"]] == [(0, 4), (8, 14)]


def test_a_line_has_what_was_said_and_observed(build_group: Callable[..., Group]) -> None:
    """Log-probs -0.5, -1, ... are those of the six sampled tokens 0 1, 4 5 6 and 10."""
    group = build_group(0, [Verdict.CORRECT])
    group = replace(group, responses=(response_of(range(11), LONG),), advantages=(np.zeros(6, np.float32),))
    (line,) = training_records(1, group, lambda ids: " ".join(map(str, ids)))
    names = ("text", "mean_logprob", "observation", "num_observed", "seconds")
    assert [tuple(turn[name] for name in names) for turn in line["episode"]["turns"]] == [
        ("0 1", -0.75, "2 3", 2, 0.5), ("4 5 6", -2.0, "7 8 9", 3, 0.25), ("10", -3.0, "", 0, 0.0),
    ]  # fmt: skip
    assert line["episode"]["turns"][0]["errors"] == ["bad_arguments"]
