"""The end of a message about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable

from mindgspo import text


def did_you_mean(given: object, known: Iterable[object]) -> str:
    """The known name that is close ("; did you mean 'k3'?"), otherwise all of them."""
    names = [str(name) for name in known]
    return text.did_you_mean(given, names, otherwise=f"; known: {', '.join(names)}")
