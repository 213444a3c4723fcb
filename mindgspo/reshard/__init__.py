"""From one plan's slices to another's: planned from metadata, carried out in bounded buckets, proved by hashes. Public:
`resharder.Resharder`, `verify.verify_reshard`; `planner` and `plan` for whoever only counts bytes."""
