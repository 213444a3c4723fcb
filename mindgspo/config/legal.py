"""Nearest legal values, so that a refusal always says what to write instead.

Called by `config.plan` and `config.validate`; plain integers in, plain integers or one phrase out.
"""

from __future__ import annotations


def divisors(number: int) -> list[int]:
    """All divisors of `number` (>= 1), ascending; takes sqrt(number) steps."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest(legal: list[int], given: int) -> list[int]:
    """The neighbours of `given` among `legal` (ascending): the largest one below, the smallest one above."""
    below = [value for value in legal if value < given][-1:]
    above = [value for value in legal if value > given][:1]
    return below + above
