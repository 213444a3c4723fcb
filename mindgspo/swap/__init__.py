"""Swap of parameters between phases of a step. Public: `swap.open_swap`, `states`."""
