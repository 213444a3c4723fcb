"""The order in which prompts are drawn from several sources: exact shares, epochs and shuffles of each source's own.

Which source the next prompt comes from depends on the shares and on the number of prompts drawn so far, not on chance.
Tijdeman's rule (The chairman assignment problem, Discrete Mathematics 32, 1980) chooses, among the K sources that lag
behind their shares by at least 1 / (2K - 2), the one that would be the first to lag too far. After any number of draws
each source then is within 1 - 1 / (2K - 2) prompts of its share (no rule does better for all shares), and within twice
that in any run of draws: within one prompt for two sources, within less than two for more.

Rows are numbered through all sources, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from mindgspo.config.data import TrainSource
from mindgspo.data.stream import PromptStream
from mindgspo.errors import DataError


def most_drawn(source: TrainSource, num_sources: int, num_prompts: int) -> int:
    """The most prompts of a source that a draw of `num_prompts` can hold."""
    return int(num_prompts * source.share + 2 * (1 - _slack(num_sources)))


class MixtureStream:
    """An endless stream of prompt indices from several sources. A draw holds no prompt twice as long as `most_drawn` of
    each source is at most its number of rows.

    passes_over: see `PromptStream`.
    """

    def __init__(
        self,
        sources: Sequence[TrainSource],
        seed: int,
        shuffle: bool = True,
        *,
        passes_over: Callable[[int], bool] | None = None,
    ) -> None:
        assert sources and sum(source.share for source in sources) == 1, f"shares of {sources}"
        self._sources = tuple(sources)
        self._starts = [0, *accumulate(source.num_rows for source in sources)]
        self._streams = [
            PromptStream(source.num_rows, seed, shuffle, source=number, passes_over=_from_row(start, passes_over))
            for number, (source, start) in enumerate(zip(sources, self._starts, strict=False))
        ]
        scale = math.lcm(*(source.share.denominator for source in sources))
        self._weights = [int(source.share * scale) for source in sources]
        self._drawn = [0] * len(sources)

    def take(self, n: int) -> list[int]:
        """The next `n` indices; sources alternate as their shares ask for."""
        assert n >= 0, f"take({n})"
        chosen = [self._choose() for _ in range(n)]
        drawn = [
            iter([start + index for index in stream.take(chosen.count(number))])
            for number, (stream, start) in enumerate(zip(self._streams, self._starts, strict=False))
        ]
        return [next(drawn[number]) for number in chosen]

    @property
    def epochs(self) -> float:
        """See `PromptOrder`."""
        passed = sum(
            stream.epochs * source.num_rows for stream, source in zip(self._streams, self._sources, strict=True)
        )
        return passed / self._starts[-1]

    @property
    def epochs_by_source(self) -> Mapping[str, float]:
        """See `PromptOrder`."""
        return {source.name: stream.epochs for source, stream in zip(self._sources, self._streams, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """See `PromptOrder`."""
        return {
            "sources": self._described(),
            "drawn": list(self._drawn),
            "streams": [stream.to_json() for stream in self._streams],
        }

    def load_json(self, fields: Mapping[str, Any]) -> None:
        """See `PromptOrder`."""
        if fields["sources"] != self._described():
            raise DataError(
                "the saved position in the data belongs to another run: the sources of data.train were "
                f"{', '.join(fields['sources'])}, are now {', '.join(self._described())}. Resume with the former list, "
                "or start a new run"
            )
        drawn = list(fields["drawn"])
        lags = [sum(drawn) * source.share - one for source, one in zip(self._sources, drawn, strict=True)]
        if not all(isinstance(one, int) and one >= 0 for one in drawn) or max(map(abs, lags)) > 1:
            raise DataError(f"the saved position in the data is none: {drawn}; restore the checkpoint from a copy")
        for stream, one in zip(self._streams, fields["streams"], strict=True):
            stream.load_json(one)
        self._drawn = drawn

    def _described(self) -> list[str]:
        return [f"{source.name} ({source.share})" for source in self._sources]

    def _choose(self) -> int:
        """Number of the source that the next prompt comes from."""
        position, total, parts = sum(self._drawn) + 1, sum(self._weights), _slack(len(self._sources)).denominator
        _, number = min(
            (Fraction((drawn + 1) * parts - 1, weight), number)  # in proportion to the draw at which it lags too far
            for number, (weight, drawn) in enumerate(zip(self._weights, self._drawn, strict=True))
            if (position * weight - drawn * total) * parts >= total
        )
        self._drawn[number] += 1
        return number


def _from_row(start: int, passes_over: Callable[[int], bool] | None) -> Callable[[int], bool] | None:
    """The same question about rows that are numbered from `start`."""
    return None if passes_over is None else lambda index: passes_over(start + index)


def _slack(num_sources: int) -> Fraction:
    return Fraction(1, max(2 * num_sources - 2, 1))
