"""Resharding from one plan's slices to another's: planned from metadata, sent in bounded buckets, verified by hashes.

Public: `resharder.Resharder`, `verify.verify_reshard`; `planner` and `plan` for counting bytes only.
"""
