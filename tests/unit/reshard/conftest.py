"""Ranks of reshard tests."""

from thread_ranks import over_ranks  # noqa: F401 (a fixture)
