"""Before the first step the ranks must agree: on the layout of the world, the configuration, the data, the batches.

What enters: a topic and this rank's facts about it. What leaves: nothing, or a ConfigError on every rank that names the
first facts in which a rank differs from rank 0. Called while the parts of an experiment are built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives import exchange

_MAX_NAMED = 5


def require_agreement(topic: str, facts: Mapping[str, object], fix: str) -> None:
    """facts: JSON-able values by key, nested as they like. fix: what the user should do about a difference."""
    parcels = [json.loads(parcel) for parcel in exchange(json.dumps(facts, sort_keys=True).encode())]
    first = dict(_flat(parcels[0]))
    lines = []
    for rank, parcel in enumerate(parcels):
        other = dict(_flat(parcel))
        lines += [
            f"  rank {rank}: {key} is {other.get(key, 'missing')!r}, on rank 0 {first.get(key, 'missing')!r}"
            for key in sorted(first.keys() | other.keys())
            if first.get(key) != other.get(key)
        ]
    if lines:
        more = [f"  and {len(lines) - _MAX_NAMED} more"] if len(lines) > _MAX_NAMED else []
        raise ConfigError("\n".join([f"the ranks differ in their {topic}:", *lines[:_MAX_NAMED], *more, fix]))


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flat(below, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
