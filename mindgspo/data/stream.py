"""The order in which prompts are drawn: seeded, and resumable from a `StreamState`, which goes into checkpoints.

Epoch e walks a permutation that is a function of (seed, e) alone. A draw may cross the end of an epoch. The
one rule: a draw of at most `num_rows` never holds a prompt twice. A prompt of the new epoch that is already
in the draw is set aside and comes first in the next draw, so that every epoch still visits every prompt
exactly once. A draw of more than `num_rows` is made of draws of `num_rows` and the rest.

With a curriculum, which passes over rows, a draw may pass the ends of several epochs. A prompt that is set aside
then loses its turn where its epoch ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from mindgspo.errors import DataError

# Keeps these permutations apart from other random streams derived from the same seed.
STREAM_KEY = 0x5EED0DE2


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """The position of a stream.

    Example: epoch 1, position 5, deferred (3,): 5 entries of the second permutation are passed; row 3 is drawn next.
    """

    epoch: int
    """Number of the current epoch, from 0."""
    position: int
    """Entries of its permutation that are passed."""
    deferred: tuple[int, ...]
    """Rows that were passed and set aside; they are drawn next."""
    num_rows: int
    """Rows of the data set that the stream was made with."""
    seed: int
    """Seed that the stream was made with."""
    shuffle: bool
    """Whether the stream shuffles."""


class PromptOrder(Protocol):
    """The order of training prompts, of one source or a mixture."""

    def take(self, n: int) -> list[int]:
        """The next `n` indices."""
        ...

    @property
    def epochs(self) -> float:
        """Passes over the data so far, in fractions."""
        ...

    @property
    def epochs_by_source(self) -> Mapping[str, float]:
        """Passes over the rows of each source of a mixture, by its name; empty outside of one."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The position, for a checkpoint."""
        ...

    def load_json(self, fields: Mapping[str, Any]) -> None:
        """Continue from what `to_json` returned. Raises DataError if it belongs to other data, seed or order."""
        ...


class PromptStream:
    """An endless stream of prompt indices.

    source: number of the source within a mixture, which gets orders of its own; None outside of one. passes_over:
    consulted when the turn of a row has come; True passes over it.
    """

    def __init__(
        self,
        num_rows: int,
        seed: int,
        shuffle: bool = True,
        *,
        source: int | None = None,
        passes_over: Callable[[int], bool] | None = None,
    ) -> None:
        assert num_rows > 0, "a stream over an empty data set"
        assert seed >= 0, f"seed {seed}"
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._key = () if source is None else (source,)
        self._passes_over = passes_over
        self._set(epoch=0, position=0, deferred=[])

    def take(self, n: int) -> list[int]:
        """The next `n` indices; distinct if n <= num_rows."""
        assert n >= 0, f"take({n})"
        drawn: list[int] = []
        while n > self._num_rows:
            drawn += self._take_distinct(self._num_rows)
            n -= self._num_rows
        return drawn + self._take_distinct(n)

    @property
    def epochs(self) -> float:
        """Passes over the data so far, in fractions."""
        return self._epoch + (self._position - len(self._deferred)) / self._num_rows

    @property
    def epochs_by_source(self) -> Mapping[str, float]:
        """See `PromptOrder`."""
        return {}

    def state(self) -> StreamState:
        """The state from which `restore` goes on."""
        return StreamState(
            epoch=self._epoch,
            position=self._position,
            deferred=tuple(self._deferred),
            num_rows=self._num_rows,
            seed=self._seed,
            shuffle=self._shuffle,
        )

    def restore(self, state: StreamState) -> None:
        """Continue from `state`. Raises DataError if it belongs to other data, seed or order."""
        for name, saved, own in (
            ("number of prompts", state.num_rows, self._num_rows),
            ("seed", state.seed, self._seed),
            ("data.shuffle", state.shuffle, self._shuffle),
        ):
            if saved != own:
                raise DataError(
                    f"the saved position in the data belongs to another run: {name} was {saved}, is now "
                    f"{own}. Resume "
                    "with the former value, or start a new run"
                )
        indices = [*state.deferred, state.position - 1 if state.position else 0]
        is_place = all(isinstance(one, int) and 0 <= one < self._num_rows for one in indices)
        if not is_place or not isinstance(state.epoch, int) or not 0 <= state.epoch < 1 << 32:
            raise DataError(f"the saved position in the data is none: {state}; restore the checkpoint from a copy")
        self._set(epoch=state.epoch, position=state.position, deferred=list(state.deferred))

    def to_json(self) -> dict[str, Any]:
        """See `PromptOrder`."""
        return {**asdict(self.state()), "deferred": list(self._deferred)}

    def load_json(self, fields: Mapping[str, Any]) -> None:
        """See `PromptOrder`."""
        self.restore(StreamState(**{**fields, "deferred": tuple(fields["deferred"])}))

    def _set(self, *, epoch: int, position: int, deferred: list[int]) -> None:
        self._epoch = epoch
        self._position = position
        self._deferred = deferred
        self._order = self._order_of(epoch)

    def _take_distinct(self, n: int) -> list[int]:
        drawn: list[int] = []
        held: set[int] = set()
        # Rows that were set aside come first. They are all of the current epoch, so none occurs twice.
        waiting, self._deferred = self._deferred[::-1], []
        while len(drawn) < n:
            index = waiting.pop() if waiting else self._next()
            if index in held:
                self._deferred.append(index)
            elif self._passes_over is None or not self._passes_over(index):
                drawn.append(index)
                held.add(index)
        self._deferred = waiting[::-1] + self._deferred
        return drawn

    def _next(self) -> int:
        """The next entry of the permutations."""
        if self._position == self._num_rows:
            assert not self._deferred or self._passes_over is not None, "an epoch ended with prompts set aside"
            self._set(epoch=self._epoch + 1, position=0, deferred=[])
        self._position += 1
        return self._order[self._position - 1]

    def _order_of(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(self._num_rows))
        # Sorting raw words of the generator: numpy promises their sequence, but not that of its
        # `permutation`.
        sequence = np.random.SeedSequence([STREAM_KEY, self._seed, epoch], spawn_key=self._key)
        words = np.random.Philox(sequence).random_raw(self._num_rows)
        return np.argsort(words, kind="stable").tolist()
