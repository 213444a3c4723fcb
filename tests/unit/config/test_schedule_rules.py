"""Rules of generation by other processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mindgspo.config import ExperimentConfig

URLS = 'rollout.servers.urls=["http://10.0.0.2:8000","https://node:8001/policy"]'
ONE_OFF = "trainer.schedule=one_step_off"


@pytest.mark.parametrize("schedule", ["sync", "one_step_off", "bounded"])
def test_servers_that_somebody_has_started(load: Callable[..., ExperimentConfig], schedule: str) -> None:
    config = load(URLS, f"trainer.schedule={schedule}", "rollout.servers.api=vllm")
    assert config.has_servers and not config.has_own_servers
    assert config.staleness == (0 if schedule == "sync" else 1)


def test_servers_that_a_run_starts(load: Callable[..., ExperimentConfig]) -> None:
    config = load(ONE_OFF)
    assert config.has_servers and config.has_own_servers


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ['rollout.servers.urls=["10.0.0.2:8000"]'],
            "rollout.servers.urls: '10.0.0.2:8000' is no address of a server; write e.g. http://10.0.0.2:8000",
        ),
        (
            ['rollout.servers.urls=["http://me:s3cret@10.0.0.2:8000"]'],
            "rollout.servers.urls: that of 10.0.0.2 has a user, a query or a fragment; remove it, and give a key by "
            "rollout.servers.api_key_file",
        ),
        (
            ['rollout.servers.urls=["http://a:1","http://a:1"]'],
            "rollout.servers.urls: http://a:1 is named twice; name each server once",
        ),
        (
            [URLS, 'plans.infer.cards="1"'],
            'plans.infer.cards: "1" are for servers that the run starts, and rollout.servers.urls names others; remove '
            "one of them",
        ),
        (
            [ONE_OFF, "rollout.servers.api=vllm"],
            "rollout.servers.api: vllm is for servers that somebody has started; name them in rollout.servers.urls, or "
            "remove it",
        ),
        (
            [ONE_OFF, "trainer.max_staleness=2"],
            "trainer.max_staleness: 2; with schedule=one_step_off responses are one step old; legal: 0 or 1, or set "
            "trainer.schedule=bounded",
        ),
        (
            ['plans.train.cards="0"'],
            "plans.train.cards: training has the first cards; remove it (plans.infer.cards names those of generation)",
        ),
        (
            [ONE_OFF, 'plans.infer.cards="0"'],
            'plans.infer.cards: "0" holds card 0, and plans.train 1 x 1 x 1 has the first 1; set plans.infer.cards="1"',
        ),
        (
            [ONE_OFF, 'plans.infer.cards="1, 2"'],
            'plans.infer.cards: "1, 2" names no cards; write numbers and ranges, e.g. "4-7" or "4,6"',
        ),
        (
            [ONE_OFF, 'plans.infer.cards="2-1"'],
            'plans.infer.cards: "2-1" are 0 cards, plans.infer 1 x 1 x 1 needs 1; set plans.infer.cards="1", or '
            "plans.infer.data_parallel",
        ),
    ],
)
def test_what_cannot_be(problems: Callable[..., list[str]], overrides: list[str], line: str) -> None:
    assert problems(*overrides) == [line]
