"""Rules of generation by other processes, and of schedules that let it go on while a step trains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from mindgspo.config.plan import check_same_world
from mindgspo.config.schema import ExperimentConfig

_CARDS = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", re.ASCII)


def schedule_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule, one line each."""
    trainer, plans = config.trainer, config.plans
    if plans.train.cards is not None:
        yield "plans.train.cards: training has the first cards; remove it (plans.infer.cards names those of generation)"
    if config.has_own_servers:
        yield from _card_problems(config)
    elif not config.has_servers:
        yield from check_same_world(plans.train, plans.infer, "plans.infer")
    servers = config.rollout.servers
    if servers.urls:
        yield from _url_problems(config)
    elif servers.api != "mindgspo":
        yield (
            f"rollout.servers.api: {servers.api} is for servers that somebody has started; name them in "
            "rollout.servers.urls, or remove it"
        )
    if trainer.schedule == "sync":
        return
    if trainer.schedule == "one_step_off" and trainer.max_staleness > 1:
        yield (
            f"trainer.max_staleness: {trainer.max_staleness}; with schedule=one_step_off responses are one step "
            "behind; legal: 0 or 1, or set trainer.schedule=bounded"
        )
    if config.algorithm.advantage.estimator == "remax":
        yield (
            f"trainer.schedule: {trainer.schedule} draws no greedy responses, with which algorithm.advantage.estimator="
            "remax compares; set schedule=sync, or another estimator, e.g. rloo"
        )
    if config.algorithm.filter_groups.keep_surplus_steps:
        yield (
            "algorithm.filter_groups.keep_surplus_steps: with schedule="
            f"{trainer.schedule} prompts wait in its own queue; set it to 0 (trainer.max_staleness bounds their age)"
        )


def infer_cards(config: ExperimentConfig) -> tuple[int, ...]:
    """Cards of the servers that the run starts, replica by replica."""
    plans = config.plans
    first = plans.train.world_size
    named = plans.infer.card_numbers
    return tuple(range(first, first + plans.infer.world_size)) if named is None else named


def _card_problems(config: ExperimentConfig) -> Iterator[str]:
    train, infer = config.plans.train, config.plans.infer
    if infer.cards is not None and not _CARDS.fullmatch(infer.cards):
        yield f'plans.infer.cards: "{infer.cards}" names no cards; write numbers and ranges, e.g. "4-7" or "4,6"'
        return
    cards = infer_cards(config)
    shared = sorted({card for card in cards if card < train.world_size})
    free = f"{train.world_size}-{train.world_size + infer.world_size - 1}" if infer.world_size > 1 else train.world_size
    if shared:
        yield (
            f'plans.infer.cards: "{infer.cards}" holds card {shared[0]}, and plans.train {train} has the first '
            f'{train.world_size}; set plans.infer.cards="{free}"'
        )
    elif len(set(cards)) != infer.world_size or len(cards) != infer.world_size:
        yield (
            f'plans.infer.cards: "{infer.cards}" are {len(set(cards))} cards, plans.infer {infer} needs '
            f'{infer.world_size}; set plans.infer.cards="{free}", or plans.infer.data_parallel'
        )


def _url_problems(config: ExperimentConfig) -> Iterator[str]:
    urls = config.rollout.servers.urls
    if config.plans.infer.cards is not None:
        yield (
            f'plans.infer.cards: "{config.plans.infer.cards}" are for servers that the run starts, and '
            "rollout.servers.urls names others; remove one of them"
        )
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            yield f"rollout.servers.urls: {url!r} is no address of a server; write e.g. http://10.0.0.2:8000"
        elif "@" in parts.netloc or parts.query or parts.fragment:
            yield (
                f"rollout.servers.urls: that of {parts.hostname} has a user, a query or a fragment; remove it, and "
                "give a key by rollout.servers.api_key_file"
            )
    if len(set(urls)) < len(urls):
        yield f"rollout.servers.urls: {max(urls, key=urls.count)} is named twice; name each server once"
