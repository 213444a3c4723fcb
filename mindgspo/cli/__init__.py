"""The command line `mindgspo`."""

from mindgspo.cli.program import app, main

__all__ = ["app", "main"]
